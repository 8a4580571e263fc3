package drill

import (
	"testing"
	"time"
)

func TestScenarios(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Scenarios() {
		if s.Name == "" || s.What == "" || s.Shows == "" || s.Bound == "" {
			t.Errorf("%+v: something is not told", s)
		}
		if seen[s.Name] {
			t.Errorf("two drills are called %s", s.Name)
		}
		seen[s.Name] = true
		if found, ok := find(s.Name); !ok || found.Name != s.Name || found.play == nil {
			t.Errorf("%s is not found", s.Name)
		}
		if _, ok := s.NotPromised[Tokens]; ok {
			t.Errorf("%s does not promise I3, which rests on nothing that a drill breaks", s.Name)
		}
	}
}

// The bound of a takeover is as docs/protocol.md reckons it.
func TestTakeoverBound(t *testing.T) {
	// (2 s + 9 s)·1.01 + 0.2 s + 2 s
	if got, want := takeoverBound(9*time.Second), 13310*time.Millisecond; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
