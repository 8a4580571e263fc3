package client

import (
	"context"
	"fmt"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
)

// Close ends the client. It ends what waits for a lease, asks or watches, with
// leases.ErrClosed, and the contexts of all leases. While their work goes on it
// keeps renewing them; the work of a lease ends when Run's function returns or
// Release is called. It waits until all that was held is released, and all that
// may have been granted is withdrawn, or until ctx ends: what is left then
// lapses, and the error, joined with ctx's cause, names it.
//
// When Close returns, no goroutine of the client's is left. Another Close waits
// for the first and returns the same.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	c.mu.Unlock()
	if !first {
		select {
		case <-c.closed:
			return c.closeErr
		case <-ctx.Done():
			return fmt.Errorf("the client is still being closed: %w", context.Cause(ctx))
		}
	}
	defer close(c.closed)
	c.endWait(errClosed)
	all := c.all() // no other will come
	for _, l := range all {
		l.endWait(errClosed)
		l.closing()
	}
	c.closeErr = drain(ctx, all)
	c.shut()
	return c.closeErr
}

// closing ends the lease's context: it is to be released.
func (l *Lease) closing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(fmt.Errorf("%w: the lease is to be released", errClosed))
}

// drain waits until all of the leases have settled.
func drain(ctx context.Context, all []*Lease) error {
	var left error
	for _, l := range all {
		select {
		case <-l.settled:
			continue
		default:
		}
		select {
		case <-l.settled:
		case <-ctx.Done():
			if left == nil {
				left = l.left()
			} else {
				left = fmt.Errorf("%w; %w", left, l.left())
			}
		}
	}
	if left == nil {
		return nil
	}
	return fmt.Errorf("close: %w: %w", left, context.Cause(ctx))
}

// left says what is left of a lease that the client can do nothing more for.
func (l *Lease) left() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := "its release is not answered"
	switch {
	case (l.holder.Stage() == holder.Held || l.holder.Owed()) && !l.releasing:
		why = "its work has not ended"
	case l.holder.Deadline() == 0:
		why = "its withdrawal is not answered"
	}
	return fmt.Errorf("lease %q, token %v, lapses within %v: %s", l.Name(), l.holder.Token(), leases.Stretch(l.claim.TTL), why)
}

// shut stops everything.
func (c *Client) shut() {
	for _, l := range c.all() {
		l.step(func(h *holder.Holder, _ clock.Instant) holder.Verdict { return h.Abandon(errClosed) })
	}
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.stop(errClosed)
	c.running.Wait()
	c.deadlines.stop()
	c.silences.stop()
	c.renewer.stop()
	c.conversation.close()
	if c.conn != nil {
		if err := c.conn.Close(); err != nil {
			c.log.Warn("the connection was not closed cleanly", "error", err)
		}
	}
}
