package authority

import (
	"math"
	"slices"
	"strings"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// birth brings a cluster forth, where R is absent (section 7). Exactly one node
// succeeds; the others find what it has written.
func (m *Machine) birth(now clock.Instant) Action {
	if m.facts.Adopts != nil && m.lead != nil && m.lead.since != 0 && m.facts.Epoch < tokens.MaxEpoch {
		return m.adopt(now)
	}
	if !m.cfg.Cluster.IsZero() || !m.facts.Group.IsZero() {
		return nil // a member of a cluster whose root is gone, or that has not adopted the arbiter yet
	}
	root := Root{
		Cluster: m.cfg.Nonce(), Params: m.cfg.Params, Epoch: 1, Mode: Importing, GraceDone: true, Group: m.cfg.Nonce(),
		Owner: Owner{Node: m.cfg.Name}, Takers: []string{m.cfg.Name}, CeilingMs: m.cfg.Params.FloorMs,
	}
	root.changed(m.cfg.Name, Birth, m.facts.Now)
	return m.act(now, forBirth, root)
}

// adopt is birth for a cluster that has had no arbiter: by the leader whose log has
// adopted it (N9).
func (m *Machine) adopt(now clock.Instant) Action {
	root := Root{
		Cluster: m.cfg.Cluster, Params: *m.facts.Adopts, Epoch: m.facts.Epoch + 1, RaftEpoch: m.facts.Epoch + 1, Mode: Raft, GraceDone: true,
		Group: m.lead.group, Owner: Owner{Node: m.cfg.Name, Term: m.lead.term}, Takers: m.facts.Takers, Members: m.facts.Members,
		CeilingMs: max(m.facts.Adopts.FloorMs, m.facts.Ceiling.Milliseconds()),
	}
	root.changed(m.cfg.Name, Adopted, m.facts.Now)
	return m.act(now, forAdoption, root)
}

// move brings the node into the group that may act, or lets it form another.
func (m *Machine) move(now clock.Instant) Action {
	root := &m.r.root
	if m.moving {
		return nil
	}
	own := m.facts.Group
	switch {
	case m.forms == root.Group && own != m.forms && m.born(): // it has just brought the cluster forth
		return m.form(m.forms)
	case own == root.Group:
		return m.reform(now)
	case root.Mode == Fallback && own == m.forms && !own.IsZero() && !m.facts.Heard:
		return nil // it has formed a group, which R is to name next
	case root.Mode == Fallback && m.smallest() && m.deserted(now):
		return m.reform(now)
	}
	m.moving = true
	return Join{Cluster: root.Cluster, Group: root.Group}
}

// born reports whether R still is as this node has brought it forth.
func (m *Machine) born() bool {
	return m.r.root.Mode == Importing && m.r.root.Owner == Owner{Node: m.cfg.Name} && m.r.root.Epoch == 1
}

func (m *Machine) form(group leases.ID) Action {
	m.moving, m.forms = true, group
	return Form{Cluster: m.r.root.Cluster, Group: group}
}

// deserted reports whether the root's group has had no leader for long, as far as this
// node can tell.
func (m *Machine) deserted(now clock.Instant) bool {
	if m.facts.Heard || m.r.root.Mode != Fallback {
		m.lonely = math.MaxInt64
		return false
	}
	if m.lonely > now {
		m.lonely = now
	}
	return now.Sub(m.lonely) >= m.cfg.Reform
}

// reform forms a new group where the root's has had no leader for long, and enough nodes
// see each other: two, or the only taker.
func (m *Machine) reform(now clock.Instant) Action {
	root := &m.r.root
	deserted := m.deserted(now)
	enough := len(m.facts.Alive) >= 2 || len(root.Takers) == 1 && root.Takers[0] == m.cfg.Name
	if !deserted || !root.GraceDone || root.Held || !enough || !m.smallest() {
		return nil
	}
	return m.form(m.cfg.Nonce())
}

// Moved takes the answer to a Form or Join.
func (m *Machine) Moved(now clock.Instant, a Action, err error) {
	m.moving = false
	if _, ok := a.(Form); ok && err == nil {
		m.lonely = now
	}
}

// enlist writes where this node is, in a fallback epoch: there is no leader who would,
// and after the loss of all memory the nodes have to find each other.
func (m *Machine) enlist(now clock.Instant) Action {
	root, self := &m.r.root, m.facts.Self
	i := slices.IndexFunc(root.Members, func(o Member) bool { return o.Name == m.cfg.Name })
	if root.Mode != Fallback || self.Address == "" || i >= 0 && root.Members[i] == self {
		return nil
	}
	if i < 0 && len(root.Members) >= maxMembers { // in the place of one that is not heard
		i = slices.IndexFunc(root.Members, func(o Member) bool { return !slices.Contains(m.facts.Alive, o.Name) })
		if i < 0 {
			return nil
		}
	}
	next := root.clone()
	if i >= 0 {
		next.Members[i] = self
	} else {
		next.Members = append(next.Members, self)
	}
	slices.SortFunc(next.Members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return m.act(now, forMember, next)
}
