package client

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
)

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCloseUnused(t *testing.T) {
	c := newCluster()
	a := c.client()
	for range 2 {
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
	}
	_, err := a.Acquire(t.Context(), "x")
	mustBe(t, "Acquire", err, leases.ErrClosed)
	_, err = a.TryAcquire(t.Context(), "x")
	mustBe(t, "TryAcquire", err, leases.ErrClosed)
	_, err = a.Info(t.Context())
	mustBe(t, "Info", err, leases.ErrClosed)
	mustBe(t, "Run", a.Run(t.Context(), "x", nil), leases.ErrClosed)
}

func TestCloseEndsWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		other, a := c.client(), c.client()
		defer closing(t, other)
		l := acquire(t, other, "x")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := a.Acquire(t.Context(), "x")
				mustBe(t, "Acquire", err, leases.ErrClosed)
			})
		}
		time.Sleep(time.Second)
		if err := a.Close(within(t, time.Minute)); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
		if n := c.waiters("x"); n != 0 {
			t.Errorf("%d waiters are left, want none", n)
		}
		if n := len(c.made("withdraw")); n != 3 {
			t.Errorf("%d withdrawals, want 3", n)
		}
		wg.Wait()
		release(t, l)
	})
}

// Close cancels the contexts, renews while the work goes on, and returns when
// all is released.
func TestCloseWaitsForTheWork(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		run, byHand := make(chan error), make(chan struct{})
		started := make(chan struct{})
		go func() {
			run <- a.Run(t.Context(), "x", func(ctx context.Context) error {
				close(started)
				<-ctx.Done()
				mustBe(t, "the work's cause", context.Cause(ctx), leases.ErrClosed)
				time.Sleep(time.Minute) // tidying up takes longer than the TTL
				return nil
			})
		}()
		<-started
		l := acquire(t, a, "y")
		go func() {
			defer close(byHand)
			<-l.Done()
			time.Sleep(30 * time.Second)
			release(t, l)
		}()
		began := time.Now()
		if err := a.Close(within(t, time.Hour)); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
		if d := time.Since(began); d != time.Minute {
			t.Errorf("Close took %v, want as long as the work, 1 min", d)
		}
		if err := <-run; err != nil {
			t.Errorf("Run: got %v, want nil: it kept its lease", err)
		}
		<-byHand
		if c.expired != 0 || c.holder("x") != 0 || c.holder("y") != 0 {
			t.Errorf("%d leases expired; held are %v and %v, want none", c.expired, c.holder("x"), c.holder("y"))
		}
	})
}

func TestCloseNamesWhatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		endless, asked := acquire(t, a, "endless"), acquire(t, a, "asked")
		c.set(func(k call) fault { return fault{lost: k.op == "release" || k.op == "withdraw" || k.name == "waiting"} })
		go asked.Release(context.Background())
		go a.Acquire(context.Background(), "waiting")
		time.Sleep(time.Second)
		began := time.Now()
		err := a.Close(within(t, 5*time.Second))
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("Close took %v, want 5 s", d)
		}
		mustBe(t, "Close", err, context.DeadlineExceeded)
		for _, want := range []string{
			`lease "endless", token 4294967297, lapses within 15.15s: its work has not ended`,
			`lease "asked", token 4294967298, lapses within 15.15s: its release is not answered`,
			`lease "waiting", token 0, lapses within 15.15s: its withdrawal is not answered`,
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Close: got %v, want it to say %q", err, want)
			}
		}
		if again := a.Close(t.Context()); again != err {
			t.Errorf("another Close: got %v, want the same error", again)
		}
		if endless.Err() == nil || endless.holder.Stage() != holder.Over {
			t.Error("the lease is not over, though nobody renews it")
		}
		before := len(c.calls)
		mustBe(t, "Release", endless.Release(t.Context()), leases.ErrClosed)
		time.Sleep(time.Minute)
		if n := len(c.calls) - before; n != 0 {
			t.Errorf("%d requests after Close, want none", n)
		}
		if c.holder("endless") != 0 {
			t.Error("the lease has not lapsed")
		}
	})
}

func TestCloseWaitsForWithdrawals(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		c.set(func(k call) fault {
			return fault{mute: k.op == "acquire", lost: k.op == "withdraw" && k.n <= 3}
		})
		if _, err := a.Acquire(within(t, time.Second), "x"); err == nil {
			t.Error("Acquire: got a lease, want an error")
		}
		if err := a.Close(within(t, time.Minute)); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
		if c.holder("x") != 0 {
			t.Error("an orphan is left")
		}
	})
}

func TestCloseTwiceAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		l := acquire(t, a, "x")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Close(within(t, time.Minute)); err != nil {
				t.Errorf("Close: got %v, want nil", err)
			}
		})
		time.Sleep(time.Second)
		mustBe(t, "a Close without patience", a.Close(within(t, time.Second)), context.DeadlineExceeded)
		wg.Go(func() {
			if err := a.Close(within(t, time.Minute)); err != nil {
				t.Errorf("the other Close: got %v, want nil", err)
			}
		})
		time.Sleep(time.Second)
		release(t, l)
		wg.Wait()
	})
}

// Whatever Close interrupts, nothing hangs and nothing is left behind.
func TestCloseAtAnyMoment(t *testing.T) {
	for i := range 40 {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.client()
			c.set(everything(fault{late: 50 * time.Millisecond, slow: 50 * time.Millisecond}))
			var wg sync.WaitGroup
			for _, name := range []string{"x", "x", "y"} {
				wg.Go(func() {
					for {
						l, err := a.Acquire(context.Background(), name)
						if err != nil {
							mustBe(t, "Acquire", err, leases.ErrClosed)
							return
						}
						time.Sleep(100 * time.Millisecond)
						l.Release(context.Background())
					}
				})
			}
			time.Sleep(time.Duration(i) * 17 * time.Millisecond)
			if err := a.Close(within(t, 10*time.Second)); err != nil {
				t.Errorf("Close: got %v, want nil", err)
			}
			wg.Wait()
			if c.holder("x") != 0 || c.holder("y") != 0 || c.waiters("x") != 0 {
				t.Errorf("held: %v, %v, %d waiting, want nothing", c.holder("x"), c.holder("y"), c.waiters("x"))
			}
		})
	}
}
