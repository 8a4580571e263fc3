package nodetest

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scenario is something that happens to a cluster and its clients. It must
// leave every promise kept, and must not call t.Fatal for one that is broken.
type scenario struct {
	config Config
	run    func(c *Cluster)
	// least is what a history must hold on average to show anything.
	least history.Counts
	// heavy is how many times as long as others it takes, and so how many times
	// fewer seeds it is run with; 0: 1.
	heavy uint64
}

// share is how many of so many seeds the scenario is run with.
func (s scenario) share(seeds uint64) uint64 { return max(seeds/max(s.heavy, 1), 1) }

// seeds is how many seeds each scenario is run with: under the race detector
// fewer, since it makes a seed six times as slow and its verdict no surer.
func seeds(t *testing.T) uint64 {
	s := os.Getenv("COORDD_SEEDS")
	if s == "" && raceDetector {
		return 3
	}
	if s == "" {
		return 100
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 {
		t.Fatalf("COORDD_SEEDS=%q: want a number of seeds from 1", s)
	}
	return n
}

// searched is how many seeds are tried to show what a rule is for.
const searched = 100

// play runs a scenario in virtual time.
func (s scenario) play(t *testing.T, seed uint64, set rules.Set) *Cluster {
	t.Helper()
	cfg := s.config
	cfg.Seed, cfg.Rules = seed, set
	var c *Cluster
	through := false
	synctest.Test(t, func(t *testing.T) {
		c = New(t, cfg)
		s.run(c)
		through = true
	})
	if !through {
		t.Fatalf("the scenario could not be run with seed %d", seed)
	}
	return c
}

// explore runs a scenario with many seeds: none may break a promise.
func explore(t *testing.T, s scenario) {
	t.Parallel()
	var all, least history.Counts
	for seed := range s.share(seeds(t)) {
		c := s.play(t, seed, rules.Set{})
		if err := c.Check(time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, c.Schedule())
		}
		add(&all, c.History.History().Counts())
		add(&least, s.least)
	}
	if t.Logf("in all: %+v", all); short(all, least) {
		t.Errorf("the histories show too little: want at least %+v", least)
	}
}

// needs shows that a scenario breaks a promise with some seed once the rules
// are switched off.
func needs(t *testing.T, s scenario, off ...rules.Rule) {
	t.Parallel()
	for seed := range s.share(searched) {
		c := s.play(t, seed, rules.Without(off...))
		if err := c.Check(time.Minute); err != nil {
			t.Logf("as it must: %v\n%s", err, c.Schedule())
			return
		}
	}
	t.Errorf("no promise was broken with %d seeds: is the rule needed, or does the scenario miss it?", s.share(searched))
}

func short(got, least history.Counts) bool {
	return got.Events < least.Events || got.Grants < least.Grants || got.Refusals < least.Refusals ||
		got.Renewals < least.Renewals || got.Releases < least.Releases || got.Unanswered < least.Unanswered ||
		got.Transfers < least.Transfers || got.Breaks < least.Breaks
}

func add(sum *history.Counts, c history.Counts) {
	sum.Events += c.Events
	sum.Grants += c.Grants
	sum.Refusals += c.Refusals
	sum.Renewals += c.Renewals
	sum.Releases += c.Releases
	sum.Transfers += c.Transfers
	sum.Breaks += c.Breaks
	sum.Unanswered += c.Unanswered
}
