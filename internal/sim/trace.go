package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// trace notes what happens, for a person. Callers look at tracing first: it costs time.
func (s *Sim) trace(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%9.3f  ", s.now.Seconds())+fmt.Sprintf(format, args...))
}

// show is a token as a person reads it: epoch and counter.
func show(t tokens.Token) string {
	if t == 0 {
		return "-"
	}
	return fmt.Sprintf("%d.%d", t.Epoch(), t.Counter())
}

func showShard(sh leases.Shard) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d, closed %v:", sh.Epoch, sh.Closed)
	for _, l := range sh.Leases {
		fmt.Fprintf(&b, " %s %s (%.2v)", l.Name, show(l.Token), l.Session)
	}
	return b.String()
}

func showOp(op *leases.Op, res leases.Result) string {
	s := op.Kind.String()
	if op.Name != "" {
		s += " of " + op.Name
	}
	if op.Token != 0 {
		s += " " + show(op.Token)
	}
	s += fmt.Sprintf(" in epoch %d: %v", op.Epoch, res.Outcome)
	if res.Lease != nil {
		s += " " + show(res.Lease.Token)
	}
	return s
}

// seconds is a duration as a person reads it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

// state notes what each node is in.
func (s *Sim) state() {
	s.trace("R: %s epoch %d, group %.2v, owner %v, takers %v, held %v, grace done %v", s.root.Mode, s.root.Epoch, s.root.Group, s.root.Owner, s.root.Takers, s.root.Held, s.root.GraceDone)
	for _, n := range s.nodes {
		if n.machine == nil {
			s.trace("%s: down", n.name)
			continue
		}
		f := n.facts()
		s.trace("%s: heard %v, alive %v, err %v", n.name, f.Heard, f.Alive, n.machine.Err())
		if v := n.server; v == nil {
			s.trace("%s: up %v, in no group", n.name, n.up)
		} else {
			s.trace("%s: up %v, in group %.2v as server %d, term %d, leads %v, leader %d, table of epoch %d; voters %b, members %b, log %d, committed %d, applied %d",
				n.name, n.up, v.g.id, v.id, v.term, v.leads, v.leader, v.table.Epoch(), v.last().voters, v.last().members, len(v.log), v.commit, v.applied)
		}
	}
}
