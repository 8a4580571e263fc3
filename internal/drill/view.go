package drill

import (
	"fmt"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/node"
)

// look is what one node was seen to know and do, between two readings of the true clock.
type look struct {
	node         string
	before       clock.Instant // the look was not begun earlier
	after        clock.Instant // nor was it over later
	up           bool
	node.Status  // zero where it is not up
	root         authority.Root
	sequence     uint64 // of root; 0: it was not read yet
	window       bool   // the node leads, and may grant and renew by it
	byRegisters  bool   // the node serves in the fallback epoch of root
	voters, seen int    // of its group, as far as it knows
}

// newLook takes a status.
func newLook(name string, before, after clock.Instant, s node.Status) look {
	l := look{node: name, before: before, after: after, up: true, Status: s}
	if a := s.Authority; a != nil {
		l.root, l.sequence = a.Root, a.Sequence
		l.window = a.WindowLeft > 0
		l.byRegisters = s.Serving && a.Sequence > 0 && a.Root.Mode == authority.Fallback
	}
	for _, m := range s.Members {
		if m.Voter {
			l.voters++
			if m.Reachable {
				l.seen++
			}
		}
	}
	return l
}

// kind is what to draw of the node at that moment.
func (l look) kind() SpanKind {
	switch {
	case !l.up:
		return SpanDown
	case l.window:
		return SpanWindow
	case l.byRegisters && l.root.GraceDone:
		return SpanRegisters
	case l.byRegisters:
		return SpanGrace
	case l.Leader == l.node:
		return SpanLeads
	case l.Leader == "":
		return SpanAlone
	default:
		return SpanFollows
	}
}

// view is all nodes, each looked at after the one before.
type view []look

// newest is the newest root register that any node knows; zero: none does.
func (v view) newest() (root authority.Root) {
	var sequence uint64
	for _, l := range v {
		if l.sequence > sequence {
			root, sequence = l.root, l.sequence
		}
	}
	return root
}

// leader is the node that leads with a window, in the newest term.
func (v view) leader() (name string) {
	var term uint64
	for _, l := range v {
		if l.window && l.Term >= term {
			name, term = l.node, l.Term
		}
	}
	return name
}

// in reports whether the mode is that one, and leases are granted in it as far as the
// nodes know.
func (v view) in(mode authority.Mode) bool {
	root := v.newest()
	switch {
	case root.Mode != mode:
		return false
	case mode == authority.Raft:
		return v.leader() != ""
	}
	for _, l := range v {
		if l.byRegisters && l.root.Epoch == root.Epoch && l.root.GraceDone {
			return true
		}
	}
	return false
}

// whole reports whether all nodes are up and know one leader that has all votes.
func (v view) whole() bool {
	leader := v.leader()
	for _, l := range v {
		if !l.up || l.Leader != leader || l.voters != nodeCount {
			return false
		}
	}
	return leader != ""
}

// String is for people who want to know why a drill does not go on.
func (v view) String() string {
	root := v.newest()
	s := fmt.Sprintf("mode %s, epoch %d, grace done %v", root.Mode, root.Epoch, root.GraceDone)
	for _, l := range v {
		s += fmt.Sprintf("; %s: ", l.node)
		if !l.up {
			s += "down"
			continue
		}
		s += fmt.Sprintf("%s, term %d, leader %s, %d of %d voters heard, %s", l.kind(), l.Term, orNobody(l.Leader), l.seen, l.voters, l.Doing)
	}
	return s
}

func orNobody(name string) string {
	if name == "" {
		return "nobody"
	}
	return name
}
