package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

func TestRenewalsAreSpaced(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(30*time.Second))
		last := time.Now()
		time.Sleep(10 * time.Minute)
		made := c.made("renew")
		for _, k := range made {
			if d := k.at.Sub(last); d < 9*time.Second || d > 10*time.Second {
				t.Errorf("a renewal came %v after the one before, want 9 to 10 s", d)
			}
			last = k.at
		}
		if len(made) < 60 || l.Err() != nil {
			t.Errorf("%d renewals, lease %v, want 60 or more, nil", len(made), l.Err())
		}
		release(t, l)
	})
}

func TestRenewalsGoTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		const n = 1100
		a := c.client()
		defer closing(t, a)
		all := make([]*Lease, n)
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond / 2)
				all[i] = acquire(t, a, fmt.Sprint(i))
			})
		}
		wg.Wait()
		time.Sleep(20 * time.Second)
		made := c.made("renew")
		if len(made) > 12 {
			t.Errorf("%d requests in 20 s for %d leases of 15 s, want 12 at most", len(made), n)
		}
		renewed := 0
		for _, k := range made {
			renewed += k.size
			if k.size > maxBatch {
				t.Errorf("%d leases in one request, want %d at most", k.size, maxBatch)
			}
		}
		if renewed < 4*n || renewed > 5*n {
			t.Errorf("%d leases were renewed, want %d to %d", renewed, 4*n, 5*n)
		}
		for _, l := range all {
			wg.Go(func() { release(t, l) })
		}
		wg.Wait()
	})
}

// Leases of different TTLs are all renewed in time, many in one request.
func TestRenewalsOfDifferentTTLs(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		var all []*Lease
		for i := range 100 {
			ttl := 3 * time.Second
			if i%2 == 0 {
				ttl = time.Minute
			}
			all = append(all, acquire(t, a, fmt.Sprint(i), TTL(ttl)))
			time.Sleep(50 * time.Millisecond)
		}
		before := len(c.made("renew"))
		time.Sleep(2 * time.Minute)
		renewed := 0
		for _, k := range c.made("renew")[before:] {
			renewed += k.size
		}
		// Every second or so 50 are due, and 50 more three times a minute.
		if n := len(c.made("renew")) - before; n > 600 || renewed < 50*120+50*6 || renewed > 50*150+50*8 {
			t.Errorf("%d leases were renewed in %d requests, want 6300 to 7900 in 600 at most", renewed, n)
		}
		for _, l := range all {
			release(t, l)
		}
	})
}

// Nothing known is never a loss.
func TestTroubleIsNoLoss(t *testing.T) {
	faults := map[string]fault{
		"unavailable": {err: &leases.UnavailableError{Reason: "stepping down"}},
		"unknown":     {err: leases.ErrUnknownOutcome},
		"no quorum":   {err: leases.ErrNoQuorum},
		"not leader":  {err: &leases.NotLeaderError{Node: "n", Leader: "m"}},
		"closed":      {err: leases.ErrClosed},
		"exhausted":   {err: &leases.ExhaustedError{What: "calls", Bound: 1}},
		"invalid":     {err: &leases.InvalidError{Field: "held"}},
		"other":       {err: errors.New("a program's fault")},
		"lost":        {lost: true},
		"mute":        {mute: true},
		"broken":      {closed: true},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				l := acquire(t, a, "x", TTL(20*time.Second))
				token := l.Token()
				// The first renewal is due by 6.7 s, the lease ends at 19.8 s.
				c.set(func(k call) fault {
					if k.op == "renew" && time.Since(epoch) < 17*time.Second {
						return f
					}
					return fault{}
				})
				time.Sleep(time.Minute)
				if l.Err() != nil || c.holder("x") != token {
					t.Errorf("got %v, held under %v, want it kept under %v", l.Err(), c.holder("x"), token)
				}
				if n := len(c.made("renew")); n > 60 {
					t.Errorf("%d renewals in a minute: want them to back off", n)
				}
				release(t, l)
			})
		})
	}
}

func TestHungLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(10*time.Second))
		c.set(func(k call) fault { return fault{lost: k.link == 1} })
		time.Sleep(5 * time.Second)
		made := c.made("renew")
		if len(made) != 2 || made[1].link == 1 {
			t.Fatalf("got %+v, want the renewal repeated at another node", made)
		}
		if d := made[1].at.Sub(made[0].at); d < 1250*time.Millisecond || d > 1500*time.Millisecond {
			t.Errorf("it was repeated after %v, want little more than an eighth of the TTL", d)
		}
		release(t, l)
	})
}

// A way slower than the patience of a short lease must not lose it.
// Many requests over one hung session are no sign of a slow way: the next hung
// one is noticed almost as soon.
func TestManyRequestsHang(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(func(k call) fault { return fault{lost: k.link <= 2} })
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { release(t, acquire(t, a, fmt.Sprint(i), TTL(3*time.Second))) })
		}
		wg.Wait()
		if d := time.Since(epoch); d > 1500*time.Millisecond {
			t.Errorf("it took %v, want 375 ms, 750 ms and a little", d)
		}
	})
}

// A renewal that is answered lease by lease that nothing is known.
func TestNothingKnownOfEach(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(20*time.Second))
		c.set(func(k call) fault {
			if k.op == "renew" && time.Since(epoch) < 17*time.Second {
				return fault{each: leases.ErrUnavailable}
			}
			return fault{}
		})
		time.Sleep(time.Minute)
		if l.Err() != nil {
			t.Errorf("got %v, want the lease kept", l.Err())
		}
		release(t, l)
	})
}

func TestSlowWay(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(everything(fault{late: 300 * time.Millisecond, slow: 300 * time.Millisecond}))
		l := acquire(t, a, "x", TTL(3*time.Second))
		time.Sleep(2 * time.Minute)
		if l.Err() != nil {
			t.Errorf("got %v, want the lease kept", l.Err())
		}
		if c.opened > 10 {
			t.Errorf("%d conversations were opened, want that to settle", c.opened)
		}
		release(t, l)
	})
}

func TestDeadlineNeedsNoNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(10*time.Second))
		c.set(everything(fault{lost: true}))
		<-l.Done()
		if got, want := time.Since(epoch), leases.Shrink(10*time.Second); got != want {
			t.Errorf("Done after %v, want %v", got, want)
		}
		mustBe(t, "Err", l.Err(), leases.ErrExpired, leases.ErrUnknownOutcome)
		mustBe(t, "Context's cause", context.Cause(l.Context()), leases.ErrExpired)
		c.set(nil)
		before := len(c.made("renew"))
		err := l.Release(t.Context())
		mustBe(t, "Release", err, leases.ErrNotHeld, leases.ErrExpired)
		time.Sleep(time.Minute)
		if n := len(c.made("renew")) - before + len(c.made("release")); n != 0 {
			t.Errorf("%d requests were made for a lease that had lapsed, want none", n)
		}
	})
}

func TestDeadlineSaysWhatWasWrong(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(3*time.Second))
		c.opening(func(context.Context, int) error { return leases.ErrNoQuorum })
		c.breakAll(leases.ErrUnavailable)
		<-l.Done()
		mustBe(t, "Err", l.Err(), leases.ErrExpired, leases.ErrNoQuorum)
	})
}

func TestRefusalIsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l, other := acquire(t, a, "x"), acquire(t, a, "y")
		c.set(func(k call) fault {
			if k.op == "renew" {
				c.free(c.held["x"])
				c.fault = nil
			}
			return fault{}
		})
		<-l.Done()
		if d := time.Since(epoch); d > 5*time.Second {
			t.Errorf("it was lost after %v, want with the first renewal", d)
		}
		mustBe(t, "Err", l.Err(), leases.ErrLost, leases.ErrNotHeld)
		if other.Err() != nil {
			t.Errorf("the other lease of that batch: got %v, want nil", other.Err())
		}
		mustBe(t, "Release", l.Release(t.Context()), leases.ErrNotHeld, leases.ErrLost)
		release(t, other)
	})
}

func TestToldOfTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l, other := acquire(t, a, "x"), acquire(t, a, "y")
		c.endLease("x")
		synctest.Wait()
		mustBe(t, "Err", l.Err(), leases.ErrLost, leases.ErrNotHeld)
		var why *leases.NotHeldError
		if err := l.Err(); !errors.As(err, &why) || why.Why != leases.WhyBroken {
			t.Errorf("Err: got %v, want it to say why", err)
		}
		// News of another token, or without certainty, is none.
		a.hear(leases.Ended{Held: leases.Held{Name: "y", Token: other.Token() - 1}, Err: &leases.NotHeldError{Name: "y", Why: leases.WhyExpired}})
		a.hear(leases.Ended{Held: leases.Held{Name: "y", Token: other.Token()}, Err: leases.ErrUnavailable})
		if other.Err() != nil {
			t.Errorf("the other lease: got %v, want nil", other.Err())
		}
		release(t, other)
	})
}

func TestWrongNumberOfAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := New(short{c}, WithClock(clock.NewRuntime()))
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(10*time.Second))
		<-l.Done()
		mustBe(t, "Err", l.Err(), leases.ErrExpired, leases.ErrUnavailable)
	})
}

// short is a cluster whose answers to renewals are one too short.
type short struct{ *cluster }

type shortLink struct{ leases.Session }

func (s short) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	l, err := s.cluster.Open(ctx, id, on)
	return shortLink{l}, err
}

func (s shortLink) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	errs, err := s.Session.Renew(ctx, held)
	return errs[:len(errs)-1], err
}

// leap is a clock that can leap ahead, as over a suspend.
type leap struct {
	clock.Clock
	by atomic.Int64
}

func (l *leap) Now() clock.Instant { return l.Clock.Now().Add(time.Duration(l.by.Load())) }

func TestSuspend(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		clock := &leap{Clock: clock.NewRuntime()}
		a := c.client(WithClock(clock))
		defer closing(t, a)
		l := acquire(t, a, "x")
		time.Sleep(time.Second)
		clock.by.Store(int64(time.Hour))
		mustBe(t, "Err", l.Err(), leases.ErrExpired)

		m := acquire(t, a, "y")
		time.Sleep(time.Second)
		clock.by.Store(int64(2 * time.Hour))
		resumed := time.Now()
		<-m.Done()
		if d := time.Since(resumed); d > 500*time.Millisecond {
			t.Errorf("the end was noticed %v after the suspend, want 500 ms at most", d)
		}
		mustBe(t, "Err", m.Err(), leases.ErrExpired)
	})
}

func TestRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		var seen []clock.Instant
		for range 5 {
			<-l.Renewed()
			seen = append(seen, l.Deadline())
		}
		for i := range seen[1:] {
			if d := seen[i+1].Sub(seen[i]); d < 4500*time.Millisecond || d > 5*time.Second {
				t.Errorf("deadline %d came %v after the one before, want 4.5 to 5 s", i+1, d)
			}
		}
		release(t, l)
	})
}

// What comes late from a conversation that was given up says nothing of the
// present one.
func TestLateAnswersOfAnotherConversation(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		talk := a.conversation
		old, err := talk.with(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		talk.unanswered(old, time.Second)
		present, err := talk.with(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range maxStrikes {
			talk.answered(old, leases.ErrUnavailable, true)
			talk.unanswered(old, time.Second)
		}
		if s, _ := talk.with(t.Context()); s != present || talk.late != 1 || talk.strikes != 0 {
			t.Errorf("got session %v, late %d, strikes %d, want the present one, 1, 0", s, talk.late, talk.strikes)
		}
	})
}
