package nodetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// Operator is somebody who breaks leases, from a host of its own: as a member
// passes an operator's call on to the leader. It is safe for concurrent use.
type Operator struct {
	cluster *Cluster
	host    string
	late    sync.WaitGroup // copies that are still to come

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

// Break asks a node to break a lease, and records it. If again is not 0 a copy
// of the request comes so much later, to whoever serves then.
func (o *Operator) Break(ctx context.Context, node int, h leases.Held, now bool, again time.Duration) (b leases.Broken, err error) {
	o.cluster.Note("%s breaks %v of %s, now %v, by %s", o.host, h.Token, h.Name, now, o.cluster.Host(node))
	err = o.cluster.History.Break(h.Name, h.Token, now, func() error {
		b, err = o.send(ctx, node, h, now)
		if again != 0 {
			o.late.Go(func() { o.bring(again, h, now) })
			err = copied(err)
		}
		return err
	})
	o.cluster.Note("%s: %+v, %v", o.host, b, err)
	return b, err
}

// bring brings a copy of a break.
func (o *Operator) bring(after time.Duration, h leases.Held, now bool) {
	time.Sleep(after)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if node, ok := o.cluster.Serving(); ok {
		_, err := o.send(ctx, node, h, now)
		o.cluster.Note("a copy of the break of %v: %v", h.Token, err)
	}
}

// copied is the error of a request of which a copy comes later: that may take
// effect where the first certainly had none.
func copied(err error) error {
	if history.OutcomeOf(err) == history.Nothing {
		return fmt.Errorf("%w: a copy comes later (%w)", leases.ErrUnknownOutcome, err)
	}
	return err
}

// send sends a break once.
func (o *Operator) send(ctx context.Context, node int, h leases.Held, now bool) (leases.Broken, error) {
	conn, err := o.dial(o.cluster.Addr(node))
	if err != nil {
		return leases.Broken{}, err
	}
	by := o.cluster.serverID((node + 1) % o.cluster.Size()) // which passes it on
	r, err := peerv1.NewPeerClient(conn).Break(ctx, &peerv1.BreakRequest{By: by, Name: h.Name, Token: uint64(h.Token), Now: now})
	return leases.Broken{Ended: r.GetEnded(), AtMost: time.Duration(r.GetAtMostMs()) * time.Millisecond}, transport.FromGRPC(err)
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

// Close waits for the copies that are still to come and closes the connections.
func (o *Operator) Close() error {
	o.late.Wait()
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
