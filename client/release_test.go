package client

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
)

func TestReleaseEndsTheLeaseAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.set(on("release", fault{late: 20 * time.Second, slow: time.Second}))
		before := len(c.made("renew"))
		done := make(chan error)
		go func() { done <- l.Release(t.Context()) }()
		synctest.Wait()
		mustBe(t, "Err while the release is under way", l.Err(), leases.ErrReleased)
		mustBe(t, "Context's cause", context.Cause(l.Context()), leases.ErrReleased)
		if err := <-done; err == nil {
			t.Error("Release: got nil, want an error: the lease had expired before it arrived")
		}
		if n := len(c.made("renew")) - before; n != 0 {
			t.Errorf("%d renewals after the release was sent, want none", n)
		}
	})
}

func TestReleaseIsRepeated(t *testing.T) {
	tests := []struct {
		name string
		f    fault
		want error // nil: none
	}{
		{"request lost", fault{lost: true}, nil},
		{"answer lost", fault{mute: true}, nil}, // then the repeat says "not held"
		{"broken", fault{closed: true}, nil},
		{"unknown", fault{err: leases.ErrUnknownOutcome}, nil},
		{"unavailable", fault{err: leases.ErrUnavailable}, nil},
		{"exhausted", fault{err: &leases.ExhaustedError{}}, nil},
		{"released by a copy", fault{err: &leases.NotHeldError{Why: leases.WhyReleased}}, nil},
		{"expired", fault{err: &leases.NotHeldError{Why: leases.WhyExpired}}, leases.ErrNotHeld},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				l := acquire(t, a, "x")
				c.set(first(2, "release", test.f))
				err := l.Release(t.Context())
				if test.want == nil && err != nil {
					t.Errorf("Release: got %v, want nil", err)
				} else if test.want != nil {
					mustBe(t, "Release", err, test.want, leases.ErrLost)
				} else if test.f.err == nil && c.holder("x") != 0 {
					t.Error("the lease is held after its release")
				}
				for _, k := range c.made("release") {
					if k.token != l.Token() {
						t.Errorf("a release named token %v, want %v", k.token, l.Token())
					}
				}
			})
		})
	}
}

// Only a copy that may have been carried out explains that the lease is not held.
func TestReleaseThatCameTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.set(func(k call) fault {
			if k.op == "release" && k.n == 1 {
				c.free(c.held["x"])
				return fault{err: leases.ErrUnavailable}
			}
			return fault{}
		})
		mustBe(t, "Release", l.Release(t.Context()), leases.ErrNotHeld, leases.ErrLost)
	})
}

func TestReleaseGoesOnBeyondItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.set(first(2, "release", fault{lost: true}))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := l.Release(ctx)
		mustBe(t, "Release", err, leases.ErrUnknownOutcome, context.Canceled)
		mustBe(t, "Err", l.Err(), leases.ErrReleased)
		time.Sleep(5 * time.Second)
		if c.holder("x") != 0 {
			t.Error("the lease is still held 5 s later")
		}
		if err := l.Release(ctx); err != nil {
			t.Errorf("another Release, after the answer: got %v, want nil", err)
		}
	})
}

// The first request ends with the caller's wait; it is made anew without it.
func TestReleaseOutlivesItsContext(t *testing.T) {
	for name, f := range map[string]fault{"on its way": {late: 3 * time.Second}, "carried out": {slow: 3 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				l := acquire(t, a, "x")
				c.set(first(1, "release", f))
				err := l.Release(within(t, 500*time.Millisecond))
				mustBe(t, "Release", err, leases.ErrUnknownOutcome, context.DeadlineExceeded)
				if got := time.Since(epoch); got != 500*time.Millisecond {
					t.Errorf("Release took %v, want as long as its context", got)
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("another Release: got %v, want nil", err)
				}
				if n := len(c.made("release")); n != 2 || c.holder("x") != 0 || c.opened != 1 {
					t.Errorf("%d releases over %d conversations, held under %v, want 2 over 1, 0", n, c.opened, c.holder("x"))
				}
			})
		})
	}
}

// A Close whose time is over ends a Release that waits for its answer.
func TestReleaseEndsWithItsClient(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		l := acquire(t, a, "x")
		c.set(on("release", fault{lost: true}))
		released := make(chan error)
		go func() { released <- l.Release(context.Background()) }()
		time.Sleep(100 * time.Millisecond)
		mustBe(t, "Close", a.Close(within(t, 100*time.Millisecond)), context.DeadlineExceeded)
		synctest.Wait()
		select {
		case err := <-released:
			mustBe(t, "Release", err, leases.ErrClosed)
		default:
			t.Error("Release waits on after Close has returned")
			<-released
		}
	})
}

func TestReleaseNeverAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", TTL(10*time.Second))
		c.set(everything(fault{lost: true}))
		err := l.Release(t.Context())
		mustBe(t, "Release", err, leases.ErrUnknownOutcome)
		if got, want := time.Since(epoch), leases.Stretch(10*time.Second); got != want {
			t.Errorf("it was tried for %v, want %v", got, want)
		}
	})
}

func TestReleaseByMany(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.set(on("release", fault{slow: time.Second}))
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { release(t, l) })
		}
		wg.Wait()
		if n := len(c.made("release")); n != 1 {
			t.Errorf("%d releases were sent, want 1", n)
		}
	})
}

// A copy of the claim that is still under way when the lease is released must
// not be granted after that.
func TestReleaseCatchesLateCopies(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(first(1, "acquire", fault{late: 10 * time.Second}))
		l := acquire(t, a, "x", TTL(time.Minute))
		release(t, l)
		time.Sleep(15 * time.Second)
		if c.holder("x") != 0 {
			t.Error("a late copy of the claim was granted")
		}
	})
}
