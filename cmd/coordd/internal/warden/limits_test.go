package warden

import (
	"math"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
)

func TestLimitsFor(t *testing.T) {
	for _, c := range []struct {
		ttl  time.Duration
		want Limits
	}{
		{3 * time.Second, Limits{Margin: 250 * time.Millisecond, Grace: 750 * time.Millisecond}},
		{5 * time.Second, Limits{Margin: 250 * time.Millisecond, Grace: 1250 * time.Millisecond}},
		{15 * time.Second, Limits{Margin: 750 * time.Millisecond, Grace: 3750 * time.Millisecond}},
		{5 * time.Minute, Limits{Margin: 15 * time.Second, Grace: 5 * time.Second}},
	} {
		if got := LimitsFor(c.ttl); got != c.want {
			t.Errorf("LimitsFor(%v): got %+v, want %+v", c.ttl, got, c.want)
		}
	}
}

func TestPlan(t *testing.T) {
	limits := Limits{Margin: 10, Grace: 20}
	told := func(deadline, by clock.Instant) plan {
		p := newPlan(limits, deadline)
		p.tellNow(by)
		return p
	}
	ending := func(deadline, end clock.Instant) plan {
		p := newPlan(limits, deadline)
		p.end = end
		return p
	}
	extended := func(p plan, deadline clock.Instant) plan {
		p.deadline = deadline
		return p
	}
	for _, c := range []struct {
		name  string
		plan  plan
		now   clock.Instant
		step  step
		again clock.Instant
	}{
		{"long before", newPlan(limits, 100), 5, wait, 70},
		{"just before TERM", newPlan(limits, 100), 69, wait, 70},
		{"TERM is due", newPlan(limits, 100), 70, tell, 70},
		{"TERM is overdue", newPlan(limits, 100), 89, tell, 89},
		{"KILL is due without TERM", newPlan(limits, 100), 90, kill, 90},
		{"long after", newPlan(limits, 100), 1000, kill, 1000},
		{"the lease is lost", newPlan(limits, 0), 5, kill, 5},
		{"told for danger", told(100, 90), 75, wait, 90},
		{"told for danger, KILL is due", told(100, 90), 90, kill, 90},
		{"renewed in time", extended(newPlan(limits, 100), 200), 75, wait, 170},
		{"renewed after TERM", extended(told(100, 90), 200), 75, wait, 90},
		{"renewed after TERM, KILL is due", extended(told(100, 90), 200), 90, kill, 90},
		{"ended by itself, some are left", told(100, 40), 30, wait, 40},
		{"some are left when the deadline comes", told(100, 140), 89, wait, 90},
		{"some are left, renewed", extended(told(100, 140), 200), 100, wait, 140},
		{"some are left too long", extended(told(100, 140), 200), 140, kill, 140},
		{"some are left, the lease is lost", extended(told(100, 140), 0), 50, kill, 50},
		{"has not run for long enough", ending(100, 40), 39, wait, 40},
		{"has run for long enough", ending(100, 40), 40, tell, 40},
		{"the deadline comes first", ending(100, 75), 60, wait, 70},
		{"has run for long enough, and the lease is lost", ending(0, 40), 40, kill, 40},
	} {
		step, again := c.plan.next(c.now)
		if step != c.step || again != c.again {
			t.Errorf("%s: got (%v, %v), want (%v, %v)", c.name, step, again, c.step, c.again)
		}
	}
}

func TestLimitsEnd(t *testing.T) {
	for _, c := range []struct {
		atMost  time.Duration
		started clock.Instant
		want    clock.Instant
	}{
		{0, 5, math.MaxInt64},
		{7, 5, 12},
		{math.MaxInt64, 5, math.MaxInt64},
	} {
		if got := (Limits{AtMost: c.atMost}).end(c.started); got != c.want {
			t.Errorf("at most %v from %d: got %d, want %d", c.atMost, c.started, got, c.want)
		}
	}
}

func TestPlanTooLate(t *testing.T) {
	p := newPlan(Limits{Margin: 10, Grace: 20}, 100)
	p.tellNow(50) // what is left running is killed then, the lease is not lost for that
	for now, want := range map[clock.Instant]bool{0: false, 60: false, 89: false, 90: true, math.MaxInt64: true} {
		if got := p.tooLate(now); got != want {
			t.Errorf("at %d: got %v, want %v", now, got, want)
		}
	}
}
