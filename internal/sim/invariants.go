package sim

import (
	"errors"
	"fmt"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Violation is an invariant that does not hold.
type Violation struct {
	Invariant string // I1 to I5; live; raft, of the simulated one; script, of one that does not come about
	At        Time
	What      string
}

func (v *Violation) Error() string { return fmt.Sprintf("%s at %v: %s", v.Invariant, v.At, v.What) }

// violate notes the first violation. what is only made for that.
func (s *Sim) violate(invariant, format string, args ...any) {
	if s.violation == nil && (s.asserted == "" || s.asserted == invariant || invariant == "script") {
		s.violation = &Violation{invariant, s.now, fmt.Sprintf(format, args...)}
		if s.tracing {
			s.trace("%v", s.violation)
			s.state()
		}
	}
}

// checkWindow is I1, where a node has learnt something: no Raft leader has a window
// while R is in a fallback epoch. (It is exact: a window opens only then, and R gets into
// such an epoch only by a write, after which all nodes are looked at.)
func (s *Sim) checkWindow(n *node) {
	if s.root.Mode != authority.Fallback {
		return
	}
	if left, by := n.window(); left > 0 {
		s.violate("I1", "%s has a window of %v by %s in term %d, and R is in fallback epoch %d", n.name, left, by, n.server.term, s.root.Epoch)
	}
}

// believed is I2 and I3, where a client begins to believe in a lease or goes on.
func (s *Sim) believed(a *attempt) {
	token, name := a.holder.Token(), a.name
	s.counts.Beliefs++
	if s.tracing {
		s.trace("%s believes in %s %s for %v", a.c.name, leaseNames[name], show(token), a.holder.Deadline().Sub(a.c.clock()))
	}
	of := &s.fences[name]
	for i := 0; i < len(of.believers); {
		b := of.believers[i]
		switch {
		case b == a:
		case !b.believes():
			of.believers = append(of.believers[:i], of.believers[i+1:]...)
			continue
		case b.c != a.c:
			s.violate("I2", "%s believes in %s under %s, and so does %s under %s", a.c.name, leaseNames[name], show(token), b.c.name, show(b.holder.Token()))
		}
		i++
	}
	if !contains(of.believers, a) {
		of.believers = append(of.believers, a)
	}
	s.handedOut(a)
	if s.root.Mode == authority.Raft && token.Epoch() < s.root.RaftEpoch && s.root.RaftEpoch-token.Epoch() > 1 {
		s.counts.Kept++
	}
	switch {
	case token < of.newest || token == of.newest && of.by != a:
		s.violate("I3", "%s holds %s under %s, after %s held it under %s", a.c.name, leaseNames[name], show(token), of.by.c.name, show(of.newest))
	case token > of.newest:
		of.newest, of.by = token, a
	}
}

// handedOut is I3 over all names: no token is handed out twice in a cluster.
func (s *Sim) handedOut(a *attempt) {
	if a.handed {
		return
	}
	a.handed = true
	for _, b := range s.handed {
		if b.holder.Token() == a.holder.Token() {
			s.violate("I3", "%s has %s under %s, and %s had %s", a.c.name, leaseNames[a.name], show(a.holder.Token()), b.c.name, leaseNames[b.name])
		}
	}
	s.handed = append(s.handed, a)
}

func contains(l []*attempt, a *attempt) bool {
	for _, b := range l {
		if a == b {
			return true
		}
	}
	return false
}

// fence is the register that a lease of one name guards: it remembers the greatest
// token that was written to it.
type fence struct {
	newest    tokens.Token
	by        *attempt
	believers []*attempt // that may believe still
}

// refused is I4, where a node answers: none that serves says of a lease which its
// holder believes in, and has not given back, that it is not held.
func (s *Sim) refused(n *node, r *request, ans answer) {
	a := r.a
	if ans.err == nil || r.kind != renew && r.kind != reclaim || a.ended || r.token != a.holder.Token() {
		return
	}
	if errors.Is(ans.err, leases.ErrNotHeld) && a.believes() {
		s.violate("I4", "%s refuses the %s of %s under %s, which %s believes in", n.name, kinds[r.kind], leaseNames[r.name], show(r.token), a.c.name)
	}
}

// written looks at a register after a write.
func (s *Sim) written(key int, old []byte, reg arbiter.Register) {
	if key == rootKey {
		if string(old) != string(reg.Data) {
			s.rootWritten(reg)
		}
		return
	}
	sh, err := leases.DecodeShard(reg.Data)
	if err != nil {
		s.violate("I5", "shard %d: %v", key-1, err)
		return
	}
	if s.tracing {
		s.trace("shard %d: %s", key-1, showShard(sh))
	}
	for _, l := range sh.Leases {
		s.comesBack(l, "shard")
	}
}

// comesBack is I5: a lease that has been granted anew since is nowhere where it counts.
func (s *Sim) comesBack(l *leases.Lease, where string) {
	if of := &s.fences[nameIndex(l.Name)]; l.Token < of.newest {
		s.violate("I5", "%s is in the %s under %s, and was held under %s since", l.Name, where, show(l.Token), show(of.newest))
	}
}

// committed looks at an op of a group's log when it is first applied.
func (s *Sim) committed(v *server, e *entry, res leases.Result) {
	switch res.Outcome {
	case leases.Granted:
		s.counts.Grants++
	case leases.Imported:
		s.counts.Imports++
		if s.root.Mode == authority.Importing && s.root.Epoch == v.table.Epoch() {
			for l := range v.table.All() {
				s.comesBack(l, "table")
			}
		}
	}
	if s.tracing {
		s.trace("%s applies %s", v.n.name, showOp(e.op, res))
	}
}

// rootWritten takes note of what R is now.
func (s *Sim) rootWritten(reg arbiter.Register) {
	root, err := authority.DecodeRoot(reg.Data)
	if err != nil {
		s.violate("I1", "the root register: %v", err)
		return
	}
	before := s.root
	s.root = root
	c := &s.counts
	if n := len(root.History); n > 0 && (root.Epoch != before.Epoch || root.Mode != before.Mode) {
		switch h := root.History[n-1]; h.Why {
		case authority.Takeover:
			c.Takeovers++
			if !root.GraceDone {
				c.Graces++
			}
		case authority.Forced:
			c.Takeovers++
			c.Forced++
		case authority.HandOver:
			c.HandOvers++
		case authority.Bump:
			c.Bumps++
		case authority.Failback:
			c.Failbacks++
			if root.Group != before.Group {
				c.Reformations++
			}
		}
	}
	if root.Mode == authority.Fallback && root.GraceDone && !before.GraceDone && root.Epoch == before.Epoch {
		c.GracesEnded++
	}
	if root.CeilingMs != before.CeilingMs {
		c.Ceilings++
	}
	if s.tracing {
		s.trace("R: %s, epoch %d, raft epoch %d, group %.2v, owner %v, takers %v, ceiling %v, grace done %v",
			root.Mode, root.Epoch, root.RaftEpoch, root.Group, root.Owner, root.Takers, root.Ceiling(), root.GraceDone)
	}
	if root.Mode == authority.Fallback {
		for _, n := range s.nodes {
			s.checkWindow(n)
		}
	}
}

// Counts says what has happened in one run or many.
type Counts struct {
	Elections, Ceded                            int
	Grants, Beliefs, Expired, Kept              int
	Takeovers, Forced, Graces, GracesEnded      int
	HandOvers, Failbacks, Imports, Reformations int
	Reclaimed, ReclaimsRefused                  int
	Bumps, Ceilings, Unanimous                  int
	LateWrites, BirthsContested                 int
}

func (c *Counts) reclaimed(res leases.Result, err error) {
	switch {
	case err == nil && res.Outcome == leases.Reclaimed:
		c.Reclaimed++
	case err == nil || res.Outcome != leases.Ignored:
		c.ReclaimsRefused++
	}
}

// add adds those of another run.
func (c *Counts) add(d Counts) {
	c.Elections += d.Elections
	c.Ceded += d.Ceded
	c.Grants += d.Grants
	c.Beliefs += d.Beliefs
	c.Expired += d.Expired
	c.Kept += d.Kept
	c.Takeovers += d.Takeovers
	c.Forced += d.Forced
	c.Graces += d.Graces
	c.GracesEnded += d.GracesEnded
	c.HandOvers += d.HandOvers
	c.Failbacks += d.Failbacks
	c.Imports += d.Imports
	c.Reformations += d.Reformations
	c.Reclaimed += d.Reclaimed
	c.ReclaimsRefused += d.ReclaimsRefused
	c.Bumps += d.Bumps
	c.Ceilings += d.Ceilings
	c.Unanimous += d.Unanimous
	c.LateWrites += d.LateWrites
	c.BirthsContested += d.BirthsContested
}
