package nodetest

import (
	"sync"

	"github.com/coordd/coordd/clock"
)

// Clock is a machine's clock: it runs a little faster or slower than the true
// one, and shows nothing new to a process that is paused.
//
// A paused process is one that gets no further than its next send, receive or
// disk write; what it computes until then it computes with the time at which it
// stopped. (It must not be blocked in the reading itself: it may hold a lock,
// and virtual time does not pass while somebody waits for a sync.Mutex.)
type Clock struct {
	real clock.Clock

	mu     sync.Mutex // guards what follows
	rate   float64
	since  clock.Instant // the true time at which the rate was set
	origin clock.Instant // what the clock showed then
	paused bool
	at     clock.Instant // what it shows while paused
}

func newClock(real clock.Clock) *Clock { return &Clock{real: real, rate: 1} }

// Now implements clock.Clock.
func (c *Clock) Now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// now is called with mu held.
func (c *Clock) now() clock.Instant {
	if c.paused {
		return c.at
	}
	return c.origin + clock.Instant(float64(c.real.Now()-c.since)*c.rate)
}

// True is when, by the true clock, this one shows i, at the present rate.
func (c *Clock) True(i clock.Instant) clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since + clock.Instant(float64(i-c.origin)/c.rate)
}

func (c *Clock) setRate(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.origin, c.since, c.rate = c.now(), c.real.Now(), rate
}

func (c *Clock) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.paused = c.now(), true
}

func (c *Clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = false
}
