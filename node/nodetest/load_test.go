package nodetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
)

// load is a number of workers that want a few names again and again: they wait,
// try, renew, cancel, release, and now and then die.
type load struct {
	c       *Cluster
	names   int
	ttl     time.Duration
	workers sync.WaitGroup
	stop    context.CancelFunc

	// Where they are not nil: what a worker's requests go to, and how it holds a
	// lease and gives it back.
	backend func(leases.Backend) leases.Backend
	hold    func(context.Context, *Client, *Hold, *rand.Rand)
}

// startLoad starts workers that go on until the end of the load or of the test.
func startLoad(c *Cluster, workers, names int, ttl time.Duration) *load {
	l := &load{c: c, names: names, ttl: ttl}
	l.start(workers)
	return l
}

// start starts the workers.
func (l *load) start(workers int) {
	ctx, stop := context.WithCancel(context.Background())
	c := l.c
	l.stop = stop
	for i := range workers {
		r := rand.New(rand.NewPCG(c.cfg.Seed, uint64(i)+100))
		l.workers.Go(func() { l.work(ctx, i, r) })
	}
	c.t.Cleanup(l.end)
}

// end ends the load. What is held is released first.
func (l *load) end() {
	l.stop()
	l.workers.Wait()
}

func (l *load) work(ctx context.Context, i int, r *rand.Rand) {
	for life := 0; ctx.Err() == nil; life++ {
		host := fmt.Sprintf("c%d.%d", i, life)
		k := l.c.Client(host, ClientConfig{Rate: 1 + (r.Float64()-0.5)*0.01, Backend: l.backend})
		for ctx.Err() == nil && r.IntN(20) > 0 {
			l.once(ctx, k, r)
		}
		if ctx.Err() == nil { // it dies, with all that it holds
			l.c.Net.Crash(host)
		}
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		k.Close(end)
		cancel()
	}
}

// once acquires one lease and holds it for a while.
func (l *load) once(ctx context.Context, k *Client, r *rand.Rand) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	name := fmt.Sprintf("x%d", r.IntN(l.names))
	acquire := k.Acquire
	if r.IntN(3) == 0 {
		acquire = k.TryAcquire
	}
	patience, cancel := context.WithTimeout(ctx, upTo(2*l.ttl))
	h, err := acquire(patience, name, client.TTL(l.ttl))
	cancel()
	if err != nil {
		pause(ctx, upTo(l.ttl/4))
		return
	}
	if l.hold != nil {
		l.hold(ctx, k, h, r)
		return
	}
	pause(h.Context(), upTo(2*l.ttl))
	if r.IntN(10) == 0 {
		return // it forgets to release; the client goes on renewing
	}
	soon, cancel := context.WithTimeout(context.Background(), upTo(l.ttl))
	h.Release(soon)
	cancel()
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
