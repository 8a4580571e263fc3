package client

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
)

var errWork = errors.New("the work failed")

func TestRun(t *testing.T) {
	tests := []struct {
		name  string
		f     func(c *cluster, ctx context.Context) error
		want  []error // empty: nil
		never []error
	}{
		{"works", func(*cluster, context.Context) error { return nil }, nil, nil},
		{"fails", func(*cluster, context.Context) error { return errWork }, []error{errWork}, []error{leases.ErrLost}},
		{"lost, unnoticed", func(c *cluster, ctx context.Context) error {
			c.endLease("x")
			<-ctx.Done()
			return nil
		}, []error{leases.ErrLost, leases.ErrNotHeld}, nil},
		{"lost, not yet known", func(c *cluster, ctx context.Context) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.free(c.held["x"])
			return nil
		}, []error{leases.ErrLost, leases.ErrNotHeld}, nil},
		{"lost, noticed", func(c *cluster, ctx context.Context) error {
			c.endLease("x")
			<-ctx.Done()
			return context.Cause(ctx)
		}, []error{leases.ErrLost}, nil},
		{"lost and failed", func(c *cluster, ctx context.Context) error {
			c.endLease("x")
			<-ctx.Done()
			return errWork
		}, []error{errWork, leases.ErrLost}, nil},
		{"expired", func(c *cluster, ctx context.Context) error {
			c.set(everything(fault{lost: true}))
			<-ctx.Done()
			return nil
		}, []error{leases.ErrLost, leases.ErrExpired}, nil},
		{"broken", func(c *cluster, ctx context.Context) error {
			c.breakLease("x", true)
			<-ctx.Done()
			return nil
		}, []error{leases.ErrLost, leases.ErrNotHeld}, nil},
		{"broken, not yet known", func(c *cluster, ctx context.Context) error {
			c.breakLease("x", false)
			return nil
		}, nil, nil},
		{"broken, release unanswered", func(c *cluster, ctx context.Context) error {
			c.breakLease("x", true)
			<-ctx.Done()
			c.set(everything(fault{lost: true}))
			return nil
		}, []error{leases.ErrLost, leases.ErrNotHeld}, nil},
		{"release unanswered", func(c *cluster, ctx context.Context) error {
			c.set(everything(fault{lost: true}))
			return nil
		}, nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				err := a.Run(t.Context(), "x", func(ctx context.Context) error {
					if l, ok := FromContext(ctx); !ok || l.Token() != c.holder("x") {
						t.Errorf("FromContext: got %v, %v, want the lease", l, ok)
					}
					return test.f(c, ctx)
				})
				if len(test.want) == 0 && err != nil {
					t.Errorf("Run: got %v, want nil", err)
				}
				mustBe(t, "Run", err, test.want...)
				for _, never := range test.never {
					if errors.Is(err, never) {
						t.Errorf("Run: got %v, want none that matches %v", err, never)
					}
				}
				if c.set(nil); c.holder("x") != 0 && !strings.HasSuffix(test.name, "release unanswered") && test.name != "expired" {
					t.Error("the lease is held after Run")
				}
			})
		})
	}
}

func TestRunWithoutLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := a.Run(ctx, "x", func(context.Context) error { t.Error("it ran"); return nil })
		mustBe(t, "Run", err, leases.ErrHeld, context.DeadlineExceeded)
		release(t, l)
	})
}

// The work ends with the caller's context, and the lease is released all the same.
func TestRunEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errWork) })
		err := a.Run(ctx, "x", func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if err != errWork {
			t.Errorf("Run: got %v, want the work's error alone", err)
		}
		if c.holder("x") != 0 {
			t.Error("the lease is held after Run")
		}
	})
}

func TestRunPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("got panic %v, want boom", p)
				}
			}()
			a.Run(t.Context(), "x", func(context.Context) error { panic("boom") })
		}()
		if c.holder("x") != 0 {
			t.Error("the lease is held after a panic")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Run(t.Context(), "x", func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		if c.holder("x") != 0 {
			t.Error("the lease is held after a Goexit")
		}
	})
}
