package nodetest

import (
	"cmp"
	"context"
	"io"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// ClientConfig says what a Client is like. Its zero value knows all nodes.
type ClientConfig struct {
	Nodes   []int     // whose addresses it is given; nil: all
	Session leases.ID // zero: a random one
	Owner   string    // its label; empty: its name
	Rate    float64   // of its clock; 0: 1
	// Backend, where it is not nil, wraps what the requests go to.
	Backend func(leases.Backend) leases.Backend
}

// Client is a client.Client with a host and a clock of its own, whose requests
// and beliefs are recorded.
type Client struct {
	*client.Client
	Name  string // of its host too
	Clock *Clock

	cluster *Cluster
	conn    io.Closer
}

// Client returns a client on a host of its own. The cluster closes it, if
// nobody has before. It is safe for concurrent use.
func (c *Cluster) Client(name string, cfg ClientConfig) *Client {
	addrs := c.Addrs()
	if cfg.Nodes != nil {
		addrs = nil
		for _, i := range cfg.Nodes {
			addrs = append(addrs, c.Addr(i))
		}
	}
	conn, err := transport.Dial(transport.DialConfig{Addrs: addrs, Network: c.Net.Host(name), Rules: c.cfg.Rules})
	if err != nil {
		c.t.Fatal(err)
	}
	var backend leases.Backend = conn
	if cfg.Backend != nil {
		backend = cfg.Backend(backend)
	}
	machine := newClock(c.True)
	if cfg.Rate != 0 {
		machine.setRate(cfg.Rate)
	}
	opts := []client.Option{client.WithClock(machine), client.WithRules(c.cfg.Rules), client.WithOwner(leases.Owner{Label: cmp.Or(cfg.Owner, name)})}
	if !cfg.Session.IsZero() {
		opts = append(opts, client.WithSession(cfg.Session))
	}
	k := &Client{Client: client.New(c.History.Backend(name, backend), opts...), Name: name, Clock: machine, cluster: c, conn: conn}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, k)
	return k
}

// Close closes the client and its connection.
func (k *Client) Close(ctx context.Context) error {
	err := k.Client.Close(ctx)
	k.conn.Close()
	return err
}

// Hold is a lease that a client relies on.
type Hold struct {
	*client.Lease
	belief *history.Holding
}

// Acquire is the client's, with what it believes recorded.
func (k *Client) Acquire(ctx context.Context, name string, opts ...client.LeaseOption) (*Hold, error) {
	return k.hold(k.Client.Acquire(ctx, name, opts...))
}

// TryAcquire is the client's, with what it believes recorded.
func (k *Client) TryAcquire(ctx context.Context, name string, opts ...client.LeaseOption) (*Hold, error) {
	return k.hold(k.Client.TryAcquire(ctx, name, opts...))
}

func (k *Client) hold(l *client.Lease, err error) (*Hold, error) {
	if err != nil {
		return nil, err
	}
	b := k.cluster.History.Believe(k.Name, l.Name(), l.Token(), func() clock.Instant { return k.Clock.True(l.Deadline()) })
	context.AfterFunc(l.Context(), b.End)
	return &Hold{l, b}, nil
}

// Release gives the lease up, and then tells the cluster.
func (h *Hold) Release(ctx context.Context) error {
	h.belief.End()
	return h.Lease.Release(ctx)
}

// Transfer gives the lease up, and then passes it on to whoever waits under that
// attempt.
func (h *Hold) Transfer(ctx context.Context, to leases.ID) (bool, error) {
	h.belief.End()
	return h.Lease.Transfer(ctx, to)
}

// pause stops the client as SIGSTOP stops a process.
func (k *Client) pause() {
	k.Clock.pause()
	k.cluster.Net.Pause(k.Name)
}

func (k *Client) resume() {
	k.Clock.resume()
	k.cluster.Net.Resume(k.Name)
}
