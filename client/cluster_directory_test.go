package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coordd/coordd/leases"
)

// What the fake cluster tells about its leases.

func (c *cluster) Get(ctx context.Context, name string) (leases.State, error) {
	return consulted(c, ctx, call{op: "get", name: name}, func() leases.State {
		s := leases.State{Name: name}
		if g := c.held[name]; g != nil {
			s = g.state()
		}
		s.Waiters = len(c.queues[name])
		return s
	})
}

func (c *cluster) List(ctx context.Context, prefix, after string, limit int) (leases.Page, error) {
	return consulted(c, ctx, call{op: "list", name: prefix, size: limit}, func() leases.Page {
		page := leases.Page{At: c.position()}
		for _, name := range slices.Sorted(maps.Keys(c.held)) {
			switch {
			case name <= after || !strings.HasPrefix(name, prefix):
			case len(page.Leases) == min(limit, c.pageSize):
				page.Next = page.Leases[len(page.Leases)-1].Name
				return page
			default:
				page.Leases = append(page.Leases, c.held[name].state())
			}
		}
		return page
	})
}

func (c *cluster) Queue(ctx context.Context, name string) ([]leases.Waiter, error) {
	return consulted(c, ctx, call{op: "queue", name: name}, func() (all []leases.Waiter) {
		for i, w := range c.queues[name] {
			all = append(all, leases.Waiter{Position: i + 1, Attempt: w.Attempt, Owner: w.Owner})
		}
		return all
	})
}

// consulted is do for a question that needs no conversation. answer is called
// with mu held.
func consulted[T any](c *cluster, ctx context.Context, k call, answer func() T) (told T, err error) {
	f := c.note(k)
	if f.err != nil {
		return told, f.err
	}
	answered := make(chan T, 1)
	if !f.lost && !f.mute {
		c.network.Go(func() {
			time.Sleep(f.late)
			c.mu.Lock()
			a := answer()
			c.mu.Unlock()
			time.Sleep(f.slow)
			answered <- a
		})
	}
	select {
	case told = <-answered:
		return told, nil
	case <-ctx.Done():
		return told, fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, context.Cause(ctx))
	}
}

// Watch implements leases.Directory. Of its faults closed breaks it after its
// first batch of changes; slow is the time that each batch takes.
func (c *cluster) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	f := c.note(call{op: "watch", name: prefix, from: from})
	if f.err != nil {
		return f.err
	}
	if f.lost {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	c.mu.Lock()
	broke, begin := c.broke, from
	if from == (leases.Position{}) {
		begin = c.position()
	}
	c.mu.Unlock()
	for batch := (leases.Batch{At: begin}); ; {
		time.Sleep(f.slow)
		if err := on(batch); err != nil {
			return err
		}
		if f.closed && len(batch.Changes) > 0 {
			return leases.ErrUnavailable
		}
		for at := batch.At; ; {
			var more <-chan struct{}
			var err error
			if batch, more, err = c.since(prefix, at); err != nil {
				return err
			} else if len(batch.Changes) > 0 {
				break
			}
			at = batch.At
			select {
			case <-more:
			case <-broke:
				return leases.ErrUnavailable
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// since returns the changes after from, 3 at most.
func (c *cluster) since(prefix string, from leases.Position) (b leases.Batch, more <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from.Revision < c.floor || from.Epoch != 1 {
		return b, nil, &leases.MissedError{From: from, Oldest: leases.Position{Epoch: 1, Revision: c.floor}, Newest: c.position()}
	}
	b.At = c.position()
	for _, change := range c.changes {
		if change.Revision > from.Revision && strings.HasPrefix(change.Name, prefix) {
			if b.Changes = append(b.Changes, change); len(b.Changes) == 3 {
				b.At.Revision = change.Revision
				break
			}
		}
	}
	return b, c.more, nil
}

// position is called with mu held.
func (c *cluster) position() leases.Position { return leases.Position{Epoch: 1, Revision: c.revision} }

// record remembers what has happened to a lease. It is called with mu held.
func (c *cluster) record(g *grant, change leases.Change) {
	c.revision++
	change.Revision, change.Name = c.revision, g.Name
	change.Owner, change.TTL, change.Attributes, change.AcquiredAt = g.Owner, g.TTL, g.Attributes, g.at
	c.changes = append(c.changes, change)
	close(c.more)
	c.more = make(chan struct{})
}

// forget lets the changes so far, and the next one, be remembered no more: so
// whoever watches misses one.
func (c *cluster) forget() {
	c.mu.Lock()
	c.changes, c.floor = nil, c.revision+1
	c.mu.Unlock()
	c.breakAll(leases.ErrUnavailable)
}

// state is called with mu held.
func (g *grant) state() leases.State {
	return leases.State{
		Name: g.Name, Held: true, Token: g.token, Owner: g.Owner, Attributes: g.Attributes, TTL: g.TTL,
		AcquiredAt: g.at, AtMost: time.Until(g.deadline), Broken: g.broken,
	}
}
