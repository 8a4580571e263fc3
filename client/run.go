package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/leases"
)

// lastPatience bounds how long Run waits for its release to be answered.
const lastPatience = 10 * time.Second

// Run acquires the lease, as Acquire does, calls f and releases the lease. The
// context of f is the lease's, with the values of ctx: it ends as soon as the
// lease does, or ctx; FromContext finds the lease in it. f must not go on after
// that, nor leave anything behind that does.
//
// Run returns f's error. If the lease ended before f returned, the error also
// matches leases.ErrLost: what f did last may not have been alone. A release
// that stays unanswered, for which Run waits 10 s at most, is not an error of
// the work's: the lease lapses. If f panics, the lease is released and the
// panic goes on.
func (c *Client) Run(ctx context.Context, name string, f func(context.Context) error, opts ...LeaseOption) (err error) {
	l, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	work, cancel := bound(l.Context(), ctx)
	defer cancel()
	defer func() { // in a panic and in a Goexit too
		err = c.after(ctx, l, err)
	}()
	return f(work)
}

// after releases the lease when the work, which returned err, is done.
func (c *Client) after(ctx context.Context, l *Lease, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPatience)
	defer cancel()
	released := l.Release(ctx)
	switch {
	case released == nil:
		return err
	case !matches(released, leases.ErrLost, leases.ErrExpired):
		c.log.Warn("the lease could not be released", "lease", l.Name(), "token", l.Token(), "error", released)
		return err
	case errors.Is(err, leases.ErrLost):
		return err
	case err == nil:
		return fmt.Errorf("%w before the work was done: %w", leases.ErrLost, released)
	default:
		return fmt.Errorf("%w; %w before that: %w", err, leases.ErrLost, released)
	}
}
