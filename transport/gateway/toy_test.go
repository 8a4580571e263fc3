package gateway_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// toy is a cluster of one in memory, without deadlines: a leases.Backend over
// the true Table.
type toy struct {
	mu      sync.Mutex // guards what follows
	table   *leases.Table
	waiting []*waiter // of all names, the first come first
	changes []leases.Change
	news    chan struct{} // closed at the next change
	renewed int
	broken  error // what renewals are answered with; nil: as usual

	// grace is that of a takeover: an arbiter has the lease that is reclaimed, and no
	// other; nil: there is none.
	grace     *leases.GraceError
	refused   int              // acquires, in a grace
	reclaimed []leases.Claimed // in the epoch of this one
}

type waiter struct {
	claim   leases.Claim
	session leases.ID
	since   time.Time
	granted chan leases.Grant
}

func newToy() *toy {
	t := &toy{table: leases.NewTable(), news: make(chan struct{})}
	t.table.Apply(leases.Op{Kind: leases.KindBirth, Epoch: 1, Cluster: leases.NewID(), Founders: 1})
	return t
}

// serveToy runs a gateway for a toy, over the true service.
func serveToy(t testing.TB, b *toy) *server {
	t.Helper()
	service := transport.NewService(transport.ServiceConfig{Backend: b, Status: b.status})
	s := serve(t, service)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := service.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// apply is called with t.mu held.
func (t *toy) apply(op leases.Op) leases.Result {
	op.Epoch = t.table.Epoch()
	r := t.table.Apply(op)
	if c, ok := leases.ChangeOf(r, t.table.Revision()); ok {
		t.changes = append(t.changes, c)
		close(t.news)
		t.news = make(chan struct{})
		if c.Free {
			t.next(c.Name)
		}
	}
	return r
}

// next grants a free name to who has waited for it longest. It is called with
// t.mu held.
func (t *toy) next(name string) {
	if i := slices.IndexFunc(t.waiting, func(w *waiter) bool { return w.claim.Name == name }); i >= 0 {
		w := t.leave(i)
		r := t.apply(acquisition(w.session, w.claim))
		w.granted <- leases.Grant{Token: r.Lease.Token, AcquiredAt: r.Lease.AcquiredAt, Waited: true}
	}
}

func (t *toy) leave(i int) *waiter {
	w := t.waiting[i]
	t.waiting = slices.Delete(t.waiting, i, i+1)
	return w
}

func acquisition(session leases.ID, c leases.Claim) leases.Op {
	return leases.Op{Kind: leases.KindAcquire, Name: c.Name, Session: session, Attempt: c.Attempt, TTL: c.TTL, Owner: c.Owner, Attributes: c.Attributes, AcquiredAt: time.Now()}
}

func (t *toy) Open(_ context.Context, id leases.ID, _ func(leases.Event)) (leases.Session, error) {
	return &toySession{t, id, make(chan struct{})}, nil
}

func (t *toy) state(l *leases.Lease) leases.State {
	return leases.State{
		Name: l.Name, Held: true, Token: l.Token, Owner: l.Owner, Attributes: l.Attributes, TTL: l.TTL, AcquiredAt: l.AcquiredAt,
		AtMost: leases.Stretch(l.TTL), Broken: l.Broken, Waiters: len(t.queue(l.Name)),
	}
}

func (t *toy) queue(name string) (all []leases.Waiter) {
	for _, w := range t.waiting {
		if w.claim.Name == name {
			all = append(all, leases.Waiter{Position: len(all) + 1, Attempt: w.claim.Attempt, Owner: w.claim.Owner, Waiting: time.Since(w.since)})
		}
	}
	return all
}

func (t *toy) Get(_ context.Context, name string) (leases.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l, ok := t.table.Get(name); ok {
		return t.state(l), nil
	}
	last, _ := t.table.Last(name)
	return leases.State{Name: name, Last: last}, nil
}

func (t *toy) List(_ context.Context, prefix, after string, limit int) (leases.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := leases.Page{At: t.at()}
	for l := range t.table.From(prefix, after) {
		if len(p.Leases) == limit {
			p.Next = p.Leases[limit-1].Name
			break
		}
		p.Leases = append(p.Leases, t.state(l))
	}
	return p, nil
}

func (t *toy) at() leases.Position {
	return leases.Position{Epoch: t.table.Epoch(), Revision: t.table.Revision()}
}

func (t *toy) Queue(_ context.Context, name string) ([]leases.Waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue(name), nil
}

func (t *toy) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	if from == (leases.Position{}) {
		t.mu.Lock()
		from = t.at()
		t.mu.Unlock()
	}
	for b := (leases.Batch{At: from}); ; {
		if err := on(b); err != nil {
			return err
		}
		t.mu.Lock()
		news, at := t.news, t.at()
		b.Changes = nil
		for _, c := range t.changes {
			if c.Revision > b.At.Revision {
				b.Changes = append(b.Changes, c)
			}
		}
		t.mu.Unlock()
		if b.At != at {
			b.At = at
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *toy) status(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
	return &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Node: "n1", Serving: true, Members: []*coorddv1.Member{{Name: "n1"}}}}, nil
}

type toySession struct {
	*toy
	id   leases.ID
	done chan struct{}
}

func (s *toySession) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	s.mu.Lock()
	if g := s.grace; g != nil {
		s.refused++
		s.mu.Unlock()
		return leases.Grant{}, g
	}
	r := s.apply(acquisition(s.id, c))
	switch r.Outcome {
	case leases.Granted, leases.Repeated:
		s.mu.Unlock()
		return leases.Grant{Token: r.Lease.Token, AcquiredAt: r.Lease.AcquiredAt}, nil
	case leases.Refused:
	default:
		s.mu.Unlock()
		return leases.Grant{}, fmt.Errorf("outcome %v", r.Outcome)
	}
	w := &waiter{claim: c, session: s.id, since: time.Now(), granted: make(chan leases.Grant, 1)}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	over := time.NewTimer(c.Wait)
	defer over.Stop()
	select {
	case g := <-w.granted:
		return g, nil
	case <-over.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.leave(i)
	} else {
		return <-w.granted, nil
	}
	if ctx.Err() != nil {
		return leases.Grant{}, fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, context.Cause(ctx))
	}
	l, _ := s.table.Get(c.Name)
	return leases.Grant{}, &leases.HeldError{Name: c.Name, By: l.Owner, Since: l.AcquiredAt, AtMost: leases.Stretch(l.TTL), Waiters: len(s.queue(c.Name))}
}

func (s *toySession) Withdraw(_ context.Context, name string, attempt leases.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(leases.Op{Kind: leases.KindWithdraw, Name: name, Session: s.id, Attempt: attempt})
	return nil
}

func (s *toySession) Renew(_ context.Context, held []leases.Held) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
		return []error{s.broken}, nil
	case s.grace != nil && len(s.reclaimed) == 0:
		return []error{s.grace}, nil
	}
	return []error{s.renew(held[0])}, nil
}

// renew is called with s.mu held.
func (s *toySession) renew(held leases.Held) error {
	l, ok := s.table.Get(held.Name)
	if !ok || l.Session != s.id || l.Token != held.Token {
		ending, _ := s.table.Ended(held.Name, held.Token)
		ending.Name, ending.Token = held.Name, held.Token
		return ending.Err()
	}
	s.renewed++
	return nil
}

func (s *toySession) Reclaim(_ context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.grace; g == nil || g.Epoch != epoch {
		return []error{fmt.Errorf("a reclaim in epoch %d, where the grace is %v", epoch, g)}, nil
	}
	err := s.renew(held[0].Held)
	if err == nil {
		s.reclaimed = append(s.reclaimed, held[0])
	}
	return []error{err}, nil
}

func (s *toySession) Release(_ context.Context, h leases.Held) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.apply(leases.Op{Kind: leases.KindRelease, Name: h.Name, Session: s.id, Token: h.Token}); r.Outcome != leases.Freed {
		return r.Ending.Err()
	}
	return nil
}

func (s *toySession) Transfer(_ context.Context, h leases.Held, to leases.ID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.waiting, func(w *waiter) bool { return w.claim.Name == h.Name && w.claim.Attempt == to })
	if i < 0 {
		s.apply(leases.Op{Kind: leases.KindRelease, Name: h.Name, Session: s.id, Token: h.Token})
		return false, nil
	}
	w := s.leave(i)
	op := acquisition(s.id, w.claim)
	op.Kind, op.Token, op.Heir = leases.KindTransfer, h.Token, w.session
	r := s.apply(op)
	if r.Outcome != leases.Transferred {
		return false, r.Ending.Err()
	}
	w.granted <- leases.Grant{Token: r.Lease.Token, AcquiredAt: r.Lease.AcquiredAt, Waited: true}
	return true, nil
}

func (s *toySession) Info() leases.Info     { return leases.Info{} }
func (s *toySession) Done() <-chan struct{} { return s.done }
func (s *toySession) Err() error            { return nil }
func (s *toySession) Close() error          { return nil }
