package dynamodb

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
)

const (
	// patience is how many calls in a row may bring no answer before the circuit opens.
	patience = 3
	// probeEvery is the time from one probe of an open circuit to the next.
	probeEvery = time.Second
)

// State sums up how a store's calls fare.
type State string

const (
	Untried State = "untried" // no call has ended
	Healthy State = "healthy" // the last call was answered
	Failing State = "failing" // the last call was not, or was refused
	Silent  State = "silent"  // several in a row were not: calls fail at once, but for one a second
)

// Health tells how a store's calls have fared. The counts begin with the store.
type Health struct {
	State     State
	RoundTrip time.Duration // of the last try that was answered; 0: none was
	Failures  int           // calls in a row that were refused or not answered
	Err       error         // of the last of them; nil: the last call was answered

	Calls   uint64 // that have ended, those of Skipped not among them
	Failed  uint64 // of these, refused or not answered
	Skipped uint64 // calls that failed at once since the store was silent
}

// circuit keeps calls from piling up before a store that does not answer: it opens,
// and lets one call a second through to see whether that is over.
type circuit struct {
	clock clock.Clock
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	health  Health
	silent  int           // calls in a row without an answer
	probing bool          // a probe is under way
	next    clock.Instant // when the next may begin
}

func newCircuit(c clock.Clock, log *slog.Logger) *circuit {
	return &circuit{clock: c, log: log, health: Health{State: Untried}}
}

// Health is safe for concurrent use.
func (c *circuit) Health() Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health
}

// begin lets a call through, or returns why not. A call that was let through ends
// with end or leave, which want to know whether it is a probe.
func (c *circuit) begin() (probe bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health.State != Silent {
		return false, nil
	}
	now := c.clock.Now()
	if c.probing || now.Before(c.next) {
		c.health.Skipped++
		return false, fmt.Errorf("not asked: the last %d calls had no answer, and one is tried each %v; the last: %v", c.silent, probeEvery, c.health.Err)
	}
	c.probing, c.next = true, now.Add(probeEvery)
	return true, nil
}

// leave ends a call that says nothing about the store.
func (c *circuit) leave(probe bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if probe {
		c.probing = false
	}
}

// end takes note of how a call has ended. A refusal is a failure, but an answer too.
func (c *circuit) end(probe bool, v verdict, err error) {
	c.leave(probe)
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.health.State
	c.health.Calls++
	c.health.Err = err
	switch v {
	case answered:
		c.silent, c.health.Failures, c.health.State = 0, 0, Healthy
	case refused:
		c.silent, c.health.State = 0, Failing
	default:
		c.silent++
		if c.health.State != Silent {
			c.health.State = Failing
		}
	}
	if v != answered {
		c.health.Failures++
		c.health.Failed++
	}
	switch {
	case c.silent >= patience && was != Silent:
		c.health.State, c.next = Silent, c.clock.Now().Add(probeEvery)
		c.log.Warn("the arbiter does not answer, and is asked once a second from now on", "calls", c.silent, "error", err)
	case was == Silent && c.health.State != Silent:
		c.log.Info("the arbiter answers again")
	}
}

// measured takes note of a round trip.
func (c *circuit) measured(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.health.RoundTrip = d
}
