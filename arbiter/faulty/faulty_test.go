package faulty_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/arbitertest"
	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/clock"
)

func TestWithoutFaults(t *testing.T) {
	arbitertest.Run(t, func(*testing.T) arbiter.Store { return faulty.New(arbiter.NewMemory()) })
}

func text(data string) arbiter.Write {
	return arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte(data)}
}

func version(t *testing.T, s arbiter.Store, key string) arbiter.Version {
	t.Helper()
	r, err := s.Load(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r.Version
}

func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		kind    faulty.Kind
		swap    error // what the writer is told
		load    error
		version arbiter.Version // that the store has then
	}{
		{faulty.None, nil, nil, 1},
		{faulty.LostRequest, arbiter.ErrUnknown, arbiter.ErrUnreachable, 0},
		{faulty.LostAnswer, arbiter.ErrUnknown, arbiter.ErrUnreachable, 1},
		{faulty.Late, arbiter.ErrUnknown, arbiter.ErrUnreachable, 0},
		{faulty.Unreachable, arbiter.ErrUnreachable, arbiter.ErrUnreachable, 0},
		{faulty.Throttled, arbiter.ErrUnreachable, arbiter.ErrUnreachable, 0},
	} {
		t.Run(tt.kind.String(), func(t *testing.T) {
			inside := arbiter.NewMemory()
			s := faulty.New(inside)
			s.SetPlan(faulty.Next(tt.kind, tt.kind))
			err := s.CompareAndSwap(t.Context(), "k", 0, text("x"))
			if !errors.Is(err, tt.swap) {
				t.Errorf("swap: got %v, want %v", err, tt.swap)
			}
			for _, other := range []error{arbiter.ErrUnknown, arbiter.ErrUnreachable, arbiter.ErrConflict} {
				if other != tt.swap && errors.Is(err, other) {
					t.Errorf("swap: %v matches %q too", err, other)
				}
			}
			if _, err := s.Load(t.Context(), "k"); !errors.Is(err, tt.load) {
				t.Errorf("load: got %v, want %v", err, tt.load)
			}
			if got := version(t, inside, "k"); got != tt.version {
				t.Errorf("got version %d, want %d", got, tt.version)
			}
			if got := version(t, s, "k"); got != tt.version {
				t.Errorf("after the plan: got version %d, want %d", got, tt.version)
			}
		})
	}
}

// A repeat after a lost answer is the caller's way to find out.
func TestRepeatAfterLostAnswer(t *testing.T) {
	s := faulty.New(arbiter.NewMemory())
	s.SetPlan(faulty.Next(faulty.LostAnswer, faulty.LostRequest))
	w := text("x")
	for try := range 2 {
		if err := s.CompareAndSwap(t.Context(), "k", 0, w); !errors.Is(err, arbiter.ErrUnknown) {
			t.Fatalf("try %d: got %v, want ErrUnknown", try, err)
		}
	}
	if err := s.CompareAndSwap(t.Context(), "k", 0, w); err != nil {
		t.Fatal(err)
	}
}

func TestLateWrites(t *testing.T) {
	s := faulty.New(arbiter.NewMemory())
	late := func(key, data string) *faulty.LateWrite {
		s.SetPlan(faulty.Next(faulty.Late))
		w := text(data)
		if err := s.CompareAndSwap(t.Context(), key, 0, w); !errors.Is(err, arbiter.ErrUnknown) {
			t.Fatalf("got %v, want ErrUnknown", err)
		}
		copy(w.Data, "----") // the buffer is the caller's
		all := s.Late()
		return all[len(all)-1]
	}
	a, b, c := late("a", "of a"), late("b", "of b"), late("c", "of c")
	if got := len(s.Late()); got != 3 {
		t.Fatalf("got %d late writes, want 3", got)
	}

	// Nobody came before it: it takes effect, once.
	for range 2 {
		if err := a.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r, _ := s.Load(t.Context(), "a"); r.Version != 1 || string(r.Data) != "of a" {
		t.Errorf("got version %d, %q", r.Version, r.Data)
	}

	// Somebody did: it has no effect.
	if err := s.CompareAndSwap(t.Context(), "b", 0, text("another's")); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context()); !errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	if r, _ := s.Load(t.Context(), "b"); string(r.Data) != "another's" {
		t.Errorf("got %q", r.Data)
	}

	// It never arrives.
	c.Drop()
	if err := c.Release(t.Context()); err != nil || version(t, s, "c") != 0 {
		t.Errorf("a dropped write has arrived, or %v", err)
	}
	if got := len(s.Late()); got != 0 {
		t.Errorf("got %d late writes, want none", got)
	}
}

func TestLateWritesAreBounded(t *testing.T) {
	const bound = 1024
	s := faulty.New(arbiter.NewMemory())
	s.SetPlan(func(faulty.Call) faulty.Fault { return faulty.Fault{Kind: faulty.Late} })
	for i := range bound + 3 {
		_ = s.CompareAndSwap(t.Context(), fmt.Sprint(i), 0, text("x"))
	}
	late := s.Late()
	if len(late) != bound || late[0].Call().Key != "3" {
		t.Errorf("got %d late writes, from %s on, want %d from 3 on", len(late), late[0].Call().Key, bound)
	}
}

// The plan sees each call, and is told what it is.
func TestPlanChoosesByCall(t *testing.T) {
	s := faulty.New(arbiter.NewMemory())
	s.SetPlan(func(c faulty.Call) faulty.Fault {
		if c.Key == "R" && c.Swap && c.From == 1 && string(c.Write.Data) == "takeover" {
			return faulty.Fault{Kind: faulty.Throttled}
		}
		return faulty.Fault{}
	})
	if err := s.CompareAndSwap(t.Context(), "R", 0, text("takeover")); err != nil {
		t.Error(err)
	}
	if err := s.CompareAndSwap(t.Context(), "R", 1, text("takeover")); !errors.Is(err, arbiter.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
	if err := s.CompareAndSwap(t.Context(), "R", 1, text("window")); err != nil {
		t.Error(err)
	}
	s.SetPlan(nil)
	if err := s.CompareAndSwap(t.Context(), "R", 2, text("takeover")); err != nil {
		t.Error(err)
	}
}

func TestLatencyInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewRuntime()
		inside := arbiter.NewMemory()
		s := faulty.New(inside)
		s.SetPlan(func(faulty.Call) faulty.Fault {
			return faulty.Fault{There: faulty.Delay(c, 3*time.Second), Back: faulty.Delay(c, 4*time.Second)}
		})
		start := c.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.CompareAndSwap(t.Context(), "k", 0, text("x")); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(2 * time.Second)
		if got := version(t, inside, "k"); got != 0 {
			t.Errorf("on its way there: got version %d, want 0", got)
		}
		time.Sleep(2 * time.Second)
		if got := version(t, inside, "k"); got != 1 {
			t.Errorf("on its way back: got version %d, want 1", got)
		}
		wg.Wait()
		if got := c.Now().Sub(start); got != 7*time.Second {
			t.Errorf("the call took %v, want 7s", got)
		}
	})
}

// A caller that does not wait as long as the way takes knows nothing; what had
// arrived by then has its effect.
func TestCallerLeavesInVirtualTime(t *testing.T) {
	for _, tt := range []struct {
		patience time.Duration
		version  arbiter.Version
	}{{time.Second, 0}, {4 * time.Second, 1}} {
		synctest.Test(t, func(t *testing.T) {
			c := clock.NewRuntime()
			inside := arbiter.NewMemory()
			s := faulty.New(inside)
			s.SetPlan(func(faulty.Call) faulty.Fault {
				return faulty.Fault{There: faulty.Delay(c, 3*time.Second), Back: faulty.Delay(c, 3*time.Second)}
			})
			cause := errors.New("impatient")
			ctx, cancel := context.WithTimeoutCause(t.Context(), tt.patience, cause)
			defer cancel()
			err := s.CompareAndSwap(ctx, "k", 0, text("x"))
			if !errors.Is(err, arbiter.ErrUnknown) || !errors.Is(err, cause) {
				t.Errorf("got %v, want ErrUnknown and its cause", err)
			}
			if got := version(t, inside, "k"); got != tt.version {
				t.Errorf("after %v: got version %d, want %d", tt.patience, got, tt.version)
			}
			ctx, cancel = context.WithTimeoutCause(t.Context(), tt.patience, cause)
			defer cancel()
			if _, err := s.Load(ctx, "k"); !errors.Is(err, arbiter.ErrUnreachable) || !errors.Is(err, cause) {
				t.Errorf("load: got %v, want ErrUnreachable and its cause", err)
			}
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	s := faulty.New(arbiter.NewMemory())
	kinds := []faulty.Kind{faulty.None, faulty.LostRequest, faulty.LostAnswer, faulty.Late, faulty.Unreachable, faulty.Throttled}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				s.SetPlan(faulty.Next(kinds[(i+n)%len(kinds)]))
				r, err := s.Load(t.Context(), "k")
				if err == nil {
					_ = s.CompareAndSwap(t.Context(), "k", r.Version, text("x"))
				}
				for _, l := range s.Late() {
					_ = l.Release(t.Context())
				}
			}
		})
	}
	wg.Wait()
}
