package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Shrink drops steps from the schedule of a run that violates something, as long as it
// still violates the same, and at most for so many runs. It returns what is left.
func Shrink(cfg Config, runs int) Result {
	cfg.Tracing = false
	best := Run(cfg)
	if best.Violation == nil {
		return best
	}
	try := func(steps []Step) bool {
		runs--
		cfg.Steps = steps
		r := Run(cfg)
		if r.Violation == nil || r.Violation.Invariant != best.Violation.Invariant {
			return false
		}
		best = r
		return true
	}
	if v := best.Violation; v.Invariant != "live" {
		try(slices.DeleteFunc(slices.Clone(best.Steps), func(s Step) bool { return s.At > v.At }))
	}
	for size := len(best.Steps) / 2; size > 0 && runs > 0; {
		dropped := false
		for from := 0; from < len(best.Steps) && runs > 0; {
			to := min(from+size, len(best.Steps))
			// Not nil: that would be the seed's own schedule.
			if try(append(append([]Step{}, best.Steps[:from]...), best.Steps[to:]...)) {
				dropped = true
			} else {
				from = to
			}
		}
		if size > 1 || !dropped {
			size /= 2
		}
	}
	return best
}

// Report is what a person reads of a violation: the schedule, and what happened last.
func Report(cfg Config, r Result) string {
	cfg.Steps, cfg.Tracing = r.Steps, true
	traced := Run(cfg)
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d of profile %s: %v\nSchedule:\n", cfg.Seed, cfg.Profile.Name, r.Violation)
	for _, s := range r.Steps {
		fmt.Fprintln(&b, s)
	}
	const most = 100
	lines := traced.Trace[max(len(traced.Trace)-most, 0):]
	fmt.Fprintf(&b, "The end of what happened, %d lines of %d:\n", len(lines), len(traced.Trace))
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	return b.String()
}
