package node

import (
	"context"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
)

// rounds asks the voters whether this node still leads its term (protocol, N4):
// one round at a time, for all requests that were there when it began.
type rounds struct {
	clock   clock.Clock
	rules   rules.Set
	timeout time.Duration
	// ask returns nil once a majority of the voters, each asked after the call,
	// has confirmed the term.
	ask func(context.Context) error

	mu      sync.Mutex // guards what follows
	waiting *round     // takes requests until it begins
	running *round
	wake    chan struct{} // has room for one
}

// round is one question to all voters; done is closed when it is answered.
type round struct {
	began clock.Instant
	err   error
	done  chan struct{}
}

func newRounds(c clock.Clock, set rules.Set, timeout time.Duration, ask func(context.Context) error) *rounds {
	return &rounds{clock: c, rules: set, timeout: timeout, ask: ask, wake: make(chan struct{}, 1)}
}

// join waits for a round that begins after the call and returns when it began.
// The error matches leases.ErrNoQuorum or leases.ErrUnavailable, or is
// leases.ErrUnknownOutcome where ctx ends first.
func (r *rounds) join(ctx context.Context) (clock.Instant, error) {
	if !r.rules.On(rules.Round) {
		return r.clock.Now(), nil
	}
	r.mu.Lock()
	joined := r.waiting
	if !r.rules.On(rules.RoundFreshness) && r.running != nil {
		joined = r.running
	}
	if joined == nil {
		joined = &round{done: make(chan struct{})}
		r.waiting = joined
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	r.mu.Unlock()
	select {
	case <-joined.done:
		return joined.began, joined.err
	case <-ctx.Done():
		return 0, unknown(ctx)
	}
}

// run holds the rounds until ctx ends; over is what then is answered.
func (r *rounds) run(ctx context.Context, over error) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.wake:
			r.hold(ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting != nil {
		r.waiting.err = over
		close(r.waiting.done)
	}
	// Nothing is served any more: what joins from now on is answered at once.
	r.waiting = &round{err: over, done: make(chan struct{})}
	close(r.waiting.done)
}

func (r *rounds) hold(ctx context.Context) {
	r.mu.Lock()
	now := r.waiting
	r.waiting, r.running = nil, now
	r.mu.Unlock()
	if now == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	now.began = r.clock.Now()
	now.err = r.ask(ctx)
	r.mu.Lock()
	r.running = nil
	r.mu.Unlock()
	close(now.done)
}
