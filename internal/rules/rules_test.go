package rules

import "testing"

func TestZeroSetHasAllRules(t *testing.T) {
	var s Set
	for r := Identity; r < count; r++ {
		if !s.On(r) {
			t.Errorf("rule %d: got off, want on", r)
		}
	}
}

func TestWithout(t *testing.T) {
	s := Without(Round, Founding)
	for r := Identity; r < count; r++ {
		if got, want := s.On(r), r != Round && r != Founding; got != want {
			t.Errorf("rule %d on: got %v, want %v", r, got, want)
		}
	}
	if Without() != (Set{}) {
		t.Error("without nothing: got another set than the zero one")
	}
	if last := Without(count - 1); last.On(count-1) || !last.On(Identity) {
		t.Error("without the last rule: got it, or the first one off")
	}
	if Without(Round, Round) != Without(Round) {
		t.Error("the same rule twice: got another set than once")
	}
}
