package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/drill"
)

const evil = `<script>alert("x")</script>`

// round is one of 10 s in which a bit of everything has happened.
func round() drill.Result {
	return drill.Result{
		Scenario: "planned", Seed: 7, TookMS: 10_000, Failure: "not within 30s: " + evil, WithoutGrantsMS: 2500, LateMS: 400,
		Verdicts: []drill.Verdict{
			{Invariant: drill.Authority, Name: "one authority at a time", Outcome: drill.Kept, Detail: "looked"},
			{Invariant: drill.Exclusion, Name: "one holder at a time", Outcome: drill.Broken, Detail: "broken once", Evidence: []string{evil}},
			{Invariant: drill.Tokens, Name: "tokens only grow", Outcome: drill.NotKnown},
			{Invariant: drill.Continuity, Name: "a lease that is renewed is kept", Outcome: drill.NotPromised, Detail: evil},
		},
		Phases: []drill.Phase{
			{Name: "all is well", FromMS: 1000, ToMS: 4000, WithoutGrantsMS: 40, Bound: &drill.Bound{LimitMS: 1000, Why: evil}},
			{Name: evil, FromMS: 4000, ToMS: 10_000, WithoutGrantsMS: 2500, Bound: &drill.Bound{LimitMS: 1000, Why: "a bound"}},
		},
		Events: []drill.Event{{AtMS: 4000, Kind: drill.FaultEvent, Text: evil}},
		Timeline: drill.Timeline{
			Authority: []drill.Span{{FromMS: 0, ToMS: 4500, Kind: drill.SpanRaft, Text: "epoch 1"}, {FromMS: 4500, ToMS: 10_000, Kind: drill.SpanGrace, Text: "epoch 2"}},
			Nodes:     []drill.Lane{{Name: "n1", Site: "east", Spans: []drill.Span{{FromMS: 0, ToMS: 4000, Kind: drill.SpanWindow, Text: "term 2"}, {FromMS: 4000, ToMS: 10_000, Kind: drill.SpanDown}}}},
			Holders: []drill.Lane{{
				Name: evil, Spans: []drill.Span{{FromMS: 1000, ToMS: 9000, Kind: drill.SpanHeld, Text: `job" onload="x, token 5`}},
				Marks: []drill.Mark{{AtMS: 9500, Name: evil, Token: 5, Over: 6}},
			}},
			Faults: []drill.Span{{FromMS: 4000, ToMS: 8000, Kind: drill.SpanFault, Text: evil}},
			Gaps:   []drill.Span{{FromMS: 4000, ToMS: 6500, Kind: drill.SpanGap, Text: "no fresh grants for 2.5 s"}},
		},
	}
}

func write(t *testing.T, drills ...drill.Summary) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, Head{Release: "1.2.3", Made: time.Unix(0, 0).UTC(), Where: "with an arbiter in memory"}, drills); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReportHasEverything(t *testing.T) {
	page := write(t, drill.Summarise([]drill.Result{round(), round()}))
	for _, want := range []string{
		"coordd 1.2.3", "1 January 1970", "In 1 of 1 drills a promise was broken",
		`role="img"`, "Timeline of planned", ">n1 east<", ">authority<", ">fresh grants<", ">faults<",
		`class="raft"`, `class="grace"`, `class="gap"`, `class="shade"`, `class="window"`, `class="down"`, `class="held c0"`, `class="cross"`,
		"under token 5, since 6 had written", "2.5 s, over it", "not promised", "not known", "Round 2, seed 7", "prefers-color-scheme: dark",
		"for up to 400 ms",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the report does not have %q", want)
		}
	}
}

// Names and texts stay what they are, whatever is in them.
func TestReportEscapes(t *testing.T) {
	page := write(t, drill.Summarise([]drill.Result{round()}))
	if strings.Contains(page, "<script") || strings.Contains(page, `onload="x`) {
		t.Error("a text has become a part of the page")
	}
	if got := strings.Count(page, "&lt;script&gt;"); got < 8 {
		t.Errorf("got the text %d times, want it wherever it is told", got)
	}
}

// The page needs nothing from elsewhere, and runs nothing.
func TestReportIsSelfContained(t *testing.T) {
	page := write(t, drill.Summarise([]drill.Result{round()}))
	if found := regexp.MustCompile(`(?i)https?:|src=|url\(|@import|<link|<script|<iframe|javascript:`).FindAllString(page, -1); len(found) > 0 {
		t.Errorf("the page refers to others, or runs something: %q", found)
	}
}

// Each picture is well-formed, has a title and a description, and ids that no other has.
func TestPictures(t *testing.T) {
	page := write(t, drill.Summarise([]drill.Result{round(), round()}), drill.Summarise([]drill.Result{round()}))
	pictures := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1)
	if len(pictures) != 3 {
		t.Fatalf("got %d pictures, want one for each round", len(pictures))
	}
	for _, p := range pictures {
		for d := xml.NewDecoder(strings.NewReader(p)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, p)
			}
		}
	}
	ids := map[string]int{}
	for _, m := range regexp.MustCompile(`id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]]++; ids[m[1]] > 1 {
			t.Errorf("two have the id %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`aria-labelledby="(\S+) (\S+)"`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]] != 1 || ids[m[2]] != 1 {
			t.Errorf("%s and %s name nothing", m[1], m[2])
		}
	}
}

// Every bar is within the plot, as wide as what it stands for has lasted.
func TestBars(t *testing.T) {
	c := newChart(0, 0, "planned", round())
	bars := c.Shades
	for _, l := range c.Lanes {
		bars = append(bars, l.Bars...)
	}
	for _, b := range bars {
		if b.X < c.Plot.X || b.X+b.W > c.Plot.Right()+0.01 || b.Y < c.Plot.Y || b.Y+b.H > c.Plot.Bottom()+0.01 {
			t.Errorf("%+v is not within %+v", b, c.Plot)
		}
	}
	fault := c.Lanes[0].Bars[0]
	if want := c.Plot.W * 0.4; fault.W < want-0.1 || fault.W > want+0.1 {
		t.Errorf("got %.1f for 4 s of 10, want %.1f", fault.W, want)
	}
	if float64(c.Height) < c.Plot.Bottom() {
		t.Errorf("the picture is %d high, its plot ends at %.0f", c.Height, c.Plot.Bottom())
	}
}

func TestFit(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width float64
		want  string
	}{
		{"leads, term 2", 500, "leads, term 2"}, {"leads, term 2", 60, "leads, …"}, {"leads", 20, ""}, {"ρρρρρρρρρρ", 50, "ρρρρρ…"},
	} {
		if got := fit(tt.text, tt.width); got != tt.want {
			t.Errorf("%q in %.0f: got %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
}
