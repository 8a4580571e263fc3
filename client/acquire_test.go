package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

func TestAcquire(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(on("acquire", fault{slow: time.Second}))
		began := a.clock.Now()
		l := acquire(t, a, "x", TTL(20*time.Second), Attributes([]byte("blue")), Owner(leases.Owner{Label: "me"}))
		if got, want := l.Deadline(), began.Add(leases.Shrink(20*time.Second)); got != want {
			t.Errorf("Deadline: got %d, want %d, counted from before the sending", got, want)
		}
		if l.Name() != "x" || l.Token() != c.holder("x") {
			t.Errorf("got lease %q under token %v, want \"x\" under %v", l.Name(), l.Token(), c.holder("x"))
		}
		if g := c.held["x"]; string(g.Attributes) != "blue" || g.Owner.Label != "me" {
			t.Errorf("the cluster has attributes %q, owner %v", g.Attributes, g.Owner)
		}
		if got, ok := FromContext(l.Context()); !ok || got != l {
			t.Errorf("FromContext: got %v, %v, want the lease", got, ok)
		}
		if l.Err() != nil {
			t.Errorf("Err: got %v, want nil", l.Err())
		}
		release(t, l)
		if c.holder("x") != 0 {
			t.Error("the lease is still held after its release")
		}
	})
}

func TestContextHasValuesAndNoEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		type key struct{}
		a := c.client()
		defer closing(t, a)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		l, err := a.Acquire(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if l.Context().Err() != nil || l.Context().Value(key{}) != "value" {
			t.Errorf("Context: got error %v, value %v, want nil, value", l.Context().Err(), l.Context().Value(key{}))
		}
		release(t, l)
	})
}

func TestInvalidIsRefusedAtOnce(t *testing.T) {
	c := newCluster()
	a := c.client()
	defer closing(t, a)
	for name, try := range map[string]func() (*Lease, error){
		"name":  func() (*Lease, error) { return a.Acquire(t.Context(), "@x") },
		"ttl":   func() (*Lease, error) { return a.Acquire(t.Context(), "x", TTL(time.Millisecond)) },
		"bytes": func() (*Lease, error) { return a.TryAcquire(t.Context(), "x", Attributes(make([]byte, 513))) },
	} {
		_, err := try()
		mustBe(t, name, err, leases.ErrInvalid)
	}
	if c.opened != 0 {
		t.Errorf("%d conversations were opened, want none", c.opened)
	}
}

func TestTryAcquire(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(WithOwner(leases.Owner{Label: "first"})), c.client()
		defer closing(t, a)
		defer closing(t, b)
		l := acquire(t, a, "x")
		for _, other := range []*Client{b, a} {
			began := time.Now()
			_, err := other.TryAcquire(t.Context(), "x")
			var by *leases.HeldError
			if !errors.As(err, &by) || by.By.Label != "first" {
				t.Errorf("TryAcquire: got %v, want a *HeldError that names the holder", err)
			}
			if d := time.Since(began); d != 0 {
				t.Errorf("TryAcquire took %v, want it at once", d)
			}
		}
		if n := len(c.made("withdraw")); n != 0 {
			t.Errorf("%d attempts were withdrawn that were certainly not granted, want none", n)
		}
		release(t, l)
	})
}

func TestTryAcquireGoesOnWhileUnavailable(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.opening(func(context.Context, int) error {
			if time.Since(epoch) < 10*time.Second {
				return leases.ErrNoQuorum
			}
			return nil
		})
		c.set(first(1, "acquire", fault{err: &leases.NotLeaderError{Node: "n"}}))
		l, err := a.TryAcquire(t.Context(), "x")
		if err != nil {
			t.Fatalf("TryAcquire: got %v, want a lease as soon as a node serves", err)
		}
		if d := time.Since(epoch); d > 12*time.Second {
			t.Errorf("it took %v, want little more than 10 s", d)
		}
		if c.opened > 100 {
			t.Errorf("%d tries in 10 s: want them to back off", c.opened)
		}
		release(t, l)
	})
}

// epoch is when every bubble's time begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func TestAcquireWaitsItsTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		var order []int
		var places [3][]int
		done := make(chan int)
		for i := range 3 {
			go func() {
				l, err := a.Acquire(t.Context(), "x", OnQueued(func(p int) { places[i] = append(places[i], p) }))
				if err != nil {
					t.Error(err)
				}
				order = append(order, i)
				release(t, l)
				done <- i
			}()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute) // they are asked after now and then, and keep their places
		release(t, l)
		for range 3 {
			<-done
		}
		if !slices.Equal(order, []int{0, 1, 2}) {
			t.Errorf("order: got %v, want [0 1 2]", order)
		}
		for i, p := range places {
			if !slices.Equal(p, []int{i + 1}) {
				t.Errorf("waiter %d: was told places %v, want [%d]", i, p, i+1)
			}
		}
		if n := len(c.made("acquire")); n < 4+3*7 || n > 4+3*16 {
			t.Errorf("%d copies were sent in a minute, want each repeated about every 6 s", n)
		}
	})
}

func TestAcquireGivesUp(t *testing.T) {
	tests := []struct {
		name string
		with func(c *cluster)
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want []error
	}{
		{"held, deadline", nil, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		}, []error{leases.ErrHeld, context.DeadlineExceeded}},
		{"held, cancelled", nil, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Second, cancel)
			return ctx, cancel
		}, []error{leases.ErrHeld, context.Canceled}},
		{"no node serves", func(c *cluster) {
			c.opening(func(context.Context, int) error { return leases.ErrNoQuorum })
			c.breakAll(leases.ErrUnavailable)
		}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		}, []error{leases.ErrNoQuorum, context.DeadlineExceeded}},
		{"no node answers", func(c *cluster) {
			c.opening(func(ctx context.Context, _ int) error { <-ctx.Done(); return context.Cause(ctx) })
			c.breakAll(leases.ErrUnavailable)
		}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		}, []error{leases.ErrUnavailable, context.DeadlineExceeded}},
		{"of another cluster", func(c *cluster) {
			c.opening(func(context.Context, int) error { return &leases.WrongClusterError{} })
		}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		}, []error{leases.ErrWrongCluster, context.DeadlineExceeded}},
		{
			"answers are lost", func(c *cluster) { c.set(on("acquire", fault{lost: true})) },
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 10*time.Second)
			},
			[]error{leases.ErrUnknownOutcome, context.DeadlineExceeded},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				holder, a := c.client(WithOwner(leases.Owner{Label: "holder"})), c.client()
				l := acquire(t, holder, "x", TTL(time.Minute))
				if test.with != nil {
					test.with(c)
				}
				ctx, cancel := test.ctx(t.Context())
				defer cancel()
				began := time.Now()
				_, err := a.Acquire(ctx, "x")
				mustBe(t, "Acquire", err, test.want...)
				if d := time.Since(began); d != 10*time.Second {
					t.Errorf("it waited for %v, want 10 s", d)
				}
				if err != nil && strings.HasPrefix(err.Error(), "context") {
					t.Errorf("the error begins with the context's: %v", err)
				}
				c.set(nil)
				c.opening(nil)
				time.Sleep(time.Second)
				if n := c.waiters("x"); n != 0 {
					t.Errorf("%d waiters are left after a second, want none", n)
				}
				release(t, l)
				closing(t, a)
				closing(t, holder)
			})
		})
	}
}

// The holder is named, though the answer takes a while.
func TestAcquireGivesUpAndSaysWhoHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(WithOwner(leases.Owner{Label: "first"})), c.client()
		defer closing(t, a)
		defer closing(t, b)
		l := acquire(t, a, "x")
		c.set(everything(fault{late: 20 * time.Millisecond, slow: 20 * time.Millisecond}))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := b.Acquire(ctx, "x")
		var by *leases.HeldError
		if !errors.As(err, &by) || by.By.Label != "first" {
			t.Errorf("Acquire: got %v, want it to name the holder", err)
		}
		release(t, l)
	})
}

func TestExhaustedFailsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(on("acquire", fault{err: &leases.ExhaustedError{What: "waiters", Bound: 1}}))
		_, err := a.Acquire(t.Context(), "x")
		mustBe(t, "Acquire", err, leases.ErrExhausted)
		if n := len(c.made("withdraw")); n != 0 {
			t.Errorf("%d withdrawals, want none", n)
		}
	})
}

func TestClosedBackendFailsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.opening(func(context.Context, int) error { return leases.ErrClosed })
		a := c.client()
		defer closing(t, a)
		_, err := a.Acquire(t.Context(), "x")
		mustBe(t, "Acquire", err, leases.ErrClosed)
		_, err = a.Info(t.Context())
		mustBe(t, "Info", err, leases.ErrClosed)
	})
}

func TestInfo(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.opening(func(_ context.Context, try int) error {
			if try < 3 {
				return leases.ErrUnavailable
			}
			return nil
		})
		info, err := a.Info(t.Context())
		if err != nil || info.ElectionTimeout != time.Second {
			t.Errorf("Info: got %+v, %v", info, err)
		}
		c.breakAll(leases.ErrUnavailable)
		c.opening(func(context.Context, int) error { return leases.ErrNoQuorum })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = a.Info(ctx)
		mustBe(t, "Info", err, leases.ErrNoQuorum, context.DeadlineExceeded)
	})
}

// A lost answer: the attempt is repeated at another node, and counts from its
// first sending (S40).
func TestLostAnswer(t *testing.T) {
	for name, f := range map[string]fault{
		"mute":    {mute: true},
		"lost":    {lost: true},
		"broken":  {closed: true},
		"unknown": {err: leases.ErrUnknownOutcome},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				c.set(first(2, "acquire", f))
				began := a.clock.Now()
				l := acquire(t, a, "x", TTL(20*time.Second))
				made := c.made("acquire")
				if len(made) != 3 || made[0].attempt != made[1].attempt || made[0].attempt != made[2].attempt {
					t.Fatalf("got %d copies %v, want 3 of one attempt", len(made), made)
				}
				if made[0].link == made[2].link {
					t.Error("all copies went to one node, want another one asked")
				}
				if name == "mute" && made[1].at.Sub(made[0].at) < 2*time.Second {
					t.Errorf("the first copy was repeated after %v, want 2 s or more", made[1].at.Sub(made[0].at))
				}
				if got, want := l.Deadline(), began.Add(leases.Shrink(20*time.Second)); got != want {
					t.Errorf("Deadline: got %v, want %v from the first sending", got, want)
				}
				if n := c.grants; n != 1 {
					t.Errorf("%d grants, want 1", n)
				}
				release(t, l)
			})
		})
	}
}

func TestLateGrantIsConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(func(k call) fault {
			switch {
			case k.op == "acquire" && time.Since(epoch) < 5*time.Second:
				return fault{mute: true}
			case k.op == "renew":
				return fault{slow: 300 * time.Millisecond}
			}
			return fault{}
		})
		l := acquire(t, a, "x", TTL(8*time.Second))
		renewals := c.made("renew")
		if len(renewals) != 1 {
			t.Fatalf("%d renewals before Acquire returned, want 1", len(renewals))
		}
		if got, want := l.Deadline(), clock.Instant(renewals[0].at.Sub(epoch)).Add(leases.Shrink(8*time.Second)); got != want {
			t.Errorf("Deadline: got %v, want %v, from the confirmation's sending", got, want)
		}
		if now := time.Now(); !now.Equal(renewals[0].at.Add(300 * time.Millisecond)) {
			t.Errorf("Acquire returned at %v, want with the answer to the renewal", now)
		}
		release(t, l)
	})
}

func TestWaitedGrantIsConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(time.Minute))
		time.AfterFunc(time.Second, func() { l.Release(context.Background()) })
		// Two confirmations are lost, and with them some seconds.
		c.set(first(2, "renew", fault{lost: true}))
		b := acquire(t, a, "x", TTL(time.Minute))
		renewals := c.made("renew")
		if len(renewals) != 3 {
			t.Fatalf("%d renewals before Acquire returned, want 3", len(renewals))
		}
		if got, want := b.Deadline(), clock.Instant(renewals[2].at.Sub(epoch)).Add(leases.Shrink(time.Minute)); got != want {
			t.Errorf("Deadline: got %v, want %v, from the confirmation's sending", got, want)
		}
		release(t, b)
	})
}

// A grant that is lost before it is confirmed: the attempt is over, another is
// made.
func TestRefusedConfirmationBeginsAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		time.AfterFunc(time.Second, func() { l.Release(context.Background()) })
		c.set(func(k call) fault {
			return fault{lost: k.op == "renew" && time.Since(epoch) < 8*time.Second}
		})
		b := acquire(t, a, "x")
		made := c.made("acquire")
		if made[1].attempt == made[len(made)-1].attempt {
			t.Error("the attempt that was over was used again")
		}
		if c.expired != 1 || c.grants != 3 {
			t.Errorf("%d expired, %d grants, want 1 and 3", c.expired, c.grants)
		}
		if b.Token() != c.holder("x") {
			t.Errorf("got token %v, want the newest, %v", b.Token(), c.holder("x"))
		}
		release(t, b)
	})
}

func TestWithdrawnAttemptBeginsAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(first(1, "acquire", fault{err: &leases.NotHeldError{Name: "x", Why: leases.WhyWithdrawn}}))
		l := acquire(t, a, "x")
		if made := c.made("acquire"); len(made) != 2 || made[0].attempt == made[1].attempt {
			t.Errorf("got %v, want two attempts", made)
		}
		release(t, l)
	})
}

// A waiter whose node falls silent asks another, with the same attempt.
func TestHungNodeOfAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, a)
		defer closing(t, b)
		l := acquire(t, a, "x", TTL(time.Minute))
		got := make(chan *Lease)
		go func() { got <- acquire(t, b, "x") }()
		time.Sleep(time.Second)
		hung := c.made("acquire")[1].link
		c.set(func(k call) fault { return fault{lost: k.link == hung} })
		time.Sleep(quiet + quiet + 3*time.Second)
		if n := c.waiters("x"); n != 1 {
			t.Errorf("%d waiters, want 1", n)
		}
		made := c.made("acquire")
		if last := made[len(made)-1]; last.link == hung || last.attempt != made[1].attempt {
			t.Errorf("got %+v, want the same attempt at another node", last)
		}
		release(t, l)
		release(t, <-got)
	})
}

// Over a change of the leader the holder keeps its lease and token, and who
// waits queues anew with the same attempt.
func TestLeaderChange(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, a)
		defer closing(t, b)
		l := acquire(t, a, "x", TTL(10*time.Second))
		token := l.Token()
		got := make(chan *Lease)
		go func() { got <- acquire(t, b, "x") }()
		for range 5 {
			time.Sleep(3 * time.Second)
			until := time.Now().Add(2 * time.Second)
			c.opening(func(context.Context, int) error {
				if time.Now().Before(until) {
					return leases.ErrNoQuorum
				}
				return nil
			})
			c.changeLeader()
		}
		time.Sleep(3 * time.Second)
		if l.Err() != nil || l.Token() != token || c.holder("x") != token {
			t.Errorf("got %v, token %v, want the lease kept under %v", l.Err(), l.Token(), token)
		}
		attempts := map[leases.ID]bool{}
		for _, k := range c.made("acquire") {
			attempts[k.attempt] = true
		}
		if len(attempts) != 2 || c.waiters("x") != 1 {
			t.Errorf("%d attempts, %d waiting, want 2 and 1", len(attempts), c.waiters("x"))
		}
		release(t, l)
		release(t, <-got)
	})
}

// The lease of an Acquire that ends just when its answer comes is either
// returned or withdrawn.
func TestGrantAtTheVeryEnd(t *testing.T) {
	for range 50 {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.client()
			c.set(on("acquire", fault{slow: time.Second}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			l, err := a.Acquire(ctx, "x")
			if err == nil {
				release(t, l)
			}
			time.Sleep(time.Second)
			if c.holder("x") != 0 {
				t.Errorf("the lease is held after Acquire's %v", err)
			}
			closing(t, a)
		})
	}
}
