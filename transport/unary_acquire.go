package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// How long the withdrawal of an attempt that the node drew may take, one try of
// it, and the waits between two.
const (
	undoTime     = 5 * time.Second
	undoTry      = 2 * time.Second
	undoPause    = 50 * time.Millisecond
	maxUndoPause = time.Second
)

// attempted is an Acquire without a conversation.
type attempted struct {
	session leases.ID
	claim   leases.Claim
	drawn   bool // the node drew the attempt: nobody else can repeat or withdraw it
}

// Acquire asks for a lease. Whether its caller is still there is not known any
// more once the answer is on its way: one that gets lost leaves a lease that
// ends at its deadline.
func (s *Service) Acquire(ctx context.Context, r *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
	a, err := fromAcquireRequest(r)
	var g leases.Grant
	if err == nil {
		g, err = s.claim(ctx, a)
	}
	return respond(toAcquireResponse(a, g), err)
}

// claim makes the attempt. Where it may have come to a grant that nobody hears
// of, and the node drew it, it is withdrawn.
func (s *Service) claim(ctx context.Context, a attempted) (leases.Grant, error) {
	if err := s.enter(); err != nil {
		return leases.Grant{}, err
	}
	defer s.running.Done()
	select {
	case s.acquires <- struct{}{}:
	default:
		return leases.Grant{}, occupied("unanswered acquires outside of conversations", s.acquires)
	}
	g, err := s.acquire(ctx, a)
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: the caller was gone before its answer", leases.ErrUnknownOutcome)
	}
	if !a.drawn || err == nil || fruitless(err) {
		<-s.acquires
		return g, err
	}
	s.running.Go(func() {
		defer func() { <-s.acquires }()
		s.undo(a)
	})
	return leases.Grant{}, err
}

func (s *Service) acquire(ctx context.Context, a attempted) (g leases.Grant, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(s.log, "Acquire", p)
		}
	}()
	ctx, done := s.bound(ctx, 0)
	defer done()
	err = withSession(ctx, s.backend, a.session, func(ctx context.Context, b leases.Session) (err error) {
		g, err = b.Acquire(ctx, a.claim)
		return err
	})
	return g, err
}

// fruitless reports whether an acquire that ended with err was certainly
// granted nothing, and will not be.
func fruitless(err error) bool {
	if errors.Is(err, leases.ErrUnknownOutcome) {
		return false
	}
	for _, certain := range []error{
		leases.ErrHeld, leases.ErrNotHeld, leases.ErrInvalid, leases.ErrExhausted,
		leases.ErrNotLeader, leases.ErrNoQuorum, leases.ErrUnavailable, leases.ErrGrace,
	} {
		if errors.Is(err, certain) {
			return true
		}
	}
	return false
}

// undo withdraws an attempt that the node drew, at whichever node serves now.
// It gives up after undoTime, or soon after the closing has begun.
func (s *Service) undo(a attempted) {
	ctx, done := s.bound(context.Background(), partingTime)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	for pause := undoPause; ; pause = min(2*pause, maxUndoPause) {
		err := s.tryUndo(ctx, a)
		switch {
		case err == nil:
			return
		case errors.Is(err, leases.ErrInvalid), errors.Is(err, leases.ErrClosed), ctx.Err() != nil:
			s.log.Warn("a lease may have been granted to a caller that is gone, and could not be withdrawn: it ends at its deadline",
				"name", a.claim.Name, "attempt", a.claim.Attempt, "ttl", a.claim.TTL, "err", err)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (s *Service) tryUndo(ctx context.Context, a attempted) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(s.log, "Withdraw", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, undoTry)
	defer cancel()
	session, err := s.anywhere.Open(ctx, a.session, func(leases.Event) {})
	if err != nil {
		return err
	}
	defer session.Close()
	return session.Withdraw(ctx, a.claim.Name, a.claim.Attempt)
}
