package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/tokens"
)

// Candidates whose command writes its token into one journal, over and over.
// Whoever goes down, a member of the cluster, a command or a candidate, the
// next writes on, and nobody after the next has begun to.
func TestElect(t *testing.T) {
	s := newServing(t)
	s.dir = memoryDir(t)
	for i := range s.members {
		s.start(i)
	}
	s.ready(30 * time.Second)
	e := newElection(t, s.all(), 3)
	first := e.led("the first is elected", 0)

	leader := slices.Index(s.addrs, s.ready(30*time.Second).LeaderAddress)
	if leader < 0 {
		t.Fatal("the cluster's leader is none of its members")
	}
	s.members[leader].signal(unix.SIGKILL)
	s.members[leader].wait(20 * time.Second)
	eventually(t, 30*time.Second, "another member leads", func() bool {
		view, ok := cluster(t, s.all())
		return ok && view.LeaderAddress != s.addrs[leader]
	})
	s.start(leader)
	second := e.led("one works after the leading member was killed", 0)
	t.Logf("token %v before the leading member was killed, %v after that", first.token, second.token)

	command := child(t, child(t, e.candidates[second.by].Process.Pid))
	unix.Kill(command, unix.SIGKILL)
	third := e.led("the next works after the command was killed", second.token)
	if third.by == second.by {
		t.Error("whose command has ended by itself works again, want one that has waited")
	}

	stopped := e.candidates[third.by]
	stopped.signal(unix.SIGSTOP)
	fourth := e.led("the next works after the candidate was stopped", third.token)
	stopped.signal(unix.SIGCONT)
	eventually(t, 20*time.Second, "who was stopped campaigns again", func() bool {
		return strings.Contains(stopped.stderr.String(), "has been ended: lease expired") && strings.Contains(stopped.stderr.String(), "; campaigning again in 1s\n")
	})

	for _, m := range s.members {
		m.signal(unix.SIGKILL)
		m.wait(20 * time.Second)
	}
	eventually(t, 60*time.Second, "the lease is lost with the cluster, which is looked for beyond --timeout", func() bool {
		_, since, lost := strings.Cut(e.candidates[fourth.by].stderr.String(), "the lease was lost, or not renewed in time")
		return lost && strings.Contains(since, "; trying on\n")
	})
	for i := range s.members {
		s.start(i)
	}
	fifth := e.led("one works when the cluster is back", fourth.token)

	e.candidates[fifth.by].signal(unix.SIGKILL)
	e.led("the next works after the candidate was killed", fifth.token)
	e.end(fifth.by)
}

// election is some candidates for one lease.
type election struct {
	t          *testing.T
	candidates []*wrapper
	journal    string
}

// mandate is a candidate's line in the journal.
type mandate struct {
	token tokens.Token
	by    int
}

func newElection(t *testing.T, addr string, candidates int) *election {
	t.Helper()
	e := &election{t: t, journal: filepath.Join(t.TempDir(), "journal")}
	for i := range candidates {
		e.candidates = append(e.candidates, hold(t, addr, "--elect", "--ttl", "5s", "--timeout", "5s", "leader", "--",
			"sh", "-c", `while :; do echo "$COORDD_FENCING_TOKEN/$1" >> "$0"; sleep 0.02; done`, e.journal, strconv.Itoa(i)))
	}
	return e
}

func (e *election) mandates() (all []mandate) {
	e.t.Helper()
	for _, line := range entries(e.t, e.journal) {
		token, by, _ := strings.Cut(line, "/")
		m := mandate{}
		var err error
		if m.token, err = tokens.Parse(token); err != nil {
			e.t.Fatalf("line %q in the journal: %v", line, err)
		}
		if m.by, err = strconv.Atoi(by); err != nil {
			e.t.Fatalf("line %q in the journal: %v", line, err)
		}
		all = append(all, m)
	}
	return all
}

// led waits until somebody writes, from now on, under a token greater than
// after, and returns who does.
func (e *election) led(what string, after tokens.Token) (m mandate) {
	e.t.Helper()
	before := len(e.mandates())
	eventually(e.t, 60*time.Second, what, func() bool {
		all := e.mandates()
		if len(all) <= before {
			return false
		}
		m = all[len(all)-1]
		return m.token > after
	})
	return m
}

// end ends all candidates but one, and checks what they have written.
func (e *election) end(but int) {
	e.t.Helper()
	for i, c := range e.candidates {
		if i == but {
			continue
		}
		c.signal(unix.SIGTERM)
		if got := c.code(); got != 128+15 {
			e.t.Errorf("candidate %d ended with %d, want %d", i, got, 128+15)
		}
	}
	all := e.mandates()
	terms := 0
	for i, m := range all {
		switch {
		case i == 0 || m.token > all[i-1].token:
			terms++
		case m.token < all[i-1].token:
			e.t.Fatalf("candidate %d wrote under token %v after candidate %d under %v", m.by, m.token, all[i-1].by, all[i-1].token)
		case m.by != all[i-1].by:
			e.t.Fatalf("candidates %d and %d wrote under token %v", m.by, all[i-1].by, m.token)
		}
	}
	e.t.Logf("%d lines in %d terms", len(all), terms)
	if terms < 5 {
		e.t.Errorf("got %d terms, want 5 at least", terms)
	}
}

func TestRunElect(t *testing.T) {
	addr := devCluster(t)
	for name, f := range map[string]func(*testing.T, string){
		"again":    testElectAgain,
		"quiet":    testElectQuiet,
		"signals":  testElectSignals,
		"waiting":  testElectWaiting,
		"hangup":   testElectHangup,
		"at most":  testElectAtMost,
		"at least": testElectAtLeast,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, addr)
		})
	}
	if got := command(t, "run", "--addr", nowhere, "--timeout", "500ms", "--elect", "job", "true"); got.code != exitUnavailable {
		t.Errorf("without a cluster: got %+v, want code %d", got, exitUnavailable)
	}
}

// A command that has failed runs again, under a new token, later each time; in
// between the lease is anybody's, and a signal ends the campaign.
func testElectAgain(t *testing.T, addr string) {
	h := hold(t, addr, "--elect", "again", "--", "sh", "-c", `read up rest < /proc/uptime; echo "$COORDD_FENCING_TOKEN $up"; exit 3`)
	var (
		token  tokens.Token
		uptime float64
	)
	for _, pause := range []float64{0, 1, 2} {
		before, began := token, uptime
		if n, err := fmt.Sscanf(h.line(), "%d %f", &token, &uptime); n != 2 {
			t.Fatal(err)
		}
		if token <= before {
			t.Errorf("got token %v after %v, want a greater one", token, before)
		}
		if uptime-began < pause-0.02 { // its steps are 0.01
			t.Errorf("it runs again after %v s, want %v s at least", uptime-began, pause)
		}
	}
	eventually(t, 20*time.Second, "it says when it campaigns again", func() bool { return strings.Contains(h.stderr.String(), "campaigning again in 4s\n") })
	if got := command(t, "run", "--addr", addr, "again", "true"); got != (result{}) {
		t.Errorf("between two terms: got %+v, want that another can have the lease", got)
	}
	h.signal(unix.SIGTERM)
	if got := h.code(); got != 128+15 {
		t.Errorf("got code %d, want %d", got, 128+15)
	}
	for _, want := range []string{
		"run again: elected, under token " + token.String() + "\n",
		"run again: the command ended with code 3; campaigning again in 1s\n",
		"run again: the command ended with code 3; campaigning again in 2s\n",
		`ended by SIGTERM before lease "again" was acquired` + "\n",
	} {
		if got := h.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("got %q, want it to say %q", got, want)
		}
	}
}

func testElectQuiet(t *testing.T, addr string) {
	h := hold(t, addr, "--elect", "-q", "quiet", "--", "sh", "-c", `echo $COORDD_FENCING_TOKEN`)
	h.line()
	h.line()
	h.signal(unix.SIGINT)
	if got := h.code(); got != 128+2 && got != 0 { // between two terms, or in a third
		t.Errorf("got code %d, want %d", got, 128+2)
	}
	if got := h.stderr.String(); got != "" {
		t.Errorf("got %q, want no word", got)
	}
}

// A signal that is forwarded ends the command, and with it the campaign, even
// if the command ends well.
func testElectSignals(t *testing.T, addr string) {
	const (
		dies     = `echo ready; exec sleep 300`
		endsWell = `trap "exit 0" INT TERM QUIT; echo ready; while :; do sleep 0.05; done`
	)
	for _, c := range []struct {
		sig    syscall.Signal
		script string
		want   int
	}{
		{unix.SIGINT, dies, 128 + 2},
		{unix.SIGTERM, dies, 128 + 15},
		{unix.SIGHUP, dies, 128 + 1},
		{unix.SIGQUIT, dies, 128 + 3},
		{unix.SIGUSR1, dies, 128 + 10},
		{unix.SIGINT, endsWell, 0},
		{unix.SIGTERM, endsWell, 0},
		{unix.SIGQUIT, endsWell, 0},
	} {
		h := hold(t, addr, "--elect", "signals", "--", "sh", "-c", c.script)
		h.line()
		h.signal(c.sig)
		if got := h.code(); got != c.want {
			t.Errorf("%v to %s: got code %d, want %d", c.sig, c.script, got, c.want)
		}
		if got := leaseStatus(t, addr, "signals"); got.Held {
			t.Errorf("%v to %s: the lease is still held", c.sig, c.script)
		}
	}
}

// So does one to a candidate that waits, and leaves no waiter.
func testElectWaiting(t *testing.T, addr string) {
	_, held := untilRemoved(t)
	hold(t, addr, append([]string{"elect-waiting"}, held...)...).line()
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		h := hold(t, addr, "--elect", "elect-waiting", "false")
		eventually(t, 20*time.Second, "it waits", func() bool { return strings.Contains(h.stderr.String(), "waiting for lease") })
		h.signal(sig)
		if got := h.code(); got != 128+int(sig) {
			t.Errorf("%v: got code %d, want %d", sig, got, 128+int(sig))
		}
		if got := leaseStatus(t, addr, "elect-waiting"); got.Waiters != 0 {
			t.Errorf("%v: %d waiters are left", sig, got.Waiters)
		}
	}
}

// A command that HUP tells something goes on, and so does the campaign when it
// later ends by itself.
func testElectHangup(t *testing.T, addr string) {
	file := filepath.Join(t.TempDir(), "running")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := hold(t, addr, "--elect", "hangup", "--", "sh", "-c",
		`trap "echo reloaded" HUP; echo $COORDD_FENCING_TOKEN; while [ -e "$0" ]; do sleep 0.05; done`, file)
	first := h.line()
	h.signal(unix.SIGHUP)
	if got := h.line(); got != "reloaded" {
		t.Errorf("the command says %q, want that it has got the signal", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := h.line(); got == first || got == "" {
		t.Errorf("got token %q after %q, want another term", got, first)
	}
	h.signal(unix.SIGTERM)
	h.code()
}

func testElectAtMost(t *testing.T, addr string) {
	h := hold(t, addr, "--elect", "--at-most", "1s", "-q", "elect-at-most", "--", "sh", "-c", `echo $COORDD_FENCING_TOKEN; exec sleep 300`)
	if first, second := h.line(), h.line(); second == "" || second == first {
		t.Errorf("got tokens %q and %q, want two terms", first, second)
	}
	h.signal(unix.SIGTERM)
	if got := h.code(); got != 128+15 && got != exitLost {
		t.Errorf("got code %d, want %d", got, 128+15)
	}
	if got, want := h.stderr.String(), "the command ran longer than --at-most 1s, and has been ended; campaigning again in 1s\n"; !strings.Contains(got, want) {
		t.Errorf("got %q, want it to say %q, in spite of -q", got, want)
	}
}

// A signal while the lease is only kept ends the campaign too.
func testElectAtLeast(t *testing.T, addr string) {
	h := hold(t, addr, "--elect", "--at-least", "5m", "elect-at-least", "sh", "-c", "exit 3")
	eventually(t, 20*time.Second, "the lease is kept", func() bool { return strings.Contains(h.stderr.String(), keeps) })
	h.signal(unix.SIGTERM)
	if got := h.code(); got != 3 {
		t.Errorf("got code %d, want the command's, 3", got)
	}
	if got := leaseStatus(t, addr, "elect-at-least"); !got.Held {
		t.Error("the lease is free, want that it lapses")
	}
}
