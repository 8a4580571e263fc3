package node

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/version"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// peer answers the other members.
type peer struct {
	peerv1.UnimplementedPeerServer
	node *Node
}

// introduction is the node as it tells the others of itself.
func (n *Node) introduction() *peerv1.Node {
	self := n.who()
	return &peerv1.Node{
		Name: self.Name, ServerId: self.ServerID(), Address: n.cfg.Advertise, Site: n.cfg.Site, Starts: self.Starts,
	}
}

// Hello introduces two nodes to each other. What a member says of itself is kept
// in mind, and of nobody else: there is no end of strangers.
func (p *peer) Hello(ctx context.Context, req *peerv1.HelloRequest) (*peerv1.HelloResponse, error) {
	n := p.node
	self, g := n.here()
	if err := validateNode(req.GetSelf()); err != nil {
		return nil, err
	}
	cluster, err := clusterOf(req.GetCluster())
	if err != nil {
		return nil, err
	}
	if g != nil && cluster == self.Cluster && vouched(ctx, req.GetSelf().GetServerId(), req.GetSelf().GetAddress()) == nil {
		if _, in := g.server(req.GetSelf().GetServerId()); in {
			n.book.heard(req.GetSelf(), func(e *entry) { e.reads = req.GetReads() })
		}
	}
	resp := &peerv1.HelloResponse{
		Self: n.introduction(), Cluster: clusterBytes(self.Cluster), Founds: n.founds(),
		Reads: leases.OpVersion, Version: version.Release,
	}
	resp.ReachesArbiter = n.arbitration != nil && n.arbitration.reaches()
	if g != nil {
		resp.Group = clusterBytes(self.Group)
		_, leader := g.raft.LeaderWithID()
		resp.LeaderId, resp.LeaderAddress = string(leader), n.addressOf(string(leader))
		resp.Applied, resp.Term = g.raft.AppliedIndex(), g.raft.CurrentTerm()
		resp.Stranger = g.stranger(req.GetSelf().GetServerId())
		for _, m := range n.book.members() {
			resp.Peers = append(resp.Peers, &peerv1.Node{ServerId: m.ServerID, Address: m.Address, Starts: m.Starts})
		}
	}
	return resp, nil
}

// stranger reports whether this node leads and its committed configuration does
// not name a server.
func (g *group) stranger(id string) bool {
	if g.raft.State() != raft.Leader {
		return false
	}
	f := g.raft.GetConfiguration()
	if f.Error() != nil || f.Index() > g.raft.CommitIndex() {
		return false
	}
	_, in := serverOf(f.Configuration().Servers, id)
	return !in
}

// founds reports whether the node was told to found a cluster, and may.
func (n *Node) founds() bool { return n.cfg.Bootstrap && n.blank && n.who().Cluster.IsZero() }

// addressOf is where a server is; empty if that is not known.
func (n *Node) addressOf(id string) string {
	if id != "" && id == n.who().ServerID() {
		return n.cfg.Advertise
	}
	e, _ := n.book.get(id)
	return e.address
}

// Confirm answers one question of a round (N4). Raft takes a new term before it
// votes in it, so a yes says that this node had not voted for a later leader.
func (p *peer) Confirm(_ context.Context, req *peerv1.ConfirmRequest) (*peerv1.ConfirmResponse, error) {
	self, g := p.node.here()
	resp := &peerv1.ConfirmResponse{Nonce: req.GetNonce()}
	if cluster, err := clusterOf(req.GetCluster()); err != nil || g == nil || cluster != self.Cluster || req.GetServerId() != self.ServerID() {
		return resp, err
	}
	resp.Term = g.raft.CurrentTerm()
	resp.Yes = resp.Term == req.GetTerm()
	return resp, nil
}

// Pledge answers a leader that asks this node to start no takeover (W1).
func (p *peer) Pledge(_ context.Context, req *peerv1.PledgeRequest) (*peerv1.PledgeResponse, error) {
	n := p.node
	resp := &peerv1.PledgeResponse{Nonce: req.GetNonce()}
	cluster, err1 := clusterOf(req.GetCluster())
	group, err2 := clusterOf(req.GetGroup())
	if err := errors.Join(err1, err2); err != nil || !n.governed() || req.GetServerId() != n.who().ServerID() {
		return resp, err
	}
	resp.Yes = n.arbitration.pledge(authority.Pledge{
		Cluster: cluster, Group: group, Epoch: req.GetEpoch(), Term: req.GetTerm(), Seq: arbiter.Version(req.GetSequence()), Nonce: req.GetNonce(),
	})
	resp.ReachesArbiter = n.arbitration.reaches()
	return resp, nil
}

// Join takes a node in: as a non-voter, which becomes a voter once it has caught
// up. An earlier incarnation of its name is removed, unless it is alive.
func (p *peer) Join(ctx context.Context, req *peerv1.JoinRequest) (*peerv1.JoinResponse, error) {
	n := p.node
	if err := validateNode(req.GetSelf()); err != nil {
		return nil, err
	}
	if err := vouched(ctx, req.GetSelf().GetServerId(), req.GetSelf().GetAddress()); err != nil {
		return nil, err
	}
	cluster, err := clusterOf(req.GetCluster())
	if err != nil {
		return nil, err
	}
	self, g := n.here()
	if g == nil {
		return nil, &leases.UnavailableError{Reason: self.Name + " belongs to no cluster yet"}
	}
	if cluster != self.Cluster {
		return nil, &leases.WrongClusterError{Want: cluster, Got: self.Cluster}
	}
	if group, err := clusterOf(req.GetGroup()); err != nil || !group.IsZero() && group != self.Group {
		return nil, &leases.UnavailableError{Reason: self.Name + " takes part in another Raft group"}
	}
	if g.raft.State() != raft.Leader {
		return nil, n.notServing()
	}
	if self.Recovered != nil { // another leader would not know what comes before serving
		return nil, &leases.UnavailableError{Reason: self.Name + " takes nobody in before it serves from its recovered log"}
	}
	n.joins <- struct{}{}
	defer func() { <-n.joins }()
	voter, err := n.takeIn(ctx, g, req)
	if err != nil {
		return nil, err
	}
	return &peerv1.JoinResponse{Cluster: clusterBytes(cluster), Voter: voter}, nil
}

func (n *Node) takeIn(ctx context.Context, g *group, req *peerv1.JoinRequest) (voter bool, err error) {
	joiner := req.GetSelf()
	id := raft.ServerID(joiner.GetServerId())
	if req.GetReads() < leases.OpVersion {
		return false, &leases.InvalidError{Field: "op version", Value: fmt.Sprint(req.GetReads()), Bounds: fmt.Sprintf("at least %d, which this cluster writes: upgrade %s first", leases.OpVersion, joiner.GetName())}
	}
	for _, s := range g.servers() {
		if s.ID == id {
			n.book.heard(joiner, func(e *entry) { e.reads = req.GetReads() })
			return s.Suffrage == raft.Voter, nil
		}
		if identity.NameOf(string(s.ID)) != joiner.GetName() {
			continue
		}
		if s.ID == raft.ServerID(n.who().ServerID()) {
			return false, &leases.InvalidError{Field: "name", Value: joiner.GetName(), Bounds: "a name that no living member has: it is the leader's, at " + n.cfg.Advertise}
		}
		if e, alive := n.book.alive(string(s.ID), 2*n.cfg.ElectionTimeout); alive {
			return false, &leases.InvalidError{Field: "name", Value: joiner.GetName(), Bounds: "a name that no living member has: one of this name was just heard at " + e.address}
		}
		n.log.Info("removing the former incarnation of a member", "member", s.ID, "for", id)
		if err := n.change(ctx, g.raft.RemoveServer(s.ID, 0, n.cfg.ElectionTimeout)); err != nil {
			return false, err
		}
	}
	if len(g.servers()) >= MaxMembers {
		return false, &leases.ExhaustedError{What: "members of this cluster; remove those that are gone", Bound: MaxMembers}
	}
	n.book.heard(joiner, func(e *entry) { e.reads = req.GetReads() })
	n.log.Info("taking a member in", "member", id, "at", joiner.GetAddress())
	return false, n.change(ctx, g.raft.AddNonvoter(id, raft.ServerAddress(id), 0, n.cfg.ElectionTimeout))
}

// change waits for a change of the membership.
func (n *Node) change(ctx context.Context, f raft.IndexFuture) error {
	switch err := await(ctx, f); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return unknown(ctx)
	case errors.Is(err, raft.ErrLeadershipLost) || errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("%w: the membership may have been changed: %w", leases.ErrUnknownOutcome, err)
	default:
		return &leases.UnavailableError{Reason: "the membership could not be changed: " + err.Error()}
	}
}

// vouched returns an error unless, under TLS, the caller's certificate is good for
// the address of the node that it speaks for, which a client's is not.
func vouched(ctx context.Context, id, address string) error {
	caller, _ := grpcpeer.FromContext(ctx)
	info, secured := caller.AuthInfo.(credentials.TLSInfo)
	if !secured {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if certs := info.State.PeerCertificates; err != nil || len(certs) == 0 || certs[0].VerifyHostname(host) != nil {
		return &leases.InvalidError{Field: "certificate", Value: "the caller's", Bounds: "one that is good for the address of " + id + ", " + address}
	}
	return nil
}

func validateNode(p *peerv1.Node) error {
	switch {
	case !validName.MatchString(p.GetName()):
		return &leases.InvalidError{Field: "node name", Value: clip(p.GetName()), Bounds: "1 to 63 letters, digits, - and _"}
	case len(p.GetServerId()) > 128 || identity.NameOf(p.GetServerId()) != p.GetName():
		return &leases.InvalidError{Field: "server id", Value: clip(p.GetServerId()), Bounds: "name.incarnation"}
	case p.GetAddress() == "" || len(p.GetAddress()) > 300:
		return &leases.InvalidError{Field: "address", Value: clip(p.GetAddress()), Bounds: "host:port of at most 300 bytes"}
	case len(p.GetSite()) > 63:
		return &leases.InvalidError{Field: "site", Value: clip(p.GetSite()), Bounds: "at most 63 bytes"}
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), 40)] }

// clusterOf reads a cluster id; no bytes are no cluster.
func clusterOf(b []byte) (leases.ID, error) {
	if len(b) == 0 {
		return leases.ID{}, nil
	}
	return leases.IDFromBytes("cluster", b)
}

func clusterBytes(id leases.ID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}
