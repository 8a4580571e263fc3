package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// grace is that of a cluster whose longest TTL is 15 s.
var grace = leases.Stretch(15 * time.Second)

// inEpoch fails unless so many reclaims of epoch were asked for in all, in any
// number of requests, and none of another.
func inEpoch(t *testing.T, c *cluster, epoch uint32, want int) {
	t.Helper()
	got := 0
	for _, k := range c.made("reclaim") {
		if got += k.size; k.epoch != epoch {
			t.Errorf("%d leases were reclaimed in epoch %d, want epoch %d", k.size, k.epoch, epoch)
		}
	}
	if got != want {
		t.Errorf("%d leases were reclaimed, want %d", got, want)
	}
}

// untilReclaimed waits until a reclaim is under way.
func untilReclaimed(t *testing.T, c *cluster) {
	t.Helper()
	for range 1000 {
		if len(c.made("reclaim")) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no lease was reclaimed within 10 s")
}

// A lease is kept, with its token and all that people see of it, over a takeover
// and the way back.
func TestTakeover(t *testing.T) {
	for name, breaks := range map[string]bool{"conversation goes on": false, "conversation breaks": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				var log bytes.Buffer
				a := c.client(WithLog(slog.New(slog.NewTextHandler(&log, nil))))
				defer closing(t, a)
				time.Sleep(time.Second)
				l := acquire(t, a, "x", Attributes([]byte("blue")), Owner(leases.Owner{Label: "me", PID: 7}))
				token, acquired, before := l.Token(), time.Now(), l.Deadline()
				c.takeOver(grace)
				if breaks {
					c.breakAll(leases.ErrUnavailable)
				}
				time.Sleep(time.Minute)
				if l.Err() != nil || l.Token() != token || c.holder("x") != token {
					t.Fatalf("got %v, token %v, want it kept under %v", l.Err(), l.Token(), token)
				}
				if d := l.Deadline().Sub(before); d < 50*time.Second {
					t.Errorf("its deadline moved by %v in a minute, want it renewed all the time", d)
				}
				g := c.held["x"]
				if g.Owner.Label != "me" || g.Owner.PID != 7 || string(g.Attributes) != "blue" || g.TTL != DefaultTTL || !g.at.Equal(acquired) {
					t.Errorf("the arbiter has owner %v, attributes %q, TTL %v, acquired at %v", g.Owner, g.Attributes, g.TTL, g.at)
				}
				c.failBack()
				time.Sleep(time.Minute)
				if l.Err() != nil || c.holder("x") != token {
					t.Errorf("after the way back: got %v, held under %v, want it kept", l.Err(), c.holder("x"))
				}
				inEpoch(t, c, 2, 1)
				const line = `level=INFO msg="the arbiter has taken over: reclaiming leases" epoch=2 leases=1`
				if got := log.String(); strings.Count(got, line) != 1 {
					t.Errorf("log: got\n%swant once: %s", got, line)
				}
				release(t, l)
				if c.holder("x") != 0 || c.expired != 0 {
					t.Error("it is still held after its release, or had to expire")
				}
			})
		})
	}
}

func TestTakeoverWithNobodyServing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.opening(func(context.Context, int) error { return leases.ErrUnavailable })
		c.takeOver(grace)
		c.breakAll(leases.ErrUnavailable)
		<-l.Done()
		if got, want := time.Since(epoch), leases.Shrink(DefaultTTL); got != want {
			t.Errorf("it ended after %v, want its own deadline, %v", got, want)
		}
		mustBe(t, "Err", l.Err(), leases.ErrExpired)
		c.opening(nil)
		time.Sleep(time.Minute)
		inEpoch(t, c, 2, 0)
	})
}

// What is given back in the grace is not reclaimed.
func TestReleaseInGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l, m, n := acquire(t, a, "x"), acquire(t, a, "y"), acquire(t, a, "z")
		c.takeOver(grace)
		release(t, l)
		time.Sleep(time.Second)
		if passed, err := m.Transfer(t.Context(), leases.NewID()); passed || err != nil {
			t.Errorf("Transfer: got %v, %v, want false, nil", passed, err)
		}
		time.Sleep(10 * time.Second) // z is reclaimed
		release(t, n)
		inEpoch(t, c, 2, 1)
		for _, name := range []string{"x", "y", "z"} {
			if token := c.holder(name); token != 0 {
				t.Errorf("%s is held under %v, want it free", name, token)
			}
		}
		mustBe(t, "Err", l.Err(), leases.ErrReleased)
	})
}

// What is given back while it is being reclaimed stays given back, though the
// reclaim may arrive after all and leave an orphan.
func TestReleaseWhileReclaimed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.takeOver(grace)
		c.set(on("reclaim", fault{late: time.Second}))
		untilReclaimed(t, c)
		release(t, l)
		before := len(c.made("renew"))
		time.Sleep(5 * time.Second)
		mustBe(t, "Err", l.Err(), leases.ErrReleased)
		if c.holder("x") != l.Token() {
			t.Errorf("held under %v, want the orphan, for the test to mean anything", c.holder("x"))
		}
		if n := len(c.made("renew")) - before; n != 0 {
			t.Errorf("%d renewals after the release, want none", n)
		}
		time.Sleep(leases.Stretch(DefaultTTL))
		if c.holder("x") != 0 {
			t.Error("the orphan outlived its TTL")
		}
	})
}

func TestTryAcquireInGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		held := acquire(t, a, "held")
		c.takeOver(grace)
		_, err := b.TryAcquire(within(t, 8*time.Second), "x")
		mustBe(t, "TryAcquire", err, leases.ErrGrace, context.DeadlineExceeded)
		if e, ok := errors.AsType[*leases.GraceError](err); !ok || e.Epoch != 2 || e.FreshIn != grace-8*time.Second {
			t.Errorf("TryAcquire: got %v, want a *GraceError of epoch 2 and %v", err, grace-8*time.Second)
		}
		made := c.made("acquire")[1:]
		if len(made) < 8 || len(made) > 60 {
			t.Errorf("%d tries in 8 s, want them to rest for a second at most", len(made))
		}
		for i, k := range made[1:] {
			if d := k.at.Sub(made[i].at); d > time.Second || k.attempt != made[0].attempt {
				t.Errorf("try %d came %v after the one before, attempt %v, want 1 s at most, %v", i+2, d, k.attempt, made[0].attempt)
			}
		}
		if n := len(c.made("withdraw")); n != 0 {
			t.Errorf("%d attempts were withdrawn that were certainly not granted, want none", n)
		}
		if n := c.opened; n != 2 {
			t.Errorf("%d conversations were opened, want 2: a node in a grace is a good one", n)
		}
		// The other one is reclaimed by now.
		began := time.Now()
		_, err = b.TryAcquire(t.Context(), "held")
		mustBe(t, "TryAcquire of what was reclaimed", err, leases.ErrHeld)
		if d := time.Since(began); d != 0 {
			t.Errorf("TryAcquire of what was reclaimed took %v, want it at once", d)
		}
		l, err := b.TryAcquire(t.Context(), "x")
		if err != nil {
			t.Fatalf("TryAcquire: got %v, want the lease after the grace", err)
		}
		if d := time.Since(epoch); d < grace || d > grace+time.Second {
			t.Errorf("it was granted after %v, want within a second of %v", d, grace)
		}
		if l.Token().Epoch() != 2 {
			t.Errorf("got token %v, want one of epoch 2", l.Token())
		}
		release(t, l)
		release(t, held)
	})
}

// Near the end of the grace the rest is no longer than that.
func TestTryAcquireAtTheEndOfGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		const short = 50 * time.Millisecond
		c.takeOver(short)
		l, err := a.TryAcquire(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(epoch); d > 2*short {
			t.Errorf("it was granted after %v, want %v at most", d, 2*short)
		}
		release(t, l)
	})
}

// Who waits, waits through the grace, in order.
func TestAcquireInGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		got := make(chan int)
		var wg sync.WaitGroup
		wait := func(i int) {
			wg.Go(func() {
				l := acquire(t, a, "x")
				got <- i
				if d := time.Since(epoch); d < grace {
					t.Errorf("waiter %d was granted the lease after %v, in the grace", i, d)
				}
				release(t, l)
			})
			time.Sleep(100 * time.Millisecond)
		}
		wait(0) // before the takeover
		c.takeOver(grace - time.Since(epoch))
		release(t, l)
		time.Sleep(time.Second)
		wait(1)
		wait(2)
		for want := range 3 {
			if i := <-got; i != want {
				t.Errorf("waiter %d came, want %d", i, want)
			}
		}
		wg.Wait()
		if d := time.Since(epoch); d != grace {
			t.Errorf("all had it after %v, want it at the end of the grace, %v", d, grace)
		}
		attempts := map[leases.ID]bool{}
		for _, k := range c.made("acquire") {
			attempts[k.attempt] = true
		}
		if len(attempts) != 4 {
			t.Errorf("%d attempts, want 4: each waiter keeps its own", len(attempts))
		}
	})
}

func TestAcquireGivesUpInGrace(t *testing.T) {
	for name, held := range map[string]bool{"free": false, "held": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				l := acquire(t, a, "x")
				c.takeOver(grace)
				want := leases.ErrHeld
				if !held {
					release(t, l)
					want = leases.ErrGrace
				}
				c.set(everything(fault{late: 20 * time.Millisecond, slow: 20 * time.Millisecond}))
				_, err := a.Acquire(within(t, 10*time.Second), "x")
				mustBe(t, "Acquire", err, want, context.DeadlineExceeded)
				time.Sleep(time.Second)
				if n := c.waiters("x"); n != 0 {
					t.Errorf("%d waiters are left, want none", n)
				}
				if held {
					release(t, l)
				}
			})
		})
	}
}

// A grant that was not confirmed before the takeover is not reclaimed: the attempt
// is over, and another one stands in line (S46).
func TestTakeoverBeforeItIsConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		l := acquire(t, a, "x")
		got := make(chan *Lease)
		go func() { got <- acquire(t, b, "x") }()
		time.Sleep(time.Second)
		c.set(on("renew", fault{err: leases.ErrUnavailable}))
		release(t, l)
		time.Sleep(time.Second)
		unconfirmed := c.holder("x")
		c.takeOver(grace)
		c.set(nil)
		m := <-got
		if unconfirmed != tokens.New(1, 2) || m.Token() != tokens.New(2, 1) {
			t.Errorf("got token %v after %v, want the first of epoch 2", m.Token(), unconfirmed)
		}
		inEpoch(t, c, 2, 0)
		made := c.made("acquire")
		if made[1].attempt == made[len(made)-1].attempt {
			t.Error("the attempt that was over was used again")
		}
		if n := len(c.made("withdraw")); n != 1 {
			t.Errorf("%d attempts were withdrawn, want 1: a planned takeover may hand its grant over", n)
		}
		release(t, m)
	})
}

func TestTakeoverOfBrokenLease(t *testing.T) {
	t.Run("told", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.client()
			defer closing(t, a)
			l := acquire(t, a, "x")
			c.breakLease("x", true)
			<-l.Done()
			c.takeOver(grace)
			time.Sleep(5 * time.Second)
			inEpoch(t, c, 2, 0)
			mustBeBroken(t, "Release", l.Release(t.Context()))
		})
	})
	t.Run("forgotten", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.client()
			defer closing(t, a)
			l := acquire(t, a, "x")
			c.breakLease("x", false)
			c.takeOver(grace)
			time.Sleep(time.Minute)
			if l.Err() != nil {
				t.Errorf("got %v, want it kept: a takeover forgets the mark", l.Err())
			}
			c.breakLease("x", false)
			<-l.Done()
			mustBeBroken(t, "Err", l.Err())
			mustBeBroken(t, "Release", l.Release(t.Context()))
		})
	})
	t.Run("reclaim refused", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.client()
			defer closing(t, a)
			l := acquire(t, a, "x")
			c.takeOver(grace)
			time.Sleep(6 * time.Second)
			c.breakLease("x", false)
			// An answer that was given before the first reclaim comes last.
			c.set(on("renew", fault{each: &leases.GraceError{Epoch: 2}}))
			<-l.Done()
			mustBeBroken(t, "Err", l.Err())
			inEpoch(t, c, 2, 2)
			c.set(nil)
			mustBeBroken(t, "Release", l.Release(t.Context()))
			if c.holder("x") != 0 {
				t.Error("its release has not freed it")
			}
		})
	})
}

func TestTwoTakeovers(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		for range 3 {
			c.takeOver(grace)
			time.Sleep(grace)
			c.failBack()
			time.Sleep(time.Second)
		}
		if l.Err() != nil || c.holder("x") != tokens.New(1, 1) {
			t.Errorf("got %v, held under %v, want it kept under its first token", l.Err(), c.holder("x"))
		}
		var epochs []uint32
		for _, k := range c.made("reclaim") {
			epochs = append(epochs, k.epoch)
		}
		if fmt.Sprint(epochs) != "[2 4 6]" {
			t.Errorf("reclaims in epochs %v, want [2 4 6]", epochs)
		}
		release(t, l)
	})
}

// A reclaim that arrives in a later epoch than it names is answered so, and made
// anew in that one at once.
func TestTakeoverDuringReclaim(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.takeOver(grace)
		c.set(first(1, "reclaim", fault{late: time.Second}))
		untilReclaimed(t, c)
		c.failBack()
		c.takeOver(grace)
		time.Sleep(2 * time.Second)
		made := c.made("reclaim")
		if len(made) != 2 || made[0].epoch != 2 || made[1].epoch != 4 || made[1].at.Sub(made[0].at) != time.Second {
			t.Errorf("got %+v, want a reclaim in epoch 2, and one in epoch 4 as soon as it is answered", made)
		}
		time.Sleep(time.Minute)
		if l.Err() != nil || c.holder("x") != l.Token() {
			t.Errorf("got %v, held under %v, want it kept", l.Err(), c.holder("x"))
		}
		release(t, l)
	})
}

// A reclaim that is not answered, or with nothing known, is no loss: the lease is
// renewed again, and so reclaimed.
func TestTroubleWithReclaim(t *testing.T) {
	for name, f := range map[string]fault{
		"lost":       {lost: true},
		"mute":       {mute: true},
		"broken":     {closed: true},
		"none":       {err: leases.ErrUnavailable},
		"each":       {each: leases.ErrUnavailable},
		"no quorum":  {each: leases.ErrNoQuorum},
		"invalid":    {each: &leases.InvalidError{Field: "ttl"}},
		"same epoch": {each: &leases.GraceError{Epoch: 2}},
		"an older":   {each: &leases.GraceError{Epoch: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				l := acquire(t, a, "x", TTL(20*time.Second))
				c.takeOver(leases.Stretch(20 * time.Second))
				c.set(func(k call) fault { // the first renewal is due by 6.7 s, the lease ends at 19.8 s
					if k.op == "reclaim" && time.Since(epoch) < 17*time.Second {
						return f
					}
					return fault{}
				})
				time.Sleep(time.Minute)
				if l.Err() != nil || c.holder("x") != l.Token() {
					t.Errorf("got %v, held under %v, want it kept under %v", l.Err(), c.holder("x"), l.Token())
				}
				if n := len(c.made("reclaim")); n > 50 {
					t.Errorf("%d reclaims: want them to back off", n)
				}
				release(t, l)
			})
		})
	}
}

// Many leases are reclaimed in few requests, and told of in one line.
func TestTakeoverOfManyLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		const n = 1000
		var log bytes.Buffer
		a := c.client(WithLog(slog.New(slog.NewTextHandler(&log, nil))))
		defer closing(t, a)
		all := make([]*Lease, n)
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				all[i] = acquire(t, a, fmt.Sprint(i))
			})
		}
		wg.Wait()
		time.Sleep(10 * time.Second)
		c.takeOver(grace)
		time.Sleep(20 * time.Second)
		made := c.made("reclaim")
		reclaimed := 0
		for _, k := range made {
			if reclaimed += k.size; k.size > maxBatch {
				t.Errorf("%d leases in one request, want %d at most", k.size, maxBatch)
			}
		}
		if reclaimed != n || len(made) > 6 {
			t.Errorf("%d leases were reclaimed in %d requests, want %d in 6 at most", reclaimed, len(made), n)
		}
		if got := strings.Count(log.String(), "the arbiter has taken over"); got != 1 {
			t.Errorf("the takeover was told %d times, want once", got)
		}
		for _, l := range all {
			if l.Err() != nil || c.holder(l.Name()) != l.Token() || l.Token().Epoch() != 1 {
				t.Fatalf("lease %s: got %v, held under %v, want it kept under %v", l.Name(), l.Err(), c.holder(l.Name()), l.Token())
			}
			wg.Go(func() { release(t, l) })
		}
		wg.Wait()
	})
}

// A node that says of each lease that nothing is known may be cut off from the
// arbiter: another one is asked.
func TestNodeCutOffFromTheArbiter(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l, m := acquire(t, a, "x"), acquire(t, a, "y")
		c.set(func(k call) fault {
			if k.op == "renew" && k.link == 1 {
				return fault{each: &leases.UnavailableError{Reason: "the arbiter does not answer"}}
			}
			return fault{}
		})
		c.takeOver(grace)
		time.Sleep(8 * time.Second)
		made := c.made("renew")
		if len(made) < 3 || made[1].link != 1 || made[maxStrikes].link != 2 {
			t.Fatalf("got %+v, want another node asked after %d answers that say nothing", made, maxStrikes)
		}
		inEpoch(t, c, 2, 2)
		synctest.Wait()
		if l.Err() != nil || m.Err() != nil {
			t.Errorf("got %v, %v, want both kept", l.Err(), m.Err())
		}
		release(t, l)
		release(t, m)
	})
}

// Some answers that say nothing among others are no sign against the node.
func TestSomeUnknownAreNoStrike(t *testing.T) {
	unknown := leases.ErrUnavailable
	refused := &leases.NotHeldError{Name: "x"}
	for _, test := range []struct {
		answers []error
		want    error
	}{
		{[]error{nil}, nil},
		{[]error{unknown}, unknown},
		{[]error{unknown, leases.ErrNoQuorum}, unknown},
		{[]error{unknown, nil}, nil},
		{[]error{unknown, refused}, nil},
		{[]error{unknown, &leases.GraceError{Epoch: 2}}, nil},
	} {
		if got := nothingKnown(test.answers); got != test.want {
			t.Errorf("%v: got %v, want %v", test.answers, got, test.want)
		}
	}
}
