package drill

import (
	"sync"

	"github.com/coordd/coordd/clock"
)

// machineClock is the clock of one machine of a drill: it runs at a rate of the true
// one, and shows nothing new to a process that is stopped.
type machineClock struct {
	real clock.Clock

	mu      sync.Mutex // guards what follows
	rate    float64
	since   clock.Instant // the true time at which the rate was set
	origin  clock.Instant // what the clock showed then
	stopped bool
	at      clock.Instant // what it shows while it is stopped
}

func newMachineClock(real clock.Clock) *machineClock {
	now := real.Now()
	return &machineClock{real: real, rate: 1, since: now, origin: now}
}

// Now implements clock.Clock.
func (c *machineClock) Now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// now is called with mu held.
func (c *machineClock) now() clock.Instant {
	if c.stopped {
		return c.at
	}
	return c.origin + clock.Instant(float64(c.real.Now()-c.since)*c.rate)
}

// toTrue is when, by the true clock, this one shows i, at the present rate.
func (c *machineClock) toTrue(i clock.Instant) clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since + clock.Instant(float64(i-c.origin)/c.rate)
}

func (c *machineClock) setRate(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.origin, c.since, c.rate = c.now(), c.real.Now(), rate
}

// stop is what a stopped process sees of the time: none passes. Once it goes on, all
// that has passed shows at once.
func (c *machineClock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.stopped = c.now(), true
}

func (c *machineClock) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = false
}
