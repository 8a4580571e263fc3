package warden

import (
	"math"
	"time"

	"github.com/coordd/coordd/clock"
)

// linger is how long what a command leaves running has between TERM and KILL.
const linger = time.Second

// Limits say when a command has to end.
type Limits struct {
	Margin time.Duration // everything is killed so long before the lease's deadline
	Grace  time.Duration // the command is told to end (TERM) so long before everything is killed
	AtMost time.Duration // the command is told to end when it has run so long; 0: it may run on
}

// LimitsFor returns the limits that go with a lease's TTL: a margin that lets
// the KILL land before the lease can be granted again, and a grace that leaves
// renewals most of the TTL.
func LimitsFor(ttl time.Duration) Limits {
	return Limits{
		Margin: max(250*time.Millisecond, ttl/20),
		Grace:  min(5*time.Second, ttl/4),
	}
}

// kill is when everything has to be killed for a lease with that deadline.
func (l Limits) kill(deadline clock.Instant) clock.Instant { return deadline.Add(-l.Margin) }

// backstop is when the wrapper takes over from a warden that should have
// killed everything, and has not.
func (l Limits) backstop(deadline clock.Instant) clock.Instant { return deadline.Add(-l.Margin / 2) }

// end is when a command that started then has run for long enough.
func (l Limits) end(started clock.Instant) clock.Instant {
	if l.AtMost == 0 {
		return math.MaxInt64
	}
	return started.Add(l.AtMost)
}

// step is what there is to do now.
type step int

const (
	wait step = iota
	tell      // send TERM
	kill      // send KILL, until none is left
)

// plan is the warden's decision: what to do when, given the deadlines that it
// was sent. It reads no clock.
type plan struct {
	limits   Limits
	deadline clock.Instant
	end      clock.Instant // the command has run for long enough then
	told     bool          // TERM was sent
	latest   clock.Instant // KILL comes by then, however often the lease is renewed
}

func newPlan(l Limits, deadline clock.Instant) plan {
	return plan{limits: l, deadline: deadline, end: math.MaxInt64, latest: math.MaxInt64}
}

// tellNow notes that TERM has been sent and that KILL follows by then. A
// renewal that comes later does not take it back: who was told is ending.
func (p *plan) tellNow(by clock.Instant) {
	p.told = true
	p.latest = min(p.latest, by)
}

func (p plan) killAt() clock.Instant { return min(p.limits.kill(p.deadline), p.latest) }

// dangerAt is when the lease's deadline is so near that the command is told to end.
func (p plan) dangerAt() clock.Instant { return p.killAt().Add(-p.limits.Grace) }

// next returns what is due now, and when to ask again if that is nothing.
func (p plan) next(now clock.Instant) (step, clock.Instant) {
	at := p.killAt()
	if !now.Before(at) {
		return kill, now
	}
	if p.told {
		return wait, at
	}
	at = min(p.dangerAt(), p.end)
	if !now.Before(at) {
		return tell, now
	}
	return wait, at
}

// tooLate reports whether the lease's deadline is so near, or past, that a
// command that goes on now has lost it.
func (p plan) tooLate(now clock.Instant) bool { return !now.Before(p.limits.kill(p.deadline)) }
