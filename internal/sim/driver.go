package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
)

// soon asks the machine again: something has happened.
func (n *node) soon() {
	if n.soonish {
		return
	}
	n.soonish = true
	n.after(n.short()/16, n.drive)
}

// drive asks the machine what to do, and does it.
func (n *node) drive() {
	n.soonish = false
	todo, wake := n.machine.Next(n.clock(), n.facts())
	for _, a := range todo {
		n.carryOut(a)
	}
	n.look()
	at := n.skew.when(wake)
	if n.wake <= n.s.now || at < n.wake {
		n.wake = at
		n.s.at(at, &n.process, driver, func() {
			if n.wake == at {
				n.wake = 0
				n.drive()
			}
		})
	}
}

// facts is what the machine has to know of the node.
func (n *node) facts() authority.Facts {
	s := n.s
	f := authority.Facts{Now: epoch}
	var alive uint32
	for _, m := range s.nodes {
		if m.up && m.until[driver] <= s.now && s.linked(m, n) {
			alive |= bit(m.id)
			f.Heard = f.Heard || m.hears(n.root.Group)
		}
	}
	f.Alive = s.names(alive)
	v := n.server
	if v == nil {
		return f
	}
	if s.p.Members { // where this incarnation is
		f.Self = authority.Member{Name: n.name, ServerID: fmt.Sprint(n.name, ".", v.id), Address: n.name}
	}
	f.Group, f.Epoch, f.Term = v.g.id, v.table.Epoch(), v.term
	if !v.leads {
		return f
	}
	f.Leading, f.Ready = true, v.caughtUp()
	f.Takers = s.names(v.takers())
	f.Bump = v.table.Counter() >= s.p.Bump
	if t := n.tenure; t != nil {
		f.Ceiling = t.ceiling()
	}
	return f
}

// epoch is the time of day, for people.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// hears reports whether the node hears a leader of that group, or is it.
func (n *node) hears(g leases.ID) bool {
	v := n.server
	return v != nil && v.g.id == g && (v.leads || v.leader >= 0 && n.s.now-v.heard < 4*n.s.heartbeat)
}

// look takes note of what the machine has learnt.
func (n *node) look() {
	if v := n.machine.Version(); v != n.version {
		n.version = v
		n.root, _, _ = n.machine.Root()
		n.cluster = n.root.Cluster
	}
	n.serveWindow()
	n.registers.serve()
	n.s.checkWindow(n)
}

// window is how long the node may grant and renew as a leader.
func (n *node) window() (time.Duration, authority.By) {
	v := n.server
	if !n.up || v == nil || !v.leads {
		return 0, ""
	}
	return n.machine.Window(n.clock(), v.term)
}

// carryOut does what the machine says, and has it told what came of that.
func (n *node) carryOut(a authority.Action) {
	s := n.s
	switch a := a.(type) {
	case authority.Load:
		sent := n.clock()
		s.arbiter.load(n, rootKey, func(reg arbiter.Register, err error) {
			n.machine.Loaded(sent, n.clock(), reg, err)
			n.drive()
		})
	case *authority.Swap:
		s.arbiter.swap(n, rootKey, a.From, a.Write, func(err error) {
			n.machine.Swapped(a, n.clock(), err)
			n.drive()
		})
	case authority.Ask:
		for _, name := range a.Names {
			if i := slices.Index(nodeNames[:], name); i < len(s.nodes) {
				n.ask(s.nodes[i], a.Pledge)
			}
		}
	case authority.Cede:
		n.cede(a)
	case authority.Form:
		n.regroup(a.Group, a)
	case authority.Join:
		n.regroup(a.Group, a)
	case authority.Import:
		n.importLeases(a)
	case authority.RaiseEpoch:
		op := &leases.Op{Kind: leases.KindBump, Epoch: a.Epoch}
		n.own(op, func(_ leases.Result, err error) { n.done(a, err) })
	case authority.Drain:
		n.drain(a)
	case authority.Install:
		n.install(a)
	}
}

func (n *node) done(a authority.Action, err error) {
	n.machine.Done(n.clock(), a, err)
	n.drive()
}

// ask asks another node, or this one, for a pledge.
func (n *node) ask(m *node, p authority.Pledge) {
	s := n.s
	s.after(n.short(), &m.process, driver, func() {
		if !m.up || !s.linked(n, m) {
			return
		}
		v := m.server
		follows := v != nil && v.g.id == p.Group && v.term == p.Term && v.leader >= 0
		yes, reaches := m.machine.Pledge(m.clock(), p, follows), m.machine.Reaches(m.clock())
		if !s.linked(m, n) {
			return
		}
		s.after(m.short(), &n.process, driver, func() {
			n.machine.Pledged(n.clock(), p, m.name, yes, reaches && m != n)
			n.drive()
		})
	})
}

// cede hands leadership to a voter that reaches the arbiter.
func (n *node) cede(a authority.Cede) {
	v := n.server
	if v == nil || !v.leads {
		return
	}
	for _, name := range a.Reaching {
		w := n.s.nodes[slices.Index(nodeNames[:], name)].server
		if w == nil || w.g != v.g || !w.voter() || !v.reaches(w) || !w.reaches(v) {
			continue
		}
		n.s.counts.Ceded++
		n.s.after(n.short(), &w.n.process, raftLoop, func() {
			if w.n.server == w && !w.leads {
				w.campaign(true)
			}
		})
		return
	}
}

// regroup leaves the node's group and begins anew in another, which it forms or joins.
func (n *node) regroup(id leases.ID, a authority.Action) {
	s := n.s
	if old := n.server; old != nil {
		old.leads, old.gone, old.proposals = false, true, nil
		n.server, n.tenure = nil, nil
	}
	g := s.group(id)
	_, forms := a.(authority.Form)
	if s.tracing {
		s.trace("%s %s group %.2v", n.name, map[bool]string{true: "forms", false: "joins"}[forms], id)
	}
	if len(g.servers) < maxServers {
		n.server = s.newServer(g, n)
		if forms {
			n.found(max(n.root.Epoch, 1))
		}
	}
	s.after(n.short(), &n.process, driver, func() {
		n.machine.Moved(n.clock(), a, nil)
		n.drive()
	})
}

// found makes the node the only voter of its new group.
func (n *node) found(epoch uint32) {
	v := n.server
	v.g.first = epoch
	v.log = append(v.log, entry{config: true, voters: bit(v.id), members: bit(v.id)})
	n.s.after(n.short(), &n.process, raftLoop, func() {
		if n.server == v {
			v.campaign(false)
		}
	})
}

// own proposes an op of the node's own, in the term that it leads now, which needs no
// window.
func (n *node) own(op *leases.Op, done func(leases.Result, error)) {
	v := n.server
	if v == nil || !v.leads {
		n.after(n.short(), func() { done(leases.Result{}, errNotLeading) })
		return
	}
	answered := false
	once := func(res leases.Result, err error) {
		if !answered {
			answered = true
			done(res, err)
		}
	}
	v.propose(op, v.term, internal, nil, once)
	// An op that is not answered may be applied yet: it is proposed again.
	n.after(n.s.lease/2, func() { once(leases.Result{}, errDeposed) })
}
