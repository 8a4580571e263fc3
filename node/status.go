package node

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/version"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Status is what a node knows of its cluster. It is one node's view, for people
// and dashboards; nothing is decided by it.
type Status struct {
	Cluster         leases.ID // zero: the node belongs to none yet
	Node            string
	Doing           string // for people
	Serving         bool   // this node leads and grants leases
	Leader          string // name; empty: not known
	LeaderAddress   string
	Term            uint64
	Epoch           uint32
	Revision        uint64 // ops applied since birth
	Leases          int
	Waiters         int // known to the leader alone
	ElectionTimeout time.Duration
	Members         []Member
	Authority       *AuthorityStatus // nil without an arbiter
}

// Member is one member as another sees it.
type Member struct {
	Name, ServerID, Address, Site string
	Voter, Leader                 bool
	Reachable                     bool          // heard within two election timeouts
	RoundTrip                     time.Duration // 0: never measured
	Note                          string        // why it does not vote
}

// Status returns this node's view.
func (n *Node) Status() Status {
	self := n.who()
	n.mu.Lock()
	s := Status{Cluster: self.Cluster, Node: self.Name, Doing: n.doing, Serving: n.serving != nil, ElectionTimeout: n.cfg.ElectionTimeout}
	g, t := n.group, n.serving
	n.mu.Unlock()
	n.fsm.View(func(table *leases.Table) {
		s.Epoch, s.Revision, s.Leases = table.Epoch(), table.Revision(), table.Len()
	})
	if t != nil {
		t.mu.Lock()
		s.Waiters = t.waiters
		t.mu.Unlock()
	}
	if g != nil {
		s.Term = g.raft.CurrentTerm()
	}
	if n.governed() {
		s.Authority = n.arbitration.status(s.Term, t)
		if root := s.Authority.Root; root.Mode == authority.Fallback { // what the Raft group has is what was
			s.Epoch, s.Revision, s.Leases = root.Epoch, 0, 0
			if t != nil {
				s.Leases = t.known()
			}
		}
	}
	if g == nil {
		return s
	}
	_, leader := g.raft.LeaderWithID()
	s.LeaderAddress = n.addressOf(string(leader))
	servers := g.servers()
	for _, server := range servers {
		m := n.memberStatus(server, voters(servers))
		m.Leader = server.ID == leader
		if m.Leader {
			s.Leader = m.Name
		}
		s.Members = append(s.Members, m)
	}
	return s
}

func (n *Node) memberStatus(server raft.Server, voters int) Member {
	m := Member{Name: identity.NameOf(string(server.ID)), ServerID: string(server.ID), Voter: server.Suffrage == raft.Voter}
	if m.ServerID == n.who().ServerID() {
		m.Address, m.Site, m.Reachable = n.cfg.Advertise, n.cfg.Site, true
	} else {
		e, alive := n.book.alive(m.ServerID, 2*n.cfg.ElectionTimeout)
		m.Address, m.Site, m.Reachable, m.RoundTrip = e.address, e.site, alive, e.roundTrip
	}
	switch {
	case m.Voter:
	case voters >= MaxVoters:
		m.Note = fmt.Sprintf("follows only: there are %d voters already", MaxVoters)
	case !m.Reachable:
		m.Note = "follows only: it is not heard"
	default:
		m.Note = "catching up"
	}
	return m
}

// answerStatus answers a Status call: about the cluster from any node, about a
// lease from the serving one alone, after a round of the voters (N5).
func (n *Node) answerStatus(ctx context.Context, req *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
	resp := &coorddv1.StatusResponse{Cluster: n.Status().proto()}
	if req.GetName() == "" {
		return resp, nil
	}
	lease, err := local{n}.Get(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	resp.Lease = transport.ToLeaseStatus(lease)
	return resp, nil
}

func (s Status) proto() *coorddv1.ClusterStatus {
	p := &coorddv1.ClusterStatus{
		Node: s.Node, Version: version.Release, Leader: s.Leader, LeaderAddress: s.LeaderAddress, Serving: s.Serving,
		State: s.Doing, Term: s.Term, Epoch: s.Epoch, Revision: s.Revision, Leases: uint64(s.Leases),
		Waiters: uint64(s.Waiters), ElectionTimeoutMs: uint32(s.ElectionTimeout.Milliseconds()), Authority: s.Authority.proto(),
	}
	if !s.Cluster.IsZero() {
		p.Cluster = s.Cluster.String()
	}
	for _, m := range s.Members {
		p.Members = append(p.Members, &coorddv1.Member{
			Name: m.Name, ServerId: m.ServerID, Address: m.Address, Site: m.Site, Voter: m.Voter, Leader: m.Leader,
			Reachable: m.Reachable, RoundTripUs: uint32(m.RoundTrip.Microseconds()), Note: m.Note,
		})
	}
	return p
}
