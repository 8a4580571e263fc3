package authority

import (
	"slices"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/tokens"
)

// importing reports whether this node, in its present term, is the one that imports.
func (m *Machine) importing() bool {
	root, l := &m.r.root, m.lead
	return root.Mode == Importing && l != nil && l.group == root.Group && root.Owner == Owner{Node: m.cfg.Name, Term: l.term}
}

// failback brings authority back to a Raft group (section 6): F1, F2 and F3.
func (m *Machine) failback(now clock.Instant) Action {
	root := &m.r.root
	switch {
	case m.facts.Epoch == 0 && root.Mode != Fallback:
		return nil // the table is not born: it would take the epoch of an import that it has not
	case root.Mode == Fallback:
		return m.begin(now)
	case root.Mode != Importing || m.lead == nil || m.lead.group != root.Group || m.lead.since == 0:
		return nil
	case m.importing():
		return m.goOn(now)
	case m.lead.term > root.Owner.Term && m.cfg.Rules.On(rules.Resume):
		if m.facts.Epoch == root.Epoch {
			return m.imported(now)
		}
		return m.import1(now)
	}
	return nil
}

// begin is F1, once fresh grants have begun and no operator keeps authority here.
func (m *Machine) begin(now clock.Instant) Action {
	root, l := &m.r.root, m.lead
	if m.back && root.Held {
		next := root.clone()
		next.Held = false
		return m.act(now, forRelease, next)
	}
	if m.keep && !root.Held {
		next := root.clone()
		next.Held = true
		return m.act(now, forHold, next)
	}
	mine := l != nil && (l.group == root.Group || l.group == m.forms)
	if !mine || l.since == 0 || m.facts.Epoch == 0 || root.Held || !root.GraceDone && m.cfg.Rules.On(rules.FailbackGrace) {
		return nil
	}
	return m.import1(now)
}

// import1 is F1: from fallback, or again from an import that an earlier leader of the group has begun.
func (m *Machine) import1(now clock.Instant) Action {
	root, l := &m.r.root, m.lead
	epoch := max(root.Epoch, m.facts.Epoch) // a log that was recovered may have begun a greater one
	if epoch >= tokens.MaxEpoch {
		return nil
	}
	next := root.clone()
	next.Epoch = epoch + 1
	next.Mode, next.Group, next.GraceDone = Importing, l.group, true
	next.Owner = Owner{Node: m.cfg.Name, Term: l.term}
	// The voters, and the nodes that it sees: they may have to go on without it (W6).
	next.Takers = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.facts.Takers, m.facts.Alive, []string{m.cfg.Name}))))
	next.changed(m.cfg.Name, Failback, m.facts.Now)
	return m.act(now, forFailback, next)
}

// goOn is F2 and F3, by the owner. Meanwhile it writes R, so that nobody takes a slow
// import over.
func (m *Machine) goOn(now clock.Instant) Action {
	root, l := &m.r.root, m.lead
	switch {
	case m.facts.Epoch == root.Epoch:
		return m.imported(now)
	case l.import_.due(root.Epoch, now):
		l.import_ = &task{epoch: root.Epoch, busy: true}
		l.nextBeat = now.Add(m.lease() / 4)
		return Import{Epoch: root.Epoch, RaftEpoch: root.RaftEpoch}
	case now.Before(l.nextBeat) || !m.cfg.Rules.On(rules.ImportingBeat):
		return nil
	}
	a := m.act(now, forBeat, root.clone())
	if a != nil {
		l.nextBeat = now.Add(m.lease() / 4)
	}
	return a
}

// imported is F3: the table has the leases, and from now on its group serves.
func (m *Machine) imported(now clock.Instant) Action {
	next := m.r.root.clone()
	next.Mode, next.RaftEpoch = Raft, next.Epoch
	next.Owner = Owner{Node: m.cfg.Name, Term: m.lead.term}
	if t := m.facts.Takers; len(t) > 0 {
		next.Takers = t
	}
	if c := m.facts.Ceiling; c > next.Ceiling() {
		next.CeilingMs = c.Milliseconds()
	}
	if len(m.facts.Members) > 0 {
		next.Members = m.facts.Members
	}
	next.changed(m.cfg.Name, Imported, m.facts.Now)
	return m.act(now, forImported, next)
}

// Release lets a Raft group take over again, where an operator has kept authority with
// the registers: now, not the next time that one does. It reports whether that was new.
func (m *Machine) Release() bool {
	before := m.back
	m.back, m.keep = m.r.root.Mode == Fallback && m.r.root.Held, false
	return m.back && !before
}

// Hold keeps authority with the registers, which have it, until Release.
func (m *Machine) Hold() { m.keep, m.back = m.r.root.Mode == Fallback && !m.r.root.Held, false }

// smallest reports whether no node that is heard has a smaller name.
func (m *Machine) smallest() bool { return slices.Min(append(m.facts.Alive, m.cfg.Name)) == m.cfg.Name }
