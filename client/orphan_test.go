package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
)

// Acquires whose answer is lost, or whose context ends at a random moment,
// leave no lease and no waiter behind.
func TestNoOrphans(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const names = 200
	inBubble(t, func(t *testing.T, c *cluster) {
		rnd := rand.New(rand.NewPCG(seed, 1)) // under the cluster's lock
		ms := func(n int64) time.Duration { return time.Duration(rnd.Int64N(n)) * time.Millisecond }
		a := c.client()
		defer closing(t, a)
		c.set(func(k call) fault {
			f := fault{late: ms(40), slow: ms(40)}
			if k.op == "acquire" || k.op == "withdraw" {
				switch rnd.IntN(8) {
				case 0:
					f.mute = true
				case 1:
					f.lost = true
				case 2:
					f.closed = rnd.IntN(20) == 0
				}
			}
			return f
		})
		var wg sync.WaitGroup
		var kept atomic.Int32
		for i := range names {
			c.mu.Lock()
			life := ms(80)
			c.mu.Unlock()
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), life)
				defer cancel()
				l, err := a.Acquire(ctx, fmt.Sprint(i), TTL(time.Minute))
				if err == nil {
					kept.Add(1)
					if c.holder(l.Name()) != l.Token() {
						t.Errorf("lease %s: held under %v, want %v", l.Name(), c.holder(l.Name()), l.Token())
					}
					l.Release(context.Background())
				}
			})
		}
		wg.Wait()
		c.set(nil)
		time.Sleep(5 * time.Second)
		if orphans := int32(c.grants) - kept.Load(); orphans < 20 {
			t.Errorf("%d grants had no taker, want 20 or more for the test to mean anything", orphans)
		}
		for i := range names {
			if token := c.holder(fmt.Sprint(i)); token != 0 {
				t.Errorf("lease %d is held under %v by nobody", i, token)
			}
		}
		if c.expired != 0 {
			t.Errorf("%d leases had to expire, want none", c.expired)
		}
	})
}

// Clients that wait, try, keep, pass on and abandon, over a network that delays,
// loses and breaks, under leaders that change, an arbiter that takes over and
// operators that break leases, never hold one lease two at a time.
func TestChaos(t *testing.T) {
	first, seeds := rand.Uint64N(1<<32), uint64(20)
	if testing.Short() {
		seeds = 3
	}
	reclaimed := 0
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				chaos(t, c, seed)
				reclaimed += len(c.made("reclaim"))
			})
		})
	}
	if reclaimed < int(seeds) {
		t.Errorf("%d reclaims in %d runs, want one in each or more for the test to mean anything", reclaimed, seeds)
	}
}

func chaos(t *testing.T, c *cluster, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 2)) // under the cluster's lock
	random := func(d time.Duration) time.Duration {
		c.mu.Lock()
		defer c.mu.Unlock()
		return time.Duration(rnd.Int64N(int64(d)))
	}
	c.set(func(k call) fault {
		f := fault{late: time.Duration(rnd.Int64N(20)) * time.Millisecond, slow: time.Duration(rnd.Int64N(20)) * time.Millisecond}
		switch rnd.IntN(40) {
		case 0:
			f.lost = true
		case 1:
			f.mute = true
		case 2:
			f.late = time.Duration(rnd.Int64N(8000)) * time.Millisecond
		case 3:
			f.slow = time.Duration(rnd.Int64N(8000)) * time.Millisecond
		case 4:
			f.closed = true
		case 5:
			f.err = leases.ErrUnavailable
		}
		return f
	})
	end := time.Now().Add(3 * time.Minute)
	names := []string{"x", "y"}
	believers := map[string]*belief{"x": {}, "y": {}}
	var clients, workers sync.WaitGroup
	var held, passed atomic.Int32
	for range 4 {
		a := c.client()
		workers.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), random(12*time.Second))
				name := names[random(2)]
				ttl := 3*time.Second + random(10*time.Second).Truncate(time.Millisecond)
				l, err := a.Acquire(ctx, name, TTL(ttl))
				cancel()
				if err != nil {
					continue
				}
				held.Add(1)
				believers[name].begin(t, l)
				select {
				case <-l.Done():
				case <-time.After(random(10 * time.Second)):
				}
				ctx, cancel = context.WithTimeout(t.Context(), random(4*time.Second))
				if queue, _ := a.Queue(ctx, name); len(queue) > 0 && random(2) == 0 {
					if passedOn, _ := l.Transfer(ctx, queue[random(time.Duration(len(queue)))].Attempt); passedOn {
						passed.Add(1)
					}
				} else {
					l.Release(ctx)
				}
				cancel()
			}
		})
		clients.Go(func() {
			workers.Wait()
			a.Close(within(t, time.Minute))
		})
	}
	for time.Now().Before(end) {
		time.Sleep(random(15 * time.Second))
		if random(2) == 0 {
			c.breakLease(names[random(2)], random(2) == 0)
		} else {
			c.changeAuthority(random(2) == 0)
		}
	}
	clients.Wait()
	if held.Load() < 10 || passed.Load() == 0 {
		t.Errorf("%d leases were held, %d passed on, want 10 and 1 or more for the test to mean anything", held.Load(), passed.Load())
	}
}

// belief watches over the holders of one name.
type belief struct {
	mu   sync.Mutex
	last *Lease
}

// begin notes that l is believed in now.
func (b *belief) begin(t *testing.T, l *Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last != nil {
		if b.last.Err() == nil && l.Err() == nil {
			t.Errorf("lease %q is believed in under tokens %v and %v at once", l.Name(), b.last.Token(), l.Token())
		}
		if b.last.Token() >= l.Token() {
			t.Errorf("lease %q was granted under token %v after %v", l.Name(), l.Token(), b.last.Token())
		}
	}
	b.last = l
}
