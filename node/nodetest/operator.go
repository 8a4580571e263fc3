package nodetest

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// Operator is somebody who breaks leases, from a host of its own: as a member
// passes an operator's call on to the leader. It is safe for concurrent use.
type Operator struct {
	cluster *Cluster
	host    string

	mu    sync.Mutex // guards conns
	conns map[string]*grpc.ClientConn
}

// Operator returns an operator. The cluster closes its connections.
func (c *Cluster) Operator(host string) *Operator {
	o := &Operator{cluster: c, host: host, conns: map[string]*grpc.ClientConn{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, o)
	return o
}

// Break asks a node to break a lease, and records it.
func (o *Operator) Break(ctx context.Context, node int, h leases.Held, now bool) (b leases.Broken, err error) {
	o.cluster.Note("%s breaks %v of %s, now %v, by %s", o.host, h.Token, h.Name, now, o.cluster.Host(node))
	err = o.cluster.History.Break(h.Name, h.Token, now, func() error {
		b, err = o.send(ctx, node, h, now)
		return err
	})
	return b, err
}

// send sends a break once.
func (o *Operator) send(ctx context.Context, node int, h leases.Held, now bool) (leases.Broken, error) {
	conn, err := o.dial(o.cluster.Addr(node))
	if err != nil {
		return leases.Broken{}, err
	}
	r, err := peerv1.NewPeerClient(conn).Break(ctx, &peerv1.BreakRequest{By: o.cluster.serverID(node), Name: h.Name, Token: uint64(h.Token), Now: now})
	return leases.Broken{Free: r.GetFree(), AtMost: time.Duration(r.GetAtMostMs()) * time.Millisecond}, transport.FromGRPC(err)
}

func (o *Operator) dial(address string) (*grpc.ClientConn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if conn := o.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := transport.NewClientConn(address, nil, o.cluster.Net.Host(o.host))
	if err == nil {
		o.conns[address] = conn
	}
	return conn, err
}

// Close closes the connections.
func (o *Operator) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for address, conn := range o.conns {
		_ = conn.Close()
		delete(o.conns, address)
	}
	return nil
}

// serverID is that of node i, as its disk has it.
func (c *Cluster) serverID(i int) string {
	self, _, _ := c.members[i].disk.identity.Load()
	return self.ServerID()
}
