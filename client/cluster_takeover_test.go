package client

import (
	"maps"
	"time"

	"github.com/coordd/coordd/leases"
)

// What the fake cluster does when the arbiter takes over (section 5): its leases
// are then in one shard.

// arbiter is guarded by the cluster's mutex.
type arbiter struct {
	serves bool      // the mode is fallback
	fresh  time.Time // when the grace ends
	closed bool      // something was granted anew: nothing is reclaimed any more
	lax    bool      // it takes reclaims of any epoch: a rule of its own is off
}

// takeOver lets the arbiter take over: all leases and waiters are forgotten, and
// nothing is granted anew for so long. Conversations go on.
func (c *cluster) takeOver(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.held {
		g.timer.Stop()
	}
	for _, q := range c.queues {
		for _, w := range q {
			w.answer <- reply{err: &leases.UnavailableError{Reason: "the window has closed"}}
		}
	}
	c.held, c.queues, c.gone = map[string]*grant{}, map[string][]*waiter{}, map[leases.ID]bool{}
	c.begin(true)
	c.arbiter.fresh = time.Now().Add(grace)
	epoch := c.epoch
	c.network.Go(func() {
		time.Sleep(grace)
		c.mu.Lock()
		defer c.mu.Unlock()
		for name := range maps.Clone(c.queues) {
			if c.epoch == epoch && c.held[name] == nil {
				c.next(name)
			}
		}
	})
}

// failBack lets a leader serve again: it has all leases, with their full TTLs, and
// for simplicity the waiters too.
func (c *cluster) failBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin(false)
	for _, g := range c.held {
		c.until(g, leases.Stretch(g.TTL))
	}
}

// changeAuthority lets whoever serves be followed by another: a leader by the next
// one or the arbiter, and that, after the grace, by a leader.
func (c *cluster) changeAuthority(takeover bool) {
	c.mu.Lock()
	serves, grace := c.arbiter.serves, c.grace()
	c.mu.Unlock()
	switch {
	case !serves && !takeover:
		c.changeLeader()
	case !serves:
		c.takeOver(leases.Stretch(13 * time.Second)) // the longest TTL in chaos
	case grace == 0:
		c.failBack()
	}
}

// begin begins an epoch. It is called with mu held.
func (c *cluster) begin(serves bool) {
	c.epoch++
	c.last = 0
	c.arbiter.serves, c.arbiter.closed, c.arbiter.fresh = serves, false, time.Time{}
}

// grace is how long nothing is granted anew. It is called with mu held.
func (c *cluster) grace() time.Duration {
	if !c.arbiter.serves {
		return 0
	}
	return max(0, time.Until(c.arbiter.fresh))
}

func (c *cluster) graceError() error {
	return &leases.GraceError{Epoch: c.epoch, FreshIn: c.grace()}
}

// lost reports whether a lease that is not known may have been forgotten. It is
// called with mu held.
func (c *cluster) lost(h leases.Held) bool {
	g := c.held[h.Name]
	return c.grace() > 0 && (g == nil || g.token < h.Token)
}

// reclaim takes a lease back that its holder presents.
func (c *cluster) reclaim(session leases.ID, epoch uint32, h leases.Claimed) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.held[h.Name]
	mine := g != nil && g.token == h.Token && g.session == session
	refused := &leases.NotHeldError{Name: h.Name, Token: h.Token}
	switch {
	case h.Validate() != nil:
		return h.Validate()
	case epoch != c.epoch && c.lost(h.Held) && !c.arbiter.lax:
		return c.graceError()
	case mine && (epoch != c.epoch || c.arbiter.closed):
		return &leases.UnavailableError{Reason: "another epoch, or closed"}
	case epoch != c.epoch && !c.arbiter.lax, !c.arbiter.serves, c.arbiter.closed, h.Token.Epoch() >= c.epoch:
		return refused
	case mine && g.broken:
		refused.Why = leases.WhyBroken
		return refused
	case g != nil && g.token >= h.Token && !mine:
		return refused
	case g != nil:
		g.timer.Stop()
	}
	claim := leases.Claim{Name: h.Name, TTL: h.TTL, Owner: h.Owner, Attributes: h.Attributes}
	g = &grant{Claim: claim, session: session, token: h.Token, at: h.AcquiredAt}
	c.held[h.Name] = g
	c.until(g, leases.Stretch(h.TTL))
	return nil
}
