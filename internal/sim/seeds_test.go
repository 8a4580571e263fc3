package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/rules"
)

// seeds is which seeds are to run: those of COORDD_SIM_SEEDS, such as 1-20000, or some.
func seeds(t *testing.T) (from, to uint64) {
	t.Helper()
	from, to = 1, 300
	if text := os.Getenv("COORDD_SIM_SEEDS"); text != "" {
		if n, err := fmt.Sscanf(text, "%d-%d", &from, &to); n != 2 || from > to {
			t.Fatalf("COORDD_SIM_SEEDS is %q (%v), want two numbers as in 1-20000", text, err)
		}
	}
	return from, to
}

// profileOf is what a seed is drawn by.
func profileOf(seed uint64) *Profile {
	turns := [...]string{"mixed", "leaders", "mixed", "lonely", "births", "wild", "fallen", "handed", "imported", "slow", "wild", "forced"}
	return profiles[turns[seed%uint64(len(turns))]]
}

// No schedule violates an invariant, each ends in service, and together they have some
// of everything. The schedule of a single seed, as in 17-17, is logged.
func TestSeeds(t *testing.T) {
	from, to := seeds(t)
	var total Counts
	began := time.Now()
	for seed := from; seed <= to; seed++ {
		cfg := Config{Seed: seed, Profile: profileOf(seed), Tracing: from == to}
		r := Run(cfg)
		total.add(r.Counts)
		if cfg.Tracing {
			t.Log(strings.Join(r.Trace, "\n"))
		}
		if r.Violation != nil {
			t.Fatal(Report(cfg, Shrink(cfg, 400)))
		}
	}
	n := to - from + 1
	t.Logf("%d seeds, %v each: %+v", n, time.Since(began)/time.Duration(n), total)
	if n < 300 {
		return
	}
	for what, c := range map[string]struct{ got, of1000 int }{
		"elections":                             {total.Elections, 3000},
		"leadership handed on":                  {total.Ceded, 50},
		"grants by Raft":                        {total.Grants, 3000},
		"takeovers":                             {total.Takeovers, 1500},
		"forced takeovers":                      {total.Forced, 20},
		"graces":                                {total.Graces, 1000},
		"graces that ended":                     {total.GracesEnded, 1000},
		"hand-overs":                            {total.HandOvers, 200},
		"failbacks":                             {total.Failbacks, 1500},
		"imports":                               {total.Imports, 1500},
		"re-formations":                         {total.Reformations, 300},
		"reclaims taken":                        {total.Reclaimed, 500},
		"reclaims refused":                      {total.ReclaimsRefused, 5},
		"bumps":                                 {total.Bumps, 100},
		"ceilings":                              {total.Ceilings, 1000},
		"windows by unanimity":                  {total.Unanimous, 5000},
		"writes that took effect late":          {total.LateWrites, 500},
		"births by several at once":             {total.BirthsContested, 50},
		"expiries in fallback":                  {total.Expired, 500},
		"leases that were kept over a failover": {total.Kept, 100},
	} {
		if want := c.of1000 * int(n) / 1000; c.got < want {
			t.Errorf("%s: got %d in %d seeds, want at least %d", what, c.got, n, want)
		}
	}
}

// The same seed is the same run.
func TestSameSeed(t *testing.T) {
	for seed := range uint64(24) {
		cfg := Config{Seed: seed, Profile: profileOf(seed), Tracing: true}
		one, two := Run(cfg), Run(cfg)
		if a, b := strings.Join(one.Trace, "\n"), strings.Join(two.Trace, "\n"); a != b || one.Counts != two.Counts {
			t.Errorf("seed %d: got %+v, and then %+v", seed, one.Counts, two.Counts)
		}
		if cfg.Tracing = false; Run(cfg).Counts != one.Counts {
			t.Errorf("seed %d: tracing changes the run", seed)
		}
	}
}

// What fails is told by a short schedule.
func TestShrink(t *testing.T) {
	cfg := Config{Profile: profiles["mixed"], Rules: rules.Without(rules.TakeoverRest)}
	for ; Run(cfg).Violation == nil; cfg.Seed++ {
	}
	before := Run(cfg)
	after := Shrink(cfg, 200)
	if after.Violation == nil || after.Violation.Invariant != before.Violation.Invariant || len(after.Steps) > 10 {
		t.Errorf("got %v after %d steps, want %v after few", after.Violation, len(after.Steps), before.Violation)
	}
	if text := Report(cfg, after); !strings.Contains(text, after.Violation.What) || len(text) > 30_000 {
		t.Errorf("got a report of %d bytes: %.500s", len(text), text)
	}
}
