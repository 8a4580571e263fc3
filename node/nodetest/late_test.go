package nodetest

import (
	"context"
	"sync"
	"time"

	"github.com/coordd/coordd/leases"
)

// lateEnds is a network that, for a while, holds every Release and Transfer and
// brings it later; meanwhile the client hears nothing of it.
type lateEnds struct {
	leases.Backend
	bring sync.WaitGroup

	mu    sync.Mutex // guards until
	until time.Time
}

// hold holds what is sent within d from now, until then.
func (l *lateEnds) hold(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(d)
}

func (l *lateEnds) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	s, err := l.Backend.Open(ctx, id, on)
	if err != nil {
		return nil, err
	}
	return &lateSession{s, l, id}, nil
}

type lateSession struct {
	leases.Session
	late *lateEnds
	id   leases.ID
}

func (s *lateSession) Release(ctx context.Context, h leases.Held) error {
	_, err := s.send(ctx, releasing(h))
	return err
}

func (s *lateSession) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	return s.send(ctx, transferring(h, to))
}

// ending is a request that ends a lease.
type ending func(context.Context, leases.Session) (passedOn bool, err error)

func releasing(h leases.Held) ending {
	return func(ctx context.Context, s leases.Session) (bool, error) { return false, s.Release(ctx, h) }
}

func transferring(h leases.Held, to leases.ID) ending {
	return func(ctx context.Context, s leases.Session) (bool, error) { return s.Transfer(ctx, h, to) }
}

func (s *lateSession) send(ctx context.Context, e ending) (bool, error) {
	s.late.mu.Lock()
	held := time.Until(s.late.until)
	s.late.mu.Unlock()
	if held <= 0 {
		return e(ctx, s.Session)
	}
	s.late.bring.Go(func() { bring(s.late.Backend, held, s.id, e) })
	<-ctx.Done()
	return false, leases.ErrUnknownOutcome
}

// bring brings a copy after a time, over whatever conversation there is then.
func bring(b leases.Backend, after time.Duration, id leases.ID, e ending) {
	time.Sleep(after)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	s, err := b.Open(ctx, id, func(leases.Event) {})
	if err != nil {
		return
	}
	defer s.Close()
	_, _ = e(ctx, s)
}
