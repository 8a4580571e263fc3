package holder

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

const second = clock.Instant(time.Second)

var token = tokens.New(3, 7)

var (
	errRefused = &leases.NotHeldError{Name: "x", Why: leases.WhyExpired}
	errBroken  = &leases.NotHeldError{Name: "x", Why: leases.WhyBroken}

	errWithdrawn = errors.New("withdrawn")
)

func newHolder(r rules.Set) *Holder {
	h := New("x", 10*time.Second, r)
	return &h
}

// A step is one event and what must come of it.
type step struct {
	what  string
	do    func(h *Holder) Verdict
	want  Verdict
	stage Stage
	until clock.Instant // the deadline, where the lease is held
}

func sent(at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Attempted(at) }
}

func granted(waited bool, at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Granted(leases.Grant{Token: 7, Waited: waited}, at) }
}

func renewed(sent, at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Renewed(sent, at) }
}

func reclaimed(epoch uint32, at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Reclaim(epoch, at) }
}

func refused(at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Refused(errRefused, at) }
}

func broken(at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Refused(errBroken, at) }
}

func gone(at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Gone(errBroken, at) }
}

func lapsed(at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict { return h.Lapse(at) }
}

func withdrawn(h *Holder) Verdict {
	if h.Withdraw(errWithdrawn) {
		return End
	}
	return Ignore
}

func released(at clock.Instant) func(*Holder) Verdict {
	return func(h *Holder) Verdict {
		if h.Release(at) {
			return End
		}
		return Ignore
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
			{"sent", sent(1 * s), Send, Waiting, 0},
			{"granted", granted(false, 3*s), Believe, Held, 10*s + 9*s/10},
		}},
		{name: "a grant counts from the first sending (S40)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"sent again", sent(3 * s), Send, Waiting, 0},
			{"granted", granted(false, 4*s), Believe, Held, 9*s + 9*s/10},
		}},
		{name: "without that rule it counts from the last", rules: rules.Without(rules.FirstSending), steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"sent again", sent(3 * s), Send, Waiting, 0},
			{"granted", granted(false, 4*s), Believe, Held, 12*s + 9*s/10},
		}},
		{name: "with less than half of its time left it is confirmed first", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 5*s), Send, Confirming, 0},
			{"confirmed", renewed(5*s, 6*s), Believe, Held, 14*s + 9*s/10},
		}},
		{name: "a grant that waited is confirmed first (S45)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"confirmed", renewed(1*s, 2*s), Believe, Held, 10*s + 9*s/10},
		}},
		{name: "without that rule it is not", rules: rules.Without(rules.Confirm), steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Believe, Held, 9*s + 9*s/10},
		}},
		{name: "a confirmation that comes too late confirms nothing", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"late", renewed(1*s, 12*s), Send, Confirming, 0},
			{"in time", renewed(12*s, 13*s), Believe, Held, 21*s + 9*s/10},
		}},
		{name: "a confirmation refused ends the attempt", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"refused", refused(2 * s), End, Over, 0},
			{"granted by a copy", granted(false, 3*s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "renewals move the deadline, and never back", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"renewed", renewed(3*s, 4*s), Believe, Held, 12*s + 9*s/10},
			{"an older one", renewed(2*s, 5*s), Ignore, Held, 12*s + 9*s/10},
		}},
		{name: "the deadline ends it, and no late answer revives it (S13)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"just before", func(h *Holder) Verdict { return h.Lapse(9*s + 9*s/10 - 1) }, Ignore, Held, 9*s + 9*s/10},
			{"renewed too late", renewed(9*s, 9*s+9*s/10), End, Over, 0},
			{"again", renewed(9*s, 10*s), Ignore, Over, 0},
			{"to be renewed", func(h *Holder) Verdict { return h.Renew(10 * s) }, Ignore, Over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "a refusal ends it", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"refused", refused(1 * s), End, Over, 0},
			{"renewed", renewed(0, 2*s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "withdrawn, no grant counts (S47)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"withdrawn", withdrawn, End, Over, 0},
			{"granted", granted(false, 1*s), Ignore, Over, 0},
			{"sent again", sent(2 * s), Ignore, Over, 0},
		}, why: []error{errWithdrawn}},
		{name: "withdrawn while it is confirmed", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"withdrawn", withdrawn, End, Over, 0},
			{"confirmed", renewed(1*s, 2*s), Ignore, Over, 0},
		}},
		{name: "what is believed in is not withdrawn", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"withdrawn", withdrawn, Ignore, Held, 9*s + 9*s/10},
		}},
		{name: "released, no renewal counts (S47)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"released", released(1 * s), End, Over, 0},
			{"renewed", renewed(0, 2*s), Ignore, Over, 0},
			{"released again", released(2 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrReleased}},
		{name: "released too late", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"released", released(10 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "broken, it is over, and still to be given back", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(1 * s), End, Over, 0},
			{"told again", broken(2 * s), Ignore, Over, 0},
			{"renewed", renewed(0, 2*s), Ignore, Over, 0},
			{"to be renewed", func(h *Holder) Verdict { return h.Renew(2 * s) }, Ignore, Over, 0},
			{"released", released(3 * s), End, Over, 0},
			{"released again", released(4 * s), Ignore, Over, 0},
			{"at its deadline", lapsed(10 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "broken, it is given back until its deadline", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(1 * s), End, Over, 0},
			{"just before", lapsed(9*s + 9*s/10 - 1), Ignore, Over, 0},
			{"at its deadline", lapsed(9*s + 9*s/10), Settle, Over, 0},
			{"later", lapsed(10 * s), Ignore, Over, 0},
			{"released", released(10 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "broken, its deadline is read when it is released", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(1 * s), End, Over, 0},
			{"released", released(9*s + 9*s/10), Ignore, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "broken and then ended, nothing is left to give back", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(1 * s), End, Over, 0},
			{"ended", gone(2 * s), Settle, Over, 0},
			{"told again", gone(2 * s), Ignore, Over, 0},
			{"released", released(3 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "ended at once by an operator", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"ended", gone(1 * s), End, Over, 0},
			{"released", released(2 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost, leases.ErrNotHeld}},
		{name: "broken too late", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(10 * s), End, Over, 0},
			{"released", released(10 * s), Ignore, Over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "broken before it is confirmed, it is withdrawn", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"broken", broken(2 * s), End, Over, 0},
			{"confirmed", renewed(1*s, 2*s), Ignore, Over, 0},
			{"later", lapsed(20 * s), Ignore, Over, 0},
			{"withdrawn", withdrawn, End, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "broken and abandoned", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(1 * s), End, Over, 0},
			{"abandoned", func(h *Holder) Verdict { return h.Abandon(leases.ErrClosed) }, Settle, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "reclaimed, it counts like a renewal", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"taken over", reclaimed(2, 3*s), SendReclaim, Held, 9*s + 9*s/10},
			{"reclaimed", renewed(3*s, 4*s), Believe, Held, 12*s + 9*s/10},
			{"a copy that is answered later", renewed(2*s, 5*s), Ignore, Held, 12*s + 9*s/10},
			{"asked for again", reclaimed(2, 6*s), SendReclaim, Held, 12*s + 9*s/10},
		}},
		{name: "an answer from an epoch before the last is no news", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"taken over twice", reclaimed(4, 3*s), SendReclaim, Held, 9*s + 9*s/10},
			{"the first takeover", reclaimed(2, 4*s), Ignore, Held, 9*s + 9*s/10},
			{"the second again", reclaimed(4, 5*s), SendReclaim, Held, 9*s + 9*s/10},
			{"a third", reclaimed(6, 6*s), SendReclaim, Held, 9*s + 9*s/10},
		}},
		{name: "nor is one from the token's epoch, or before", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", func(h *Holder) Verdict { return h.Granted(leases.Grant{Token: tokens.New(3, 1)}, 0) }, Believe, Held, 9*s + 9*s/10},
			{"before", reclaimed(2, 1*s), Ignore, Held, 9*s + 9*s/10},
			{"the same", reclaimed(3, 1*s), Ignore, Held, 9*s + 9*s/10},
			{"after", reclaimed(4, 1*s), SendReclaim, Held, 9*s + 9*s/10},
		}},
		{name: "what lapses before the reclaim is answered is over (S13)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"taken over", reclaimed(2, 9*s), SendReclaim, Held, 9*s + 9*s/10},
			{"reclaimed too late", renewed(9*s, 10*s), End, Over, 0},
			{"asked for again", reclaimed(2, 10*s), Ignore, Over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "what has lapsed is not reclaimed", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"taken over", reclaimed(2, 9*s+9*s/10), End, Over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "without that rule a late answer revives it", rules: rules.Without(rules.LateAnswer), steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"renewed too late", renewed(5*s, 10*s), Believe, Held, 14*s + 9*s/10},
			{"lapsed", lapsed(15 * s), End, Over, 0},
			{"renewed too late again", renewed(9*s, 16*s), Believe, Held, 18*s + 9*s/10},
			{"lapsed again", lapsed(19 * s), End, Over, 0},
			{"an answer that is good for nothing", renewed(9*s, 19*s), Ignore, Over, 0},
		}, why: []error{leases.ErrExpired}},
		{name: "but not what was released", rules: rules.Without(rules.LateAnswer), steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"released", released(9 * s), End, Over, 0},
			{"renewed too late", renewed(5*s, 10*s), Ignore, Over, 0},
		}, why: []error{leases.ErrReleased}},
		{name: "what is not confirmed is not reclaimed, and over (S46)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"of the token's epoch", reclaimed(0, 2*s), Ignore, Confirming, 0},
			{"taken over", reclaimed(2, 2*s), End, Over, 0},
			{"asked for again", reclaimed(2, 2*s), Ignore, Over, 0},
			{"confirmed", renewed(1*s, 2*s), Ignore, Over, 0},
			{"withdrawn", withdrawn, End, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "without that rule it is reclaimed", rules: rules.Without(rules.ReclaimBelieved), steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"taken over", reclaimed(2, 2*s), SendReclaim, Confirming, 0},
			{"reclaimed", renewed(2*s, 3*s), Believe, Held, 11*s + 9*s/10},
		}},
		{name: "without that rule too it counts from its sending", rules: rules.Without(rules.ReclaimBelieved), steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(true, 1*s), Send, Confirming, 0},
			{"taken over", reclaimed(2, 9*s+9*s/10), End, Over, 0},
		}, why: []error{leases.ErrLost}},
		{name: "what is not granted is not reclaimed", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"taken over", reclaimed(2, 1*s), Ignore, Waiting, 0},
			{"granted", granted(false, 2*s), Believe, Held, 9*s + 9*s/10},
		}},
		{name: "released, it is not reclaimed (S47)", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"taken over", reclaimed(2, 1*s), SendReclaim, Held, 9*s + 9*s/10},
			{"released", released(2 * s), End, Over, 0},
			{"asked for again", reclaimed(2, 2*s), Ignore, Over, 0},
			{"reclaimed", renewed(1*s, 3*s), Ignore, Over, 0},
		}, why: []error{leases.ErrReleased}},
		{name: "broken, it is not reclaimed", steps: []step{
			{"sent", sent(0), Send, Waiting, 0},
			{"granted", granted(false, 0), Believe, Held, 9*s + 9*s/10},
			{"broken", broken(1 * s), End, Over, 0},
			{"taken over", reclaimed(2, 2*s), Ignore, Over, 0},
		}, why: []error{leases.ErrLost}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHolder(test.rules)
			for _, s := range test.steps {
				got := s.do(h)
				if got != s.want || h.stage != s.stage || h.stage == Held && h.deadline != s.until {
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

// A grant that a takeover ends before it is confirmed may yet be handed over to
// the registers: it is withdrawn, once.
func TestUnconfirmedIsOwed(t *testing.T) {
	h := newHolder(rules.Set{})
	h.Attempted(0)
	h.Granted(leases.Grant{Token: 7, Waited: true}, 1)
	if h.Reclaim(2, 2); !h.Owed() {
		t.Error("after the takeover: got nothing owed, want the grant")
	}
	if !h.Withdraw(errWithdrawn) || h.Owed() {
		t.Errorf("withdrawn: got owed %v, want false", h.Owed())
	}
}

// model is what section 3 says of one attempt, in the plainest words: the
// sendings whose answers count, and when it ended.
type model struct {
	ttl     time.Duration
	first   clock.Instant   // the first sending of the attempt
	counted []clock.Instant // the sendings that validity may be counted from
	granted bool
	epoch   uint32 // the last takeover that was heard of
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
		h, m := newHolder(rules.Set{}), &model{ttl: 10 * time.Second, epoch: token.Epoch()}
		now, deadline := clock.Instant(0), clock.Instant(0)
		attempted := false
		var inFlight []clock.Instant // renewals and reclaims without an answer yet
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
				h.Lapse(now)
			},
			"attempt": func(t *rapid.T) {
				if h.Attempted(now) == Send && !attempted {
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
				h.Granted(leases.Grant{Token: token, Waited: waited}, now)
			},
			"renew": func(t *rapid.T) {
				if got, want := h.Renew(now) == Send, m.granted && !m.ended; got != want {
					t.Fatalf("renew: got %v, want %v", got, want)
				}
				if h.stage != Over && m.granted {
					inFlight = append(inFlight, now)
				}
			},
			"renewed": func(t *rapid.T) {
				s := pick(t)
				if !m.ended && now < s.Add(leases.Shrink(m.ttl)) {
					m.counted = append(m.counted, s)
				}
				h.Renewed(s, now)
			},
			"reclaim": func(t *rapid.T) {
				epoch := rapid.Uint32Range(token.Epoch()-1, token.Epoch()+5).Draw(t, "epoch")
				heard := m.granted && !m.ended && epoch >= m.epoch && epoch > token.Epoch()
				if got, want := h.Reclaim(epoch, now) == SendReclaim, heard && m.valid(now); got != want {
					t.Fatalf("reclaim in epoch %d after %d: got %v, want %v", epoch, m.epoch, got, want)
				}
				switch {
				case heard && m.valid(now):
					m.epoch = epoch
					inFlight = append(inFlight, now)
				case heard:
					m.ended, m.owed = true, true
				}
			},
			"refused": func(t *rapid.T) {
				pick(t)
				m.ended = true
				h.Refused(errRefused, now)
			},
			"broken": func(t *rapid.T) {
				if !m.granted {
					t.Skip("there is nothing to break")
				}
				m.owed = m.owed || !m.ended
				m.ended = true
				h.Refused(errBroken, now)
			},
			"gone": func(t *rapid.T) {
				if !m.granted {
					t.Skip("there is nothing to end")
				}
				m.ended, m.owed = true, false
				h.Gone(errBroken, now)
			},
			"unanswered": func(t *rapid.T) { h.Unanswered(leases.ErrUnavailable) },
			"withdraw": func(t *rapid.T) {
				if got, want := h.Withdraw(errWithdrawn), !m.valid(now); got != want {
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
				if got, want := h.Release(now), m.valid(now) || m.owed; got != want {
					t.Fatalf("release: got %v (%v), want %v", got, h.why, want)
				}
				m.ended, m.owed = true, false
			},
			"": func(t *rapid.T) {
				if got, want := h.stage == Held, m.valid(now); got != want {
					t.Fatalf("held at %d: got %v, want %v", now, got, want)
				}
				if got := h.stage == Over; got != m.ended {
					t.Fatalf("over: got %v, want %v", got, m.ended)
				}
				if h.owed != m.owed {
					t.Fatalf("owed: got %v, want %v", h.owed, m.owed)
				}
				if h.stage == Over && h.why == nil {
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
