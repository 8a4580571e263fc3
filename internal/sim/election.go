package sim

import (
	"slices"

	"github.com/coordd/coordd/leases"
)

// campaign asks for votes, after having asked whether it would get them.
func (v *server) campaign(transfer bool) {
	s := v.s
	if !v.majority(func(w *server) bool {
		if w == v {
			return true
		}
		if !v.reaches(w) || !w.reaches(v) {
			return false
		}
		if w.term > v.term {
			v.meets(w.term)
		}
		quiet := !w.leads && (w.leader < 0 || s.now-w.heard > s.heartbeat*4)
		return (quiet || transfer) && !w.newer(v)
	}) {
		return
	}
	v.meets(v.term + 1)
	v.voted = v.id
	if v.majority(func(w *server) bool {
		if w == v {
			return true
		}
		if !v.reaches(w) {
			return false
		}
		w.meets(v.term)
		if w.term > v.term || w.voted >= 0 && w.voted != v.id || w.newer(v) {
			return false
		}
		w.voted, w.heard = v.id, s.now
		return w.reaches(v)
	}) {
		v.lead()
	}
}

// newer reports whether w's log keeps it from voting for v.
func (w *server) newer(v *server) bool {
	a, b := w.last().term, v.last().term
	return a > b || a == b && len(w.log) > len(v.log)
}

// meets takes note of a term.
func (v *server) meets(term uint64) {
	if term > v.term {
		v.stepDown(term)
	}
}

// stepDown makes a follower of nobody, in that term.
func (v *server) stepDown(term uint64) {
	if term > v.term {
		v.term, v.voted = term, -1
	}
	v.leader = -1
	if !v.leads {
		return
	}
	v.leads = false
	v.heard = v.s.now
	if v.s.tracing {
		v.s.trace("%s leads no more, and is in term %d", v.n.name, v.term)
	}
	lost := v.proposals
	v.proposals = nil
	for _, p := range lost {
		v.answer(p, leases.Result{}, errDeposed)
	}
	v.n.soon()
}

// lead makes the server the leader of its term.
func (v *server) lead() {
	s := v.s
	v.leads, v.leader = true, v.id
	v.match = make([]int, len(v.g.servers), len(v.g.servers)+4)
	v.contact = make([]Time, len(v.g.servers), len(v.g.servers)+4)
	for i := range v.contact {
		v.contact[i] = s.now
	}
	if s.tracing {
		s.trace("%s leads term %d", v.n.name, v.term)
	}
	s.counts.Elections++
	if slices.Contains(v.g.leaders, v.term) {
		s.violate("raft", "term %d of group %.2v has two leaders", v.term, v.g.id)
	}
	v.g.leaders = append(v.g.leaders, v.term)
	v.append(entry{})
	v.began = len(v.log)
	v.n.soon()
	v.soon()
}
