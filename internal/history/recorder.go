package history

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Recorder writes a history down. It is safe for concurrent use.
type Recorder struct {
	clock clock.Clock

	mu      sync.Mutex // guards what is below and every event and belief in it
	order   int        // of the last invocation or return
	epoch   uint32
	events  []*Event
	beliefs []*Holding
}

// NewRecorder makes a recorder whose events carry c's time: the one true clock
// that beliefs are told in.
func NewRecorder(c clock.Clock) *Recorder { return &Recorder{clock: c} }

// Begin records that a client is about to send a request. The returned function
// records the answer; the token counts for a granted Acquire alone.
func (r *Recorder) Begin(e Event) func(o Outcome, t tokens.Token, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order++
	e.invoked, e.returned = r.order, 0
	e.Invoke = r.clock.Now()
	e.Return, e.Outcome = e.Invoke, Unknown
	r.events = append(r.events, &e)
	return func(o Outcome, t tokens.Token, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.order++
		e.returned = r.order
		e.Return, e.Outcome, e.Err = r.clock.Now(), o, err
		if e.Kind == Acquire && o == Done {
			e.Token = t
		}
	}
}

// Epoch records that an epoch has begun. Requests and answers tell of epochs too,
// but not of each at once.
func (r *Recorder) Epoch(e uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch = max(r.epoch, e)
}

// Break records a Break that an operator has do carry out, and returns do's error.
func (r *Recorder) Break(name string, t tokens.Token, now bool, do func() error) error {
	end := r.Begin(Event{Kind: Break, Client: "operator", Name: name, Token: t, Now: now})
	err := do()
	end(OutcomeOf(err), 0, err)
	return err
}

// Holding is a belief that lasts until End.
type Holding struct {
	r        *Recorder
	belief   Belief
	deadline func() clock.Instant
	ended    bool
}

// Believe records that from now on a client relies on a lease. deadline tells,
// by the recorder's clock, how long at most; it is asked at the end, and must
// not call the recorder.
func (r *Recorder) Believe(client, name string, t tokens.Token, deadline func() clock.Instant) *Holding {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &Holding{r: r, belief: Belief{Client: client, Name: name, Token: t, From: r.clock.Now()}, deadline: deadline}
	r.beliefs = append(r.beliefs, h)
	return h
}

// End records that the belief is over. It must come before the release is
// sent. A second End does nothing.
func (h *Holding) End() {
	deadline := h.deadline()
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if !h.ended {
		h.ended = true
		h.belief.Deadline = deadline
		h.belief.Until = min(deadline, h.r.clock.Now())
	}
}

// History returns a copy of what was recorded so far. Requests without an
// answer are unknown outcomes, beliefs without an end last to their deadline.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := History{Epoch: r.epoch, Events: slices.Clone(r.events)}
	for i, e := range h.Events {
		copied := *e
		h.Events[i] = &copied
	}
	for _, b := range r.beliefs {
		belief := b.belief
		if !b.ended {
			belief.Deadline = b.deadline()
			belief.Until = belief.Deadline
		}
		h.Beliefs = append(h.Beliefs, &belief)
	}
	return h
}

// Backend records every request that a client sends over b. That a lease has
// ended, told without having been asked for, is recorded as a refused renewal.
func (r *Recorder) Backend(client string, b leases.Backend) leases.Backend {
	return &backend{r: r, client: client, Backend: b}
}

type backend struct {
	leases.Backend
	r      *Recorder
	client string
}

func (b *backend) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	s := &session{backend: b, id: id}
	inner, err := b.Backend.Open(ctx, id, func(e leases.Event) {
		if x, ok := e.(leases.Ended); ok {
			s.begin(Event{Kind: Renew, Name: x.Held.Name, Token: x.Held.Token})(NotHeld, 0, x.Err)
		}
		on(e)
	})
	if err != nil {
		return nil, err
	}
	s.Session = inner
	return s, nil
}

type session struct {
	leases.Session
	backend *backend
	id      leases.ID
}

func (s *session) begin(e Event) func(Outcome, tokens.Token, error) {
	e.Client, e.Session = s.backend.client, s.id
	return s.backend.r.Begin(e)
}

func (s *session) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	end := s.begin(Event{Kind: Acquire, Name: c.Name, Attempt: c.Attempt, TTL: c.TTL})
	g, err := s.Session.Acquire(ctx, c)
	end(OutcomeOf(err), g.Token, err)
	return g, err
}

func (s *session) Withdraw(ctx context.Context, name string, attempt leases.ID) error {
	end := s.begin(Event{Kind: Withdraw, Name: name, Attempt: attempt})
	err := s.Session.Withdraw(ctx, name, attempt)
	end(OutcomeOf(err), 0, err)
	return err
}

func (s *session) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	ends := make([]func(Outcome, tokens.Token, error), len(held))
	for i, h := range held {
		ends[i] = s.begin(Event{Kind: Renew, Name: h.Name, Token: h.Token})
	}
	results, err := s.Session.Renew(ctx, held)
	for i, end := range ends {
		each := err
		if err == nil {
			each = results[i]
		}
		end(OutcomeOf(each), 0, each)
	}
	return results, err
}

func (s *session) Reclaim(ctx context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	ends := make([]func(Outcome, tokens.Token, error), len(held))
	for i, h := range held {
		ends[i] = s.begin(Event{Kind: Reclaim, Name: h.Name, Token: h.Token, Epoch: epoch})
	}
	results, err := s.Session.Reclaim(ctx, epoch, held)
	for i, end := range ends {
		each := err
		if err == nil {
			each = results[i]
		}
		end(reclaimOutcome(each), 0, each)
	}
	return results, err
}

// reclaimOutcome is OutcomeOf for a reclaim: of those answers that do not say what
// became of it only ErrGrace, of another epoch, says that it had no effect.
func reclaimOutcome(err error) Outcome {
	o := OutcomeOf(err)
	if o == Nothing && !errors.Is(err, leases.ErrGrace) {
		return Unknown
	}
	return o
}

func (s *session) Release(ctx context.Context, h leases.Held) error {
	end := s.begin(Event{Kind: Release, Name: h.Name, Token: h.Token})
	err := s.Session.Release(ctx, h)
	end(OutcomeOf(err), 0, err)
	return err
}

func (s *session) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	end := s.begin(Event{Kind: Transfer, Name: h.Name, Token: h.Token, Attempt: to})
	passed, err := s.Session.Transfer(ctx, h, to)
	end(OutcomeOf(err), 0, err)
	return passed, err
}

// OutcomeOf says what an error of a leases.Session means.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Done
	}
	for _, row := range []struct {
		sentinel error
		outcome  Outcome
	}{
		{leases.ErrUnknownOutcome, Unknown},
		{leases.ErrHeld, Held},
		{leases.ErrNotHeld, NotHeld},
		{leases.ErrUnavailable, Nothing},
		{leases.ErrNotLeader, Nothing},
		{leases.ErrNoQuorum, Nothing},
		{leases.ErrExhausted, Nothing},
		{leases.ErrGrace, Nothing},
		{leases.ErrInvalid, Nothing},
		{leases.ErrWrongCluster, Nothing},
	} {
		if errors.Is(err, row.sentinel) {
			return row.outcome
		}
	}
	return Unknown
}
