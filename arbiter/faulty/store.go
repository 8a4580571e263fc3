package faulty

import (
	"context"
	"sync"

	"github.com/coordd/coordd/arbiter"
)

// Store is an arbiter.Store with faults. It starts no goroutine, and waits only
// where the store inside or a Fault's There and Back do. It is safe for concurrent use.
type Store struct {
	inside arbiter.Store

	mu   sync.Mutex // guards what follows
	plan Plan
	late []*LateWrite // the oldest first
}

var _ arbiter.Store = (*Store)(nil)

// New returns a store without faults over another.
func New(inside arbiter.Store) *Store { return &Store{inside: inside} }

// SetPlan decides about the calls that begin from now on; nil: they have no faults.
func (s *Store) SetPlan(p Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = p
}

// fault asks the plan, outside of the lock.
func (s *Store) fault(c Call) Fault {
	s.mu.Lock()
	plan := s.plan
	s.mu.Unlock()
	if plan == nil {
		return Fault{}
	}
	return plan(c)
}

// Load implements arbiter.Store.
func (s *Store) Load(ctx context.Context, key string) (arbiter.Register, error) {
	if err := arbiter.Ended(ctx); err != nil {
		return arbiter.Register{}, arbiter.Unreachable(key, err)
	}
	f := s.fault(Call{Key: key})
	r, err := s.load(ctx, key, f.Kind, way(ctx, f.There))
	if ended := way(ctx, f.Back); ended != nil && err == nil {
		return arbiter.Register{}, arbiter.Unreachable(key, ended)
	}
	return r, err
}

// load goes on where the call arrives, or does not; ended is why ctx has ended on
// the way.
func (s *Store) load(ctx context.Context, key string, k Kind, ended error) (arbiter.Register, error) {
	switch {
	case k.refused() != nil:
		return arbiter.Register{}, arbiter.Unreachable(key, k.refused())
	case ended != nil:
		return arbiter.Register{}, arbiter.Unreachable(key, ended)
	case k != None:
		return arbiter.Register{}, arbiter.Unreachable(key, errLost)
	}
	return s.inside.Load(ctx, key)
}

// CompareAndSwap implements arbiter.Store.
func (s *Store) CompareAndSwap(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
	if err := arbiter.Validate(key, w.Data); err != nil {
		return err
	}
	if err := arbiter.Ended(ctx); err != nil {
		return arbiter.Unreachable(key, err)
	}
	c := Call{Key: key, Swap: true, From: from, Write: w}
	f := s.fault(c)
	err := s.swap(ctx, c, f.Kind, way(ctx, f.There))
	if ended := way(ctx, f.Back); ended != nil && f.Kind.refused() == nil {
		return unknown(key, ended)
	}
	return err
}

// swap is to CompareAndSwap what load is to Load.
func (s *Store) swap(ctx context.Context, c Call, k Kind, ended error) error {
	switch {
	case k.refused() != nil:
		return arbiter.Unreachable(c.Key, k.refused())
	case k == Late:
		s.keep(c)
		return unknown(c.Key, errLost)
	case ended != nil:
		return unknown(c.Key, ended)
	case k == LostRequest:
		return unknown(c.Key, errLost)
	}
	err := s.inside.CompareAndSwap(ctx, c.Key, c.From, c.Write)
	if k == LostAnswer {
		return unknown(c.Key, errLost)
	}
	return err
}

func unknown(key string, err error) error { return &arbiter.UnknownError{Key: key, Err: err} }
