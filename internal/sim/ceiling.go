package sim

import (
	"time"

	"github.com/coordd/coordd/internal/rules"
)

// allows reports whether a lease of that TTL may be granted now; if not it lets the
// ceiling be raised (W5).
func (t *tenure) allows(ttl time.Duration) bool {
	if !t.n.s.rules.On(rules.CeilingRaised) || ttl <= t.n.machine.Ceiling() && (t.limit == 0 || ttl <= t.limit) {
		return true
	}
	if t.wanted < ttl {
		t.wanted = ttl
		t.n.soon()
	}
	return false
}

// ceiling is what R's is to be: it follows the longest TTL in use, up at once and down
// after a while.
func (t *tenure) ceiling() time.Duration {
	s, root := t.n.s, &t.n.root
	floor := s.params.Floor()
	use := floor
	if s.rules.On(rules.CeilingLowered) {
		use = max(t.v.table.MaxTTL(), floor)
		for i := range t.lines {
			use = max(use, time.Duration(t.longer[i])*time.Millisecond)
		}
	}
	want := max(use, t.wanted)
	if t.wanted != 0 && t.wanted <= t.n.machine.Ceiling() {
		t.wanted = 0
	}
	if !s.rules.On(rules.CeilingRaised) {
		want = min(want, root.Ceiling())
	}
	switch {
	case want >= root.Ceiling():
		t.idle, t.limit = 0, 0
		return want
	case t.idle == 0:
		t.idle = s.now
	case t.limit != 0 && t.limit >= want:
		return t.limit
	case s.now-t.idle >= s.lease/2:
		t.limit = want // from now on nothing longer is proposed; what has been was counted
	}
	return root.Ceiling()
}
