package nodetest

import (
	"context"
	"sync"
	"time"

	"github.com/coordd/coordd/leases"
)

// lateReleases is a network that, for a while, holds every Release and brings it
// later; meanwhile the client hears nothing of it.
type lateReleases struct {
	leases.Backend
	bring sync.WaitGroup

	mu    sync.Mutex // guards until
	until time.Time
}

// hold holds the releases that are sent within d from now, until then.
func (l *lateReleases) hold(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(d)
}

func (l *lateReleases) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	s, err := l.Backend.Open(ctx, id, on)
	if err != nil {
		return nil, err
	}
	return &lateSession{s, l, id}, nil
}

type lateSession struct {
	leases.Session
	late *lateReleases
	id   leases.ID
}

func (s *lateSession) Release(ctx context.Context, h leases.Held) error {
	s.late.mu.Lock()
	held := time.Until(s.late.until)
	s.late.mu.Unlock()
	if held <= 0 {
		return s.Session.Release(ctx, h)
	}
	s.late.bring.Go(func() { s.late.release(held, s.id, h) })
	<-ctx.Done()
	return leases.ErrUnknownOutcome
}

// release brings a copy after a time, over whatever conversation there is then.
func (l *lateReleases) release(after time.Duration, id leases.ID, h leases.Held) {
	time.Sleep(after)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	s, err := l.Backend.Open(ctx, id, func(leases.Event) {})
	if err != nil {
		return
	}
	defer s.Close()
	s.Release(ctx, h)
}
