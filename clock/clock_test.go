package clock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// skewed is a clock that a test can move on, as a suspend does, and whose rate
// it can set.
type skewed struct {
	base *Runtime
	rate float64

	mu      sync.Mutex // guards skipped
	skipped time.Duration
}

func (s *skewed) Now() Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Instant(float64(s.base.Now())*s.rate) + Instant(s.skipped)
}

func (s *skewed) skip(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped += d
}

// within fails unless got lies between least and most.
func within(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: got %v, want %v to %v", what, got, least, most)
	}
}

func TestInstant(t *testing.T) {
	a := Instant(10)
	b := a.Add(5)
	if b != 15 || b.Sub(a) != 5 || a.Sub(b) != -5 {
		t.Errorf("got %d, %v, %v, want 15, 5ns, -5ns", b, b.Sub(a), a.Sub(b))
	}
	if !a.Before(b) || b.Before(a) || a.Before(a) {
		t.Errorf("Before: got %v, %v, %v, want true, false, false", a.Before(b), b.Before(a), a.Before(a))
	}
}

func TestTimerFires(t *testing.T) {
	for _, c := range []struct {
		name string
		rate float64
		in   time.Duration // by the clock
		want time.Duration // by the runtime
	}{
		{"at once", 1, 0, 0},
		{"in the past", 1, -time.Hour, 0},
		{"soon", 1, 3 * time.Millisecond, 3 * time.Millisecond},
		{"after some looks at the clock", 1, 1730 * time.Millisecond, 1730 * time.Millisecond},
		{"on a slow clock", 0.5, time.Second, 2 * time.Second},
		{"on a fast clock", 2, time.Second, 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, fired := &skewed{base: NewRuntime(), rate: c.rate}, make(chan time.Duration, 2)
				start, at := time.Now(), clock.Now().Add(c.in)
				timer := AfterFunc(clock, at, func() {
					if clock.Now().Before(at) {
						t.Errorf("it fired at %d, before %d", clock.Now(), at)
					}
					fired <- time.Since(start)
				})
				within(t, "fired after", <-fired, c.want, c.want+time.Millisecond)
				if timer.Stop() || timer.Reset(at.Add(time.Second)) {
					t.Error("a timer that has fired: got stopped or reset")
				}
				time.Sleep(time.Minute)
				if len(fired) != 0 {
					t.Error("it fired twice")
				}
			})
		})
	}
}

// In a suspend the clock goes on while the runtime's timers stand still.
func TestTimerNoticesSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, fired := &skewed{base: NewRuntime(), rate: 1}, make(chan struct{})
		timer := AfterFunc(clock, clock.Now().Add(time.Hour), func() { close(fired) })
		defer timer.Stop()
		time.Sleep(10*time.Second + 1)
		select {
		case <-fired:
			t.Fatal("it fired an hour early")
		default:
		}
		clock.skip(time.Hour)
		resumed := time.Now()
		<-fired
		within(t, "fired after the resume", time.Since(resumed), 0, 500*time.Millisecond)
	})
}

func TestTimerReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ first, then time.Duration }{
			{time.Second, time.Minute}, // later
			{time.Minute, time.Second}, // earlier
			{time.Minute, 0},           // at once
			{time.Second, -time.Second},
		} {
			clock, fired := NewRuntime(), make(chan struct{}, 2)
			timer := AfterFunc(clock, clock.Now().Add(c.first), func() { fired <- struct{}{} })
			time.Sleep(100 * time.Millisecond)
			start := time.Now()
			if !timer.Reset(clock.Now().Add(c.then)) {
				t.Fatalf("%v to %v: got false from Reset of a waiting timer", c.first, c.then)
			}
			<-fired
			want := max(c.then, 0)
			within(t, "fired after", time.Since(start), want, want+time.Millisecond)
			time.Sleep(time.Hour)
			if len(fired) != 0 {
				t.Errorf("%v to %v: it fired twice", c.first, c.then)
			}
		}
	})
}

func TestTimerStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewRuntime()
		timer := AfterFunc(clock, clock.Now().Add(time.Second), func() { t.Error("it fired although it was stopped") })
		time.Sleep(999 * time.Millisecond)
		if !timer.Stop() {
			t.Error("first Stop: got false, want true")
		}
		if timer.Stop() {
			t.Error("second Stop: got true, want false")
		}
		if timer.Reset(clock.Now()) {
			t.Error("Reset of a stopped timer: got true, want false")
		}
		time.Sleep(time.Hour)
	})
}

// A function that takes long holds up neither Stop nor Reset, and may use its
// own timer.
func TestTimerFunctionRunsUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, started, end := NewRuntime(), make(chan struct{}), make(chan struct{})
		timer := AfterFunc(clock, clock.Now().Add(time.Second), func() {
			close(started)
			<-end
		})
		<-started
		if timer.Stop() || timer.Reset(clock.Now()) {
			t.Error("while its function runs: got stopped or reset")
		}
		close(end)
	})
}

func TestTimersAtOnce(t *testing.T) {
	clock := System()
	var fired, stopped, done sync.WaitGroup
	for range 100 {
		fired.Add(1)
		timer := AfterFunc(clock, clock.Now().Add(time.Millisecond), fired.Done)
		stopped.Go(func() {
			if timer.Stop() {
				fired.Done()
			}
		})
		done.Go(func() { timer.Reset(clock.Now()) })
	}
	stopped.Wait()
	done.Wait()
	fired.Wait()
}

func TestWait(t *testing.T) {
	cause := errors.New("no more patience")
	for _, c := range []struct {
		name   string
		in     time.Duration // by the clock
		cancel time.Duration
		want   time.Duration
		err    error
	}{
		{"at once", 0, time.Hour, 0, nil},
		{"in the past", -time.Second, time.Hour, 0, nil},
		{"soon", time.Millisecond, time.Hour, time.Millisecond, nil},
		{"after some looks at the clock", 1730 * time.Millisecond, time.Hour, 1730 * time.Millisecond, nil},
		{"cancelled", time.Hour, 777 * time.Millisecond, 777 * time.Millisecond, cause},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, start := NewRuntime(), time.Now()
				ctx, cancel := context.WithCancelCause(t.Context())
				timer := time.AfterFunc(c.cancel, func() { cancel(cause) })
				defer timer.Stop()
				if err := Wait(ctx, clock, clock.Now().Add(c.in)); !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
					t.Errorf("got %v, want %v", err, c.err)
				}
				within(t, "waited", time.Since(start), c.want, c.want)
			})
		})
	}
}

func TestWaitNoticesSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, done := &skewed{base: NewRuntime(), rate: 1}, make(chan error)
		go func() { done <- Wait(t.Context(), clock, clock.Now().Add(time.Hour)) }()
		time.Sleep(10*time.Second + 1)
		clock.skip(time.Hour)
		resumed := time.Now()
		if err := <-done; err != nil {
			t.Errorf("got %v, want nil", err)
		}
		within(t, "returned after the resume", time.Since(resumed), 0, 500*time.Millisecond)
	})
}

func TestRuntimeFollowsVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewRuntime()
		if got := clock.Now(); got != 0 {
			t.Errorf("at its origin: got %d, want 0", got)
		}
		time.Sleep(time.Hour)
		if got, want := clock.Now(), Instant(time.Hour); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	})
}

func TestSystemNeverGoesBack(t *testing.T) {
	clock := System()
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for last, n := clock.Now(), 0; n < 20_000; n++ {
				now := clock.Now()
				if now.Before(last) {
					t.Errorf("got %d after %d", now, last)
					return
				}
				last = now
			}
		})
	}
	readers.Wait()
}

// While the machine runs, the clock goes as fast as Go's.
func TestSystemRuns(t *testing.T) {
	clock := System()
	if clock.Now() <= 0 {
		t.Errorf("got %d, want the time since boot", clock.Now())
	}
	before, start := time.Now(), clock.Now()
	if err := Wait(t.Context(), clock, start.Add(20*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	passed, outer := clock.Now().Sub(start), time.Since(before)
	if passed < 20*time.Millisecond || outer < passed-time.Millisecond {
		t.Errorf("it says that %v passed, Go says %v", passed, outer)
	}
}

func BenchmarkSystem(b *testing.B) {
	for clock := System(); b.Loop(); {
		clock.Now()
	}
}
