package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// heard is what a watch has told so far.
type heard struct {
	mu      sync.Mutex // guards what follows
	batches []leases.Batch
	err     error
}

// listen loops over a watch in a goroutine until it ends.
func listen(ctx context.Context, a *Client, prefix string, opts ...WatchOption) *heard {
	h := &heard{}
	go func() {
		for b, err := range a.Watch(ctx, prefix, opts...) {
			h.mu.Lock()
			if err != nil {
				h.err = err
			} else {
				h.batches = append(h.batches, b)
			}
			h.mu.Unlock()
		}
	}()
	return h
}

// now waits until nothing happens any more, and returns the changes and the
// place that they lead up to.
func (h *heard) now() (changes []leases.Change, at leases.Position, err error) {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.batches {
		changes, at = append(changes, b.Changes...), b.At
	}
	return changes, at, h.err
}

// words are changes in a few words, such as "granted x".
func words(changes []leases.Change) (all []string) {
	for _, c := range changes {
		all = append(all, c.Kind.String()+" "+c.Name)
	}
	return all
}

func TestWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client()
		defer closing(t, b)
		defer closing(t, a)
		before := acquire(t, a, "x0")
		ctx, cancel := context.WithCancelCause(t.Context())
		w := listen(ctx, a, "x")
		if changes, at, err := w.now(); len(w.batches) != 1 || len(changes) != 0 || at.Revision != 1 || err != nil {
			t.Errorf("at first: got %v at %v, %v, want one batch without changes, at 1/1", changes, at, err)
		}
		release(t, before)
		other := acquire(t, a, "y")
		ends := queueUp(t, a, b)
		c.breakLease("x", true)
		<-ends.lease.Done()
		ends.lease.Transfer(t.Context(), ends.heirs[1])
		heir := <-ends.leases[1]
		c.endLease("x")
		last := <-ends.leases[0]
		changes, at, err := w.now()
		want := []string{"released x0", "granted x", "broken x", "transferred x", "broken x", "granted x"}
		if got := words(changes); !slices.Equal(got, want) || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		if at.Revision != changes[len(changes)-1].Revision {
			t.Errorf("got position %v after revision %d", at, changes[len(changes)-1].Revision)
		}
		if handedOver := changes[3]; handedOver.Token != ends.lease.Token() || handedOver.Next != heir.Token() {
			t.Errorf("got %+v, want it to name both tokens", handedOver)
		}
		cancel(errWork)
		if _, _, err := w.now(); !errors.Is(err, errWork) || errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("the end: got %v, want the context's cause alone", err)
		}
		release(t, last)
		release(t, other)
	})
}

func TestWatchFrom(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		for i := range 10 {
			release(t, acquire(t, a, fmt.Sprint(i)))
		}
		w := listen(within(t, time.Minute), a, "", From(leases.Position{Epoch: 1, Revision: 4}))
		changes, at, err := w.now()
		if len(changes) != 16 || changes[0].Revision != 5 || at.Revision != 20 || err != nil {
			t.Errorf("got %d changes up to %v, %v, want those from 5 to 20", len(changes), at, err)
		}
		if first := w.batches[0]; first.At.Revision != 4 || len(first.Changes) != 0 {
			t.Errorf("got %v first, want the place where it begins", first)
		}
		time.Sleep(time.Minute)
		if _, _, err := w.now(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the end: got %v, want the deadline", err)
		}
	})
}

// Whatever happens on its way, a watch tells every change once and in order.
func TestWatchMissesAndRepeatsNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	inBubble(t, func(t *testing.T, c *cluster) {
		rnd := rand.New(rand.NewPCG(seed, 3)) // under the cluster's lock
		a := c.client()
		defer closing(t, a)
		c.set(func(k call) fault {
			if k.op != "watch" {
				return fault{}
			}
			switch rnd.IntN(6) {
			case 0:
				return fault{err: &leases.UnavailableError{Reason: "no leader is heard"}}
			case 1:
				return fault{lost: true}
			case 2:
				return fault{closed: true}
			case 3:
				return fault{slow: time.Duration(rnd.Int64N(500)) * time.Millisecond}
			}
			return fault{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		w := listen(ctx, a, "x", From(leases.Position{Epoch: 1}))
		for i := range 200 {
			l := acquire(t, a, fmt.Sprintf("x%d", i))
			time.Sleep(time.Duration(rand.Int64N(1000)) * time.Millisecond)
			if rand.IntN(3) == 0 {
				c.breakAll(leases.ErrUnavailable)
			}
			release(t, l)
		}
		c.set(nil)
		time.Sleep(time.Minute)
		changes, _, err := w.now()
		if len(changes) != 400 || err != nil {
			t.Fatalf("%d changes were told, %v, want 400, nil", len(changes), err)
		}
		for i, change := range changes {
			if change.Revision != uint64(i+1) {
				t.Fatalf("change %d has revision %d, want %d", i, change.Revision, i+1)
			}
		}
		if n := len(c.made("watch")); n < 10 {
			t.Errorf("%d watches were begun, want 10 or more for the test to mean anything", n)
		}
		cancel()
		w.now()
	})
}

// A watch that begins now begins where its first batch said, not where it was
// taken up again.
func TestWatchFromNowOn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(first(3, "watch", fault{err: leases.ErrNoQuorum}))
		ctx, cancel := context.WithCancel(t.Context())
		w := listen(ctx, a, "")
		time.Sleep(time.Second)
		w.now()
		c.set(on("watch", fault{err: leases.ErrUnavailable}))
		c.breakAll(leases.ErrUnavailable)
		release(t, acquire(t, a, "x"))
		c.set(nil)
		time.Sleep(2 * time.Second)
		if changes, _, err := w.now(); len(changes) != 2 || err != nil {
			t.Errorf("got %q, %v, want what happened while no node told", words(changes), err)
		}
		cancel()
		if _, _, err := w.now(); !errors.Is(err, context.Canceled) || errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("the end: got %v, want no trouble in it that is over", err)
		}
	})
}

func TestWatchEnds(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"invalid":   {&leases.InvalidError{Field: "prefix"}, leases.ErrInvalid},
		"exhausted": {&leases.ExhaustedError{What: "watches"}, leases.ErrExhausted},
		"closed":    {leases.ErrClosed, leases.ErrClosed},
		"missed":    {&leases.MissedError{}, leases.ErrMissed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				defer closing(t, a)
				c.set(on("watch", fault{err: test.err}))
				n := 0
				for _, err := range a.Watch(t.Context(), "") {
					n++
					mustBe(t, "Watch", err, test.want)
				}
				if n != 1 || len(c.made("watch")) != 1 {
					t.Errorf("%d times round, %d requests, want 1 and 1", n, len(c.made("watch")))
				}
			})
		})
	}
}

// A node that has no room for a watch that has begun is not its end.
func TestWatchGoesOnElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		w := listen(t.Context(), a, "")
		w.now()
		c.set(on("watch", fault{err: &leases.ExhaustedError{What: "watches"}}))
		c.breakAll(leases.ErrUnavailable)
		time.Sleep(time.Minute)
		if n := len(c.made("watch")); n < 10 || n > 200 {
			t.Errorf("%d watches in a minute, want some, and them to back off", n)
		}
		c.set(nil)
		time.Sleep(10 * time.Second)
		release(t, acquire(t, a, "x"))
		if changes, _, err := w.now(); len(changes) != 2 || err != nil {
			t.Errorf("got %q, %v, want 2 changes, nil", words(changes), err)
		}
		closing(t, a)
		if _, _, err := w.now(); !errors.Is(err, leases.ErrClosed) {
			t.Errorf("the end: got %v, want the client's", err)
		}
	})
}

// A node that breaks off as soon as it has answered is not asked in a loop.
func TestWatchBacksOff(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		a.directory = brief{c}
		for _, err := range a.Watch(within(t, time.Minute), "") {
			if err != nil {
				mustBe(t, "Watch", err, leases.ErrUnavailable, context.DeadlineExceeded)
			}
		}
		if n := len(c.made("watch")); n < 10 || n > 200 {
			t.Errorf("%d watches in a minute, want some, and them to back off", n)
		}
	})
}

// brief is a directory whose watches end when they have begun.
type brief struct{ *cluster }

func (b brief) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	stop := errors.New("no more")
	err := b.cluster.Watch(ctx, prefix, from, func(batch leases.Batch) error {
		if err := on(batch); err != nil {
			return err
		}
		return stop
	})
	if err == stop {
		err = leases.ErrUnavailable
	}
	return err
}

func TestWatchIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		watch := a.Watch(t.Context(), "", From(leases.Position{Epoch: 1}))
		for i := range 2 { // each loop begins in the same place
			release(t, acquire(t, a, "x"))
			for b, err := range watch {
				if err != nil {
					t.Errorf("Watch: got %v, want nil", err)
				}
				if len(b.Changes) > 0 {
					if b.Changes[0].Revision != 1 {
						t.Errorf("loop %d begins with revision %d, want 1", i, b.Changes[0].Revision)
					}
					break
				}
			}
		}
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("got panic %v, want boom", p)
				}
			}()
			for range watch {
				panic("boom")
			}
		}()
		for _, err := range watch { // the body may end what tells it
			if a.Close(t.Context()); err != nil {
				mustBe(t, "Watch", err, leases.ErrClosed)
			}
		}
	})
}

// mirror keeps held as the leases are, as the comment on Watch says, until it
// falls too far behind or ctx ends.
func mirror(ctx context.Context, a *Client, held map[string]tokens.Token) error {
	clear(held)
	var from leases.Position
	for page, err := range a.Pages(ctx, "") {
		if err != nil {
			return err
		}
		if from == (leases.Position{}) {
			from = page.At
		}
		for _, l := range page.Leases {
			held[l.Name] = l.Token
		}
	}
	for b, err := range a.Watch(ctx, "", From(from)) {
		if err != nil {
			return err
		}
		for _, c := range b.Changes {
			switch {
			case c.Free:
				delete(held, c.Name)
			case c.Kind == leases.ChangeGranted:
				held[c.Name] = c.Token
			case c.Kind == leases.ChangeTransferred:
				held[c.Name] = c.Next
			}
		}
	}
	return nil
}

func TestMirror(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.pageSize = 2
		c.set(func(k call) fault {
			switch k.op {
			case "list":
				return fault{late: 300 * time.Millisecond}
			case "watch":
				return fault{slow: 100 * time.Millisecond, closed: k.n%2 == 0}
			}
			return fault{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		held, done := map[string]tokens.Token{}, make(chan int)
		go func() {
			missed := 0
			for {
				err := mirror(ctx, a, held)
				if !errors.Is(err, leases.ErrMissed) {
					mustBe(t, "mirror", err, context.Canceled)
					break
				}
				missed++
			}
			done <- missed
		}()
		all := map[string]*Lease{}
		for i := range 300 {
			name := strings.Repeat("x", 1+rand.IntN(9))
			if l := all[name]; l != nil {
				release(t, l)
				delete(all, name)
			} else {
				all[name] = acquire(t, a, name)
			}
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
			if i%100 == 50 {
				c.forget()
			}
		}
		time.Sleep(time.Minute)
		cancel()
		if missed := <-done; missed < 3 {
			t.Errorf("the mirror was made anew %d times, want 3 or more", missed)
		}
		if len(held) != len(all) {
			t.Errorf("the mirror has %d leases, want %d", len(held), len(all))
		}
		for name, l := range all {
			if held[name] != l.Token() {
				t.Errorf("lease %q: the mirror has %v, want %v", name, held[name], l.Token())
			}
			release(t, l)
		}
	})
}
