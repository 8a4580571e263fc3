package dynamodb

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
)

// A store that is silent is asked by few, and everybody is told at once.
func TestCircuit(t *testing.T) {
	var sound atomic.Bool
	inBubble(t, func(l leg) (*http.Response, error) {
		if sound.Load() {
			return l.answer(200, `{}`)
		}
		return l.hang()
	}, func(t *testing.T, s *Store, n *network, c clock.Clock) {
		if got := s.circuit.Health().State; got != Untried {
			t.Errorf("got state %s, want %s", got, Untried)
		}
		for i := range patience {
			if _, err := s.Load(t.Context(), "k"); !errors.Is(err, arbiter.ErrUnreachable) {
				t.Fatal(err)
			}
			want := Failing
			if i == patience-1 {
				want = Silent
			}
			if h := s.circuit.Health(); h.State != want || h.Failures != i+1 || h.Err == nil {
				t.Errorf("after %d calls: got %+v, want state %s", i+1, h, want)
			}
		}

		// Until the next probe every call fails at once, and it is certain.
		begin, asked := c.Now(), n.seen("PutItem")
		for range 50 {
			err := s.CompareAndSwap(t.Context(), "k", 0, write("x"))
			if !errors.Is(err, arbiter.ErrUnreachable) || errors.Is(err, arbiter.ErrUnknown) || !strings.Contains(err.Error(), "the last 3 calls had no answer") {
				t.Fatalf("got %v, want ErrUnreachable, not asked", err)
			}
		}
		if took := c.Now().Sub(begin); took != 0 || n.seen("PutItem") != asked {
			t.Errorf("50 calls took %v and %d requests, want none", took, n.seen("PutItem")-asked)
		}
		if got := s.circuit.Health().Skipped; got != 50 {
			t.Errorf("got %d skipped calls, want 50", got)
		}

		// Many callers for 10 s: one probe after the other, and each takes 1.5 s.
		var wg sync.WaitGroup
		n.on(func(l leg) (*http.Response, error) { return l.hang() })
		for end := c.Now().Add(10 * time.Second); c.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			for range 5 {
				wg.Go(func() { _, _ = s.Load(t.Context(), "k") })
			}
		}
		wg.Wait()
		if got := n.seen("GetItem"); got < 10 || got > 16 {
			t.Errorf("got %d requests in 10 s of silence, want 2 each 1.5 s", got)
		}

		// The first probe that is answered closes it.
		n.on(func(l leg) (*http.Response, error) { return l.answer(200, `{}`) })
		time.Sleep(probeEvery)
		for range 5 {
			if _, err := s.Load(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		}
		if h := s.circuit.Health(); h.State != Healthy || h.Failures != 0 || h.Err != nil {
			t.Errorf("got %+v, want it healthy", h)
		}
	})
}

// Only one probe is under way at a time, and those who wait for nothing are told.
func TestOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(clock.NewRuntime(), discard)
		silence := errors.New("silence")
		for range patience {
			if probe, err := c.begin(); probe || err != nil {
				t.Fatal(probe, err)
			}
			c.end(false, lost, silence)
		}
		time.Sleep(probeEvery)
		if probe, err := c.begin(); !probe || err != nil {
			t.Fatalf("got %v, %v, want a probe", probe, err)
		}
		time.Sleep(10 * probeEvery)
		if _, err := c.begin(); err == nil {
			t.Error("a second probe was let through while one is under way")
		}
		c.leave(true) // its caller has left
		if probe, err := c.begin(); !probe || err != nil {
			t.Errorf("got %v, %v, want the next probe", probe, err)
		}
		c.end(true, deferred, silence)
		if h := c.Health(); h.State != Silent || h.Failures != patience+1 {
			t.Errorf("got %+v, want it silent", h)
		}
	})
}

// A refusal is an answer: it opens nothing, and closes what is open.
func TestRefusalsDoNotOpenTheCircuit(t *testing.T) {
	inBubble(t, func(l leg) (*http.Response, error) { return l.exception(400, "AccessDeniedException") },
		func(t *testing.T, s *Store, n *network, _ clock.Clock) {
			for range 10 {
				if _, err := s.Load(t.Context(), "k"); !errors.Is(err, arbiter.ErrUnreachable) {
					t.Fatal(err)
				}
			}
			if h := s.circuit.Health(); h.State != Failing || h.Failures != 10 || n.seen("GetItem") != 10 {
				t.Errorf("got %+v after %d requests, want 10 failures and requests", h, n.seen("GetItem"))
			}
		})
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(clock.NewRuntime(), discard)
		for range patience {
			c.end(false, lost, errors.New("silence"))
		}
		c.end(false, refused, errors.New("no permission"))
		if h := c.Health(); h.State != Failing {
			t.Errorf("got %+v, want it failing", h)
		}
	})
}

// Callers that leave say nothing about the store; those that run out of time do.
func TestCircuitAndImpatientCallers(t *testing.T) {
	inBubble(t, func(l leg) (*http.Response, error) { return l.hang() }, func(t *testing.T, s *Store, _ *network, _ clock.Clock) {
		for range 2 * patience {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			_, _ = s.Load(ctx, "k")
		}
		if got := s.circuit.Health().State; got != Untried {
			t.Errorf("after callers that left: got state %s, want %s", got, Untried)
		}
		for range patience {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, _ = s.Load(ctx, "k")
			cancel()
		}
		if got := s.circuit.Health().State; got != Silent {
			t.Errorf("after callers that had no answer in time: got state %s, want %s", got, Silent)
		}
	})
}
