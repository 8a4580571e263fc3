package sim

import (
	"math/bits"
	"time"

	"github.com/coordd/coordd/arbiter"
)

// stage is a part of a script, that is of a schedule which waits for what it needs, where
// chance does not find it in reasonable time: it does something once something is the case.
type stage struct {
	what  string      // that is waited for
	when  func() bool // nil: at once
	do    func()      // nil: nothing
	in    Time        // for how long it is waited for at most; 0: very long
	wants string      // the invariant that does not hold if it does not come; empty: the script is wrong
}

// script lets the stages happen one after the other.
func (s *Sim) script(stages ...stage) {
	i, since := 0, s.now
	var look func()
	look = func() {
		for i < len(stages) {
			t := &stages[i]
			if t.when != nil && !t.when() {
				break
			}
			if s.tracing && t.what != "" {
				s.trace("* %s", t.what)
			}
			if t.do != nil {
				t.do()
			}
			i, since = i+1, s.now
		}
		if i == len(stages) || s.healed {
			return
		}
		if t := &stages[i]; s.now-since > t.in && t.in > 0 || s.now-since > 30*s.lease {
			if t.wants == "" {
				t.wants = "script"
			}
			s.violate(t.wants, "within %v not: %s", s.now-since, t.what)
			return
		}
		s.after(time.Millisecond, nil, driver, look)
	}
	look()
}

// forever is beyond the end of every run.
const forever = Time(time.Hour)

// quiet has no faults but those of a script.
func quiet(lease time.Duration, nodes int) *Profile {
	return &Profile{Name: "quiet", Nodes: []int{nodes}, Leases: []time.Duration{lease}, TTLs: []float64{1}, Bump: 1 << 20, Lateness: 1}
}

// serving reports whether node i leads and has a window, and serves.
func (s *Sim) serving(i int) bool {
	left, _ := s.nodes[i].window()
	return left > 0 && s.nodes[i].tenure != nil && !s.nodes[i].tenure.over
}

// lead lets node i be elected, if that is possible.
func (s *Sim) lead(i int) {
	if v := s.nodes[i].server; v != nil && !v.leads && v.voter() {
		v.campaign(true)
	}
}

// settled is the case once all nodes are voters and takers, and node i leads and serves.
func (s *Sim) settled(i int) stage {
	all := len(s.nodes)
	if s.p.Spare {
		all--
	}
	return stage{what: nodeNames[i] + " leads all", when: func() bool {
		v := s.nodes[i].server
		if v == nil || bits.OnesCount32(v.last().voters) < all || len(s.root.Takers) < all {
			return false
		}
		s.lead(i)
		return s.serving(i) && v.commit == len(v.log)
	}}
}

// wait is the case after d.
func (s *Sim) wait(d time.Duration) stage {
	var from Time
	return stage{when: func() bool {
		if from == 0 {
			from = s.now
		}
		return s.now-from >= d
	}}
}

// do does something at once.
func do(what string, f func()) stage { return stage{what: what, do: f} }

// when waits for something.
func when(what string, f func() bool) stage { return stage{what: what, when: f} }

// part cuts node i off from all other nodes, and unite ends that.
func (s *Sim) part(i int) {
	for j := range s.nodes {
		if i != j {
			s.cut[i][j], s.cut[j][i] = forever, forever
		}
	}
}

func (s *Sim) unite() { s.cut = [len(nodeNames)][len(nodeNames)]Time{} }

// link lets two nodes hear each other again.
func (s *Sim) link(i, j int) { s.cut[i][j], s.cut[j][i] = 0, 0 }

// only lets a client reach some nodes, and no other.
func (s *Sim) only(c int, nodes ...int) {
	for i := range s.nodes {
		s.clientCut[c][i], s.answersCut[i][c] = forever, forever
	}
	for _, i := range nodes {
		s.clientCut[c][i], s.answersCut[i][c] = 0, 0
	}
	s.clients[c].pinned = len(nodes) == 1
	if len(nodes) > 0 {
		s.clients[c].node = nodes[0]
	}
}

// take lets a client ask for a name.
func (s *Sim) take(c, name int, ttl time.Duration, wait bool) { s.clients[c].begin(name, ttl, wait) }

// holds reports whether a client believes that it holds a name.
func (s *Sim) holds(c, name int) bool {
	a := s.clients[c].now[name]
	return a != nil && a.believes()
}

// hold keeps writes of a node back, those whose data which picks, until free is called:
// then they take effect, if they still can. Their sender gives up in time.
func (s *Sim) hold(n, key int, which func(data []byte) bool) (free func()) {
	var effects []func()
	old := s.arbiter.held
	s.arbiter.held = func(by *node, k int, w arbiter.Write, effect func()) bool {
		if by.id == n && k == key && which(w.Data) {
			s.kept++
			effects = append(effects, effect)
			return true
		}
		return old != nil && old(by, k, w, effect)
	}
	return func() {
		s.arbiter.held = old
		for _, e := range effects {
			e()
		}
	}
}

// again lets a client that has lost a name ask for it anew, with a new attempt.
func (s *Sim) again(c, name int, ttl time.Duration) stage {
	var next Time
	return stage{what: s.clients[c].name + " gets " + leaseNames[name], when: func() bool {
		a := s.clients[c].now[name]
		switch {
		case a != nil && a.believes():
			return true
		case s.now >= next && (a == nil || a.ended || a.holder.Why() != nil):
			next = s.now + s.lease/20
			s.take(c, name, ttl, false)
		}
		return false
	}}
}
