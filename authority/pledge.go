package authority

import (
	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// Pledge asks a node to start no takeover for L(1+ρ) (W1).
type Pledge struct {
	Cluster, Group leases.ID
	Epoch          uint32
	Term           uint64
	Seq            arbiter.Version // R's after the leader's last write of this term
	Nonce          uint64          // tells this round from others
}

// Pledge answers a request for one. follows says that this node follows the asking
// leader in Raft, or is it, at exactly that term.
func (m *Machine) Pledge(now clock.Instant, p Pledge, follows bool) bool {
	on := m.cfg.Rules.On
	root := &m.r.root
	switch {
	case !m.known || m.refused != nil || m.r.version == 0 || p.Cluster != root.Cluster:
		return false
	case !follows && on(rules.PledgeTerm):
		return false
	case (root.Mode != Raft || root.Group != p.Group || root.Epoch > p.Epoch) && on(rules.PledgeAware):
		return false
	case on(rules.PledgeDoubt) && m.doubt() != 0 && m.doubt() >= p.Seq:
		return false
	case p.Seq <= m.first && on(rules.PledgeFirstRead):
		return false
	}
	if until := now.Add(leases.Stretch(m.lease())); m.pledged < until {
		m.pledged = until
	}
	return true
}
