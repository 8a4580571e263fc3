package drill

import (
	"cmp"
	"slices"
)

// Summary is what came of all rounds of one drill.
type Summary struct {
	Scenario
	// WithoutGrants is the longest time without fresh grants of each round.
	WithoutGrants Spread         `json:"without_grants"`
	Phases        []PhaseSummary `json:"phases"`
	Verdicts      []Verdict      `json:"verdicts"` // of each promise the worst
	Rounds        []Result       `json:"rounds"`
}

// PhaseSummary is what came of one phase in all rounds.
type PhaseSummary struct {
	Name          string `json:"name"`
	WithoutGrants Spread `json:"without_grants"`
	Bound         *Bound `json:"bound,omitempty"`
	Within        bool   `json:"within_bound"` // in every round; true without a bound
}

// Spread is the middle and the greatest of a few measurements.
type Spread struct {
	MedianMS int64 `json:"median_ms"`
	MaxMS    int64 `json:"max_ms"`
}

// Bad reports whether any round was.
func (s *Summary) Bad() bool {
	return slices.ContainsFunc(s.Rounds, func(r Result) bool { return r.Bad() })
}

// Within reports whether every phase kept to its bound.
func (s *Summary) Within() bool {
	return !slices.ContainsFunc(s.Phases, func(p PhaseSummary) bool { return !p.Within })
}

// Summarise takes the rounds of one drill, at least one.
func Summarise(rounds []Result) Summary {
	sc, _ := find(rounds[0].Scenario)
	s := Summary{Scenario: sc.Scenario, Rounds: rounds}
	var longest []int64
	for _, r := range rounds {
		longest = append(longest, r.WithoutGrantsMS)
	}
	s.WithoutGrants = spread(longest)
	furthest := slices.MaxFunc(rounds, func(a, b Result) int { return cmp.Compare(len(a.Phases), len(b.Phases)) })
	for i := range furthest.Phases {
		s.Phases = append(s.Phases, summarisePhase(rounds, i))
	}
	for i := range rounds[0].Verdicts {
		worst := slices.MaxFunc(rounds, func(a, b Result) int {
			return cmp.Compare(gravity(a.Verdicts[i].Outcome), gravity(b.Verdicts[i].Outcome))
		})
		s.Verdicts = append(s.Verdicts, worst.Verdicts[i])
	}
	return s
}

// summarisePhase takes the i-th phase of those rounds that have got so far.
func summarisePhase(rounds []Result, i int) PhaseSummary {
	s := PhaseSummary{Within: true}
	var all []int64
	for _, r := range rounds {
		if i >= len(r.Phases) {
			continue
		}
		p := r.Phases[i]
		all = append(all, p.WithoutGrantsMS)
		s.Name, s.Bound, s.Within = p.Name, p.Bound, s.Within && p.Within()
	}
	s.WithoutGrants = spread(all)
	return s
}

// gravity orders outcomes, the worst last.
func gravity(o Outcome) int { return slices.Index([]Outcome{Kept, NotPromised, NotKnown, Broken}, o) }

// spread is that of at least one measurement.
func spread(all []int64) Spread {
	slices.Sort(all)
	n := len(all)
	return Spread{MedianMS: (all[(n-1)/2] + all[n/2]) / 2, MaxMS: all[n-1]}
}
