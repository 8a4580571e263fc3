package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// crowd is many clients that want a few names again and again: they wait, try,
// renew, cancel, release, and now and then die with what they hold.
type crowd struct {
	t       *testing.T
	conns   []*transport.Conn
	history *history.Recorder
	names   int
	ttl     time.Duration
	seed    uint64

	// Both keep a name from the others for seconds, so there is a limit to them.
	stays, deaths pace

	workers sync.WaitGroup
	stop    context.CancelFunc
	grants  atomic.Int32 // that reached their clients
}

// perConn is how many clients share a connection. The race detector makes a TLS
// handshake so dear that with one for each a busy machine of two cores is late
// with heartbeats whenever all of them look for a new leader.
const perConn = 4

// connect makes the connections of so many clients.
func (c *crowd) connect(clients int, addrs []string, tls *transport.TLS) {
	c.t.Helper()
	for range (clients + perConn - 1) / perConn {
		conn, err := transport.Dial(transport.DialConfig{Addrs: addrs, TLS: tls})
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { conn.Close() })
		c.conns = append(c.conns, conn)
	}
}

// name is the crowd's i-th one.
func (c *crowd) name(i int) string { return fmt.Sprintf("x%d", i) }

// start lets so many clients come.
func (c *crowd) start(clients int) {
	ctx, stop := context.WithCancel(c.t.Context())
	c.stop = stop
	for i := range clients {
		r := rand.New(rand.NewPCG(c.seed, uint64(i)))
		c.workers.Go(func() { c.work(ctx, i, r) })
	}
	c.t.Cleanup(c.end)
}

// end waits until all have left. They release what they hold.
func (c *crowd) end() {
	c.stop()
	c.workers.Wait()
}

func (c *crowd) work(ctx context.Context, i int, r *rand.Rand) {
	for life := 0; ctx.Err() == nil; life++ {
		g, alive := c.enter(i, fmt.Sprintf("c%d.%d", i, life)), true
		for alive && ctx.Err() == nil {
			alive = g.visit(ctx, r)
		}
		if alive {
			g.leave()
		}
	}
}

// guest is one client, all of whose requests are recorded.
type guest struct {
	*client.Client
	crowd *crowd
	name  string
}

// enter makes a client that uses one of the connections.
func (c *crowd) enter(conn int, name string) *guest {
	b := c.history.Backend(name, c.conns[conn%len(c.conns)])
	return &guest{client.New(b, client.WithOwner(leases.Owner{Label: name})), c, name}
}

// leave closes the client, with nothing left of it.
func (g *guest) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if err := g.Close(ctx); err != nil {
		g.crowd.t.Errorf("%s: %v", g.name, err)
	}
}

// die closes the client without a word to anybody, as if its process were killed.
func (g *guest) die() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = g.Close(now) // it names what lapses
}

// hold acquires a lease and records that the client relies on it.
func (g *guest) hold(ctx context.Context, name string, queue bool) (*client.Lease, *history.Holding, error) {
	acquire := g.TryAcquire
	if queue {
		acquire = g.Acquire
	}
	l, err := acquire(ctx, name, client.TTL(g.crowd.ttl))
	if err != nil {
		return nil, nil, err
	}
	g.crowd.grants.Add(1)
	return l, g.crowd.history.Believe(g.name, name, l.Token(), l.Deadline), nil
}

// rest is how long at most a client wants nothing, so that the machine has time
// for all.
const rest = 500 * time.Millisecond

// visit wants a lease once, for a while. false: the client has died.
func (g *guest) visit(ctx context.Context, r *rand.Rand) bool {
	sleep(ctx, upTo(r, rest))
	patience, cancel := g.patience(ctx, r)
	l, held, err := g.hold(patience, g.crowd.name(r.IntN(g.crowd.names)), r.IntN(4) > 0)
	cancel()
	if err != nil {
		g.expect(err)
		return true
	}
	while := upTo(r, 40*time.Millisecond)
	switch {
	case g.crowd.deaths.due():
		g.die()
		held.End()
		return false
	case g.crowd.stays.due():
		while += g.crowd.ttl / 2 // longer than until the first renewal
	}
	sleep(l.Context(), while)
	held.End()
	soon, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.Release(soon) // whatever it says, it is in the history
	return true
}

// patience ends after a while that was told, or without notice.
func (g *guest) patience(ctx context.Context, r *rand.Rand) (context.Context, context.CancelFunc) {
	if r.IntN(5) > 0 {
		return context.WithTimeout(ctx, 100*time.Millisecond+upTo(r, 3*time.Second))
	}
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(upTo(r, 100*time.Millisecond), cancel)
	return ctx, cancel
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// expect fails the test for an error that says nothing, or something wrong.
func (g *guest) expect(err error) {
	for _, may := range []error{leases.ErrHeld, leases.ErrUnavailable, leases.ErrUnknownOutcome, leases.ErrNotLeader, leases.ErrNoQuorum} {
		if errors.Is(err, may) {
			return
		}
	}
	g.crowd.t.Errorf("%s: got %v, want that the lease is held or that nothing is known", g.name, err)
}

// pace lets something happen at most once in an interval.
type pace struct {
	every time.Duration

	mu   sync.Mutex // guards next
	next time.Time
}

func (p *pace) due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.next) {
		return false
	}
	p.next = now.Add(p.every)
	return true
}
