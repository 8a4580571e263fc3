package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// greet says Hello to the other members, once in an election timeout: so the
// node knows where they are, how far away, what they read and who is alive; and
// as the leader it makes voters of those that have caught up.
func (n *Node) greet() {
	caughtUp := map[raft.ServerID]uint64{} // what had been committed when a non-voter was greeted before
	for n.ctx.Err() == nil {
		began, pause := n.clock.Now(), n.cfg.ElectionTimeout
		if g := n.member(); g != nil {
			commit := g.raft.CommitIndex()
			n.greetMembers(g)
			n.keepMembers(g)
			n.promote(g, caughtUp, commit)
			if len(caughtUp) > 0 {
				pause /= 4 // somebody waits to vote
			}
		}
		// A member that does not answer takes up all of the time.
		_ = clock.Wait(n.ctx, n.clock, began.Add(pause))
	}
}

func (n *Node) greetMembers(g *group) {
	addresses := map[string]bool{}
	_, leader := g.raft.LeaderWithID()
	if leader == "" { // the others may all have moved
		for _, a := range n.seeds() {
			addresses[a] = true
		}
	}
	if n.governed() { // and those of other groups are to be found
		for _, a := range n.arbitration.known() {
			addresses[a] = true
		}
	}
	for _, s := range g.servers() {
		if e, ok := n.book.get(string(s.ID)); ok {
			addresses[e.address] = true
		}
	}
	var greeting sync.WaitGroup
	for a := range addresses {
		greeting.Go(func() {
			if resp, err := n.hello(a); err == nil {
				n.take(resp)
			} else {
				n.log.Debug("no answer", "from", a, "err", err)
			}
		})
	}
	greeting.Wait()
}

// hello introduces the node to whoever is at an address.
func (n *Node) hello(address string) (*peerv1.HelloResponse, error) {
	client, err := n.book.dial(address, n.cfg.TLS, n.cfg.Network)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.ElectionTimeout)
	defer cancel()
	self := n.who()
	joined := n.joined() // before the question: a node can be taken in while the answer is under way
	sent := n.clock.Now()
	resp, err := client.Hello(ctx, &peerv1.HelloRequest{
		Self: n.introduction(), Cluster: clusterBytes(self.Cluster), Founds: n.founds(), Reads: leases.OpVersion,
	})
	if err != nil {
		return nil, fromGRPC(err)
	}
	if err := validateNode(resp.GetSelf()); err != nil {
		return nil, err
	}
	n.measure(resp, n.clock.Now().Sub(sent))
	if joined && self.ServerID() == n.who().ServerID() { // it may have changed its group meanwhile
		n.heed(resp)
	}
	return resp, nil
}

// in reports whether the newest configuration that the node knows names it.
func (n *Node) in(g *group) bool {
	_, in := g.server(n.who().ServerID())
	if in {
		g.joined.Store(true)
	}
	return in
}

// joined reports whether the node is a member, or has ever been one.
func (n *Node) joined() bool {
	g := n.member()
	return g != nil && (n.in(g) || g.joined.Load())
}

// heed ends a member where a leader not older than all that the member has heard
// of says that the cluster has taken it out.
func (n *Node) heed(resp *peerv1.HelloResponse) {
	cluster, err := clusterOf(resp.GetCluster())
	group, err2 := clusterOf(resp.GetGroup())
	if self := n.who(); err != nil || err2 != nil || cluster != self.Cluster || !group.IsZero() && group != self.Group || !resp.GetStranger() {
		return
	}
	if g := n.member(); g == nil || resp.GetTerm() < g.raft.CurrentTerm() {
		return
	}
	n.die(fmt.Errorf("%w by %s: to join again, empty the data folder first", ErrRemoved, resp.GetSelf().GetName()))
}

// tooFar is how many long round trips in a row are a distance, and not a moment
// of load.
const tooFar = 5

// measure notes a round trip, and warns when they are too long for the election
// timeout.
func (n *Node) measure(resp *peerv1.HelloResponse, roundTrip time.Duration) {
	cluster, err := clusterOf(resp.GetCluster())
	if self := n.who(); err != nil || cluster.IsZero() || cluster != self.Cluster {
		return
	}
	far := 0
	n.book.heard(resp.GetSelf(), func(e *entry) {
		e.roundTrip, e.reads, e.applied = roundTrip, resp.GetReads(), resp.GetApplied()
		if roundTrip <= n.cfg.ElectionTimeout/10 {
			e.far = 0
			return
		}
		e.far++
		far = e.far
	})
	if far == tooFar {
		n.log.Warn("a member is far away for this election timeout: raise --election-timeout on all nodes to ten round trips",
			"member", resp.GetSelf().GetName(), "round trip", roundTrip, "election timeout", n.cfg.ElectionTimeout)
	}
}

// take learns from an answer where the others are.
func (n *Node) take(resp *peerv1.HelloResponse) {
	cluster, err := clusterOf(resp.GetCluster())
	if self := n.who(); err != nil || cluster.IsZero() || cluster != self.Cluster {
		return
	}
	group, err := clusterOf(resp.GetGroup())
	n.book.heard(resp.GetSelf(), func(e *entry) {
		e.reads, e.applied = resp.GetReads(), resp.GetApplied()
		e.group, e.led = group, err == nil && resp.GetLeaderId() != ""
	})
	for _, p := range resp.GetPeers() {
		p.Name = identity.NameOf(p.GetServerId())
		if validateNode(p) == nil {
			n.book.hint(identity.Member{ServerID: p.GetServerId(), Address: p.GetAddress(), Starts: p.GetStarts()})
		}
	}
}

// keepMembers saves where the others are, if that has changed, and forgets who
// is a member no more and silent.
func (n *Node) keepMembers(g *group) {
	servers := g.servers()
	if len(servers) > 0 {
		n.book.forget(func(e entry) bool {
			_, in := serverOf(servers, e.id)
			return !in && n.clock.Now().Sub(e.heard) > 60*n.cfg.ElectionTimeout
		})
	}
	members := n.book.members()
	if slices.Equal(members, n.who().Members) {
		return
	}
	if err := n.become(func(self *identity.Identity) { self.Members = members }); err != nil {
		n.log.Warn("the members' addresses could not be saved", "err", err)
	}
}

// promote makes voters of the non-voters that have applied all that was
// committed when they were greeted the time before.
func (n *Node) promote(g *group, target map[raft.ServerID]uint64, commit uint64) {
	if g.raft.State() != raft.Leader {
		clear(target)
		return
	}
	servers := g.servers()
	free := MaxVoters - voters(servers)
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			delete(target, s.ID)
			continue
		}
		e, alive := n.book.alive(string(s.ID), 2*n.cfg.ElectionTimeout)
		before, greeted := target[s.ID]
		if free == 0 {
			delete(target, s.ID)
			continue
		}
		target[s.ID] = commit
		if !alive || !greeted || e.applied < before || e.applied == 0 || !n.mayVote(e.name) {
			continue
		}
		free--
		n.log.Info("a member has caught up and votes from now on", "member", s.ID)
		ctx, cancel := context.WithTimeout(n.ctx, 4*n.cfg.ElectionTimeout)
		n.joins <- struct{}{}
		var err error
		if _, in := g.server(string(s.ID)); in { // it may have been removed meanwhile
			err = await(ctx, g.raft.AddVoter(s.ID, s.Address, 0, n.cfg.ElectionTimeout))
		}
		<-n.joins
		cancel()
		if err != nil {
			n.log.Warn("a member could not be made a voter", "member", s.ID, "err", err)
		}
	}
}

// mayVote reports whether the root register has a member among its takers already, as it
// must before the member votes (W6).
func (n *Node) mayVote(name string) (taker bool) {
	if !n.governed() || !n.cfg.Testing.Rules.On(rules.TakersVoters) {
		return true
	}
	n.arbitration.with(func(m *authority.Machine, _ clock.Instant) { taker = m.Taker(name) })
	return taker
}

func fromGRPC(err error) error {
	if err == nil {
		return nil
	}
	return transport.FromGRPC(err)
}
