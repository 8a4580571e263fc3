package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
)

// mustBeBroken fails unless err says that an operator has broken the lease.
func mustBeBroken(t *testing.T, what string, err error) {
	t.Helper()
	mustBe(t, what, err, leases.ErrLost, leases.ErrNotHeld)
	if gone, ok := errors.AsType[*leases.NotHeldError](err); !ok || gone.Why != leases.WhyBroken || gone.Token == 0 {
		t.Errorf("%s: got %v, want a *NotHeldError that says that the lease was broken", what, err)
	}
}

// A broken lease ends at once, is renewed no more, and is given back.
func TestBreak(t *testing.T) {
	for name, told := range map[string]bool{"told": true, "renewal refused": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a, b := c.client(), c.client()
				defer closing(t, b)
				defer closing(t, a)
				l := acquire(t, a, "x")
				got := make(chan *Lease)
				go func() { got <- acquire(t, b, "x") }()
				time.Sleep(time.Second)
				c.breakLease("x", told)
				synctest.Wait()
				if told != (l.Err() != nil) {
					t.Errorf("Err when it was broken: got %v, want that only if the holder was told", l.Err())
				}
				<-l.Done()
				mustBeBroken(t, "Context's cause", context.Cause(l.Context()))
				mustBeBroken(t, "Err", l.Err())
				before := len(c.made("renew"))
				time.Sleep(5 * time.Second) // the work is being ended
				if n := len(c.made("renew")) - before; n != 0 {
					t.Errorf("%d renewals of a broken lease, want none", n)
				}
				if c.holder("x") != l.Token() || l.Token() == 0 {
					t.Error("it is no longer held before it was released")
				}
				mustBeBroken(t, "Release", l.Release(t.Context()))
				mustBeBroken(t, "another Release", l.Release(t.Context()))
				if n := len(c.made("release")); n != 1 {
					t.Errorf("%d releases were sent, want 1", n)
				}
				if c.holder("x") == l.Token() || c.expired != 0 {
					t.Error("its release has not freed it")
				}
				release(t, <-got)
			})
		})
	}
}

// The release of a broken lease is repeated and bounded as any other.
func TestBreakAndReleaseUnanswered(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(10*time.Second))
		c.breakLease("x", true)
		<-l.Done()
		c.set(everything(fault{lost: true}))
		err := l.Release(within(t, time.Second))
		mustBeBroken(t, "Release", err)
		mustBe(t, "Release", err, leases.ErrUnknownOutcome, context.DeadlineExceeded)
		err = l.Release(t.Context())
		mustBeBroken(t, "another Release", err)
		mustBe(t, "another Release", err, leases.ErrUnknownOutcome)
		if got, want := time.Since(epoch), leases.Stretch(10*time.Second); got != want {
			t.Errorf("it was tried for %v, want %v", got, want)
		}
	})
}

// Who does nothing leaves nothing behind: the lease lapses.
func TestBreakAndNoRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		l := acquire(t, a, "x", TTL(10*time.Second))
		c.breakLease("x", true)
		<-l.Done()
		began := time.Now()
		closing(t, a)
		if got, want := time.Since(began), leases.Shrink(10*time.Second); got > want || got == 0 {
			t.Errorf("Close waited for %v, want until the lease's deadline, at most %v", got, want)
		}
		mustBeBroken(t, "Release", l.Release(t.Context()))
		if n := len(c.made("release")); n != 0 {
			t.Errorf("%d releases were sent after the deadline, want none", n)
		}
	})
}

func TestCloseNamesABrokenLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		l := acquire(t, a, "x", TTL(time.Minute))
		c.breakLease("x", true)
		<-l.Done()
		err := a.Close(within(t, time.Second))
		mustBe(t, "Close", err, context.DeadlineExceeded)
		if err == nil || !strings.Contains(err.Error(), `lease "x", token`) || !strings.Contains(err.Error(), "its work has not ended") {
			t.Errorf("Close: got %v, want it to name what is left", err)
		}
		before := len(c.calls)
		mustBeBroken(t, "Release", l.Release(t.Context()))
		if n := len(c.calls) - before; n != 0 {
			t.Errorf("%d requests after Close, want none", n)
		}
	})
}

// An operator's break at once leaves nothing to give back.
func TestBreakNow(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		l := acquire(t, a, "x")
		c.breakLease("x", true)
		<-l.Done()
		c.endLease("x")
		began := time.Now()
		closing(t, a)
		if d := time.Since(began); d != 0 {
			t.Errorf("Close waited for %v, want not at all: nothing is left to release", d)
		}
		mustBeBroken(t, "Release", l.Release(t.Context()))
		if n := len(c.made("release")); n != 0 {
			t.Errorf("%d releases, want none", n)
		}
	})
}

// A renewal refused with "broken" may be all that is heard of a lease that has
// ended; its release then does no harm.
func TestBreakNowUnheard(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		gone := &leases.NotHeldError{Name: "x", Token: l.Token(), Why: leases.WhyBroken}
		c.set(func(k call) fault {
			if k.op == "renew" {
				return fault{each: gone}
			}
			return fault{}
		})
		c.mu.Lock()
		c.end(c.held["x"], leases.ChangeBroken)
		c.mu.Unlock()
		<-l.Done()
		mustBeBroken(t, "Release", l.Release(t.Context()))
	})
}

func TestBreakAndTransfer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		w := queueUp(t, a, b)
		c.breakLease("x", true)
		<-w.lease.Done()
		passedOn, err := w.lease.Transfer(t.Context(), w.heirs[1])
		mustBeBroken(t, "Transfer", err)
		if !passedOn {
			t.Error("Transfer: got false, want true: it was passed on all the same")
		}
		release(t, <-w.leases[1])
		release(t, <-w.leases[0])
	})
}

// A grant that is broken before it is believed in is withdrawn, and the attempt
// made anew.
func TestBreakBeforeItIsConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		l := acquire(t, a, "x")
		got := make(chan *Lease)
		go func() { got <- acquire(t, b, "x") }()
		time.Sleep(time.Second)
		c.set(first(1, "renew", fault{lost: true}))
		release(t, l)
		synctest.Wait()
		unconfirmed := c.holder("x")
		c.breakLease("x", true)
		m := <-got
		if m.Token() <= unconfirmed || m.Err() != nil || c.expired != 0 {
			t.Errorf("got token %v, %v, %d expired, want one greater than %v, nil, 0", m.Token(), m.Err(), c.expired, unconfirmed)
		}
		if n := len(c.made("withdraw")); n != 1 {
			t.Errorf("%d withdrawals, want 1", n)
		}
		release(t, m)
	})
}
