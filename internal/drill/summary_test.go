package drill

import "testing"

func TestSummarise(t *testing.T) {
	round := func(ms int64, o Outcome) Result {
		return Result{
			Scenario: "planned", WithoutGrantsMS: ms,
			Verdicts: []Verdict{{Invariant: Authority, Outcome: o}},
			Phases:   []Phase{{Name: "one", WithoutGrantsMS: ms, Bound: &Bound{LimitMS: 30}}, {Name: "two", WithoutGrantsMS: 1}},
		}
	}
	cut := round(20, Kept)
	cut.Phases = cut.Phases[:1] // it did not get to the second
	s := Summarise([]Result{round(50, Kept), cut, round(10, Broken), round(30, NotPromised)})
	if s.Name != "planned" || s.What == "" {
		t.Errorf("got %+v, want what the drill is", s.Scenario)
	}
	if s.WithoutGrants != (Spread{MedianMS: 25, MaxMS: 50}) {
		t.Errorf("got %+v, want the middle and the greatest", s.WithoutGrants)
	}
	if s.Verdicts[0].Outcome != Broken || !s.Bad() {
		t.Errorf("got %+v, want the worst verdict", s.Verdicts)
	}
	if len(s.Phases) != 2 || s.Phases[0].Within || !s.Phases[1].Within || s.Within() {
		t.Errorf("got %+v, want that the first phase is over its bound once", s.Phases)
	}
}
