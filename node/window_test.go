package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// window is one that the test opens and closes.
type window struct{ closed atomic.Bool }

var errNoWindow = &leases.UnavailableError{Reason: "no window"}

func (w *window) open() error {
	if w.closed.Load() {
		return errNoWindow
	}
	return nil
}

// windowed returns a holder of x and one who waits, in a cluster with an arbiter.
func windowed(t *testing.T, change ...func(*tenureConfig, *raftConfig)) (*queue, *window) {
	t.Helper()
	w := &window{}
	q := &queue{t: t}
	q.tenure, q.log, q.end = begunUnder(t, func(c *tenureConfig, r *raftConfig) {
		r.window = w.open
		for _, f := range change {
			f(c, r)
		}
	})
	q.giver, q.heard = listening(t, q.tenure)
	q.grant = granted(t, q.log, q.giver, wanted(0))
	q.join(wanted(leases.Forever))
	return q, w
}

// Without a window a leader renews nothing, refuses nothing, and tells nothing.
func TestNothingIsAnsweredWithoutAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, w := windowed(t)
		calls := map[string]func() error{
			"renew":      func() error { _, err := q.giver.Renew(t.Context(), []leases.Held{q.held()}); return err },
			"get":        func() error { _, err := q.tenure.get(t.Context(), "x"); return err },
			"list":       func() error { _, err := q.tenure.list(t.Context(), "", "", 10); return err },
			"queue":      func() error { _, err := q.tenure.queue(t.Context(), "x"); return err },
			"no wait":    func() error { _, err := q.waiter[0].Acquire(t.Context(), wanted(0)); return err },
			"short wait": func() error { _, err := q.waiter[0].Acquire(t.Context(), wanted(time.Second)); return err },
		}
		for _, closed := range []bool{false, true} {
			w.closed.Store(closed)
			for name, call := range calls {
				if err := call(); errors.Is(err, leases.ErrUnavailable) != closed {
					t.Errorf("%s, window closed %v: got %v", name, closed, err)
				}
			}
		}
		if len(q.log.entries) != 0 {
			t.Errorf("%d entries were proposed, want none", len(q.log.entries))
		}
	})
}

// What still waits when the window closes is not proposed (S39): neither who waits for
// the name, nor what comes in. What was proposed before is answered.
func TestNothingIsProposedWithoutAWindow(t *testing.T) {
	for _, on := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			q, w := windowed(t, func(c *tenureConfig, _ *raftConfig) {
				if !on {
					c.rules = rules.Without(rules.WindowPropose)
				}
			})
			released := make(chan error, 1)
			go func() { released <- q.giver.Release(t.Context(), q.held()) }()
			entry := q.log.next()
			w.closed.Store(true)
			entry.land()
			if err := now(t, released); err != nil {
				t.Errorf("what was proposed in the window: %v", err)
			}
			time.Sleep(time.Second)
			if proposed := len(q.log.entries) > 0; proposed == on {
				t.Fatalf("rule on %v: the next in line was proposed %v", on, proposed)
			}
			if !on {
				q.log.settle()
				q.granted(0)
				return
			}
			c := wanted(0)
			c.Name = "y"
			if a := now(t, ask(t.Context(), q.giver, c)); !errors.Is(a.err, leases.ErrUnavailable) {
				t.Errorf("what comes in: got %v, want %v", a.err, leases.ErrUnavailable)
			}
			q.end()
			q.refused(0, leases.ErrUnavailable)
			if len(q.log.entries) != 0 {
				t.Error("something was proposed")
			}
			time.Sleep(time.Second)
			nobodyWaits(t, q.tenure)
		})
	}
}

// A window that opens again before its tenure has ended finds the line as it was.
func TestLineOutlastsAShortGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, w := windowed(t)
		go q.giver.Release(t.Context(), q.held())
		entry := q.log.next()
		w.closed.Store(true)
		entry.land()
		time.Sleep(time.Second)
		w.closed.Store(false)
		q.log.within(t, 2*retry).land()
		q.granted(0)
	})
}

// In its window a leader renews without a round, and the deadline moves. A refusal
// needs a round (V1), and takes back no renewal of the same request.
func TestRenewInTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, w := windowed(t)
		time.Sleep(30 * time.Second)
		round := make(chan error)
		raftOf(q.tenure).rounds.ask = func(context.Context) error { return <-round }
		both := []leases.Held{q.held(), {Name: "y", Token: 7}}
		if errs, err := q.giver.Renew(t.Context(), both[:1]); err != nil || errs[0] != nil {
			t.Fatalf("renew: got %v, %v", errs, err)
		}
		q.tenure.mu.Lock()
		left := raftOf(q.tenure).atMost(q.tenure.find("x"))
		q.tenure.mu.Unlock()
		if left != leases.Stretch(time.Minute) {
			t.Errorf("the lease lasts for %v, want its TTL", left)
		}
		renew := func() <-chan []error {
			got := make(chan []error, 1)
			go func() {
				errs, err := q.giver.Renew(t.Context(), both)
				if err != nil {
					t.Error(err)
				}
				got <- errs
			}()
			synctest.Wait()
			return got
		}
		for _, c := range []struct {
			what   string
			round  error
			closed bool
			want   error
		}{
			{"confirmed", nil, false, leases.ErrNotHeld},
			{"not confirmed", leases.ErrNoQuorum, false, leases.ErrNoQuorum},
			{"confirmed too late", nil, true, leases.ErrUnavailable},
		} {
			got := renew()
			select {
			case errs := <-got:
				t.Fatalf("%s: answered %v before the round", c.what, errs)
			default:
			}
			w.closed.Store(c.closed)
			round <- c.round
			if errs := now(t, got); errs[0] != nil || !errors.Is(errs[1], c.want) {
				t.Errorf("%s: got %v, want the first renewed, the second %v", c.what, errs, c.want)
			}
		}
	})
}

// A lease is renewed no more from its deadline on, whenever its expiry gets into the log.
func TestNoRenewalAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := windowed(t)
		expiry := q.log.within(t, leases.Stretch(time.Minute)+time.Second)
		if errs, err := q.giver.Renew(t.Context(), []leases.Held{q.held()}); err != nil || why(errs[0]) != leases.WhyExpired {
			t.Errorf("got %v, %v, want that it has expired", errs, err)
		}
		expiry.land()
		q.log.next().land()
		q.granted(0)
	})
}

// A new tenure takes the deadlines of what it finds from the arbiter's rule (W4), and
// never earlier ones than without it.
func TestDeadlinesOfANewWindow(t *testing.T) {
	for _, c := range []struct {
		more, want time.Duration
	}{
		{10 * time.Second, 10*time.Second + leases.Stretch(time.Minute)},
		{-10 * time.Second, leases.Stretch(time.Minute)},
	} {
		synctest.Test(t, func(t *testing.T) {
			machine := clock.NewRuntime()
			q, _ := windowed(t, func(_ *tenureConfig, r *raftConfig) {
				r.deadline = func(ttl time.Duration) clock.Instant { return machine.Now().Add(c.more + leases.Stretch(ttl)) }
			})
			time.Sleep(time.Second)
			q.tenure.begin(q.tenure.ctx)
			s, err := q.tenure.get(t.Context(), "x")
			if err != nil || s.AtMost != c.want {
				t.Errorf("got %v, %v, want at most %v", s.AtMost, err, c.want)
			}
		})
	}
}

// With an arbiter it is not the tenure that begins an epoch: R comes first.
func TestNoBumpWithAnArbiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begunUnder(t, func(_ *tenureConfig, r *raftConfig) { r.window = (&window{}).open })
		if err := log.fsm.Restore(numbered(1, tokens.MaxCounter/2)); err != nil {
			t.Fatal(err)
		}
		granted(t, log, opened(t, tn), wanted(0))
		synctest.Wait()
		if n := len(log.entries); n != 0 {
			t.Errorf("%d entries were proposed", n)
		}
	})
}

// A reclaim that comes after Raft has authority again is a renewal: it is refused only
// where the lease is not held.
func TestReclaimFromRaft(t *testing.T) {
	for _, arbiter := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(t, 0)
			if arbiter {
				q, _ = windowed(t)
			}
			time.Sleep(30 * time.Second)
			claimed := []leases.Claimed{
				{Held: q.held(), TTL: time.Minute},
				{Held: leases.Held{Name: "x", Token: q.grant.Token + 1}, TTL: time.Minute},
			}
			errs, err := q.giver.Reclaim(t.Context(), 7, claimed)
			if err != nil || errs[0] != nil || !errors.Is(errs[1], leases.ErrNotHeld) {
				t.Errorf("got %v, %v, want the first renewed, the second refused", errs, err)
			}
			q.tenure.mu.Lock()
			left := q.tenure.replicator.atMost(q.tenure.find("x"))
			q.tenure.mu.Unlock()
			if left != leases.Stretch(time.Minute) {
				t.Errorf("it lasts for %v, want its TTL", left)
			}
			if _, err := q.giver.Reclaim(t.Context(), 7, []leases.Claimed{{Held: q.held()}}); !errors.Is(err, leases.ErrInvalid) {
				t.Errorf("without a TTL: got %v, want %v", err, leases.ErrInvalid)
			}
		})
	}
}

// A planned hand-over answers what waits, takes nothing in, and ends once what was
// proposed is answered.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := windowed(t)
		c := wanted(0)
		c.Name = "y"
		proposed := ask(t.Context(), q.giver, c)
		entry := q.log.next()
		z := wanted(0)
		z.Name = "z"
		next := ask(t.Context(), q.giver, z) // in the next entry
		drained := make(chan error, 1)
		go func() { drained <- q.tenure.drain(t.Context()) }()
		q.refused(0, leases.ErrUnavailable)
		for name, err := range map[string]error{
			"acquire": now(t, ask(t.Context(), q.giver, wanted(leases.Forever))).err,
			"release": q.giver.Release(t.Context(), q.held()),
		} {
			if !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("%s: got %v, want %v", name, err, leases.ErrUnavailable)
			}
		}
		if _, err := q.giver.Renew(t.Context(), []leases.Held{q.held()}); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("renew: got %v, want %v", err, leases.ErrUnavailable)
		}
		if _, err := q.tenure.open(leases.NewID(), leases.Info{}, func(leases.Event) {}); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("open: got %v, want %v", err, leases.ErrUnavailable)
		}
		if q.giver.StartAcquire(wanted(0), func(leases.Grant, error) {}) || q.giver.StartRelease(q.held(), func(error) {}) {
			t.Error("something was taken in")
		}
		for _, e := range []*written{entry, nil} {
			if e == nil {
				e = q.log.next()
			}
			if len(drained) != 0 {
				t.Error("drained before what was proposed is answered")
			}
			e.land()
			synctest.Wait()
		}
		if err := now(t, drained); err != nil {
			t.Error(err)
		}
		for _, got := range []<-chan answered{proposed, next} {
			if a := now(t, got); a.err != nil {
				t.Errorf("what was proposed: %v", a.err)
			}
		}
		time.Sleep(2 * leases.Stretch(time.Minute)) // nothing is expired any more
		if len(q.log.entries) != 0 {
			t.Error("something was proposed")
		}
		if err := q.tenure.drain(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		nobodyWaits(t, q.tenure)
	})
}

// Neither an heir nor a claim that was overtaken comes back into a line that is drained.
func TestDrainMeanwhile(t *testing.T) {
	for _, heir := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			q, _ := windowed(t)
			if heir {
				q.give(0)
				q.log.all[len(q.log.all)-1].fail(raft.ErrEnqueueTimeout)
				synctest.Wait()
				_, w := q.give(0)
				go q.tenure.drain(t.Context())
				synctest.Wait()
				w.fail(raft.ErrEnqueueTimeout)
			} else {
				go q.giver.Release(t.Context(), q.held())
				q.log.next().land()
				w := q.log.next()
				go q.tenure.drain(t.Context())
				synctest.Wait()
				w.fail(raft.ErrEnqueueTimeout)
			}
			q.refused(0, leases.ErrUnavailable)
			time.Sleep(time.Second)
			nobodyWaits(t, q.tenure)
		})
	}
}

// A drain that is given up says so.
func TestDrainGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := windowed(t)
		go q.giver.Release(t.Context(), q.held())
		q.log.next()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.tenure.drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// A TTL beyond the ceiling waits until that is raised, and is not taken in where it has
// been lowered meanwhile (W5).
func TestCeiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var most atomic.Int64
		most.Store(int64(30 * time.Second))
		raised := make(chan error)
		tn, log, _ := begunUnder(t, func(c *tenureConfig, r *raftConfig) {
			r.window = (&window{}).open
			c.may = func(ttl time.Duration) bool { return ttl <= time.Duration(most.Load()) }
			c.allow = func(ctx context.Context, ttl time.Duration) error {
				if c.may(ttl) {
					return nil
				}
				select {
				case err := <-raised:
					return err
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		})
		s := opened(t, tn)
		long := wanted(0) // of a minute
		if s.StartAcquire(long, func(leases.Grant, error) {}) {
			t.Error("one that would have to wait was taken in")
		}
		got := ask(t.Context(), s, long)
		if len(got) != 0 || len(log.entries) != 0 {
			t.Fatal("it did not wait for the ceiling")
		}
		raised <- errNoWindow
		if a := now(t, got); !errors.Is(a.err, leases.ErrUnavailable) {
			t.Errorf("not raised: got %v, want %v", a.err, leases.ErrUnavailable)
		}
		got = ask(t.Context(), s, long)
		raised <- nil // and lowered again before it comes in
		if a := now(t, got); !errors.Is(a.err, leases.ErrUnavailable) {
			t.Errorf("lowered meanwhile: got %v, want %v", a.err, leases.ErrUnavailable)
		}
		got = ask(t.Context(), s, long)
		most.Store(int64(time.Minute))
		raised <- nil
		log.next().land()
		if a := now(t, got); a.err != nil {
			t.Error(a.err)
		}
	})
}

// The longest TTL in use counts what waits, what is in flight and what is held.
func TestLongestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := windowed(t)
		is := func(want time.Duration) {
			t.Helper()
			synctest.Wait()
			if got := q.tenure.longestTTL(); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		is(time.Minute)
		for _, ttl := range []time.Duration{4 * time.Minute, 2 * time.Minute, 3 * time.Minute} {
			c := wanted(leases.Forever)
			c.TTL = ttl
			q.join(c)
		}
		is(4 * time.Minute) // waits
		q.leave[1]()
		is(3 * time.Minute)
		transfer, entry := q.give(3)
		is(3 * time.Minute) // in flight
		entry.land()
		q.check(transfer, true, nil)
		token := q.granted(3)
		is(3 * time.Minute) // held
		release(q.waiter[3], token)
		q.log.next().land()
		is(2 * time.Minute) // waits behind one that is in flight
		q.log.next().fail(raft.ErrEnqueueTimeout)
		q.leave[0]()
		q.leave[2]()
		q.log.settle()
		time.Sleep(time.Second)
		is(0)
		nobodyWaits(t, q.tenure)
	})
}
