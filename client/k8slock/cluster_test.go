package k8slock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// cluster grants leases in its memory.
type cluster struct {
	mu      sync.Mutex // guards what follows
	held    map[string]*grant
	last    map[string]leases.Ending
	granted uint32
}

type grant struct {
	claim      leases.Claim
	token      tokens.Token
	at, end    time.Time
	broken     bool
	breakingTo func(leases.Event)
}

func newCluster() *cluster {
	return &cluster{held: map[string]*grant{}, last: map[string]leases.Ending{}}
}

// get returns the grant of a name that is held. It is called with mu held.
func (c *cluster) get(name string) *grant {
	g := c.held[name]
	if g != nil && !time.Now().Before(g.end) {
		c.free(g, leases.WhyExpired)
		return nil
	}
	return g
}

// free is called with mu held.
func (c *cluster) free(g *grant, why leases.Why) {
	delete(c.held, g.claim.Name)
	c.last[g.claim.Name] = leases.Ending{Name: g.claim.Name, Token: g.token, Why: why}
}

// under returns the grant of h; nil, and why, if there is none. It is called
// with mu held.
func (c *cluster) under(h leases.Held) (*grant, error) {
	if g := c.get(h.Name); g != nil && g.token == h.Token {
		return g, nil
	}
	if e := c.last[h.Name]; e.Token == h.Token {
		return nil, e.Err()
	}
	return nil, &leases.NotHeldError{Name: h.Name, Token: h.Token}
}

// breakLease ends a lease as an operator does; free: at once.
func (c *cluster) breakLease(name string, free bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.get(name)
	h := leases.Held{Name: name, Token: g.token}
	if g.broken = true; free {
		c.free(g, leases.WhyBroken)
		g.breakingTo(leases.Ended{Held: h, Err: c.last[name].Err()})
		return
	}
	g.breakingTo(leases.Breaking{Held: h})
}

// site is a Backend: the way of one client to the cluster.
type site struct {
	*cluster

	cutMu sync.Mutex
	cut   chan struct{} // closed as soon as requests get through
}

// set cuts the way, so that nothing is answered, or mends it.
func (s *site) set(cut bool) {
	s.cutMu.Lock()
	defer s.cutMu.Unlock()
	if cut {
		s.cut = make(chan struct{})
	} else {
		close(s.cut)
	}
}

// pass takes a request to the cluster, as soon as it gets through.
func (s *site) pass(ctx context.Context) error {
	s.cutMu.Lock()
	cut := s.cut
	s.cutMu.Unlock()
	select {
	case <-cut:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, context.Cause(ctx))
	}
}

func (s *site) Open(ctx context.Context, _ leases.ID, on func(leases.Event)) (leases.Session, error) {
	return &session{site: s, on: on, done: make(chan struct{})}, s.pass(ctx)
}

func (s *site) Get(ctx context.Context, name string) (leases.State, error) {
	if err := s.pass(ctx); err != nil {
		return leases.State{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := leases.State{Name: name}
	if g := s.get(name); g != nil {
		state.Held, state.Token, state.Owner, state.Attributes = true, g.token, g.claim.Owner, g.claim.Attributes
		state.TTL, state.AcquiredAt, state.AtMost, state.Broken = g.claim.TTL, g.at, time.Until(g.end), g.broken
	}
	state.Last = s.last[name]
	return state, nil
}

func (*site) List(context.Context, string, string, int) (leases.Page, error) {
	return leases.Page{}, leases.ErrUnavailable
}

func (*site) Queue(context.Context, string) ([]leases.Waiter, error) {
	return nil, leases.ErrUnavailable
}

func (*site) Watch(context.Context, string, leases.Position, func(leases.Batch) error) error {
	return leases.ErrUnavailable
}

type session struct {
	*site
	on   func(leases.Event)
	once sync.Once
	done chan struct{}
}

func (*session) Info() leases.Info       { return leases.Info{Node: "n1"} }
func (s *session) Done() <-chan struct{} { return s.done }
func (*session) Err() error              { return leases.ErrUnavailable }

func (s *session) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

func (s *session) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	if err := s.pass(ctx); err != nil {
		return leases.Grant{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.get(c.Name)
	switch {
	case g == nil:
		s.granted++
		now := time.Now()
		g = &grant{claim: c, token: tokens.New(1, s.granted), at: now, end: now.Add(leases.Stretch(c.TTL)), breakingTo: s.on}
		s.held[c.Name] = g
	case g.claim.Attempt != c.Attempt:
		return leases.Grant{}, &leases.HeldError{Name: c.Name, By: g.claim.Owner}
	}
	return leases.Grant{Token: g.token, AcquiredAt: g.at}, nil
}

func (s *session) Withdraw(ctx context.Context, name string, attempt leases.ID) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.get(name); g != nil && g.claim.Attempt == attempt {
		s.free(g, leases.WhyWithdrawn)
	}
	return nil
}

func (s *session) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	if err := s.pass(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answers := make([]error, len(held))
	for i, h := range held {
		g, err := s.under(h)
		switch {
		case err != nil:
			answers[i] = err
		case g.broken:
			answers[i] = &leases.NotHeldError{Name: h.Name, Token: h.Token, Why: leases.WhyBroken}
		default:
			g.end = time.Now().Add(leases.Stretch(g.claim.TTL))
		}
	}
	return answers, nil
}

func (*session) Reclaim(context.Context, uint32, []leases.Claimed) ([]error, error) {
	return nil, leases.ErrUnavailable
}

func (s *session) Release(ctx context.Context, h leases.Held) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g, err := s.under(h)
	if err != nil {
		return err
	}
	s.free(g, leases.WhyReleased)
	return nil
}

func (s *session) Transfer(context.Context, leases.Held, leases.ID) (bool, error) {
	return false, leases.ErrUnavailable
}

// candidate is a lock with a client and a way to the cluster of its own.
type candidate struct {
	*Lock
	t    *testing.T
	site *site
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newCluster()) })
}

// candidate returns one for the lease x, whose client is closed with the test.
func (c *cluster) candidate(t *testing.T, identity string, opts ...Option) *candidate {
	t.Helper()
	s := &site{cluster: c, cut: make(chan struct{})}
	s.set(false)
	clock := clock.NewRuntime()
	l, err := New(client.New(s, client.WithClock(clock)), "x", append(opts, Identity(identity))...)
	if err != nil {
		t.Fatal(err)
	}
	l.clock = clock
	k := &candidate{Lock: l, t: t, site: s}
	t.Cleanup(func() { k.close() })
	return k
}

// close closes the client. What it cannot give back lapses.
func (k *candidate) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := k.client.Close(ctx); err != nil {
		k.t.Logf("close the client of %s: %v", k.identity, err)
	}
}
