package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/coordd/coordd/leases"
)

// Get tells about a name, as of a moment after the call: who holds it or, if it
// is free, how its last lease ended.
//
// As long as nothing is known, Get, List, Pages and Queue ask on until ctx ends;
// the error then is what the last node that was asked, or looked for, said,
// joined with ctx's cause: see Acquire. At once they fail with
// leases.ErrInvalid, leases.ErrExhausted and leases.ErrClosed.
func (c *Client) Get(ctx context.Context, name string) (leases.State, error) {
	if err := leases.ValidateName(name); err != nil {
		return leases.State{}, err
	}
	return consult(ctx, c, fmt.Sprintf("get lease %q", name), func(ctx context.Context) (leases.State, error) {
		return c.directory.Get(ctx, name)
	})
}

// Queue tells who waits for a name, the next in turn first.
func (c *Client) Queue(ctx context.Context, name string) ([]leases.Waiter, error) {
	if err := leases.ValidateName(name); err != nil {
		return nil, err
	}
	return consult(ctx, c, fmt.Sprintf("queue for lease %q", name), func(ctx context.Context) ([]leases.Waiter, error) {
		return c.directory.Queue(ctx, name)
	})
}

// List tells which leases are held whose names begin with prefix, in the order
// of their names. An error comes last.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[leases.State, error] {
	return func(yield func(leases.State, error) bool) {
		for page, err := range c.Pages(ctx, prefix) {
			if err != nil {
				yield(leases.State{}, err)
				return
			}
			for _, s := range page.Leases {
				if !yield(s, nil) {
					return
				}
			}
		}
	}
}

// Pages is List, with the moment that each page is of; see Watch.
func (c *Client) Pages(ctx context.Context, prefix string) iter.Seq2[leases.Page, error] {
	return func(yield func(leases.Page, error) bool) {
		for after := ""; ; {
			page, err := consult(ctx, c, fmt.Sprintf("list leases %q", prefix), func(ctx context.Context) (leases.Page, error) {
				return c.directory.List(ctx, prefix, after, leases.MaxPage)
			})
			if !yield(page, err) || err != nil || page.Next == "" {
				return
			}
			after = page.Next
		}
	}
}

// consult asks until something is known, or ctx ends.
func consult[T any](ctx context.Context, c *Client, what string, ask func(context.Context) (T, error)) (answer T, err error) {
	ctx, cancel := bound(ctx, c.waits)
	defer cancel()
	var word error = &leases.UnavailableError{Reason: "no node has answered yet"}
	for n := 0; ; n++ {
		sleep(ctx, c.clock, backoff(n, maxPatience))
		if ctx.Err() != nil {
			return answer, ended(ctx, what, word)
		}
		limited, cancel := context.WithTimeout(ctx, slower(n))
		answer, err = ask(limited)
		cancel()
		switch {
		case err == nil || beyondHelp(err, leases.ErrExhausted):
			return answer, err
		case ctx.Err() == nil:
			word = err
		}
	}
}

// slower is how long try n may take, the first being 0: the longer it fails, the
// longer, since the way may just be slow.
func slower(n int) time.Duration { return maxPatience << min(n, 3) }

// beyondHelp reports whether another try would fail in the same way.
func beyondHelp(err error, also ...error) bool {
	return matches(err, leases.ErrInvalid, leases.ErrClosed, leases.ErrMissed) || matches(err, also...)
}

// ended is the error of what was tried until ctx ended; word is the last one
// that was told, or nil.
func ended(ctx context.Context, what string, word error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, leases.ErrClosed):
		return cause
	case word == nil:
		return fmt.Errorf("%s: %w", what, cause)
	default:
		return fmt.Errorf("%s: %w: %w", what, word, cause)
	}
}
