package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/coordd/coordd/internal/drill"
)

// drillsView is what drill list prints.
type drillsView struct {
	Drills []drill.Scenario `json:"drills"`
}

func (v drillsView) writeText(w io.Writer) {
	for i, d := range v.Drills {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, d.Name)
		fmt.Fprintf(w, "  %s\n  %s\n  Without fresh grants: %s.\n", d.What, d.Shows, d.Bound)
	}
}

// drillView is what drill run prints.
type drillView struct {
	OK     bool            `json:"ok"`
	Drills []drill.Summary `json:"drills"`

	told bool // what happened has been told while it did
}

func (v drillView) bad() bool {
	return slices.ContainsFunc(v.Drills, func(s drill.Summary) bool { return s.Bad() })
}

func (v drillView) writeText(w io.Writer) {
	for i, s := range v.Drills {
		if i > 0 || v.told {
			fmt.Fprintln(w)
		}
		v.writeDrill(w, s, i == 0)
	}
	if len(v.Drills) > 1 {
		fmt.Fprintln(w)
		v.writeOverview(w)
	}
}

// writeDrill writes about one drill, with the timeline of its worst round, and, with key,
// what its letters mean.
func (v drillView) writeDrill(w io.Writer, s drill.Summary, key bool) {
	shown := worst(s.Rounds)
	fmt.Fprintf(w, "%s, seed %d", s.Name, shown.Seed)
	if len(s.Rounds) > 1 {
		fmt.Fprintf(w, ", the worst of %d rounds", len(s.Rounds))
	}
	fmt.Fprintf(w, "\n%s\n\n", s.What)
	if !v.told {
		for _, e := range shown.Events {
			fmt.Fprintf(w, "%6.1f s  %s\n", float64(e.AtMS)/1000, e.Text)
		}
		fmt.Fprintln(w)
	}
	writeTimeline(w, shown)
	if key {
		fmt.Fprintln(w, timelineKey)
	}
	fmt.Fprintln(w)
	writePhases(w, s)
	fmt.Fprintln(w)
	writeVerdicts(w, s.Verdicts)
	for _, r := range s.Rounds {
		if r.Failure != "" {
			fmt.Fprintf(w, "\nseed %d did not get to its end: %s\n", r.Seed, r.Failure)
		}
	}
	if shown.Late() {
		fmt.Fprintf(w, "\nThis machine kept the drill from running for up to %d ms: that alone may cost a leader its term.\n", shown.LateMS)
	}
}

// worst is the round to show: one that is bad, else that with the longest time without
// fresh grants.
func worst(rounds []drill.Result) drill.Result {
	return slices.MaxFunc(rounds, func(a, b drill.Result) int {
		switch {
		case a.Bad() == b.Bad():
			return int(a.WithoutGrantsMS - b.WithoutGrantsMS)
		case a.Bad():
			return 1
		default:
			return -1
		}
	})
}

// inSeconds is how times are told.
func inSeconds(ms int64) string { return fmt.Sprintf("%.2f s", float64(ms)/1000) }

func writePhases(w io.Writer, s drill.Summary) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	many := len(s.Rounds) > 1
	head := "PART\tWITHOUT FRESH GRANTS\t"
	if many {
		head = "PART\tWITHOUT FRESH GRANTS, AT MOST\tMEDIAN\t"
	}
	fmt.Fprintln(t, head+"BOUND\tWHY")
	for _, p := range s.Phases {
		cells := []string{p.Name, inSeconds(p.WithoutGrants.MaxMS)}
		if many {
			cells = append(cells, inSeconds(p.WithoutGrants.MedianMS))
		}
		fmt.Fprintln(t, strings.Join(append(cells, boundCells(p)...), "\t"))
	}
}

// boundCells are the bound of a phase, and how it is reckoned.
func boundCells(p drill.PhaseSummary) []string {
	switch {
	case p.Bound == nil:
		return []string{"none", ""}
	case !p.Within:
		return []string{inSeconds(p.Bound.LimitMS), "exceeded: " + p.Bound.Why}
	default:
		return []string{inSeconds(p.Bound.LimitMS), p.Bound.Why}
	}
}

func writeVerdicts(w io.Writer, verdicts []drill.Verdict) {
	for _, v := range verdicts {
		fmt.Fprintf(w, "%s  %-12s  %s: %s\n", v.Invariant, v.Outcome, v.Name, v.Detail)
		if v.Outcome != drill.Broken {
			continue
		}
		for _, e := range v.Evidence {
			fmt.Fprintf(w, "      %s\n", strings.ReplaceAll(e, "\n", "\n      "))
		}
	}
}

// writeOverview writes one line for each drill.
func (v drillView) writeOverview(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "DRILL\tI1\tI2\tI3\tI4\tWITHOUT FRESH GRANTS\tBOUND")
	for _, s := range v.Drills {
		cells := []string{s.Name}
		for _, verdict := range s.Verdicts {
			cells = append(cells, string(verdict.Outcome))
		}
		bound := s.Bound
		if !s.Within() {
			bound += " (exceeded)"
		}
		fmt.Fprintln(t, strings.Join(append(cells, inSeconds(s.WithoutGrants.MaxMS), bound), "\t"))
	}
}
