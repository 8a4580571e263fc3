package node

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// local serves sessions where this node serves, and refuses them elsewhere.
type local struct{ node *Node }

var _ leases.Backend = local{}

// Open implements leases.Backend.
func (l local) Open(_ context.Context, session leases.ID, on func(leases.Event)) (leases.Session, error) {
	n := l.node
	if session.IsZero() {
		return nil, &leases.InvalidError{Field: "session", Value: "none", Bounds: "16 random bytes"}
	}
	t, err := n.tenure()
	if err != nil {
		return nil, err
	}
	s, err := t.open(session, n.info(), on)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (n *Node) info() leases.Info {
	return leases.Info{
		Cluster: n.who().Cluster, Node: n.cfg.Name, Rho: leases.Rho, MaxTTL: leases.MaxTTL,
		ElectionTimeout: n.cfg.ElectionTimeout,
	}
}

// tenure returns the one that serves now, or why none does.
func (n *Node) tenure() (*tenure, error) {
	if t := n.leads(); t != nil {
		return t, nil
	}
	return nil, n.notServing()
}

// notServing says why this node answers no client, and who does.
func (n *Node) notServing() error {
	n.mu.Lock()
	g, doing, dead := n.group, n.doing, n.err
	n.mu.Unlock()
	switch {
	case dead != nil:
		return &leases.UnavailableError{Reason: n.cfg.Name + " has stopped: " + dead.Error()}
	case n.ctx.Err() != nil:
		return &leases.UnavailableError{Reason: n.cfg.Name + " is stopping"}
	case g == nil:
		return &leases.UnavailableError{Reason: n.cfg.Name + " is " + doing}
	}
	if n.governed() {
		if err := n.arbitration.elsewhere(); err != nil {
			return err
		}
	}
	_, id := g.raft.LeaderWithID()
	switch {
	case id == "":
		return fmt.Errorf("%w: %s hears no leader", leases.ErrNoQuorum, n.cfg.Name)
	case string(id) == n.who().ServerID() || g.raft.State() == raft.Leader:
		return &leases.UnavailableError{Reason: n.cfg.Name + " is " + doing}
	default:
		return &leases.NotLeaderError{Node: n.cfg.Name, Leader: n.addressOf(string(id))}
	}
}

var _ leases.Backend = (*Node)(nil)

// Open implements leases.Backend for a client in the same process: without the
// network where this node serves, else over a connection to the leader.
func (n *Node) Open(ctx context.Context, session leases.ID, on func(leases.Event)) (leases.Session, error) {
	b, err := n.nearest()
	if err != nil {
		return nil, err
	}
	return b.Open(ctx, session, on)
}

// nearest is where calls are answered: here where this node serves, else over a
// connection to the leader.
func (n *Node) nearest() (leases.Backend, error) {
	if n.leads() != nil {
		return local{n}, nil
	}
	err := n.notServing()
	if n.ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", leases.ErrClosed, err)
	}
	elsewhere, ok := err.(*leases.NotLeaderError)
	if !ok || elsewhere.Leader == "" {
		return nil, err
	}
	return n.forwardTo(elsewhere.Leader)
}

// forwardTo returns the connection to a leader; it is the node's to close.
func (n *Node) forwardTo(leader string) (*transport.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.forward == nil {
		return nil, leases.ErrClosed
	}
	if conn := n.forward[leader]; conn != nil {
		return conn, nil
	}
	conn, err := transport.Dial(transport.DialConfig{Addrs: []string{leader}, TLS: n.cfg.TLS, Network: n.cfg.Network, Log: n.log})
	if err != nil {
		return nil, err
	}
	n.forward[leader] = conn
	return conn, nil
}
