package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// keepTTL is the TTL of the leases that a client keeps: it renews each about
// once a second.
const keepTTL = 3 * time.Second

// openLeases opens what l.Kind asks for over node or, if that is nil, over
// connections to l.Addrs.
func openLeases(l Load, node leases.Backend) (target, error) {
	b := &backends{node: node}
	for range min(l.Conns, l.Workers) {
		if err := b.open(l.Addrs); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	switch l.Kind {
	case "client", "holding", "keep":
		c := newClients(b, l.Kind == "keep")
		if l.Kind == "holding" {
			if err := c.hold(l.Leases); err != nil {
				return nil, errors.Join(err, c.close())
			}
		}
		return c, nil
	case "session", "renew":
		s, err := openSessions(b, l.Leases)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	return nil, errors.Join(fmt.Errorf("no load is of kind %q", l.Kind), b.close())
}

// backends is what the workers share: connections, or an embedded node as often.
type backends struct {
	node leases.Backend
	all  []leases.Backend
}

func (b *backends) open(addrs []string) error {
	if b.node != nil {
		b.all = append(b.all, b.node)
		return nil
	}
	conn, err := transport.Dial(transport.DialConfig{Addrs: addrs})
	if err != nil {
		return err
	}
	b.all = append(b.all, conn)
	return nil
}

func (b *backends) close() error {
	var errs []error
	for _, one := range b.all {
		if conn, ok := one.(*transport.Conn); ok {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

func key(i int) string { return fmt.Sprintf("bench/%06d", i) }

// clients is the load that users make: each worker acquires and releases its
// own lease over a client.Client or, where they are kept, waits for each of its
// renewals.
type clients struct {
	*backends
	kept bool
	all  []*client.Client

	mu   sync.Mutex // guards held
	held []*client.Lease
}

func newClients(b *backends, kept bool) *clients {
	c := &clients{backends: b, kept: kept}
	for _, one := range b.all {
		c.all = append(c.all, client.New(one))
	}
	return c
}

func (c *clients) worker(_ context.Context, i int) (worker, error) {
	one, name := c.all[i%len(c.all)], key(i)
	if c.kept {
		return c.keep(one, name), nil
	}
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		l, err := one.Acquire(ctx, name)
		if err != nil {
			return 0, err
		}
		took := time.Since(began)
		return took, l.Release(ctx)
	}, nil
}

// hold lets the first client acquire n leases, and keep them.
func (c *clients) hold(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), prepareTime)
	defer cancel()
	errs := make([]error, n)
	inParallel(n, func(i int) {
		l, err := c.all[0].Acquire(ctx, "held/"+key(i), client.TTL(leases.MaxTTL))
		if errs[i] = err; err == nil {
			c.keeps(l)
		}
	})
	return errors.Join(errs...)
}

func (c *clients) keeps(l *client.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = append(c.held, l)
}

// keep is a worker whose step is to wait for a renewal of its lease.
func (c *clients) keep(one *client.Client, name string) worker {
	var l *client.Lease
	return func(ctx context.Context) (time.Duration, error) {
		if l == nil {
			var err error
			if l, err = one.Acquire(ctx, name, client.TTL(keepTTL)); err != nil {
				return 0, err
			}
			c.keeps(l)
		}
		select {
		case <-l.Renewed():
			return 0, nil
		case <-l.Done():
			return 0, l.Err()
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (c *clients) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	inParallel(len(c.held), func(i int) { _ = c.held[i].Release(ctx) }) // it lapses, if not
	var errs []error
	for _, one := range c.all {
		errs = append(errs, one.Close(ctx))
	}
	return errors.Join(append(errs, c.backends.close())...)
}

// sessions is the load without what package client adds: each worker acquires
// and releases its own lease or, where there are leases to renew, renews all of
// its own at once.
type sessions struct {
	*backends
	renewed int // leases of each worker
	all     []leases.Session
	held    []lot
}

// lot is the leases that a worker renews.
type lot struct {
	session leases.Session
	held    []leases.Held
}

func openSessions(b *backends, renewed int) (*sessions, error) {
	s := &sessions{backends: b, renewed: renewed}
	ctx, cancel := context.WithTimeout(context.Background(), prepareTime)
	defer cancel()
	for _, one := range b.all {
		session, err := one.Open(ctx, leases.NewID(), func(leases.Event) {})
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.all = append(s.all, session)
	}
	return s, nil
}

func (s *sessions) worker(ctx context.Context, i int) (worker, error) {
	one := s.all[i%len(s.all)]
	if s.renewed > 0 {
		return s.renew(ctx, one, i)
	}
	name := key(i)
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		h, err := acquire(ctx, one, name, client.DefaultTTL)
		if err != nil {
			return 0, err
		}
		took := time.Since(began)
		return took, one.Release(ctx, h)
	}, nil
}

func acquire(ctx context.Context, s leases.Session, name string, ttl time.Duration) (leases.Held, error) {
	g, err := s.Acquire(ctx, leases.Claim{Name: name, Attempt: leases.NewID(), TTL: ttl, Wait: leases.Forever})
	return leases.Held{Name: name, Token: g.Token}, err
}

// acquireAll acquires n leases that nothing need renew for a while, key(from)
// and on.
func acquireAll(ctx context.Context, s leases.Session, from, n int) ([]leases.Held, error) {
	held, errs := make([]leases.Held, n), make([]error, n)
	inParallel(n, func(i int) { held[i], errs[i] = acquire(ctx, s, key(from+i), leases.MaxTTL) })
	return held, errors.Join(errs...)
}

// inParallel calls f with 0 to n-1 in up to 512 goroutines.
func inParallel(n int, f func(i int)) {
	const most = 512
	var running sync.WaitGroup
	for first := range min(n, most) {
		running.Go(func() {
			for i := first; i < n; i += most {
				f(i)
			}
		})
	}
	running.Wait()
}

// renew is a worker whose step is to renew all of its leases.
func (s *sessions) renew(ctx context.Context, one leases.Session, i int) (worker, error) {
	held, err := acquireAll(ctx, one, i*s.renewed, s.renewed)
	if err != nil {
		return nil, err
	}
	s.held = append(s.held, lot{one, held})
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		refused, err := one.Renew(ctx, held)
		took := time.Since(began)
		if i := slices.IndexFunc(refused, func(err error) bool { return err != nil }); i >= 0 {
			err = refused[i]
		}
		return took, err
	}, nil
}

func (s *sessions) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	var errs []error
	for _, l := range s.held {
		released := make([]error, len(l.held))
		inParallel(len(l.held), func(i int) { released[i] = l.session.Release(ctx, l.held[i]) })
		errs = append(errs, released...)
	}
	for _, one := range s.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(append(errs, s.backends.close())...)
}
