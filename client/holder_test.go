package client

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

const second = clock.Instant(time.Second)

var (
	errRefused = &leases.NotHeldError{Name: "x", Why: leases.WhyExpired}
	errBroken  = &leases.NotHeldError{Name: "x", Why: leases.WhyBroken}
)

func newHolder(r rules.Set) *holder { return &holder{name: "x", ttl: 10 * time.Second, rules: r} }

// A step is one event and what must come of it.
type step struct {
	what  string
	do    func(h *holder) verdict
	want  verdict
	stage stage
	until clock.Instant // the deadline, where the lease is held
}

func sent(at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.attempted(at) }
}

func granted(waited bool, at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.granted(leases.Grant{Token: 7, Waited: waited}, at) }
}

func renewed(sent, at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.renewed(sent, at) }
}

func refused(at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.refused(errRefused, at) }
}

func broken(at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.refused(errBroken, at) }
}

func gone(at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.gone(errBroken, at) }
}

func lapsed(at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict { return h.lapse(at) }
}

func withdrawn(h *holder) verdict {
	if h.withdraw(errWithdrawn) {
		return end
	}
	return ignore
}

func released(at clock.Instant) func(*holder) verdict {
	return func(h *holder) verdict {
		if h.release(at) {
			return end
		}
		return ignore
	}
}

func TestHolder(t *testing.T) {
	const s = second
	tests := []struct {
		name  string
		rules rules.Set
		steps []step
		why   []error
	}{
		{name: "a grant counts from before its sending", steps: []step{
			{"sent", sent(1 * s), send, waiting, 0},
			{"granted", granted(false, 3*s), believe, held, 10*s + 9*s/10},
		}},
		{name: "a grant counts from the first sending (S40)", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"sent again", sent(3 * s), send, waiting, 0},
			{"granted", granted(false, 4*s), believe, held, 9*s + 9*s/10},
		}},
		{name: "without that rule it counts from the last", rules: rules.Without(rules.FirstSending), steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"sent again", sent(3 * s), send, waiting, 0},
			{"granted", granted(false, 4*s), believe, held, 12*s + 9*s/10},
		}},
		{name: "with less than half of its time left it is confirmed first", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 5*s), send, confirming, 0},
			{"confirmed", renewed(5*s, 6*s), believe, held, 14*s + 9*s/10},
		}},
		{name: "a grant that waited is confirmed first (S45)", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(true, 1*s), send, confirming, 0},
			{"confirmed", renewed(1*s, 2*s), believe, held, 10*s + 9*s/10},
		}},
		{name: "without that rule it is not", rules: rules.Without(rules.Confirm), steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(true, 1*s), believe, held, 9*s + 9*s/10},
		}},
		{name: "a confirmation that comes too late confirms nothing", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(true, 1*s), send, confirming, 0},
			{"late", renewed(1*s, 12*s), send, confirming, 0},
			{"in time", renewed(12*s, 13*s), believe, held, 21*s + 9*s/10},
		}},
		{name: "a confirmation refused ends the attempt", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(true, 1*s), send, confirming, 0},
			{"refused", refused(2 * s), end, over, 0},
			{"granted by a copy", granted(false, 3*s), ignore, over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "renewals move the deadline, and never back", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"renewed", renewed(3*s, 4*s), believe, held, 12*s + 9*s/10},
			{"an older one", renewed(2*s, 5*s), ignore, held, 12*s + 9*s/10},
		}},
		{name: "the deadline ends it, and no late answer revives it (S13)", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"just before", func(h *holder) verdict { return h.lapse(9*s + 9*s/10 - 1) }, ignore, held, 9*s + 9*s/10},
			{"renewed too late", renewed(9*s, 9*s+9*s/10), end, over, 0},
			{"again", renewed(9*s, 10*s), ignore, over, 0},
			{"to be renewed", func(h *holder) verdict { return h.renew(10 * s) }, ignore, over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "a refusal ends it", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"refused", refused(1 * s), end, over, 0},
			{"renewed", renewed(0, 2*s), ignore, over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "withdrawn, no grant counts (S47)", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"withdrawn", withdrawn, end, over, 0},
			{"granted", granted(false, 1*s), ignore, over, 0},
			{"sent again", sent(2 * s), ignore, over, 0},
		}, why: []error{errWithdrawn}},
		{name: "withdrawn while it is confirmed", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(true, 1*s), send, confirming, 0},
			{"withdrawn", withdrawn, end, over, 0},
			{"confirmed", renewed(1*s, 2*s), ignore, over, 0},
		}},
		{name: "what is believed in is not withdrawn", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"withdrawn", withdrawn, ignore, held, 9*s + 9*s/10},
		}},
		{name: "released, no renewal counts (S47)", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"released", released(1 * s), end, over, 0},
			{"renewed", renewed(0, 2*s), ignore, over, 0},
			{"released again", released(2 * s), ignore, over, 0},
		}, why: []error{leases.ErrReleased}},
		{name: "released too late", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"released", released(10 * s), ignore, over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "broken, it is over, and still to be given back", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"broken", broken(1 * s), end, over, 0},
			{"told again", broken(2 * s), ignore, over, 0},
			{"renewed", renewed(0, 2*s), ignore, over, 0},
			{"to be renewed", func(h *holder) verdict { return h.renew(2 * s) }, ignore, over, 0},
			{"released", released(3 * s), end, over, 0},
			{"released again", released(4 * s), ignore, over, 0},
			{"at its deadline", lapsed(10 * s), ignore, over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "broken, it is given back until its deadline", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"broken", broken(1 * s), end, over, 0},
			{"just before", lapsed(9*s + 9*s/10 - 1), ignore, over, 0},
			{"at its deadline", lapsed(9*s + 9*s/10), settle, over, 0},
			{"later", lapsed(10 * s), ignore, over, 0},
			{"released", released(10 * s), ignore, over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "broken, its deadline is read when it is released", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"broken", broken(1 * s), end, over, 0},
			{"released", released(9*s + 9*s/10), ignore, over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "broken and then ended, nothing is left to give back", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"broken", broken(1 * s), end, over, 0},
			{"ended", gone(2 * s), settle, over, 0},
			{"told again", gone(2 * s), ignore, over, 0},
			{"released", released(3 * s), ignore, over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "ended at once by an operator", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"ended", gone(1 * s), end, over, 0},
			{"released", released(2 * s), ignore, over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "broken too late", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"broken", broken(10 * s), end, over, 0},
			{"released", released(10 * s), ignore, over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "broken before it is confirmed, it is withdrawn", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(true, 1*s), send, confirming, 0},
			{"broken", broken(2 * s), end, over, 0},
			{"confirmed", renewed(1*s, 2*s), ignore, over, 0},
			{"later", lapsed(20 * s), ignore, over, 0},
			{"withdrawn", withdrawn, end, over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "broken and abandoned", steps: []step{
			{"sent", sent(0), send, waiting, 0},
			{"granted", granted(false, 0), believe, held, 9*s + 9*s/10},
			{"broken", broken(1 * s), end, over, 0},
			{"abandoned", func(h *holder) verdict { return h.abandon(leases.ErrClosed) }, settle, over, 0},
		}, why: []error{leases.ErrLost}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHolder(test.rules)
			for _, s := range test.steps {
				got := s.do(h)
				if got != s.want || h.stage != s.stage || h.stage == held && h.deadline != s.until {
					t.Fatalf("%s: got verdict %d, stage %d, deadline %d, want %d, %d, %d", s.what, got, h.stage, h.deadline, s.want, s.stage, s.until)
				}
			}
			for _, want := range test.why {
				if !errors.Is(h.why, want) {
					t.Errorf("why: got %v, want one that matches %v", h.why, want)
				}
			}
		})
	}
}

// model is what section 3 says of one attempt, in the plainest words: the
// sendings whose answers count, and when it ended.
type model struct {
	ttl     time.Duration
	first   clock.Instant   // the first sending of the attempt
	counted []clock.Instant // the sendings that validity may be counted from
	granted bool
	ended   bool
	owed    bool // ended, and there is something to give back
}

// valid reports whether the lease is believed in at now.
func (m *model) valid(now clock.Instant) bool {
	return !m.ended && m.inTime(now)
}

// inTime reports whether a sending that counted has not lapsed.
func (m *model) inTime(now clock.Instant) bool {
	for _, s := range m.counted {
		if now < s.Add(leases.Shrink(m.ttl)) {
			return true
		}
	}
	return false
}

// passes lets time pass: what was believed in and has lapsed is over for good.
func (m *model) passes(now clock.Instant) {
	if len(m.counted) > 0 && !m.valid(now) {
		m.ended = true
	}
	m.owed = m.owed && (len(m.counted) == 0 || m.inTime(now))
}

func TestHolderAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, m := newHolder(rules.Set{}), &model{ttl: 10 * time.Second}
		now, deadline := clock.Instant(0), clock.Instant(0)
		attempted := false
		var inFlight []clock.Instant // renewals without an answer yet
		pick := func(t *rapid.T) clock.Instant {
			if len(inFlight) == 0 {
				t.Skip("no renewal is in flight")
			}
			i := rapid.IntRange(0, len(inFlight)-1).Draw(t, "which")
			s := inFlight[i]
			if rapid.Bool().Draw(t, "its last copy") {
				inFlight = append(inFlight[:i], inFlight[i+1:]...)
			}
			return s
		}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				now += clock.Instant(rapid.Int64Range(0, int64(4*second)).Draw(t, "passes"))
				m.passes(now)
				h.lapse(now)
			},
			"attempt": func(t *rapid.T) {
				if h.attempted(now) == send && !attempted {
					attempted, m.first = true, now
				}
			},
			"grant": func(t *rapid.T) {
				if !attempted {
					t.Skip("nothing was asked for")
				}
				waited := rapid.Bool().Draw(t, "waited")
				if !m.granted && !m.ended {
					m.granted = true
					if !waited && m.first.Add(leases.Shrink(m.ttl)).Sub(now) >= m.ttl/2 {
						m.counted = append(m.counted, m.first)
					}
				}
				h.granted(leases.Grant{Token: 7, Waited: waited}, now)
			},
			"renew": func(t *rapid.T) {
				if got, want := h.renew(now) == send, m.granted && !m.ended; got != want {
					t.Fatalf("renew: got %v, want %v", got, want)
				}
				if h.stage != over && m.granted {
					inFlight = append(inFlight, now)
				}
			},
			"renewed": func(t *rapid.T) {
				s := pick(t)
				if !m.ended && now < s.Add(leases.Shrink(m.ttl)) {
					m.counted = append(m.counted, s)
				}
				h.renewed(s, now)
			},
			"refused": func(t *rapid.T) {
				pick(t)
				m.ended = true
				h.refused(errRefused, now)
			},
			"broken": func(t *rapid.T) {
				if !m.granted {
					t.Skip("there is nothing to break")
				}
				m.owed = m.owed || !m.ended
				m.ended = true
				h.refused(errBroken, now)
			},
			"gone": func(t *rapid.T) {
				if !m.granted {
					t.Skip("there is nothing to end")
				}
				m.ended, m.owed = true, false
				h.gone(errBroken, now)
			},
			"unanswered": func(t *rapid.T) { h.unanswered(leases.ErrUnavailable) },
			"withdraw": func(t *rapid.T) {
				if got, want := h.withdraw(errWithdrawn), !m.valid(now); got != want {
					t.Fatalf("withdraw: got %v, want %v", got, want)
				}
				if !m.valid(now) {
					m.ended, m.owed = true, false
				}
			},
			"release": func(t *rapid.T) {
				if !m.valid(now) && !m.ended {
					t.Skip("no lease was ever had")
				}
				if got, want := h.release(now), m.valid(now) || m.owed; got != want {
					t.Fatalf("release: got %v (%v), want %v", got, h.why, want)
				}
				m.ended, m.owed = true, false
			},
			"": func(t *rapid.T) {
				if got, want := h.stage == held, m.valid(now); got != want {
					t.Fatalf("held at %d: got %v, want %v", now, got, want)
				}
				if got := h.stage == over; got != m.ended {
					t.Fatalf("over: got %v, want %v", got, m.ended)
				}
				if h.owed != m.owed {
					t.Fatalf("owed: got %v, want %v", h.owed, m.owed)
				}
				if h.stage == over && h.why == nil {
					t.Fatal("it is over without a reason")
				}
				if h.deadline < deadline {
					t.Fatalf("the deadline went back from %d to %d", deadline, h.deadline)
				}
				deadline = h.deadline
			},
		})
	})
}
