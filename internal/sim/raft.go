package sim

import (
	"errors"
	"time"

	"github.com/coordd/coordd/leases"

	"github.com/coordd/coordd/internal/rules"
)

// group is one Raft group. It is abstract where its messages are concerned: a leader
// and a follower that reach each other exchange what an AppendEntries and its answer
// would carry in one step. All else is Raft: terms, votes and logs of each server, the
// configuration in the log, and that nobody knows more than he was told.
type group struct {
	s        *Sim
	id       leases.ID
	first    uint32 // the epoch of its Birth
	servers  []*server
	observed []uint64 // the terms of the entries that were applied anywhere
	leaders  []uint64 // the terms that had a leader
}

// server is one incarnation of a node in a group.
type server struct {
	s  *Sim
	g  *group
	n  *node
	id int // in g.servers

	// What it keeps over a restart.
	term  uint64
	voted int // whom for in term; -1: nobody
	log   []entry
	gone  bool // its memory is lost

	commit, applied int
	table           *leases.Table
	leads           bool
	leader          int // whom it follows in term; -1: nobody
	heard           Time
	patience        time.Duration // until it campaigns

	// Of a leader.
	began     int // the length of the log with the first entry of its term
	match     []int
	contact   []Time
	proposals []*proposal
}

// entry is one entry of the log.
type entry struct {
	term    uint64
	decided uint64     // the term in which the op was decided
	op      *leases.Op // nil: none
	of      *proposal  // nil: nobody waits for it
	config  bool       // it changes the configuration
	// The configuration from here on, by bits.
	voters, members uint32
}

// proposal waits for an op's result on the leader that has proposed it.
type proposal struct {
	done func(leases.Result, error)
}

var (
	errNotLeading = &leases.UnavailableError{Reason: "this server does not lead"}
	errStaleTerm  = &leases.UnavailableError{Reason: "it was decided in another term"}
	errDeposed    = errors.Join(leases.ErrUnknownOutcome, errors.New("leadership was lost"))
)

// newServer makes a server of g on n, with an empty log.
func (s *Sim) newServer(g *group, n *node) *server {
	v := &server{s: s, g: g, n: n, id: len(g.servers), voted: -1, leader: -1, heard: s.now, table: leases.NewTableUnder(s.rules)}
	g.servers = append(g.servers, v)
	v.patience = v.drawPatience()
	return v
}

func (v *server) drawPatience() time.Duration {
	return v.s.heartbeat*5 + time.Duration(v.n.rng.Int64N(int64(v.s.heartbeat*5)))
}

// restart forgets what is not kept.
func (v *server) restart() {
	v.commit, v.applied, v.table = 0, 0, leases.NewTableUnder(v.s.rules)
	v.leads, v.leader, v.heard, v.proposals = false, -1, v.s.now, nil
}

// last is the newest entry; the zero entry of an empty log.
func (v *server) last() (e entry) {
	if n := len(v.log); n > 0 {
		e = v.log[n-1]
	}
	return e
}

func bit(id int) uint32 { return 1 << id }

func (v *server) voter() bool { return v.last().voters&bit(v.id) != 0 }

// runs reports whether the server answers at all.
func (v *server) runs() bool {
	return !v.gone && v.n.up && v.n.server == v && v.n.until[raftLoop] <= v.s.now
}

// reaches reports whether messages from v get to w.
func (v *server) reaches(w *server) bool { return w.runs() && v.s.linked(v.n, w.n) }

// majority reports whether count returns true for a majority of the voters.
func (v *server) majority(count func(*server) bool) bool {
	voters, n, yes := v.last().voters, 0, 0
	for _, w := range v.g.servers {
		if voters&bit(w.id) != 0 {
			n++
			if count(w) {
				yes++
			}
		}
	}
	return 2*yes > n
}

// tick is what a server does from time to time.
func (v *server) tick() {
	s := v.s
	switch {
	case v.leads:
		v.replicate()
		if v.leads && !v.majority(func(w *server) bool { return w == v || s.now-v.contact[w.id] < s.leaderLease }) {
			v.stepDown(v.term)
		}
		if v.leads {
			v.govern()
		}
	case v.voter() && s.now-v.heard > v.patience:
		v.patience = v.drawPatience()
		v.heard, v.leader = s.now, -1
		v.campaign(false)
	}
}

// append adds an entry to the leader's log.
func (v *server) append(e entry) {
	last := v.last()
	e.term = v.term
	if !e.config {
		e.voters, e.members = last.voters, last.members
	}
	v.log = append(v.log, e)
	if e.of != nil {
		v.proposals = append(v.proposals, e.of)
	}
}

// soon sends what is new.
func (v *server) soon() {
	v.s.after(v.n.short(), &v.n.process, raftLoop, func() {
		if v.leads && v.runs() {
			v.replicate()
		}
	})
}

// replicate brings the followers that are reached up to date, and hears from them.
func (v *server) replicate() {
	for len(v.match) < len(v.g.servers) {
		v.match, v.contact = append(v.match, 0), append(v.contact, v.s.now)
	}
	members := v.last().members
	for _, w := range v.g.servers {
		if w == v || members&bit(w.id) == 0 || !v.reaches(w) {
			continue
		}
		if w.term > v.term {
			if w.reaches(v) {
				v.stepDown(w.term)
				return
			}
			continue
		}
		w.follow(v)
		if w.reaches(v) {
			v.match[w.id], v.contact[w.id] = len(v.log), v.s.now
		}
	}
	v.advance()
}

// follow takes what the leader v has sent.
func (w *server) follow(v *server) {
	w.meets(v.term)
	w.leader, w.heard = v.id, w.s.now
	w.log = v.log[:len(v.log):len(v.log)]
	w.commit = max(w.commit, min(v.commit, len(w.log)))
}

// advance commits what a majority has, if it is of the leader's own term.
func (v *server) advance() {
	for n := len(v.log); n > v.commit && v.log[n-1].term == v.term; n-- {
		if v.majority(func(w *server) bool { return w == v || v.match[w.id] >= n }) {
			v.commit = n
			break
		}
	}
	if v.applied < v.commit {
		v.apply()
		v.n.soon()
	}
}

// apply applies what is committed, as far as the server knows.
func (v *server) apply() {
	for v.applied < v.commit {
		e := &v.log[v.applied]
		v.applied++
		first := v.g.observe(v.applied, e.term)
		if e.op == nil {
			if e.of != nil {
				v.settle(e.of, leases.Result{}, nil)
			}
			continue
		}
		if v.s.rules.On(rules.DecidedTerm) && e.decided != e.term {
			v.settle(e.of, leases.Result{}, errStaleTerm)
			continue
		}
		res := v.table.Apply(*e.op)
		if first {
			v.s.committed(v, e, res)
		}
		if !v.settle(e.of, res, nil) && v.leads {
			v.n.appliedForeign(v, res)
		}
	}
}

// observe reports whether nobody has applied the entry before. It looks after the
// simulated Raft itself: all apply the same.
func (g *group) observe(index int, term uint64) (first bool) {
	if index > len(g.observed) {
		g.observed = append(g.observed, term)
		return true
	}
	if was := g.observed[index-1]; was != term {
		g.s.violate("raft", "entry %d of group %.2v was applied as of term %d, and as of term %d", index, g.id, was, term)
	}
	return false
}

// settle answers a proposal of this server's, of its present term.
func (v *server) settle(p *proposal, res leases.Result, err error) bool {
	for i, q := range v.proposals {
		if q == p && p != nil {
			v.proposals = append(v.proposals[:i], v.proposals[i+1:]...)
			v.answer(p, res, err)
			return true
		}
	}
	return false
}

// answer tells whoever proposed it, a little later.
func (v *server) answer(p *proposal, res leases.Result, err error) {
	v.s.after(v.n.short()/8, &v.n.process, driver, func() { p.done(res, err) })
}

// propose brings an op that was decided in that term on its way into the log, behind
// those of its class that are. may is asked when it gets there; nil: it may. done is
// called once, unless the node's life ends.
func (v *server) propose(op *leases.Op, decided uint64, of class, may func() error, done func(leases.Result, error)) {
	n := v.n
	n.batched[of] = max(n.batched[of], v.s.now+n.batching())
	v.s.at(n.batched[of], &n.process, of, func() {
		p := &proposal{done}
		if may != nil {
			if err := may(); err != nil {
				v.answer(p, leases.Result{}, err)
				return
			}
		}
		v.s.after(0, &n.process, raftLoop, func() {
			if !v.leads || n.server != v {
				v.answer(p, leases.Result{}, errNotLeading)
				return
			}
			v.append(entry{op: op, decided: decided, of: p})
			v.soon()
		})
	})
}

// caughtUp reports whether a leader's table has applied an entry of its term.
func (v *server) caughtUp() bool { return v.leads && v.applied >= v.began }

// confirms reports whether a majority of the voters says now that v leads its term (4a, N4).
func (v *server) confirms(term uint64) bool {
	return v.leads && v.term == term && v.majority(func(w *server) bool {
		return w == v || v.reaches(w) && w.reaches(v) && w.term == term
	})
}
