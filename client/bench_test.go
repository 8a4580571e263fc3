package client

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// instant is a Backend that grants everything at once, and its own Session: what
// is left is what the client itself costs.
type instant struct {
	leases.Backend
	leases.Session
	last atomic.Uint32 // counter of the newest token
}

func (i *instant) Open(context.Context, leases.ID, func(leases.Event)) (leases.Session, error) {
	return i, nil
}

func (i *instant) Acquire(context.Context, leases.Claim) (leases.Grant, error) {
	return leases.Grant{Token: tokens.New(1, i.last.Add(1))}, nil
}

func (i *instant) Renew(_ context.Context, held []leases.Held) ([]error, error) {
	return make([]error, len(held)), nil
}

func (i *instant) Release(context.Context, leases.Held) error { return nil }
func (i *instant) Info() leases.Info                          { return leases.Info{Node: "instant"} }
func (i *instant) Done() <-chan struct{}                      { return nil }
func (i *instant) Close() error                               { return nil }

// holding returns a client that holds n leases, and its end.
func holding(tb testing.TB, n int) (c *Client, end func()) {
	tb.Helper()
	c = New(&instant{})
	held := make([]*Lease, n)
	for i := range held {
		l, err := c.Acquire(tb.Context(), fmt.Sprint("held/", i), TTL(time.Minute))
		if err != nil {
			tb.Fatal(err)
		}
		held[i] = l
	}
	return c, func() {
		for _, l := range held {
			if err := l.Release(context.Background()); err != nil {
				tb.Errorf("Release: got %v, want nil", err)
			}
		}
		if err := c.Close(context.Background()); err != nil {
			tb.Errorf("Close: got %v, want nil", err)
		}
	}
}

// pair acquires a lease and releases it.
func pair(ctx context.Context, tb testing.TB, c *Client) {
	l, err := c.Acquire(ctx, "pair")
	if err != nil {
		tb.Fatal(err)
	}
	if err := l.Release(ctx); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkPair is an acquire and a release by a client that holds other leases.
func BenchmarkPair(b *testing.B) {
	for _, held := range []int{0, 20_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			c, end := holding(b, held)
			defer end()
			b.ReportAllocs()
			for b.Loop() {
				pair(b.Context(), b, c)
			}
		})
	}
}

// BenchmarkPairs is the same by many at once.
func BenchmarkPairs(b *testing.B) {
	c, end := holding(b, 0)
	defer end()
	b.ReportAllocs()
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for pb.Next() {
			l, err := c.Acquire(ctx, "pairs")
			if err == nil {
				err = l.Release(ctx)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// A pair makes few objects; what is needed only when somebody waits, or asks for
// the lease's context, is made then.
func TestPairAllocations(t *testing.T) {
	c, end := holding(t, 100)
	defer end()
	if got, most := testing.AllocsPerRun(1000, func() { pair(t.Context(), t, c) }), 24.0; got > most {
		t.Errorf("%v allocations for an acquire and a release, want %v at most", got, most)
	}
}
