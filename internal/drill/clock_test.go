package drill

import (
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
)

// hand is a clock that the test sets.
type hand struct {
	mu  sync.Mutex // guards now
	now clock.Instant
}

func (h *hand) Now() clock.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hand) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

func TestMachineClockRate(t *testing.T) {
	real := &hand{now: 1000}
	c := newMachineClock(real)
	began := c.Now()
	real.pass(time.Second)
	c.setRate(3)
	real.pass(time.Second)
	if got, want := c.Now().Sub(began), 4*time.Second; got != want {
		t.Errorf("got %v, want %v: a second, and another one three times as fast", got, want)
	}
	if got, want := c.toTrue(c.Now().Add(3*time.Second)), real.Now().Add(time.Second); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	c.setRate(1)
	real.pass(time.Second)
	if got, want := c.Now().Sub(began), 5*time.Second; got != want {
		t.Errorf("got %v, want %v: it never goes back", got, want)
	}
}

func TestMachineClockStops(t *testing.T) {
	real := &hand{}
	c := newMachineClock(real)
	deadline := c.Now().Add(2 * time.Second)
	c.stop()
	at := c.Now()
	real.pass(5 * time.Second)
	if c.Now() != at {
		t.Error("the clock of a stopped process shows something new")
	}
	if got, want := c.toTrue(deadline), clock.Instant(2*time.Second); got != want {
		t.Errorf("got %v, want %v: a deadline does not wait for a stopped process", got, want)
	}
	c.goOn()
	if got, want := c.Now().Sub(at), 5*time.Second; got != want {
		t.Errorf("got %v, want %v: all that has passed shows at once", got, want)
	}
}
