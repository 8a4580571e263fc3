package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/drill"
	"github.com/coordd/coordd/internal/drill/report"
)

func TestDrillList(t *testing.T) {
	text := inProcess(t, "drill", "list")
	var view drillsView
	got := inProcess(t, "drill", "list", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &view); err != nil || got.code != 0 || text.code != 0 {
		t.Fatalf("got %+v and %+v (%v)", text, got, err)
	}
	if len(view.Drills) != len(drill.Scenarios()) {
		t.Errorf("got %d drills, want %d", len(view.Drills), len(drill.Scenarios()))
	}
	for _, d := range view.Drills {
		if d.What == "" || d.Bound == "" || !strings.Contains(text.stdout, d.Name+"\n  "+d.What+"\n") {
			t.Errorf("%+v is not told in full", d)
		}
	}
}

func TestDrillNames(t *testing.T) {
	all := drillNamed()
	for _, tt := range []struct{ args, want []string }{
		{[]string{"planned"}, []string{"planned"}},
		{[]string{"planned", "leader-killed", "planned"}, []string{"planned", "leader-killed"}},
		{[]string{"planned", "all"}, all},
	} {
		if got, err := drillNames(tt.args); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q (%v), want %q", tt.args, got, err, tt.want)
		}
	}
}

func TestDrillRefuses(t *testing.T) {
	for _, tt := range []struct {
		args []string
		says string
	}{
		{nil, "an argument is missing"},
		{[]string{"nosuch"}, "want leader-killed, "},
		{[]string{"planned", "--rounds", "0"}, "want 1 to 1000"},
		{[]string{"planned", "--report", filepath.Join(t.TempDir(), "no", "such.html")}, "--report cannot be written"},
		{[]string{"planned", "--arbiter", "none"}, "want memory or dynamodb"},
		{[]string{"planned", "--seed", "-1"}, "--seed"},
	} {
		got := inProcess(t, append([]string{"drill", "run"}, tt.args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("%q: got %+v, want code %d and %q", tt.args, got, exitUsage, tt.says)
		}
	}
}

// A drill whose arbiter is not there does not begin.
func TestDrillWithoutArbiter(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	got := inProcess(t, "drill", "run", "planned", "--arbiter", "dynamodb", "--arbiter-region", "local", "--arbiter-endpoint", "http://127.0.0.1:1")
	if got.code != exitUnavailable || got.stdout != "" {
		t.Errorf("got %+v, want code %d", got, exitUnavailable)
	}
}

// plantedDrill is a round of 10 s: a fault, a time without grants, a refused write.
func plantedDrill(o drill.Outcome) drill.Result {
	return drill.Result{
		Scenario: "zombie-worker", Seed: 7, TookMS: 10_000, WithoutGrantsMS: 2500, LateMS: 400,
		Verdicts: []drill.Verdict{
			{Invariant: drill.Authority, Name: "one authority at a time", Outcome: drill.Kept, Detail: "looked"},
			{Invariant: drill.Exclusion, Name: "one holder at a time", Outcome: o, Detail: "a detail", Evidence: []string{"a\n\tb"}},
			{Invariant: drill.Tokens, Name: "tokens only grow", Outcome: drill.Kept},
			{Invariant: drill.Continuity, Name: "a lease that is renewed is kept", Outcome: drill.Kept},
		},
		Phases: []drill.Phase{{Name: "all is well", FromMS: 0, ToMS: 10_000, WithoutGrantsMS: 2500, Bound: &drill.Bound{LimitMS: 1000, Why: "a reason"}}},
		Events: []drill.Event{{AtMS: 4000, Kind: drill.FaultEvent, Text: "something happens"}},
		Timeline: drill.Timeline{
			Authority: []drill.Span{{FromMS: 0, ToMS: 5000, Kind: drill.SpanRaft}, {FromMS: 5000, ToMS: 10_000, Kind: drill.SpanGrace}},
			Nodes:     []drill.Lane{{Name: "n1", Site: "east", Spans: []drill.Span{{FromMS: 0, ToMS: 10_000, Kind: drill.SpanWindow}}}},
			Holders:   []drill.Lane{{Name: "w1", Spans: []drill.Span{{FromMS: 0, ToMS: 5000, Kind: drill.SpanHeld, Text: "job, token 5"}}, Marks: []drill.Mark{{AtMS: 9999}}}},
			Faults:    []drill.Span{{FromMS: 2500, ToMS: 2501, Kind: drill.SpanFault, Text: "a fault"}},
			Gaps:      []drill.Span{{FromMS: 5000, ToMS: 7500, Kind: drill.SpanGap}},
		},
	}
}

func TestDrillText(t *testing.T) {
	half := strings.Repeat
	var b strings.Builder
	drillView{Drills: []drill.Summary{drill.Summarise([]drill.Result{plantedDrill(drill.Broken)})}}.writeText(&b)
	for _, want := range []string{
		"zombie-worker, seed 7\n", "   4.0 s  something happens\n",
		"      faults  " + half(" ", 18) + "#\n",
		"   authority  " + half("R", 36) + half("g", 36) + "\n",
		"fresh grants  " + half("+", 36) + half("!", 18) + half("+", 18) + "\n",
		"     n1 east  " + half("L", 72) + "\n",
		"          w1  " + half("j", 36) + half(" ", 35) + "*\n",
		"all is well  2.50 s                1.00 s  exceeded: a reason\n",
		"I1  kept          one authority at a time: looked\n",
		"I2  broken        one holder at a time: a detail\n      a\n      \tb\n",
		"for up to 400 ms",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
}

// Of several rounds the worst is shown: one that is bad, else the longest.
func TestDrillRounds(t *testing.T) {
	short, long, bad := plantedDrill(drill.Kept), plantedDrill(drill.Kept), plantedDrill(drill.NotKnown)
	short.WithoutGrantsMS, short.Seed, long.Seed, bad.Seed, bad.WithoutGrantsMS = 10, 1, 2, 3, 5
	if got := worst([]drill.Result{short, long}).Seed; got != 2 {
		t.Errorf("got seed %d, want the longest", got)
	}
	if got := worst([]drill.Result{short, bad, long}).Seed; got != 3 {
		t.Errorf("got seed %d, want the one that is bad", got)
	}
	var b strings.Builder
	drillView{Drills: []drill.Summary{drill.Summarise([]drill.Result{short, long})}}.writeText(&b)
	for _, want := range []string{"zombie-worker, seed 2, the worst of 2 rounds\n", "AT MOST  MEDIAN"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
}

// What was found decides about the exit code; the report is written in any case.
func TestDrillConclusion(t *testing.T) {
	for _, tt := range []struct {
		outcome drill.Outcome
		failure string
		code    int
	}{
		{drill.Kept, "", 0}, {drill.NotPromised, "", 0}, {drill.Broken, "", exitViolated}, {drill.NotKnown, "", exitViolated}, {drill.Kept, "stuck", exitViolated},
	} {
		r := plantedDrill(tt.outcome)
		r.Failure = tt.failure
		view := drillView{Drills: []drill.Summary{drill.Summarise([]drill.Result{r})}}
		o := drillOptions{report: filepath.Join(t.TempDir(), "report.html"), out: output{format: newChoice("text", "json")}}
		page, err := o.openReport()
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if got := exitCode(o.conclude(&out, page, report.Head{}, view, nil)); got != tt.code {
			t.Errorf("%s, %q: got code %d, want %d", tt.outcome, tt.failure, got, tt.code)
		}
		if written, err := os.ReadFile(o.report); err != nil || !strings.Contains(string(written), "zombie-worker") || out.Len() == 0 {
			t.Errorf("got a report of %d bytes (%v), and %d printed", len(written), err, out.Len())
		}
	}
}

// SIGINT ends a drill, and the process by that signal.
func TestDrillInterrupted(t *testing.T) {
	m := begin(t, itself(t, "drill", "run", "arbiter-out", "-v"))
	m.says("serving", 20*time.Second)
	m.signal(syscall.SIGINT)
	m.wait(20 * time.Second)
	if status := m.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("got %v, want the end by SIGINT", status)
	}
}

// Every drill, once, as a user runs it. A time over its bound is told, and fails nothing:
// this machine may be busy.
func TestDrills(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	runAllDrills(t)
}

// The same with the real store.
func TestDrillsOnDynamoDB(t *testing.T) {
	if stores != "1" {
		t.Skip("make test-stores runs it")
	}
	withTable(t)
	if got := command(t, "arbiter", "create-table", "--emulator"); got.code != 0 {
		t.Fatalf("got %+v, want a table", got)
	}
	runAllDrills(t, "--arbiter", "dynamodb")
}

func runAllDrills(t *testing.T, more ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	page := filepath.Join(t.TempDir(), "drills.html")
	cmd := itself(t, append([]string{"drill", "run", "all", "--seed", "1", "--report", page, "-o", "json"}, more...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err := cmd.Wait()
	var view drillView
	if json.Unmarshal([]byte(stdout.String()), &view) != nil {
		t.Fatalf("got %v, %q and %q", err, stdout.String(), stderr.String())
	}
	if err != nil || stderr.Len() > 0 || !view.OK {
		t.Errorf("got %v, ok %v and %q, want that every promise was kept", err, view.OK, stderr.String())
	}
	if len(view.Drills) != len(drill.Scenarios()) {
		t.Errorf("got %d drills, want all", len(view.Drills))
	}
	for _, s := range view.Drills {
		checkDrill(t, s)
	}
	written, err := os.ReadFile(page)
	if err != nil || strings.Count(string(written), "<svg") != len(view.Drills) {
		t.Errorf("got %d bytes (%v), want a picture of each drill", len(written), err)
	}
}

// checkDrill looks whether a drill has shown what it is there for.
func checkDrill(t *testing.T, s drill.Summary) {
	t.Helper()
	r := s.Rounds[0]
	if s.Bad() {
		t.Errorf("%s: %q, %+v\n%+v", s.Name, r.Failure, r.Verdicts, r.Events)
	}
	for _, p := range s.Phases {
		t.Logf("%s, %s: %d ms without fresh grants, bound %+v, within it %v (late by %d ms)", s.Name, p.Name, p.WithoutGrants.MaxMS, p.Bound, p.Within, r.LateMS)
	}
	if least := int64(drill.CeilingFloor / time.Millisecond); strings.Contains(s.Bound, "ceiling") && s.WithoutGrants.MaxMS < least {
		t.Errorf("%s: %d ms without fresh grants: a takeover has a grace of %d ms at least", s.Name, s.WithoutGrants.MaxMS, least)
	}
	if s.Name == "zombie-worker" && r.Counts.Refused == 0 {
		t.Errorf("%s: the register has refused nothing", s.Name)
	}
	if r.Counts.Grants < 50 {
		t.Errorf("%s: got %+v: so little shows nothing", s.Name, r.Counts)
	}
}
