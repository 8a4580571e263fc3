package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

const (
	// maxPatience is the longest time that a request may go unanswered before
	// it is repeated at another node: a hung leader is not a closed connection.
	maxPatience = 2 * time.Second
	// minPatience is the shortest for the opening of a conversation, which
	// takes several round trips.
	minPatience = 250 * time.Millisecond

	backoffBase = 20 * time.Millisecond
	backoffCap  = time.Second

	// maxStrikes is how many requests in a row may be answered with nothing
	// known before another node is asked.
	maxStrikes = 2
)

// patience is how long a request about a lease of that TTL may go unanswered.
func patience(ttl time.Duration) time.Duration { return min(maxPatience, ttl/8) }

// backoff is the wait before try n, the second being 1: exponential, with full
// jitter, and at most limit.
func backoff(n int, limit time.Duration) time.Duration {
	if n <= 0 {
		return 0
	}
	d := min(backoffBase<<min(n-1, 16), backoffCap, limit)
	return rand.N(max(d, 1))
}

// certain reports whether err answers a request, rather than saying that
// nothing is known.
func certain(err error) bool {
	return final(err) || !errors.Is(err, leases.ErrUnknownOutcome) && matches(err, leases.ErrHeld, leases.ErrExhausted, leases.ErrGrace)
}

// final reports whether err answers a request for good: a repeat would be
// answered in the same way.
func final(err error) bool {
	return err == nil || !errors.Is(err, leases.ErrUnknownOutcome) && matches(err, leases.ErrNotHeld, leases.ErrInvalid)
}

// harmless reports whether a request that err answers certainly did nothing.
func harmless(err error) bool {
	return err != nil && !errors.Is(err, leases.ErrUnknownOutcome) &&
		(certain(err) || matches(err, leases.ErrUnavailable, leases.ErrNotLeader, leases.ErrNoQuorum))
}

func matches(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// request is one request over a session.
type request func(ctx context.Context, s leases.Session) error

// conversation keeps a session with whichever node serves leases.
type conversation struct {
	client  *Client
	backend leases.Backend

	mu      sync.Mutex     // guards what follows
	session leases.Session // the newest; nil after it was given up
	opening chan struct{}  // closed when the try to open one is over; nil: there is none
	failed  int            // tries since the last success
	err     error          // why there is none, or was none
	closed  bool           // the newest try found the backend closed
	strikes int            // answers in a row that said nothing
	late    int            // sessions in a row that did not answer in time
}

func newConversation(c *Client, b leases.Backend) *conversation {
	return &conversation{client: c, backend: b, err: &leases.UnavailableError{Reason: "no node has answered yet"}}
}

// with returns a session that has not broken, opening one if need be, until ctx
// ends or the backend is closed. Its error says why there is none.
func (c *conversation) with(ctx context.Context) (leases.Session, error) {
	for {
		s, tried, err := c.current()
		if s != nil || err != nil {
			return s, err
		}
		select {
		case <-tried:
			if err, closed := c.without(); closed {
				return nil, err
			}
		case <-ctx.Done():
			err, _ := c.without()
			return nil, err
		}
	}
}

// without says why there is no session, and whether the backend is closed.
func (c *conversation) without() (why error, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err, c.closed
}

// current returns the session or, if there is none, the end of the try to open
// one that is under way.
func (c *conversation) current() (leases.Session, <-chan struct{}, error) {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s != nil {
		select {
		case <-s.Done():
			c.give(s, s.Err())
		default:
			return s, nil, nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		return c.session, nil, nil
	}
	if c.opening == nil {
		tried, failed := make(chan struct{}), c.failed
		if !c.client.spawn(func() { c.open(tried, failed) }) {
			return nil, nil, errClosed
		}
		c.opening = tried
	}
	return nil, c.opening, nil
}

// open makes one try. It is shared by all who wait, so it does not end with
// any one of them.
func (c *conversation) open(tried chan struct{}, failed int) {
	defer close(tried)
	urgency := c.client.urgency()
	sleep(c.client.ctx, c.client.clock, backoff(failed, urgency))
	// The longer it fails, the longer a try may take: the way may just be slow.
	limit := min(maxPatience, max(urgency, minPatience)<<min(failed, 4))
	ctx, cancel := context.WithTimeout(c.client.ctx, limit)
	defer cancel()
	s, err := c.backend.Open(ctx, c.client.session, c.client.hear)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening = nil
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", &leases.UnavailableError{Reason: fmt.Sprintf("no node that serves leases was found within %v", limit)}, err)
		}
		c.failed++
		c.err, c.closed = err, errors.Is(err, leases.ErrClosed)
		level := slog.LevelDebug
		if c.failed == 1 {
			level = slog.LevelInfo
		}
		c.client.log.Log(ctx, level, "no node that serves leases was found", "try", c.failed, "error", err)
		return
	}
	c.session, c.failed, c.closed = s, 0, false
	c.client.log.Info("the conversation has begun", "node", s.Info().Node)
}

// ask makes a request once. It fails if no session is found within 2d, and with
// leases.ErrUnknownOutcome if there is no answer within d; then, as after an
// answer that calls for it, the next request goes over a new session.
func (c *conversation) ask(ctx context.Context, d time.Duration, r request) error {
	s, err := c.find(ctx, 2*d)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, c.stretched(d))
	defer cancel()
	began := time.Now() // by the clock that the limit goes by
	err = r(limited, s)
	took := time.Since(began)
	switch {
	case err == nil || ctx.Err() == nil && limited.Err() == nil:
		c.answered(s, err, took <= d)
	case ctx.Err() == nil:
		c.unanswered(s, took)
	}
	return err
}

// find is with, for d at most.
func (c *conversation) find(ctx context.Context, d time.Duration) (leases.Session, error) {
	if s, _, err := c.current(); s != nil || err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return c.with(ctx)
}

// until makes a request, which was made tries times, until it is answered for
// good, ctx ends or the backend is closed.
func (c *conversation) until(ctx context.Context, d time.Duration, r request, tries int) error {
	for {
		sleep(ctx, c.client.clock, backoff(tries, d))
		err := c.ask(ctx, d, r)
		if final(err) || ctx.Err() != nil {
			return err
		}
		if _, closed := c.without(); closed {
			return err
		}
		tries++
	}
}

// stretched is d, or more if the last requests were not answered in so little:
// a slow way must not be taken for a hung node forever.
func (c *conversation) stretched(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(maxPatience, d<<min(c.late, 4))
}

// answered takes an answer of s's. One that says that nothing is known calls for
// another node, at once or when it is repeated.
func (c *conversation) answered(s leases.Session, err error, inTime bool) {
	if c.count(s, err, inTime) {
		c.give(s, err)
	}
}

// count reports whether s is to be given up.
func (c *conversation) count(s leases.Session, err error, inTime bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.session != s: // a late answer says nothing of the present one
		return false
	case inTime:
		c.late = 0
	}
	if certain(err) {
		c.strikes = 0
		return false
	}
	c.strikes++
	return c.strikes >= maxStrikes || matches(err, leases.ErrNotLeader, leases.ErrNoQuorum)
}

// unanswered gives s up: its node may hang.
func (c *conversation) unanswered(s leases.Session, after time.Duration) {
	c.end(s, fmt.Errorf("%w: no answer within %v", leases.ErrUnknownOutcome, after), 1)
}

// give gives s up, so that the next request goes over a new session.
func (c *conversation) give(s leases.Session, why error) { c.end(s, why, 0) }

// end ends s, if it is the present session; of many that want that one counts.
func (c *conversation) end(s leases.Session, why error, late int) {
	c.mu.Lock()
	present := c.session == s
	if present {
		c.session, c.strikes, c.err = nil, 0, why
		c.late += late
	}
	c.mu.Unlock()
	if present {
		c.client.log.Info("the conversation is over", "node", s.Info().Node, "error", why)
		s.Close()
	}
}

// close ends the conversation for good. Nothing is asked any more.
func (c *conversation) close() {
	c.mu.Lock()
	s := c.session
	c.session = nil
	c.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// sleep returns early when ctx ends.
func sleep(ctx context.Context, c clock.Clock, d time.Duration) {
	if d > 0 {
		clock.Wait(ctx, c, c.Now().Add(d))
	}
}
