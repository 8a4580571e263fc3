package fallback

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/internal/rules"
)

// checkTimeout bounds the search for a linearization.
const checkTimeout = 20 * time.Second

// check returns what is wrong with what has happened.
func (s *simulation) check() []string {
	against := s.against
	if err := s.rec.History().Check(checkTimeout); err != nil {
		against = append(against, err.Error())
	}
	return against
}

// Several nodes at random, and what fails is made small.
func TestSimulation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choice := rapid.IntRange(0, 1<<20)
		s := newSimulation(func(n int) int { return choice.Draw(t, "") % n }, rules.Set{})
		s.run(rapid.IntRange(100, 600).Draw(t, "steps"))
		if against := s.check(); len(against) > 0 {
			t.Fatal(strings.Join(against, "\n"))
		}
	})
}

func seeded(seed uint64, set rules.Set) *simulation {
	r := rand.New(rand.NewPCG(seed, 7))
	s := newSimulation(r.IntN, set)
	s.run(3000)
	return s
}

// Longer runs, which must have shown enough.
func TestSimulationSeeds(t *testing.T) {
	total := map[string]int{}
	for seed := range uint64(100) {
		s := seeded(seed, rules.Set{})
		if against := s.check(); len(against) > 0 {
			t.Fatalf("seed %d: %s", seed, strings.Join(against, "\n"))
		}
		for what, n := range s.counts {
			total[what] += n
		}
	}
	for _, what := range []string{
		"acquire done", "acquire held by another", "acquire no answer", "renew done", "reclaim done", "release done", "transfer done", "withdraw done",
		"conflicts", "late writes", "takeovers", "failbacks", "hand-overs",
	} {
		if total[what] < 20 {
			t.Errorf("%s: %d times, want more: %v", what, total[what], total)
		}
	}
}

// Without any of these rules the simulation finds something wrong. KeptShardCloses and
// ReclaimEpoch take too long to be found by chance: see the schedules.
func TestSimulationNeedsRules(t *testing.T) {
	for name, rule := range map[string]rules.Rule{
		"OpEpoch": rules.OpEpoch, "Observation": rules.Observation, "Grace": rules.Grace, "Sealing": rules.Sealing, "ExportCurrent": rules.ExportCurrent,
		"HandOverReclaims": rules.HandOverReclaims, "ShardCloses": rules.ShardCloses, "MoveByRaftEpoch": rules.MoveByRaftEpoch, "StampUnique": rules.StampUnique,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(500) {
				if against := seeded(seed, rules.Without(rule)).check(); len(against) > 0 {
					t.Logf("seed %d: %.300s", seed, against[0])
					return
				}
			}
			t.Error("nothing wrong was found")
		})
	}
}
