package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Election lets this client stand for a lease again and again: whoever holds it
// leads. It is one goroutine's.
type Election struct {
	client *Client
	ctx    context.Context
	name   string
	opts   []LeaseOption
	err    error
}

// Elect returns an election for the lease of that name, which ctx ends.
//
//	e := c.Elect(ctx, "scheduler")
//	for term := range e.Terms() {
//		schedule(term.Context(), term.Token())
//	}
//	return e.Err()
//
// Who leads now Get tells anybody, and Watch how that changes.
func (c *Client) Elect(ctx context.Context, name string, opts ...LeaseOption) *Election {
	return &Election{client: c, ctx: ctx, name: name, opts: opts}
}

// Terms waits for the lease, as Acquire does, and has the body of the loop run
// as long as it leads. When the body is left the lease is released, if it is
// still held, and waited for anew, behind all others who wait; a body that is
// left at once is run no more than a few times a second. Leaving the loop
// resigns too, also by a panic. Like Run it waits 10 s at most for the release
// to be answered.
//
// The loop ends when the election's context does, and where Acquire fails at
// once, except with leases.ErrExhausted, which passes; Err then tells why.
func (e *Election) Terms() iter.Seq[*Term] {
	return func(yield func(*Term) bool) {
		c := e.client
		e.err = nil
		for short := 0; e.ctx.Err() == nil; short++ {
			sleep(e.ctx, c.clock, backoff(short, backoffCap))
			l, err := c.Acquire(e.ctx, e.name, e.opts...)
			switch {
			case err == nil:
				began := c.clock.Now()
				if !e.lead(l, yield) {
					return
				}
				if c.clock.Now().Sub(began) > backoffCap {
					short = 0
				}
			case errors.Is(err, leases.ErrExhausted) && e.ctx.Err() == nil:
				c.log.Warn("the election is stood for again later", "lease", e.name, "error", err)
			default:
				e.err = err
				return
			}
		}
		e.err = fmt.Errorf("election %q: %w", e.name, context.Cause(e.ctx))
	}
}

// lead runs the body of the loop for one term. false: the loop was left.
func (e *Election) lead(l *Lease, yield func(*Term) bool) bool {
	ctx, cancel := bound(l.Context(), e.ctx)
	defer cancel()
	defer e.client.after(e.ctx, l, nil)
	return yield(&Term{lease: l, ctx: ctx})
}

// Err says why Terms ended by itself: an error that matches the cause of the
// election's context, leases.ErrClosed or leases.ErrInvalid. It is nil while the
// loop goes on, and after it was left.
func (e *Election) Err() error { return e.err }

// Term is a time of leadership. It is safe for concurrent use.
type Term struct {
	lease *Lease
	ctx   context.Context
}

// Context ends as soon as the leadership does, or the election's context. It has
// the values of the latter, and the lease for FromContext. The body of the loop
// must not go on after that, nor leave anything behind that does.
func (t *Term) Context() context.Context { return t.ctx }

// Token is the lease's fencing token, by which a store tells this term from
// older ones.
func (t *Term) Token() tokens.Token { return t.lease.Token() }

// Lease is the lease that is led by. To lay the leadership in a certain
// candidate's hands, Transfer it.
func (t *Term) Lease() *Lease { return t.lease }

// Resign ends the term at once, before the body of the loop is left: see
// Lease.Release.
func (t *Term) Resign(ctx context.Context) error { return t.lease.Release(ctx) }
