package node

import (
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/tokens"
)

// facts is what the machine has to know of this node.
func (a *arbitration) facts() authority.Facts {
	n := a.node
	self, g := n.here()
	root, known := a.root()
	f := authority.Facts{Self: n.asMember(), Now: time.Now()}
	var counter uint32
	n.fsm.View(func(t *leases.Table) { f.Epoch, counter = t.Epoch(), t.Counter() })
	f.Alive, f.Heard = n.book.seen(self.Name, root.Group, 2*n.cfg.ElectionTimeout)
	if g == nil {
		return f
	}
	f.Group = self.Group
	if _, id := g.raft.LeaderWithID(); id != "" && self.Group == root.Group {
		f.Heard = true
	}
	f.Leading, f.Term = g.raft.State() == raft.Leader, g.raft.CurrentTerm()
	if !f.Leading {
		return f
	}
	r := a.rules()
	f.Ready = r != nil && r.group == g && r.term == f.Term
	f.Bump = counter >= tokens.MaxCounter/2
	f.Takers, f.Members = n.takers(g, root), n.everybody(g)
	if known {
		f.Ceiling = a.ceilingFor(root, r)
	} else if f.Adopts = n.adopts(); f.Adopts != nil {
		f.Ceiling = n.longestHeld()
	}
	return f
}

// asMember is where this node is.
func (n *Node) asMember() authority.Member {
	self := n.who()
	return authority.Member{Name: self.Name, ServerID: self.ServerID(), Address: n.cfg.Advertise}
}

// takers are the names that the root register is to have as its takers (W6): every
// voter, those about to be, and, while the membership is being changed, all that it has.
func (n *Node) takers(g *group, root authority.Root) []string {
	names := []string{n.cfg.Name}
	future := g.raft.GetConfiguration()
	if future.Error() != nil {
		return nil
	}
	if future.Index() > g.raft.CommitIndex() && root.Group == n.who().Group {
		names = append(names, root.Takers...)
	}
	for _, s := range future.Configuration().Servers {
		_, alive := n.book.alive(string(s.ID), 2*n.cfg.ElectionTimeout)
		if s.Suffrage == raft.Voter || alive {
			names = append(names, identity.NameOf(string(s.ID)))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// everybody is where the members of the group are, as far as that is known.
func (n *Node) everybody(g *group) []authority.Member {
	members := []authority.Member{n.asMember()}
	for _, s := range g.servers() {
		if e, ok := n.book.get(string(s.ID)); ok && e.address != "" {
			members = append(members, authority.Member{Name: identity.NameOf(string(s.ID)), ServerID: string(s.ID), Address: e.address})
		}
	}
	slices.SortStableFunc(members, func(a, b authority.Member) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(members, func(a, b authority.Member) bool { return a.Name == b.Name })
}
