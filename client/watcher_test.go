package client

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// An agenda hands out what is due, each turn at its newest instant, the earliest
// first, and its alarm is never later than the first.
func TestAgenda(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := agenda{clock: clock.NewRuntime(), look: func() {}}
		defer a.stop()
		all := make([]turn, 20)
		due := map[*turn]clock.Instant{}
		far := clock.Instant(time.Hour) // the alarm does not ring meanwhile
		instant := rapid.Int64Range(0, 100)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				one, at := &all[rapid.IntRange(0, len(all)-1).Draw(t, "turn")], far+clock.Instant(instant.Draw(t, "at"))
				a.put(one, at)
				due[one] = at
			},
			"drop": func(t *rapid.T) {
				one := &all[rapid.IntRange(0, len(all)-1).Draw(t, "turn")]
				a.drop(one)
				delete(due, one)
			},
			"take": func(t *rapid.T) {
				then, last := far+clock.Instant(instant.Draw(t, "then")), clock.Instant(0)
				for one := a.take(then); one != nil; one = a.take(then) {
					at, ok := due[one]
					if !ok || at != one.at || at > then || at < last {
						t.Fatalf("by %d got a turn at %d after one at %d, want one of %v", then, one.at, last, due)
					}
					last = at
					delete(due, one)
				}
				for _, at := range due {
					if at <= then {
						t.Fatalf("a turn at %d is left by %d", at, then)
					}
				}
				a.rang()
			},
			"": func(t *rapid.T) {
				if len(a.turns) != len(due) {
					t.Fatalf("%d turns, want %d", len(a.turns), len(due))
				}
				for one, at := range due {
					if one.place == 0 || a.turns[one.place-1] != one {
						t.Fatalf("the turn at %d is not where it says", at)
					}
					if !a.set || a.rings > at {
						t.Fatalf("the alarm is set: %v, to %d; want %d or before", a.set, a.rings, at)
					}
				}
			},
		})
	})
}

// Each lease's turn comes at its instant, wherever it was moved to, and but once.
func TestWatcherIsPunctual(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		now := clock.NewRuntime()
		want := map[*Lease]clock.Instant{} // of those that are watched
		var mu sync.Mutex
		w := newWatcher(now, func(l *Lease) {
			mu.Lock()
			defer mu.Unlock()
			if at, ok := want[l]; !ok || at != now.Now() {
				t.Errorf("rung at %d, want at %d: %v", now.Now(), at, ok)
			}
			delete(want, l)
		})
		all := make([]Lease, 50)
		for i := range all {
			all[i].lapse.lease = &all[i]
		}
		for range 2000 {
			l := &all[rnd.IntN(len(all))]
			mu.Lock()
			if rnd.IntN(4) == 0 {
				delete(want, l)
				w.forget(&l.lapse)
			} else {
				want[l] = now.Now().Add(time.Duration(rnd.Int64N(int64(3*time.Second)) + 1))
				w.watch(&l.lapse, want[l])
			}
			mu.Unlock()
			time.Sleep(time.Duration(rnd.Int64N(int64(100 * time.Millisecond))))
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(want) != 0 {
			t.Errorf("%d turns have not come", len(want))
		}
	})
}

// counted is a clock that counts how often it is read.
type counted struct {
	clock.Clock
	readings atomic.Int64
}

func (c *counted) Now() clock.Instant {
	c.readings.Add(1)
	return c.Clock.Now()
}

// However many leases are held, the clock is read at least twice a second, as
// the deadlines need it, and hardly more often.
func TestHoldingManyIsCheap(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		const n = 1000
		now := &counted{Clock: clock.NewRuntime()}
		a := c.client(WithClock(now))
		defer closing(t, a)
		all := make([]*Lease, n)
		for i := range all {
			all[i] = acquire(t, a, fmt.Sprint(i), TTL(leases.MaxTTL))
		}
		before := now.readings.Load()
		time.Sleep(time.Minute) // before the first renewal
		if got := now.readings.Load() - before; got < 120 || got > 500 {
			t.Errorf("the clock was read %d times in a minute, want 120 to 500", got)
		}
		before = now.readings.Load()
		release(t, acquire(t, a, "another"))
		if got := now.readings.Load() - before; got > 10 {
			t.Errorf("a pair read the clock %d times, want 10 at most", got)
		}
		for _, l := range all {
			release(t, l)
		}
	})
}
