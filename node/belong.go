package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// belong makes the node a member: it founds a cluster or finds the one that the
// others belong to (N1), and joins until the group's configuration names it.
func (n *Node) belong() {
	for n.ctx.Err() == nil && n.member() == nil && !n.governed() {
		if err := n.settle(); err != nil && n.ctx.Err() == nil {
			n.log.Warn("cannot join a cluster yet", "err", err)
		}
		n.pause(n.cfg.ElectionTimeout / 4)
	}
	for joining := false; n.ctx.Err() == nil && !n.governed(); joining = true {
		if n.in(n.member()) {
			if joining {
				n.say("following")
			}
			return
		}
		if err := n.join(); err != nil && n.ctx.Err() == nil {
			n.say("waiting to be taken in: " + err.Error())
		}
		n.pause(n.cfg.ElectionTimeout / 4)
	}
}

// pause waits, or returns early when the node ends.
func (n *Node) pause(d time.Duration) {
	_ = clock.Wait(n.ctx, n.clock, n.clock.Now().Add(d))
}

// settle makes one try to found a cluster or to find one.
func (n *Node) settle() error {
	if n.arbitration != nil { // it may know the cluster, when nobody else does
		if known, err := n.arbitration.knows(); err != nil || known {
			return err
		}
	}
	others, silent := n.askSeeds()
	for _, o := range others {
		if cluster, err := clusterOf(o.GetCluster()); err == nil && !cluster.IsZero() {
			return n.enter(cluster, o)
		}
	}
	if !n.cfg.Bootstrap {
		why := "nobody of " + strings.Join(n.seeds(), ", ") + " belongs to one"
		if len(silent) > 0 { // nor does anybody of the others
			why = "no answer from " + strings.Join(silent, ", ")
		}
		n.say("waiting for a cluster: " + why)
		return nil
	}
	if n.cfg.Testing.Rules.On(rules.Founding) {
		if !n.blank {
			n.say("waiting for its cluster: this node was a member and has lost its log, so it founds none; to found one, empty the data folder")
			return nil
		}
		if len(silent) > 0 {
			n.say("waiting to found a cluster: no answer from " + strings.Join(silent, ", "))
			return nil
		}
		for _, o := range others {
			if o.GetFounds() && o.GetSelf().GetName() < n.cfg.Name {
				n.say("waiting for " + o.GetSelf().GetName() + " to found the cluster: it has the smaller name")
				return nil
			}
		}
	}
	return n.found(len(others) + 1)
}

// askSeeds says Hello to every address that the node was given but its own, and
// tells who answered and who did not.
func (n *Node) askSeeds() (others []*peerv1.HelloResponse, silent []string) {
	type reply struct {
		address string
		resp    *peerv1.HelloResponse
		err     error
	}
	seeds := n.seeds()
	replies := make(chan reply, len(seeds))
	for _, a := range seeds {
		n.loops.Go(func() {
			resp, err := n.hello(a)
			replies <- reply{a, resp, err}
		})
	}
	known := map[string]bool{}
	for range seeds {
		switch r := <-replies; {
		case r.err != nil:
			silent = append(silent, fmt.Sprintf("%s (%v)", r.address, r.err))
		case r.resp.GetSelf().GetServerId() == n.who().ServerID(): // itself, by another address
		case !known[r.resp.GetSelf().GetServerId()]:
			known[r.resp.GetSelf().GetServerId()] = true
			others = append(others, r.resp)
		}
	}
	slices.Sort(silent)
	return others, silent
}

// seeds are the addresses that the node was given, and those of the members that
// it knew when it was started, without its own.
func (n *Node) seeds() []string {
	var seeds []string
	var known []string
	if n.governed() {
		known = n.arbitration.known()
	}
	for _, a := range slices.Concat(n.cfg.Join, n.knew, known) {
		if a != n.cfg.Advertise && a != n.cfg.Listen && !slices.Contains(seeds, a) {
			seeds = append(seeds, a)
		}
	}
	return seeds
}

// found begins a new cluster. Who the node is comes before anything else, so
// that a crash in between is finished by the next start.
func (n *Node) found(members int) error {
	cluster := leases.NewID()
	n.say("founding a cluster")
	err := n.become(func(self *identity.Identity) {
		self.Cluster, self.Group = cluster, cluster
		self.Founding, self.Founders, self.FirstEpoch = true, uint32(members), n.cfg.FirstEpoch
	})
	if err != nil {
		return err
	}
	return n.startGroup()
}

// enter makes the node part of a cluster that another node belongs to.
func (n *Node) enter(cluster leases.ID, by *peerv1.HelloResponse) error {
	n.say("joining the cluster that " + by.GetSelf().GetName() + " belongs to")
	group, err := clusterOf(by.GetGroup())
	if err != nil || group.IsZero() {
		group = cluster
	}
	err = n.become(func(self *identity.Identity) { self.Cluster, self.Group = cluster, group })
	if err != nil {
		return err
	}
	n.take(by)
	return n.startGroup()
}

// join asks the leader to take the node in.
func (n *Node) join() error {
	others, silent := n.askSeeds()
	for _, o := range others {
		n.take(o)
	}
	leader := n.leaderAddress(others)
	if leader == "" {
		if len(silent) > 0 {
			return fmt.Errorf("no answer from %s", strings.Join(silent, ", "))
		}
		return fmt.Errorf("%w: nobody knows a leader", leases.ErrNoQuorum)
	}
	// The leader knows whether this node's log is that of a member that was removed.
	if _, err := n.hello(leader); err != nil {
		return err
	}
	client, err := n.book.dial(leader, n.cfg.TLS, n.cfg.Network)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.ctx, 4*n.cfg.ElectionTimeout)
	defer cancel()
	self := n.who()
	_, err = client.Join(ctx, &peerv1.JoinRequest{Self: n.introduction(), Cluster: self.Cluster[:], Reads: leases.OpVersion, Group: self.Group[:]})
	return fromGRPC(err)
}

func (n *Node) leaderAddress(others []*peerv1.HelloResponse) string {
	own := n.who().Group
	for _, o := range others {
		if group, err := clusterOf(o.GetGroup()); err == nil && group == own && o.GetLeaderAddress() != "" {
			return o.GetLeaderAddress()
		}
	}
	if g := n.member(); g != nil {
		_, id := g.raft.LeaderWithID()
		return n.addressOf(string(id))
	}
	return ""
}
