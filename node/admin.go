package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	adminv1 "github.com/coordd/coordd/transport/api/coordd/admin/v1"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// AdminSocket is the Unix socket for operators, in a node's data folder. Who may
// open it may end any member: it has mode 0600.
const AdminSocket = "admin.sock"

// admin answers operators. Each call is carried out by the leader; another node
// passes it on.
type admin struct {
	adminv1.UnimplementedAdminServer
	node *Node
}

// listenAdmin opens the socket, in a data folder that this process has locked:
// so one that is there already is a former process's.
func (n *Node) listenAdmin() error {
	path := n.cfg.AdminSocket
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("admin socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(n.ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("admin socket: %w (a path of at most 107 bytes is needed)", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("admin socket: %w", err), listener.Close())
	}
	n.admin = grpc.NewServer(
		grpc.MaxRecvMsgSize(1<<16),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(transport.UnaryInterceptor(n.log)),
	)
	adminv1.RegisterAdminServer(n.admin, &admin{node: n})
	n.loops.Go(func() {
		if err := n.admin.Serve(listener); err != nil && n.ctx.Err() == nil {
			n.log.Error("the admin socket has failed", "err", err)
		}
	})
	return nil
}

// HandOver implements adminv1.AdminServer.
func (a *admin) HandOver(ctx context.Context, req *adminv1.HandOverRequest) (*adminv1.HandOverResponse, error) {
	n := a.node
	if g := n.member(); g != nil && g.raft.State() == raft.Leader || n.leads() != nil {
		c, err := n.HandOver(ctx, req.GetTo())
		return &adminv1.HandOverResponse{Epoch: c.Epoch, TookMs: transport.MillisUp(c.Took)}, err
	}
	leader, err := n.leader()
	if err != nil {
		return nil, err
	}
	resp, err := leader.HandOver(ctx, &peerv1.HandOverRequest{By: n.who().ServerID(), To: req.GetTo()})
	return &adminv1.HandOverResponse{Epoch: resp.GetEpoch(), TookMs: resp.GetTookMs()}, fromGRPC(err)
}

// Adopt implements adminv1.AdminServer.
func (a *admin) Adopt(ctx context.Context, req *adminv1.AdoptRequest) (*adminv1.AdoptResponse, error) {
	n := a.node
	shards, err := n.adoptable(req.GetShards(), req.GetShardBytes(), req.GetLeaseMs())
	if err != nil {
		return nil, err
	}
	if g := n.member(); g != nil && g.raft.State() == raft.Leader {
		c, err := n.Adopt(ctx, shards)
		return &adminv1.AdoptResponse{Epoch: c.Epoch}, err
	}
	leader, err := n.leader()
	if err != nil {
		return nil, err
	}
	resp, err := leader.Adopt(ctx, &peerv1.AdoptRequest{By: n.who().ServerID(), Shards: shards.Count, ShardBytes: shards.Bytes, LeaseMs: req.GetLeaseMs()})
	return &adminv1.AdoptResponse{Epoch: resp.GetEpoch()}, fromGRPC(err)
}

// adoptable is how an arbiter is to share the leases out; 0 is what the node was given.
func (n *Node) adoptable(count, bytes, lease uint32) (leases.Shards, error) {
	s := leases.Shards{Count: cmp.Or(count, n.cfg.Authority.Shards.Count), Bytes: cmp.Or(bytes, n.cfg.Authority.Shards.Bytes)}
	switch own := uint32(n.cfg.Authority.Lease.Milliseconds()); {
	case s.Count > leases.MaxShards:
		return s, &leases.InvalidError{Field: "shards", Value: fmt.Sprint(s.Count), Bounds: fmt.Sprintf("1 to %d", leases.MaxShards)}
	case s.Bytes < leases.MinShardBytes || s.Bytes > leases.MaxShardBytes:
		return s, &leases.InvalidError{Field: "shard bytes", Value: fmt.Sprint(s.Bytes), Bounds: fmt.Sprintf("%d to %d", leases.MinShardBytes, leases.MaxShardBytes)}
	case lease != 0 && lease != own:
		return s, &leases.InvalidError{Field: "authority lease", Value: fmt.Sprintf("%d ms", lease), Bounds: fmt.Sprintf("%d ms, with which the nodes were started", own)}
	}
	return s, nil
}

// TakeOver implements adminv1.AdminServer.
func (a *admin) TakeOver(ctx context.Context, _ *adminv1.TakeOverRequest) (*adminv1.TakeOverResponse, error) {
	c, err := a.node.TakeOver(ctx)
	return &adminv1.TakeOverResponse{Epoch: c.Epoch}, err
}

// Remove implements adminv1.AdminServer.
func (a *admin) Remove(ctx context.Context, req *adminv1.RemoveRequest) (*adminv1.RemoveResponse, error) {
	n := a.node
	if g := n.member(); g != nil && g.raft.State() == raft.Leader {
		id, err := n.remove(ctx, g, req.GetName(), req.GetForce())
		return &adminv1.RemoveResponse{ServerId: id}, err
	}
	leader, err := n.leader()
	if err != nil {
		return nil, err
	}
	resp, err := leader.Remove(ctx, &peerv1.RemoveRequest{By: n.who().ServerID(), Name: req.GetName(), Force: req.GetForce()})
	return &adminv1.RemoveResponse{ServerId: resp.GetServerId()}, fromGRPC(err)
}

// TransferLeadership implements adminv1.AdminServer.
func (a *admin) TransferLeadership(ctx context.Context, req *adminv1.TransferLeadershipRequest) (*adminv1.TransferLeadershipResponse, error) {
	n := a.node
	if g := n.member(); g != nil && g.raft.State() == raft.Leader {
		name, err := n.transferLeadership(ctx, g, req.GetTo())
		return &adminv1.TransferLeadershipResponse{Leader: name}, err
	}
	leader, err := n.leader()
	if err != nil {
		return nil, err
	}
	resp, err := leader.TransferLeadership(ctx, &peerv1.TransferLeadershipRequest{By: n.who().ServerID(), To: req.GetTo()})
	return &adminv1.TransferLeadershipResponse{Leader: resp.GetLeader()}, fromGRPC(err)
}

// Break implements adminv1.AdminServer.
func (a *admin) Break(ctx context.Context, req *adminv1.BreakRequest) (*adminv1.BreakResponse, error) {
	n := a.node
	if t := n.leads(); t != nil {
		b, err := t.breakLease(ctx, leases.Held{Name: req.GetName(), Token: tokens.Token(req.GetToken())}, req.GetNow())
		return &adminv1.BreakResponse{Ended: b.Ended, AtMostMs: transport.MillisUp(b.AtMost)}, err
	}
	leader, err := n.leader()
	if err != nil {
		return nil, err
	}
	resp, err := leader.Break(ctx, &peerv1.BreakRequest{By: n.who().ServerID(), Name: req.GetName(), Token: req.GetToken(), Now: req.GetNow()})
	return &adminv1.BreakResponse{Ended: resp.GetEnded(), AtMostMs: resp.GetAtMostMs()}, fromGRPC(err)
}

// Break is an operator's call that another member has passed on.
func (p *peer) Break(ctx context.Context, req *peerv1.BreakRequest) (*peerv1.BreakResponse, error) {
	if _, err := p.passedOn(ctx, req.GetBy()); err != nil {
		return nil, err
	}
	t, err := p.node.tenure()
	if err != nil {
		return nil, err
	}
	b, err := t.breakLease(ctx, leases.Held{Name: req.GetName(), Token: tokens.Token(req.GetToken())}, req.GetNow())
	return &peerv1.BreakResponse{Ended: b.Ended, AtMostMs: transport.MillisUp(b.AtMost)}, err
}

// Remove is an operator's call that another member has passed on.
func (p *peer) Remove(ctx context.Context, req *peerv1.RemoveRequest) (*peerv1.RemoveResponse, error) {
	g, err := p.passedOn(ctx, req.GetBy())
	if err != nil {
		return nil, err
	}
	id, err := p.node.remove(ctx, g, req.GetName(), req.GetForce())
	return &peerv1.RemoveResponse{ServerId: id}, err
}

// TransferLeadership is an operator's call that another member has passed on.
func (p *peer) TransferLeadership(ctx context.Context, req *peerv1.TransferLeadershipRequest) (*peerv1.TransferLeadershipResponse, error) {
	g, err := p.passedOn(ctx, req.GetBy())
	if err != nil {
		return nil, err
	}
	name, err := p.node.transferLeadership(ctx, g, req.GetTo())
	return &peerv1.TransferLeadershipResponse{Leader: name}, err
}

// HandOver is an operator's call that another member has passed on.
func (p *peer) HandOver(ctx context.Context, req *peerv1.HandOverRequest) (*peerv1.HandOverResponse, error) {
	if _, err := p.passedOn(ctx, req.GetBy()); err != nil {
		return nil, err
	}
	c, err := p.node.HandOver(ctx, req.GetTo())
	return &peerv1.HandOverResponse{Epoch: c.Epoch, TookMs: transport.MillisUp(c.Took)}, err
}

// Adopt is an operator's call that another member has passed on.
func (p *peer) Adopt(ctx context.Context, req *peerv1.AdoptRequest) (*peerv1.AdoptResponse, error) {
	if _, err := p.passedOn(ctx, req.GetBy()); err != nil {
		return nil, err
	}
	shards, err := p.node.adoptable(req.GetShards(), req.GetShardBytes(), req.GetLeaseMs())
	if err != nil {
		return nil, err
	}
	c, err := p.node.Adopt(ctx, shards)
	return &peerv1.AdoptResponse{Epoch: c.Epoch}, err
}

// passedOn checks that a call comes from a member.
func (p *peer) passedOn(ctx context.Context, by string) (*group, error) {
	n := p.node
	g := n.member()
	if g == nil || g.raft.State() != raft.Leader {
		return nil, n.notServing()
	}
	e, known := n.book.get(by)
	if _, in := g.server(by); !in || !known {
		return nil, &leases.InvalidError{Field: "member", Value: clip(by), Bounds: "the server id of a member of this cluster"}
	}
	if err := vouched(ctx, by, e.address); err != nil {
		return nil, err
	}
	return g, nil
}

// leader returns a client of the leader.
func (n *Node) leader() (peerv1.PeerClient, error) {
	err := n.notServing()
	var elsewhere *leases.NotLeaderError
	if !errors.As(err, &elsewhere) || elsewhere.Leader == "" {
		return nil, err
	}
	return n.book.dial(elsewhere.Leader, n.cfg.TLS, n.cfg.Network)
}

// remove takes a member out for good. One that is heard is refused unless force,
// and one without which the others would have no quorum is refused always.
func (n *Node) remove(ctx context.Context, g *group, name string, force bool) (string, error) {
	n.joins <- struct{}{}
	defer func() { <-n.joins }()
	server, err := g.named(name)
	if err != nil {
		return "", err
	}
	id := string(server.ID)
	if id == n.who().ServerID() {
		return "", &leases.InvalidError{Field: "member", Value: name, Bounds: "another than the leader: transfer the leadership first"}
	}
	if e, alive := n.answers(id); alive && !force {
		return "", &leases.InvalidError{Field: "member", Value: name, Bounds: "one that is gone: this one was just heard at " + e.address + "; stop it first, or use force"}
	}
	if heard, all := n.quorumWithout(g, server.ID); heard < all/2+1 {
		return "", &leases.InvalidError{Field: "member", Value: name, Bounds: fmt.Sprintf("one that the others can do without: %d of the %d voters that remain are heard, and %d are needed; bring others back, or remove the silent ones, first", heard, all, all/2+1)}
	}
	n.log.Info("removing a member", "member", id, "force", force)
	return id, n.change(ctx, g.raft.RemoveServer(server.ID, 0, n.cfg.ElectionTimeout))
}

// quorumWithout counts the voters but one, and those of them that are heard.
func (n *Node) quorumWithout(g *group, gone raft.ServerID) (heard, all int) {
	for _, s := range g.servers() {
		if s.Suffrage != raft.Voter || s.ID == gone {
			continue
		}
		all++
		if string(s.ID) == n.who().ServerID() {
			heard++
		} else if _, alive := n.answers(string(s.ID)); alive {
			heard++
		}
	}
	return heard, all
}

// answers reports whether another member was just heard, or answers now: an
// operator's call need not rest on a greeting that came late.
func (n *Node) answers(id string) (entry, bool) {
	bound := 2 * n.cfg.ElectionTimeout
	e, alive := n.book.alive(id, bound)
	if alive || e.address == "" {
		return e, alive
	}
	if _, err := n.hello(e.address); err != nil {
		return e, false
	}
	return n.book.alive(id, bound) // another may have answered at its address
}

// transferLeadership makes another voter the leader and returns its name.
func (n *Node) transferLeadership(ctx context.Context, g *group, to string) (string, error) {
	self, term := n.who().ServerID(), g.raft.CurrentTerm()
	var future raft.Future
	if to == "" {
		if voters(g.servers()) < 2 {
			return "", &leases.UnavailableError{Reason: n.cfg.Name + " is the only voter: nobody else can lead"}
		}
		future = g.raft.LeadershipTransfer()
	} else {
		server, err := g.named(to)
		if err != nil {
			return "", err
		}
		if string(server.ID) == self {
			return to, nil
		}
		if server.Suffrage != raft.Voter {
			return "", &leases.InvalidError{Field: "member", Value: to, Bounds: "a voter"}
		}
		// A leader grants nothing while it tries, and it tries for a while.
		if e, alive := n.answers(string(server.ID)); !alive {
			return "", &leases.UnavailableError{Reason: fmt.Sprintf("%s is not heard at %s: it cannot take over", to, e.address)}
		}
		future = g.raft.LeadershipTransferToServer(server.ID, server.Address)
	}
	if err := await(ctx, future); ctx.Err() != nil {
		return "", unknown(ctx)
	} else if err != nil {
		return "", &leases.UnavailableError{Reason: "the leadership could not be transferred: " + err.Error()}
	}
	for ctx.Err() == nil && n.ctx.Err() == nil {
		_, id := g.raft.LeaderWithID()
		name := identity.NameOf(string(id))
		switch {
		case g.raft.State() == raft.Leader && g.raft.CurrentTerm() != term:
			return "", &leases.UnavailableError{Reason: "the leadership was transferred, but " + n.cfg.Name + " was elected again"}
		case id == "" || string(id) == self: // the new leader is known with its first heartbeat
			n.pause(10 * time.Millisecond)
		case to != "" && name != to:
			return "", &leases.UnavailableError{Reason: "the leadership was transferred, but " + name + " was elected, not " + to}
		default:
			return name, nil
		}
	}
	if ctx.Err() == nil {
		return "", fmt.Errorf("%w: %s is stopping", leases.ErrUnknownOutcome, n.cfg.Name)
	}
	return "", unknown(ctx)
}

// named returns the server of a member's name.
func (g *group) named(name string) (raft.Server, error) {
	servers := g.servers()
	i := slices.IndexFunc(servers, func(s raft.Server) bool { return identity.NameOf(string(s.ID)) == name })
	if i < 0 {
		var names []string
		for _, s := range servers {
			names = append(names, identity.NameOf(string(s.ID)))
		}
		slices.Sort(names)
		return raft.Server{}, &leases.InvalidError{Field: "member", Value: clip(name), Bounds: fmt.Sprintf("one of %v", names)}
	}
	return servers[i], nil
}
