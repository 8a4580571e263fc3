package rules

import "testing"

func TestZeroSetHasAllRules(t *testing.T) {
	var s Set
	for r := Identity; r <= BreakToken; r++ {
		if !s.On(r) {
			t.Errorf("rule %d: got off, want on", r)
		}
		if r >= 64 {
			t.Errorf("rule %d: a Set has room for 64", r)
		}
	}
}

func TestWithout(t *testing.T) {
	s := Without(Round, Founding)
	for r := Identity; r <= BreakToken; r++ {
		if got, want := s.On(r), r != Round && r != Founding; got != want {
			t.Errorf("rule %d on: got %v, want %v", r, got, want)
		}
	}
	if Without() != (Set{}) {
		t.Error("without nothing: got another set than the zero one")
	}
	if Without(Round, Round) != Without(Round) {
		t.Error("the same rule twice: got another set than once")
	}
}
