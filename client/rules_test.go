package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Each of these schedules makes two clients believe in one lease, unless the
// rule that it is about is in force.
func TestRulesAreNeeded(t *testing.T) {
	tests := []struct {
		name     string
		rule     rules.Rule
		schedule func(t *testing.T, c *cluster, r rules.Set) (twoAtOnce bool)
	}{
		{"a grant counts from the first sending (S40)", rules.FirstSending, countedFromTheRepeat},
		{"a grant that waited is confirmed (S45)", rules.Confirm, believedUnconfirmed},
		{"a withdrawn attempt is over (S47 a)", rules.AttemptOver, takenAfterWithdraw},
		{"a released attempt is over (S47 b)", rules.AttemptOver, repeatedAfterRelease},
		{"a transferred lease is over (S47 c, S48)", rules.AttemptOver, goneOnAfterTransfer},
		{"only what is believed in is reclaimed (S46)", rules.ReclaimBelieved, reclaimedUnconfirmed},
		{"a late answer revives nothing (S13)", rules.LateAnswer, revivedByLateReclaim},
		{"an attempt is drawn at random (S52)", rules.AttemptRandom, sharedSession},
	}
	for _, test := range tests {
		for _, on := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", test.name, on), func(t *testing.T) {
				inBubble(t, func(t *testing.T, c *cluster) {
					var r rules.Set
					if !on {
						r = rules.Without(test.rule)
					}
					if got := test.schedule(t, c, r); got == on {
						t.Errorf("two believe at once: got %v, want %v", got, !on)
					}
				})
			})
		}
	}
}

// both reports whether two leases are believed in.
func both(a, b *Lease) bool { return a != nil && b != nil && a.Err() == nil && b.Err() == nil }

// cut loses all renewals of a lease.
func cut(c *cluster, l *Lease) {
	c.set(func(k call) fault { return fault{lost: k.op == "renew" && k.token == l.Token()} })
}

// next lets another client wait for x and calls f when it has it.
func next(t *testing.T, b *Client, f func(*Lease)) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		l := acquire(t, b, "x", TTL(30*time.Second))
		f(l)
		l.Release(context.Background())
	}()
	return done
}

func countedFromTheRepeat(t *testing.T, c *cluster, r rules.Set) (two bool) {
	a, b := c.client(WithRules(r)), c.client()
	defer closing(t, b)
	defer closing(t, a)
	c.set(first(1, "acquire", fault{mute: true}))
	l := acquire(t, a, "x", TTL(8*time.Second))
	cut(c, l)
	<-next(t, b, func(m *Lease) { two = both(l, m) })
	l.Release(context.Background())
	return two
}

func believedUnconfirmed(t *testing.T, c *cluster, r rules.Set) (two bool) {
	a, b, third := c.client(), c.client(WithRules(r)), c.client()
	defer closing(t, third)
	defer closing(t, b)
	defer closing(t, a)
	l := acquire(t, a, "x")
	time.AfterFunc(time.Second, func() { l.Release(context.Background()) })
	m := acquire(t, b, "x", TTL(30*time.Second))
	waits := next(t, third, func(n *Lease) { two = both(m, n) })
	time.Sleep(8 * time.Second)
	m.Release(context.Background())
	<-waits
	return two
}

func takenAfterWithdraw(t *testing.T, c *cluster, r rules.Set) (two bool) {
	a, b := c.client(WithRules(r)), c.client()
	defer closing(t, b)
	defer closing(t, a)
	c.set(func(k call) fault {
		switch {
		case k.op == "acquire" && k.n == 1:
			return fault{slow: time.Second}
		case k.op == "withdraw":
			return fault{late: 1500 * time.Millisecond}
		}
		return fault{}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	l, _ := a.Acquire(ctx, "x")
	<-next(t, b, func(m *Lease) { two = both(l, m) })
	if l != nil {
		l.Release(context.Background())
	}
	return two
}

func repeatedAfterRelease(t *testing.T, c *cluster, r rules.Set) (two bool) {
	a, b := c.client(WithRules(r)), c.client()
	defer closing(t, b)
	defer closing(t, a)
	l := acquire(t, a, "x")
	c.set(first(1, "release", fault{late: time.Second}))
	released := make(chan error)
	go func() { released <- l.Release(context.Background()) }()
	time.Sleep(100 * time.Millisecond)
	waits := next(t, b, func(*Lease) { time.Sleep(time.Second) })
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	m, _ := a.Acquire(ctx, "x")
	time.Sleep(time.Second)
	two = m != nil && m.Err() == nil && c.holder("x") != m.Token()
	if m != nil {
		m.Release(context.Background())
	}
	<-released
	<-waits
	return two
}

func goneOnAfterTransfer(t *testing.T, c *cluster, r rules.Set) (two bool) {
	a, b := c.client(WithRules(r)), c.client()
	defer closing(t, b)
	defer closing(t, a)
	l := acquire(t, a, "x")
	c.set(on("transfer", fault{slow: 2 * time.Second}))
	waits := next(t, b, func(m *Lease) { two = both(l, m) })
	time.Sleep(100 * time.Millisecond)
	queue, err := a.Queue(t.Context(), "x")
	if err != nil || len(queue) != 1 {
		t.Fatalf("Queue: got %v, %v, want one waiter", queue, err)
	}
	l.Transfer(context.Background(), queue[0].Attempt)
	<-waits
	return two
}

func sharedSession(t *testing.T, c *cluster, r rules.Set) (two bool) {
	session := WithSession(leases.NewID())
	a, b := c.client(session, WithRules(r)), c.client(session, WithRules(r))
	defer closing(t, b)
	defer closing(t, a)
	l := acquire(t, a, "x")
	m, err := b.TryAcquire(t.Context(), "x")
	two = both(l, m)
	if err == nil {
		m.Release(context.Background())
	}
	l.Release(context.Background())
	return two
}

// b's grant is not confirmed, expires and goes to the third; then the arbiter takes
// over, and b asks first.
func reclaimedUnconfirmed(t *testing.T, c *cluster, r rules.Set) (two bool) {
	a, b, third := c.client(), c.client(WithRules(r)), c.client()
	defer closing(t, third)
	defer closing(t, b)
	defer closing(t, a)
	l := acquire(t, a, "x")
	got := make(chan *Lease, 1)
	go func() { got <- acquire(t, b, "x", TTL(30*time.Second)) }()
	time.Sleep(100 * time.Millisecond)
	c.set(func(k call) fault {
		if k.op == "renew" && k.token == tokens.New(1, 2) {
			return fault{err: leases.ErrUnavailable}
		}
		return fault{}
	})
	waits := next(t, third, func(n *Lease) {
		c.takeOver(leases.Stretch(30 * time.Second))
		c.set(nil)
		time.Sleep(3 * time.Second)
		select {
		case m := <-got:
			two = both(m, n)
			got <- m
		default:
		}
	})
	time.Sleep(100 * time.Millisecond)
	l.Release(context.Background())
	<-waits
	(<-got).Release(context.Background())
	return two
}

// a's reclaim is under way when its lease lapses; the grace ends, b is granted the
// lease, and the arbiter takes over once more and, being lax, accepts the reclaim.
func revivedByLateReclaim(t *testing.T, c *cluster, r rules.Set) (two bool) {
	const ttl = 16 * time.Second
	a, b := c.client(WithRules(r)), c.client()
	defer closing(t, b)
	defer closing(t, a)
	c.arbiter.lax = true
	l := acquire(t, a, "x", TTL(ttl))
	grace := leases.Stretch(ttl)
	c.takeOver(grace)
	again := grace + 200*time.Millisecond
	c.set(func(k call) fault {
		switch sent := time.Since(epoch); {
		case k.op == "renew" && k.token == l.Token() && sent < leases.Shrink(ttl)-1100*time.Millisecond:
			return fault{err: leases.ErrUnavailable}
		case k.op == "reclaim" && k.token == l.Token():
			return fault{late: again + time.Millisecond - sent}
		}
		return fault{}
	})
	<-next(t, b, func(m *Lease) {
		time.Sleep(again - time.Since(epoch))
		c.failBack()
		c.takeOver(leases.Stretch(30 * time.Second))
		time.Sleep(100 * time.Millisecond)
		two = both(l, m)
	})
	l.Release(context.Background())
	return two
}
