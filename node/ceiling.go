package node

import (
	"context"
	"fmt"
	"slices"
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
	mu     sync.Mutex      // guards what follows
	wanted []time.Duration // the TTLs that claims wait for
	limit  time.Duration   // no longer TTL is taken in, since the ceiling is being lowered; 0: none
	idle   clock.Instant   // since when the ceiling is higher than need be; 0: it is not
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
	// The limit goes only here: by the time of the next call the machine has seen what
	// this one says, and takes account of a lower ceiling that it was told before.
	want := max(inUse, slices.Max(append(c.wanted, 0)))
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
	a.ceiling.want(ttl)
	defer a.ceiling.unwant(ttl)
	a.poke()
	ctx, cancel := context.WithTimeout(ctx, a.node.cfg.Authority.Lease)
	defer cancel()
	err := a.until(ctx, func(m *authority.Machine, _ clock.Instant) bool {
		return r.ctx.Err() != nil || a.ceiling.allows(m, ttl)
	})
	switch {
	case r.ctx.Err() != nil:
		return &leases.UnavailableError{Reason: errTermOver.Error()}
	case err != nil:
		return &leases.UnavailableError{Reason: fmt.Sprintf("a TTL of %v needs the ceiling of TTLs to be raised, and the arbiter did not answer", ttl)}
	}
	return nil
}

// allowed reports whether a lease of that TTL may be granted now.
func (a *arbitration) allowed(ttl time.Duration) (yes bool) {
	a.with(func(m *authority.Machine, _ clock.Instant) { yes = a.ceiling.allows(m, ttl) })
	return yes
}

// allows is called with arbitration.mu held.
func (c *ceiling) allows(m *authority.Machine, ttl time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ttl <= m.Ceiling() && (c.limit == 0 || ttl <= c.limit)
}

func (c *ceiling) want(ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = append(c.wanted, ttl)
}

func (c *ceiling) unwant(ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.wanted, ttl)
	c.wanted = slices.Delete(c.wanted, i, i+1)
}
