package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
)

// three are a holder of x and two clients that wait for it, in their order.
type three struct {
	lease  *Lease
	heirs  [2]leases.ID
	leases [2]chan *Lease
}

func queueUp(t *testing.T, a, b *Client, opts ...LeaseOption) *three {
	t.Helper()
	w := &three{lease: acquire(t, a, "x", opts...)}
	for i := range w.leases {
		w.leases[i] = make(chan *Lease, 1)
		go func() { w.leases[i] <- acquire(t, b, "x", opts...) }()
		time.Sleep(time.Second)
	}
	queue, err := a.Queue(t.Context(), "x")
	if err != nil || len(queue) != 2 {
		t.Fatalf("Queue: got %v, %v, want two waiters", queue, err)
	}
	w.heirs = [2]leases.ID{queue[0].Attempt, queue[1].Attempt}
	return w
}

func TestTransfer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		w := queueUp(t, a, b)
		passedOn, err := w.lease.Transfer(t.Context(), w.heirs[1])
		if !passedOn || err != nil {
			t.Errorf("Transfer: got %v, %v, want true, nil", passedOn, err)
		}
		mustBe(t, "Err", w.lease.Err(), leases.ErrReleased)
		heir := <-w.leases[1]
		if heir.Token() != c.holder("x") || heir.Token() <= w.lease.Token() {
			t.Errorf("the heir has token %v, x is held under %v, want the same, greater than %v", heir.Token(), c.holder("x"), w.lease.Token())
		}
		for range 2 {
			if passedOn, err := w.lease.Transfer(t.Context(), w.heirs[0]); !passedOn || err != nil {
				t.Errorf("another Transfer: got %v, %v, want the first one's answer", passedOn, err)
			}
			release(t, w.lease)
		}
		if n := len(c.made("transfer")) + len(c.made("release")); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		release(t, heir)
		release(t, <-w.leases[0])
	})
}

func TestTransferToNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		_, err := l.Transfer(t.Context(), leases.ID{})
		mustBe(t, "Transfer to none", err, leases.ErrInvalid)
		if l.Err() != nil {
			t.Errorf("Err after a Transfer that was refused here: got %v, want nil", l.Err())
		}
		passedOn, err := l.Transfer(t.Context(), leases.NewID())
		if passedOn || err != nil {
			t.Errorf("Transfer to one who does not wait: got %v, %v, want false, nil", passedOn, err)
		}
		mustBe(t, "Err", l.Err(), leases.ErrReleased)
		if c.holder("x") != 0 {
			t.Error("the lease is still held")
		}
	})
}

func TestTransferAfterRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		w := queueUp(t, a, b)
		release(t, w.lease)
		if passedOn, err := w.lease.Transfer(t.Context(), w.heirs[1]); passedOn || err != nil {
			t.Errorf("Transfer: got %v, %v, want the answer to the Release, false, nil", passedOn, err)
		}
		for i := range w.leases {
			release(t, <-w.leases[i])
		}
	})
}

func TestTransferIsRepeated(t *testing.T) {
	for name, f := range map[string]fault{
		"request lost": {lost: true},
		"answer lost":  {mute: true}, // then the repeat says what became of it
		"broken":       {closed: true},
		"unknown":      {err: leases.ErrUnknownOutcome},
		"unavailable":  {err: leases.ErrUnavailable},
		"not leader":   {err: &leases.NotLeaderError{Node: "n"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a, b := c.client(), c.client()
				defer closing(t, b)
				defer closing(t, a)
				w := queueUp(t, a, b)
				c.set(first(2, "transfer", f))
				passedOn, err := w.lease.Transfer(t.Context(), w.heirs[1])
				if !passedOn || err != nil {
					t.Errorf("Transfer: got %v, %v, want true, nil", passedOn, err)
				}
				made := c.made("transfer")
				for _, k := range made {
					if k.token != w.lease.Token() || k.attempt != w.heirs[1] {
						t.Errorf("got %+v, want copies of one request", k)
					}
				}
				if last := made[len(made)-1]; last.link == made[0].link {
					t.Error("all copies went to one node, want another one asked")
				}
				release(t, <-w.leases[1])
				release(t, <-w.leases[0])
			})
		})
	}
}

// A Transfer goes on beyond its context, and however it goes its giver does not.
func TestTransferNeverGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		w := queueUp(t, a, b)
		before := len(c.made("renew"))
		c.set(on("transfer", fault{late: time.Second, slow: 500 * time.Millisecond}))
		done := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			passedOn, err := w.lease.Transfer(ctx, w.heirs[0])
			if passedOn {
				t.Error("Transfer: got true, before there was an answer")
			}
			done <- err
		}()
		synctest.Wait()
		mustBe(t, "Err while the transfer is under way", w.lease.Err(), leases.ErrReleased)
		mustBe(t, "Transfer", <-done, leases.ErrUnknownOutcome, context.DeadlineExceeded)
		heir := <-w.leases[0]
		if passedOn, err := w.lease.Transfer(t.Context(), w.heirs[0]); !passedOn || err != nil {
			t.Errorf("Transfer after the answer: got %v, %v, want true, nil", passedOn, err)
		}
		for _, k := range c.made("renew")[before:] {
			if k.token == w.lease.Token() {
				t.Error("the lease was renewed after the transfer was sent")
			}
		}
		release(t, heir)
		release(t, <-w.leases[1])
	})
}

func TestTransferTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x")
		c.set(everything(fault{lost: true}))
		time.Sleep(time.Minute)
		passedOn, err := l.Transfer(t.Context(), leases.NewID())
		mustBe(t, "Transfer", err, leases.ErrNotHeld, leases.ErrExpired)
		if passedOn || len(c.made("transfer")) != 0 {
			t.Errorf("got %v, %d requests, want false, none", passedOn, len(c.made("transfer")))
		}
	})
}
