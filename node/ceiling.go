package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// lowerAfter is for how long no long lease has been in use before the ceiling follows.
const lowerAfter = time.Minute

// ceiling is what this node, as the leader, lets the ceiling of TTLs become (W5): it
// follows the longest TTL in use, up at once and down after a while.
type ceiling struct {
	mu     sync.Mutex    // guards what follows
	wanted time.Duration // the longest TTL that a claim waits for; 0: none does
	limit  time.Duration // no longer TTL is taken in, since the ceiling is being lowered; 0: none
	idle   clock.Instant // since when the ceiling is higher than need be; 0: it is not
}

// ceilingFor is what the root register's ceiling is to be.
func (a *arbitration) ceilingFor(root authority.Root, r *ruling) time.Duration {
	if r == nil {
		return 0
	}
	c, now := &a.ceiling, a.node.clock.Now()
	a.ruled.Lock()
	t := r.tenure
	a.ruled.Unlock()
	if t == nil {
		return 0
	}
	inUse := max(t.longestTTL(), root.Params.Floor())
	c.mu.Lock()
	defer c.mu.Unlock()
	want := max(inUse, c.wanted)
	switch {
	case want >= root.Ceiling():
		c.idle, c.limit = 0, 0
		return want
	case c.idle == 0:
		c.idle = now
	case now.Sub(c.idle) >= lowerAfter && (c.limit == 0 || c.limit < want):
		c.limit = want // from now on nothing longer comes in; what has, was just counted or is next time
	case c.limit != 0:
		return c.limit
	}
	return root.Ceiling()
}

// allow waits until a lease of that TTL may be granted: the ceiling is raised before (W5).
func (a *arbitration) allow(ctx context.Context, r *ruling, ttl time.Duration) error {
	if a.allowed(ttl) {
		return nil
	}
	c := &a.ceiling
	c.mu.Lock()
	c.wanted = max(c.wanted, ttl)
	c.limit = 0
	c.mu.Unlock()
	a.poke()
	ctx, cancel := context.WithTimeout(ctx, a.node.cfg.Authority.Lease)
	defer cancel()
	err := a.until(ctx, func(m *authority.Machine, _ clock.Instant) bool { return r.ctx.Err() != nil || ttl <= m.Ceiling() })
	c.mu.Lock()
	c.wanted = 0 // whoever else waits for more says so again
	c.mu.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return &leases.UnavailableError{Reason: errTermOver.Error()}
	case err != nil:
		return &leases.UnavailableError{Reason: fmt.Sprintf("a TTL of %v needs the ceiling of TTLs to be raised, and the arbiter did not answer", ttl)}
	}
	return nil
}

// allowed reports whether a lease of that TTL may be granted now.
func (a *arbitration) allowed(ttl time.Duration) bool {
	var most time.Duration
	a.with(func(m *authority.Machine, _ clock.Instant) { most = m.Ceiling() })
	a.ceiling.mu.Lock()
	defer a.ceiling.mu.Unlock()
	return ttl <= most && (a.ceiling.limit == 0 || ttl <= a.ceiling.limit)
}
