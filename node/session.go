package node

import (
	"context"
	"sync"

	"github.com/coordd/coordd/leases"
)

// session is one client's conversation with this node's tenure.
type session struct {
	tenure *tenure
	id     leases.ID
	info   leases.Info
	events func(leases.Event)

	ctx    context.Context // ends with the conversation; the cause says why
	cancel context.CancelCauseFunc

	mu     sync.Mutex // guards queued and closed; events are delivered one at a time
	queued []leases.Event
	busy   bool
}

var _ leases.Session = (*session)(nil)

// maxQueuedEvents bounds what is kept for a client that does not take its
// events; they are hints, and it is told everything again when it asks.
const maxQueuedEvents = 4096

func (t *tenure) open(id leases.ID, info leases.Info, events func(leases.Event)) (*session, error) {
	s := &session{tenure: t, id: id, info: info, events: events}
	s.ctx, s.cancel = context.WithCancelCause(t.ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		s.cancel(nil)
		return nil, t.over()
	}
	if t.sessions[id] == nil {
		t.sessions[id] = map[*session]struct{}{}
	}
	t.sessions[id][s] = struct{}{}
	return s, nil
}

func (s *session) Info() leases.Info { return s.info }

// bound is ctx, ended with the conversation.
func (s *session) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(s.Err()) })
	return ctx, func() { stop(); cancel(nil) }
}

func (s *session) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	if s.ctx.Err() != nil {
		return leases.Grant{}, s.Err()
	}
	ctx, done := s.bound(ctx)
	defer done()
	g, err := s.tenure.acquire(ctx, s, c)
	s.tenure.metrics.claim(err)
	return g, err
}

func (s *session) Withdraw(ctx context.Context, name string, attempt leases.ID) error {
	ctx, done := s.bound(ctx)
	defer done()
	return s.tenure.withdraw(ctx, s.id, name, attempt)
}

func (s *session) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	ctx, done := s.bound(ctx)
	defer done()
	answers, err := s.tenure.renew(ctx, s.id, held)
	s.tenure.metrics.renewed(len(held), answers, err)
	return answers, err
}

func (s *session) Release(ctx context.Context, h leases.Held) error {
	ctx, done := s.bound(ctx)
	defer done()
	return s.tenure.release(ctx, s.id, h)
}

func (s *session) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	ctx, done := s.bound(ctx)
	defer done()
	return s.tenure.transfer(ctx, s.id, h, to)
}

func (s *session) Done() <-chan struct{} { return s.ctx.Done() }

func (s *session) Err() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

func (s *session) Close() error {
	s.cancel(leases.ErrClosed)
	t := s.tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions[s.id], s)
	if len(t.sessions[s.id]) == 0 {
		delete(t.sessions, s.id)
	}
	return nil
}

// on hands an event over. It does not block: it is called under the tenure's lock.
func (s *session) on(e leases.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queued) == maxQueuedEvents || s.ctx.Err() != nil {
		return
	}
	s.queued = append(s.queued, e)
	if !s.busy {
		s.busy = true
		go s.deliver()
	}
}

func (s *session) deliver() {
	for {
		s.mu.Lock()
		if len(s.queued) == 0 {
			s.busy = false
			s.mu.Unlock()
			return
		}
		events := s.queued
		s.queued = nil
		s.mu.Unlock()
		for _, e := range events {
			s.events(e)
		}
	}
}
