package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
)

// regroup makes the node part of another Raft group: it discards what it has of the
// one before, which is defunct, and begins anew under another incarnation. form makes
// it the group's only voter (section 7). One that failed is begun again.
func (n *Node) regroup(cluster, group leases.ID, form bool) error {
	if self, g := n.here(); g != nil && self.Cluster == cluster && self.Group == group {
		return nil
	}
	if err := n.leave(); err != nil {
		return fmt.Errorf("leave the Raft group: %w", err)
	}
	if form {
		n.say("forming a Raft group")
	} else {
		n.say("joining the Raft group that the arbiter names")
	}
	root, _ := n.arbitration.root()
	err := n.become(func(self *identity.Identity) {
		next := identity.New(self.Name)
		next.Cluster, next.Group, next.Starts, next.Members = cluster, group, 1, self.Members
		next.Arbitrated, next.Discard = true, true
		if form {
			next.Founding, next.Founders, next.FirstEpoch = true, 1, max(root.Epoch, 1)
		}
		*self = next
	})
	if err != nil {
		return err
	}
	n.book.renamed(n.who().ServerID())
	if err := n.discard(); err != nil {
		return err
	}
	return n.startGroup()
}

// leave ends the node's part in its Raft group. It is called again until that has
// been done: Raft that still runs writes to the log.
func (n *Node) leave() error {
	n.mu.Lock()
	if n.group != nil {
		n.leaving, n.group = n.group, nil
	}
	g := n.leaving
	n.mu.Unlock()
	if g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, 10*time.Second)
	defer cancel()
	if err := errors.Join(g.close(ctx), g.streams.drain(ctx), wait(ctx, &g.running, "the group's loops")); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaving = nil
	return nil
}

// discard forgets the log that an earlier incarnation has left behind. The identity
// knows that it is to be done from before until after: under the old one an empty log
// would vote once more, and the old log under the new one would be taken for the
// group's.
func (n *Node) discard() error {
	if !n.who().Discard {
		return nil
	}
	if err := n.wipe(); err != nil {
		return fmt.Errorf("discard the log of a defunct Raft group: %w", err)
	}
	n.fsm.Reset()
	return n.become(func(self *identity.Identity) { self.Discard = false })
}

// belongByArbiter keeps the node in the group that the root register names.
func (n *Node) belongByArbiter() {
	for waited := false; n.ctx.Err() == nil; n.pause(n.cfg.ElectionTimeout / 4) {
		root, known := n.arbitration.root()
		g := n.member()
		switch {
		case !known || g == nil || n.who().Group != root.Group:
		case n.in(g):
			if waited {
				n.say("following")
				waited = false
			}
		default:
			waited = true
			if err := n.join(); err != nil && n.ctx.Err() == nil {
				n.say("waiting to be taken in: " + err.Error())
			}
		}
	}
}

// known are the addresses that the root register has, without the node's own.
func (a *arbitration) known() (addresses []string) {
	root, _ := a.root()
	for _, m := range root.Members {
		if m.Name != a.node.cfg.Name {
			addresses = append(addresses, m.Address)
		}
	}
	return addresses
}

// serveRegisters serves leases by the arbiter's registers in every fallback epoch, on
// whichever node this is.
func (n *Node) serveRegisters() {
	a := n.arbitration
	for n.ctx.Err() == nil {
		var epoch uint32
		err := a.until(n.ctx, func(m *authority.Machine, _ clock.Instant) (ok bool) {
			epoch, ok = m.Serves()
			return ok
		})
		if err == nil {
			n.serveEpoch(epoch)
		}
	}
}

// dispatch hands accepted Raft connections to the group that the node takes part in.
func (n *Node) dispatch(from net.Listener) {
	for {
		conn, err := from.Accept()
		if err != nil {
			close(n.raftEnded)
			return
		}
		if g := n.member(); g == nil || !g.streams.offer(conn) {
			_ = conn.Close()
		}
	}
}
