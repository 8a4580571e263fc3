package sim

import (
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
)

// apply lets a step happen.
func (s *Sim) apply(t Step) {
	if s.tracing {
		s.lines = append(s.lines, "* "+t.String()[2:])
	}
	a, c := s.nodes[t.A], s.clients[t.C]
	until := s.now + t.For
	switch t.Kind {
	case Crash, Forget:
		s.down(a, t.Kind == Forget, until)
	case ForgetAll:
		for _, n := range s.nodes {
			s.down(n, true, until)
		}
	case Pause:
		a.until = [classes]Time{until, until, until, until}
	case StallRaft:
		a.until[raftLoop] = max(a.until[raftLoop], until)
	case StallDriver:
		a.until[driver] = max(a.until[driver], until)
	case CutNodes:
		later(&s.cut[t.A][t.B], until)
	case PartNodes:
		later(&s.cut[t.A][t.B], until)
		later(&s.cut[t.B][t.A], until)
	case Isolate:
		for i := range s.nodes {
			later(&s.cut[t.A][i], until)
			later(&s.cut[i][t.A], until)
		}
	case CutArbiter:
		later(&a.arbiterCut, until)
	case CutArbiterAll:
		for _, n := range s.nodes {
			later(&n.arbiterCut, until)
		}
	case CutAnswers:
		later(&a.answersCut, until)
	case Throttle:
		later(&a.throttled, until)
	case Slow:
		later(&a.slow, until)
	case CutClient:
		later(&s.clientCut[t.C][t.A], until)
		later(&s.answersCut[t.A][t.C], until)
	case IsolateClient:
		for i := range s.nodes {
			later(&s.clientCut[t.C][i], until)
			later(&s.answersCut[i][t.C], until)
		}
	case PauseClient:
		later(&c.until[driver], until)
	default:
		s.act(t, a, c)
	}
}

func later(t *Time, until Time) { *t = max(*t, until) }

// act is apply of what is no fault of the network's.
func (s *Sim) act(t Step, a *node, c *client) {
	now := c.now[t.X]
	switch t.Kind {
	case Die:
		c.die()
	case Acquire:
		switch {
		case c.until[driver] > s.now:
		case now == nil || now.ended || now.holder.Why() != nil:
			c.begin(t.X, t.TTL, t.Waiting)
		default:
			now.ask() // a repeat
		}
	case Give, Transfer:
		if now != nil && c.until[driver] <= s.now && now.holder.Token() != 0 {
			now.giveBack(map[StepKind]kind{Give: release, Transfer: transfer}[t.Kind])
		}
	case Withdraw:
		if now != nil && c.until[driver] <= s.now {
			now.giveUp()
		}
	case Move:
		if v := a.server; a.up && v != nil && v.leads {
			if w := s.nodes[t.B].server; w != nil && w.g == v.g && w.voter() && v.reaches(w) {
				w.campaign(true)
			}
		}
	case HandOver:
		for _, n := range s.nodes {
			if v := n.server; n.up && n.until[driver] <= s.now && v != nil && v.leads {
				n.machine.HandOver(n.clock(), func(error) {})
				n.soon()
			}
		}
	case Release:
		if a.up && a.until[driver] <= s.now {
			a.machine.Release()
			a.soon()
		}
	case Hold:
		if a.up && a.until[driver] <= s.now {
			a.machine.Hold()
			a.soon()
		}
	case Force:
		s.force(a, t.For)
	}
}

// down crashes a node, which starts again later. No two processes run under one name.
func (s *Sim) down(n *node, lose bool, until Time) {
	if !n.up {
		return
	}
	n.crash(lose)
	life := n.life
	s.at(until, nil, driver, func() {
		if n.life == life {
			n.start()
		}
	})
}

// force lets all takers lose their memory, which come back as others, and a node that is
// none take over.
func (s *Sim) force(a *node, d time.Duration) {
	if s.root.Mode != authority.Raft || taker(&s.root, a.name) {
		return
	}
	for _, n := range s.nodes {
		if taker(&s.root, n.name) {
			s.down(n, true, s.now+3*s.lease+d)
			if v := n.server; v != nil {
				v.gone = true
				n.server, n.cluster = nil, leases.ID{}
			}
		}
	}
	if !a.up {
		a.start()
	}
	a.after(s.lease/10, func() {
		a.machine.Force(a.clock(), true)
		a.drive()
	})
}

func taker(r *authority.Root, name string) bool {
	for _, t := range r.Takers {
		if t == name {
			return true
		}
	}
	return false
}
