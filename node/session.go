package node

import (
	"context"
	"sync"
	"time"

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

	unanswered map[*request]*claim // nil for a release; the tenure's mutex guards it

	mu     sync.Mutex // guards queued and busy; events are delivered one at a time
	queued []leases.Event
	busy   bool
}

var _ leases.Session = (*session)(nil)

// maxQueuedEvents bounds what is kept for a client that does not take its
// events; they are hints, and it is told everything again when it asks.
const maxQueuedEvents = 4096

func (t *tenure) open(id leases.ID, info leases.Info, events func(leases.Event)) (*session, error) {
	s := &session{tenure: t, id: id, info: info, events: events, unanswered: map[*request]*claim{}}
	s.ctx, s.cancel = context.WithCancelCause(t.ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.serves(); err != nil {
		s.cancel(nil)
		return nil, err
	}
	if t.sessions[id] == nil {
		t.sessions[id] = map[*session]struct{}{}
	}
	t.sessions[id][s] = struct{}{}
	context.AfterFunc(s.ctx, s.answerAll)
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
	g, err := s.tenure.acquire(ctx, s, c)
	s.tenure.metrics.claim(err)
	return g, err
}

// StartAcquire is Acquire for who does not want to wait in it: it never blocks.
// After true, done is called once with the answer, maybe at once, and at the
// latest when the conversation has ended; it must not block, nor call the
// session. After false nothing has begun: Acquire tells why, or waits for what the
// answer needs: a round of the voters, or a higher ceiling.
func (s *session) StartAcquire(c leases.Claim, done func(leases.Grant, error)) bool {
	if c.Validate() != nil {
		return false
	}
	t := s.tenure
	asked := s.claim(c, func(g leases.Grant, err error) {
		t.metrics.claim(err)
		done(g, err)
	})
	if t.may != nil && !t.may(c.TTL) || c.Wait == 0 && t.takenNow(asked) {
		return false
	}
	return t.start(asked) == nil
}

// StartRelease is to Release what StartAcquire is to Acquire.
func (s *session) StartRelease(h leases.Held, done func(error)) bool {
	if h.Validate() != nil {
		return false
	}
	return s.tenure.startRelease(&request{session: s, done: func(_ leases.Grant, err error) { done(err) }}, h) == nil
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

// Reclaim implements leases.Session.
func (s *session) Reclaim(ctx context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	ctx, done := s.bound(ctx)
	defer done()
	answers, err := s.tenure.reclaim(ctx, s.id, epoch, held)
	s.tenure.metrics.reclaimed(len(held), answers, err)
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

// request is one call of a session that waits for its answer. The tenure's mutex
// guards it.
type request struct {
	session *session
	done    func(leases.Grant, error) // nil once it has been called; it must not block
	timer   *time.Timer               // ends its wait in line; nil: nothing does
}

// admit notes a request as unanswered, c being its claim, unless its session has
// ended. It is called with mu held.
func (t *tenure) admit(r *request, c *claim) error {
	if err := t.serves(); err != nil {
		return err
	}
	if r.session.ctx.Err() != nil {
		return r.session.Err()
	}
	r.session.unanswered[r] = c
	return nil
}

// forget lets a request be answered no more. It is called with the tenure's mu held.
func (r *request) forget() {
	r.done = nil
	delete(r.session.unanswered, r)
	if r.timer != nil {
		r.timer.Stop()
	}
}

// reply answers a request, unless it has been answered. It is called with the
// tenure's mu held.
func (r *request) reply(g leases.Grant, err error) {
	if done := r.done; done != nil {
		r.forget()
		done(g, err)
	}
}

// answerAll answers what is unanswered when the conversation has ended. At the
// end of the tenure the replicator answers everything that it has: it knows best.
func (s *session) answerAll() {
	for s.answerSome() {
	}
}

// answerSome does so for some, and reports whether there may be more.
func (s *session) answerSome() bool {
	t := s.tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	over, some := t.ctx.Err() != nil, 0
	for r, c := range s.unanswered {
		switch left := c != nil && t.leave(c); {
		case left && over:
			r.reply(leases.Grant{}, t.over())
		case !over:
			r.reply(leases.Grant{}, unknown(s.ctx))
		default:
			continue
		}
		if some++; some == atOnce {
			return true
		}
	}
	return false
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
