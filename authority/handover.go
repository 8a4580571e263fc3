package authority

import (
	"fmt"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// hand is a planned hand-over from Raft to the registers (section 8), by its stages.
type hand struct {
	stage stage
	sent  uint32 // the fallback epoch that is to begin
	asked bool   // for the Install
	done  func(error)
}

type stage uint8

const (
	waits    stage = iota // until L(1+ρ) has passed since the term's first window (S8)
	drains                // the window is closed; what was proposed finishes (S9)
	writes                // the write of R
	installs              // the leases into the shards
	ends                  // the grace
)

// HandOver begins a planned hand-over to the registers, where an operator keeps
// authority until Release. done is called once, when fresh grants have begun
// there or it has failed; it must not call the machine.
func (m *Machine) HandOver(now clock.Instant, done func(error)) {
	switch {
	case m.hand != nil:
		done(&leases.UnavailableError{Reason: "a hand-over is under way"})
	case m.r.root.Mode != Raft || !m.ready() || m.lead.opened == 0 || !now.Before(m.lead.until):
		done(&leases.UnavailableError{Reason: "this node does not lead with an open window"})
	case m.r.root.Epoch >= tokens.MaxEpoch:
		done(&leases.ExhaustedError{What: "epochs", Bound: uint64(tokens.MaxEpoch)})
	default:
		m.hand = &hand{done: done}
	}
}

// endHand ends the hand-over, with what is to be said of it.
func (m *Machine) endHand(err error) {
	if h := m.hand; h != nil {
		m.hand = nil
		h.done(err)
	}
}

// handOver takes the next step of a hand-over.
func (m *Machine) handOver(now clock.Instant) Action {
	h, l := m.hand, m.lead
	if h == nil || l == nil {
		return nil
	}
	// Only the leader that wrote R last may: another one may have a window (S8).
	lasts := m.r.root.Mode == Raft && m.r.root.Owner == Owner{Node: m.cfg.Name, Term: l.term}
	if h.stage > writes {
		lasts = m.r.root.Mode == Fallback && m.r.root.Epoch == h.sent
	}
	if !lasts {
		l.shut = false
		m.endHand(&leases.UnavailableError{Reason: "the authority has changed meanwhile"})
		return nil
	}
	switch h.stage {
	case waits:
		if l.opened == 0 || now.Before(l.opened.Add(leases.Stretch(m.lease()))) && m.cfg.Rules.On(rules.HandOverWait) {
			return nil
		}
		h.stage, l.shut = drains, true
		if !m.cfg.Rules.On(rules.HandOverDrain) {
			h.stage = writes
			return m.handOver(now)
		}
		return Drain{}
	case writes:
		next := m.r.root.clone()
		next.Epoch++
		next.Mode, next.GraceDone, next.Held = Fallback, false, true
		next.Owner = Owner{Node: m.cfg.Name, Term: l.term}
		next.changed(m.cfg.Name, HandOver, m.facts.Now)
		h.sent = next.Epoch
		return m.act(now, forHandOver, next)
	case installs:
		if h.asked {
			return nil
		}
		h.asked = true
		return Install{Epoch: h.sent, RaftEpoch: m.r.root.RaftEpoch}
	case ends:
		if m.r.root.GraceDone {
			m.endHand(nil)
			return nil
		}
		next := m.r.root.clone()
		next.GraceDone = true
		return m.act(now, forGrace, next)
	}
	return nil
}

func (m *Machine) drained(err error) {
	h := m.hand
	switch {
	case h == nil || h.stage != drains:
	case err != nil: // nothing is written yet: this leader goes on
		if m.lead != nil {
			m.lead.shut = false
		}
		m.endHand(fmt.Errorf("the leader could not finish what it had begun: %w", err))
	default:
		h.stage = writes
	}
}

// handed takes the success of the write.
func (m *Machine) handed() {
	if h := m.hand; h != nil && h.stage == writes && m.r.root.Epoch == h.sent {
		h.stage = installs
	}
}

// handFailed takes note that the write of R was not, or may not have been, done.
// While it may take effect this node pledges to nobody (S2).
func (m *Machine) handFailed() {
	h, l := m.hand, m.lead
	if h == nil || l == nil || h.stage != writes || m.doubt() != 0 {
		return // a read will show
	}
	l.shut = false
	m.endHand(&leases.UnavailableError{Reason: "the root register could not be written, or it is not known to have been: its status tells who has authority"})
}

// installed goes on to the end of the grace; where the leases could not be written it
// comes by itself.
func (m *Machine) installed(a Install, err error) {
	h := m.hand
	switch {
	case h == nil || h.stage != installs || h.sent != a.Epoch:
	case err != nil:
		m.endHand(fmt.Errorf("authority was handed over, and stays with the registers until it is handed back, but not all leases were: holders reclaim them in a grace: %w", err))
	default:
		h.stage = ends
	}
}

// Handing reports whether a hand-over has closed this leader's window, and is not done.
func (m *Machine) Handing() bool { return m.hand != nil && m.hand.stage >= drains }
