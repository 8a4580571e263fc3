package sim

import (
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// govern changes the group's configuration, one server at a time: an incarnation that
// comes is taken in as a non-voter, and becomes a voter once it is a taker (W6); one
// that another has followed upon is removed.
func (v *server) govern() {
	switch {
	case !v.caughtUp() || v.changing():
		return
	case v.table.Epoch() == 0:
		if v.commit == len(v.log) {
			v.append(entry{op: v.g.birth(), decided: v.term})
			v.soon()
		}
		return
	}
	now := v.last()
	for _, w := range v.g.servers {
		switch {
		case now.members&bit(w.id) == 0:
			if w.n.server == w && v.reaches(w) && w.reaches(v) {
				v.configure(now.voters, now.members|bit(w.id))
				return
			}
		case w != v && v.followed(w):
			v.configure(now.voters&^bit(w.id), now.members&^bit(w.id))
			return
		case now.voters&bit(w.id) == 0 && v.match[w.id] == len(v.log) && v.reaches(w) && v.mayVote(w):
			v.configure(now.voters|bit(w.id), now.members)
			return
		}
	}
}

// changing reports whether a change of the configuration is under way.
func (v *server) changing() bool {
	for i := len(v.log) - 1; i >= v.commit; i-- {
		if v.log[i].config {
			return true
		}
	}
	return false
}

// followed reports whether another incarnation of w's node is in the group, and reached.
func (v *server) followed(w *server) bool {
	other := w.n.server
	return other != nil && other != w && other.g == v.g && v.reaches(other) && other.reaches(v)
}

func (v *server) mayVote(w *server) bool {
	return !v.s.rules.On(rules.TakersVoters) || v.n.machine.Taker(w.n.name)
}

func (v *server) configure(voters, members uint32) {
	if v.s.tracing {
		v.s.trace("%s changes the configuration to voters %b of members %b", v.n.name, voters, members)
	}
	v.append(entry{config: true, voters: voters, members: members})
	v.soon()
	v.n.soon()
}

// takers are the names that R is to have (W6): of the voters, of those about to be, and,
// until a change is committed, of those before.
func (v *server) takers() uint32 {
	members := v.last().members
	if v.changing() {
		members |= v.committed().members
	}
	var nodes uint32
	for _, w := range v.g.servers {
		if members&bit(w.id) != 0 {
			nodes |= bit(w.n.id)
		}
	}
	return nodes
}

// committed is the newest entry that is known to be.
func (v *server) committed() (e entry) {
	if v.commit > 0 {
		e = v.log[v.commit-1]
	}
	return e
}

// birth is the first op of a group. Its epoch is R's when the group was formed.
func (g *group) birth() *leases.Op {
	return &leases.Op{Kind: leases.KindBirth, Epoch: g.first, Cluster: g.id, Founders: 1, Shards: g.s.params.Shards}
}
