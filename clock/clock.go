// Package clock is the time that every deadline in coordd is counted in: a
// clock that never goes back, that nobody can set, and that goes on while the
// machine is suspended. Go's own monotonic clock stands still in suspend, so a
// lease timed by it would look alive after the lid opens again.
package clock

import (
	"context"
	"math"
	"sync"
	"time"
)

// Instant is a reading of a Clock: nanoseconds since an origin of the clock's
// own. Instants of two machines, or of two clocks, cannot be compared.
type Instant int64

// Add returns the instant d later, or the last one that there is.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	if d > 0 && sum < i {
		return math.MaxInt64
	}
	return sum
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Before reports whether i is earlier than j.
func (i Instant) Before(j Instant) bool { return i < j }

// Clock tells the time. Implementations are safe for concurrent use, never go
// back, and count time spent in suspend.
type Clock interface {
	Now() Instant
}

// maxSleep bounds how long a timer trusts Go's runtime, whose timers stop in
// suspend, before it reads the clock again.
const maxSleep = 500 * time.Millisecond

// Timer runs a function once at an instant of a Clock. The instant is judged
// by reading the clock, at least every 500 ms, so it is noticed that soon
// after a resume from suspend.
type Timer struct {
	clock Clock
	f     func()

	mu    sync.Mutex
	at    Instant
	timer *time.Timer
	done  bool
}

// AfterFunc calls f in a goroutine of its own as soon as c shows at or later.
func AfterFunc(c Clock, at Instant, f func()) *Timer {
	t := &Timer{clock: c, f: f, at: at}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(t.sleep(), t.look)
	return t
}

// sleep is called with mu held.
func (t *Timer) sleep() time.Duration {
	return min(max(t.at.Sub(t.clock.Now()), 0), maxSleep)
}

func (t *Timer) look() {
	t.mu.Lock()
	if t.done {
		t.mu.Unlock()
		return
	}
	if t.clock.Now().Before(t.at) {
		t.timer.Reset(max(t.sleep(), time.Microsecond))
		t.mu.Unlock()
		return
	}
	t.done = true
	t.mu.Unlock()
	t.f()
}

// Reset moves the instant and reports whether the timer was still waiting; if
// it was not, nothing changes: a timer that has fired or was stopped stays so.
func (t *Timer) Reset(at Instant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return false
	}
	t.at = at
	t.timer.Reset(t.sleep())
	return true
}

// Stop reports whether it kept f from being called. It does not wait for an f
// that is running.
func (t *Timer) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return false
	}
	t.done = true
	t.timer.Stop()
	return true
}

// Wait returns nil as soon as c shows at or later, or the cause of ctx's end.
func Wait(ctx context.Context, c Clock, at Instant) error {
	for {
		left := at.Sub(c.Now())
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(left, maxSleep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// Runtime is Go's own monotonic clock. It stops in suspend: it is for tests in
// virtual time (testing/synctest) and for systems without a better one.
type Runtime struct{ start time.Time }

// NewRuntime returns a clock whose origin is now.
func NewRuntime() *Runtime { return &Runtime{start: time.Now()} }

// Now is the time since the clock was made.
func (r *Runtime) Now() Instant { return Instant(time.Since(r.start)) }
