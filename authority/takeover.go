package authority

import (
	"slices"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// mayTake reports whether this node is one that may take over at all (section 5).
func (m *Machine) mayTake() bool {
	root := &m.r.root
	switch {
	case m.r.version == 0 || m.refused != nil || root.Epoch >= tokens.MaxEpoch:
		return false
	case root.Mode == Raft:
		// That no leader is heard is for liveness alone: one that has no window hands
		// leadership on (V2).
		return m.force != nil || !m.facts.Heard && slices.Contains(root.Takers, m.cfg.Name)
	case root.Mode == Importing:
		return !m.importing() && (m.cfg.Rules.On(rules.ImportingTakeover) || slices.Contains(root.Takers, m.cfg.Name))
	}
	return false
}

// takeOver begins a fallback epoch, where nobody has written R for long (T1 to T3).
func (m *Machine) takeOver(now clock.Instant) Action {
	rested := m.restTo.Sub(m.restFrom) >= leases.Stretch(m.lease()) || !m.cfg.Rules.On(rules.TakeoverRest)
	pledged := now.Before(m.pledged) && m.cfg.Rules.On(rules.TakeoverPledge)
	if !m.mayTake() || !rested || pledged {
		return nil
	}
	next := m.r.root.clone()
	next.Epoch++
	// From importing no grace is needed: it is reached only with graceDone, and nothing
	// has been granted since (V6).
	next.Mode, next.Owner, next.GraceDone = Fallback, Owner{Node: m.cfg.Name}, m.r.root.Mode == Importing
	why := Takeover
	if m.force != nil {
		why = Forced
	}
	next.changed(m.cfg.Name, why, m.facts.Now)
	return m.act(now, forTakeover, next)
}

// Force lets this node take over although it is no taker, and hears a leader: an operator
// says that every taker is gone for good. It waits like any takeover (V4), until it is
// done or no longer wanted, until R is written, since then somebody is not gone, and for
// four times L at most: what was true of the takers then need not be later.
func (m *Machine) Force(now clock.Instant, wanted bool) {
	m.force = nil
	if wanted {
		m.force = &force{wanted: now, until: now.Add(4 * m.lease())}
	}
}

// Forcing reports whether this node is still to take over by force.
func (m *Machine) Forcing() bool { return m.force != nil }

// force is what an operator has said of the takers, and when.
type force struct {
	wanted, until clock.Instant
	seen          arbiter.Version // R's, by the first read begun after that; 0: there was none
}

// after returns f, or nil where a read that was begun at sent shows that R was written since.
func (f *force) after(sent clock.Instant, version arbiter.Version) *force {
	switch {
	case f == nil || sent < f.wanted:
		return f
	case f.until < sent:
		return nil
	case f.seen == 0:
		f.seen = version
	case version > f.seen:
		return nil
	}
	return f
}
