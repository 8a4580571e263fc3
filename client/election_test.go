package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func TestElection(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		type key struct{}
		e := a.Elect(context.WithValue(t.Context(), key{}, "value"), "x", Label("candidate"))
		var last tokens.Token
		terms := 0
		for term := range e.Terms() {
			if term.Context().Err() != nil || term.Token() != c.holder("x") || term.Token() <= last {
				t.Errorf("term %d: got %v, token %v, want the one that x is held under, greater than %v", terms, term.Context().Err(), term.Token(), last)
			}
			if l, ok := FromContext(term.Context()); !ok || l != term.Lease() || term.Context().Value(key{}) != "value" {
				t.Errorf("the term's context has lease %v, %v", l, ok)
			}
			if c.held["x"].Owner.Label != "candidate" {
				t.Errorf("the lease belongs to %v, want the candidate", c.held["x"].Owner)
			}
			last = term.Token()
			if terms++; terms == 3 {
				break
			}
		}
		if err := e.Err(); err != nil || terms != 3 {
			t.Errorf("after the loop was left: got %v, %d terms, want nil, 3", err, terms)
		}
		if c.holder("x") != 0 {
			t.Error("the lease is held after the loop was left")
		}
	})
}

// Candidates lead in turn: who leaves a term stands behind the others.
func TestElectionTakesTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		var order []int
		leading := 0
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				a := c.client()
				defer closing(t, a)
				time.Sleep(time.Duration(i) * time.Second)
				e := a.Elect(ctx, "x")
				for term := range e.Terms() {
					mu.Lock()
					order = append(order, i)
					if leading++; leading != 1 {
						t.Errorf("%d lead at once", leading)
					}
					mu.Unlock()
					workFor(term.Context(), 10*time.Second)
					mu.Lock()
					leading--
					mu.Unlock()
				}
				mustBe(t, "Err", e.Err(), context.Canceled)
			})
		}
		time.Sleep(85 * time.Second)
		cancel()
		wg.Wait()
		if want := []int{0, 1, 2, 0, 1, 2, 0, 1, 2}; !slices.Equal(order, want) {
			t.Errorf("they led in the order %v, want %v", order, want)
		}
		if c.holder("x") != 0 {
			t.Error("the lease is held after the election")
		}
	})
}

// workFor takes d, or until ctx ends.
func workFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// However a lease is lost, its term ends, and another is stood for.
func TestElectionAfterALoss(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(c *cluster)
		want error
	}{
		"ended":  {func(c *cluster) { c.endLease("x") }, leases.ErrLost},
		"broken": {func(c *cluster) { c.breakLease("x", true) }, leases.ErrLost},
		"expired": {func(c *cluster) {
			c.set(func(call) fault { return fault{lost: time.Since(epoch) < time.Minute} })
		}, leases.ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				var terms []tokens.Token
				e := a.Elect(t.Context(), "x")
				for term := range e.Terms() {
					if terms = append(terms, term.Token()); len(terms) == 2 {
						break
					}
					test.lose(c)
					<-term.Context().Done()
					mustBe(t, "the term's cause", context.Cause(term.Context()), test.want)
				}
				if len(terms) != 2 || terms[0] >= terms[1] || e.Err() != nil {
					t.Errorf("got terms %v, %v, want two, nil", terms, e.Err())
				}
				if c.holder("x") != 0 {
					t.Error("the lease is held after the loop was left")
				}
			})
		})
	}
}

func TestResign(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		got := make(chan *Lease)
		for term := range a.Elect(t.Context(), "x").Terms() {
			go func() { got <- acquire(t, b, "x") }()
			time.Sleep(time.Second)
			if err := term.Resign(t.Context()); err != nil {
				t.Errorf("Resign: got %v, want nil", err)
			}
			mustBe(t, "the term's cause", context.Cause(term.Context()), leases.ErrReleased)
			release(t, <-got) // though the body goes on
			break
		}
		if n := len(c.made("release")); n != 2 {
			t.Errorf("%d releases, want one of each", n)
		}
	})
}

func TestElectionEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		ctx, cancel := context.WithCancelCause(t.Context())
		leader, other := a.Elect(ctx, "x"), b.Elect(ctx, "x")
		time.AfterFunc(time.Minute, func() { cancel(errWork) })
		done := make(chan error)
		for term := range leader.Terms() {
			go func() {
				for range other.Terms() {
					t.Error("the other was elected after the end")
				}
				done <- other.Err()
			}()
			<-term.Context().Done()
			mustBe(t, "the term's cause", context.Cause(term.Context()), errWork)
			mustBe(t, "Err of who waits", <-done, errWork)
		}
		mustBe(t, "Err", leader.Err(), errWork)
		time.Sleep(time.Second)
		if c.holder("x") != 0 || c.waiters("x") != 0 {
			t.Error("the election has left something behind")
		}
		for range leader.Terms() {
			t.Error("a term began after the end")
		}
	})
}

func TestElectionEndsForGood(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		e := a.Elect(t.Context(), "@x")
		for range e.Terms() {
			t.Error("it was elected under a name that is reserved")
		}
		mustBe(t, "Err", e.Err(), leases.ErrInvalid)

		e = a.Elect(t.Context(), "x")
		closed := make(chan error)
		for term := range e.Terms() {
			go func() { closed <- a.Close(within(t, time.Minute)) }()
			<-term.Context().Done()
			mustBe(t, "the term's cause", context.Cause(term.Context()), leases.ErrClosed)
		}
		mustBe(t, "Err", e.Err(), leases.ErrClosed)
		if err := <-closed; err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
	})
}

func TestElectionOutlivesExhaustion(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(func(k call) fault {
			if k.op == "acquire" && time.Since(epoch) < time.Minute {
				return fault{err: &leases.ExhaustedError{What: "waiters", Bound: 1}}
			}
			return fault{}
		})
		for range a.Elect(t.Context(), "x").Terms() {
			break
		}
		if d := time.Since(epoch); d < time.Minute || d > time.Minute+backoffCap {
			t.Errorf("it was elected after %v, want within a second of the minute", d)
		}
		if n := len(c.made("acquire")); n < 30 || n > 200 {
			t.Errorf("%d tries in a minute, want some, and them to back off", n)
		}
	})
}

// A body that returns at once, or a lease that is lost at once, is no busy loop;
// after a term that has lasted the next one begins at once.
func TestElectionBacksOff(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		terms := 0
		for term := range a.Elect(within(t, time.Minute), "x").Terms() {
			if terms++; terms%2 == 0 {
				c.endLease("x")
				<-term.Context().Done()
			}
		}
		if terms < 30 || terms > 200 {
			t.Errorf("%d terms in a minute, want some, and them to back off", terms)
		}
		var left time.Time
		for term := range a.Elect(within(t, time.Minute), "x").Terms() {
			if d := time.Since(left); !left.IsZero() && d > 2*backoffBase {
				t.Errorf("the next term began after %v, want almost at once", d)
			}
			workFor(term.Context(), 5*time.Second)
			left = time.Now()
		}
	})
}

// A release without an answer holds up the election 10 s at most.
func TestElectionAndAnUnansweredRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		var left time.Time
		for range a.Elect(t.Context(), "x", TTL(time.Minute)).Terms() {
			if !left.IsZero() {
				if d := time.Since(left); d < lastPatience || d > lastPatience+5*time.Second {
					t.Errorf("the next term began after %v, want it soon after %v", d, lastPatience)
				}
				break
			}
			left = time.Now()
			c.set(func(k call) fault { return fault{lost: k.op == "release" && time.Since(left) < lastPatience} })
		}
	})
}

func TestElectionPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		var ctx context.Context
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("got panic %v, want boom", p)
				}
			}()
			for term := range a.Elect(t.Context(), "x").Terms() {
				ctx = term.Context()
				panic("boom")
			}
		}()
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), leases.ErrReleased) || c.holder("x") != 0 {
			t.Errorf("after a panic: context %v, x held under %v, want it released", context.Cause(ctx), c.holder("x"))
		}
	})
}
