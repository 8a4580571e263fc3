package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxAddrs bounds the addresses of one Conn.
const maxAddrs = 64

// DialConfig says how to reach a cluster.
type DialConfig struct {
	Addrs   []string // "host:port" of any of its nodes; at least one
	TLS     *TLS     // nil: plaintext
	Network Network  // nil: TCP
	Log     *slog.Logger
	Rules   rules.Set
}

// Conn is a connection to a cluster through any of its addresses. It is a
// leases.Backend and safe for concurrent use. It accepts the answers of one
// cluster only, the first that it was connected to.
type Conn struct {
	cfg    DialConfig
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	run    sync.WaitGroup // what Close waits for: searches, and the sessions' goroutines

	mu     sync.Mutex       // guards what follows
	pinned leases.ID        // zero: no cluster yet
	links  map[string]*link // by address, in use and spare ones; those that are spoiled are not here
	start  int              // the index in Addrs that a search starts with
	first  string           // an address that comes before it; empty: none
	avoid  string           // where the last conversation broke; empty: none did
	mute   string           // where the last watch broke; empty: none did
}

var _ leases.Backend = (*Conn)(nil)

var errConnClosed = fmt.Errorf("%w: the connection to the cluster was closed", leases.ErrClosed)

// Dial returns a Conn. It does no I/O: the first Open or Status does. The
// errors are *leases.InvalidError.
func Dial(cfg DialConfig) (*Conn, error) {
	if len(cfg.Addrs) == 0 || len(cfg.Addrs) > maxAddrs {
		return nil, &leases.InvalidError{Field: "addresses", Value: fmt.Sprint(len(cfg.Addrs)), Bounds: fmt.Sprintf("from 1 to %d", maxAddrs)}
	}
	for _, addr := range cfg.Addrs {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			return nil, &leases.InvalidError{Field: "address", Value: addr, Bounds: `"host:port"`}
		}
	}
	if cfg.Network == nil {
		cfg.Network = TCP()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Addrs = slices.Clone(cfg.Addrs)
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Conn{cfg: cfg, ctx: ctx, cancel: cancel, links: make(map[string]*link)}, nil
}

// Close ends all conversations, calls and watches, and waits for their
// goroutines; so it must not be called by the function of an event or a watch. It is idempotent.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.cancel(errConnClosed)
	c.mu.Unlock()
	c.run.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links { // spare ones: there is nobody left to use them
		l.cc.Close()
	}
	clear(c.links)
	return nil
}

// enter counts in somebody whom Close waits for until c.run.Done, and reports
// whether c is open.
func (c *Conn) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.run.Add(1)
	return true
}

// Open begins a conversation with the serving node. It asks each address at
// most once, for about a second each, and follows what they say of the leader.
// The error has what each of them said.
func (c *Conn) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	if id.IsZero() {
		return nil, &leases.InvalidError{Field: "session", Value: "zeros", Bounds: "16 random bytes"}
	}
	var opened *session
	err := c.search(ctx, func(ctx context.Context, l *link, _ *search) (err error) {
		opened, err = c.open(ctx, l, id, on)
		return err
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// Status asks about a lease, or with an empty name about the cluster. The
// answer is the serving leader's if one is found, else the best that a node
// knows: then its cluster part says that it does not serve, and there is no
// lease part. The error has what each address said.
func (c *Conn) Status(ctx context.Context, name string) (*coorddv1.StatusResponse, error) {
	if name != "" {
		if err := leases.ValidateName(name); err != nil {
			return nil, err
		}
	}
	var best *coorddv1.StatusResponse
	look := func(r *coorddv1.StatusResponse) {
		if best == nil || best.GetCluster().GetLeader() == "" && r.GetCluster().GetLeader() != "" {
			best = r
		}
	}
	err := c.search(ctx, func(ctx context.Context, l *link, s *search) error {
		r, err := c.ask(ctx, l, name)
		if err != nil {
			// A node that cannot tell about the lease may still know the cluster.
			if name != "" {
				if view, err := c.ask(ctx, l, ""); err == nil {
					look(view)
				}
			}
			return err
		}
		if r.GetCluster().GetServing() {
			best = r
			return nil
		}
		look(r)
		s.hint(r.GetCluster().GetLeaderAddress())
		return &leases.UnavailableError{Reason: "the node does not serve: " + r.GetCluster().GetState()}
	})
	if best != nil {
		return best, nil
	}
	return nil, err
}

// ask is one node's Status.
func (c *Conn) ask(ctx context.Context, l *link, name string) (*coorddv1.StatusResponse, error) {
	r, err := coorddv1.NewCoorddClient(l.cc).Status(ctx, &coorddv1.StatusRequest{Name: name})
	if err != nil {
		return nil, nothingTold(err)
	}
	if id, err := leases.ParseID(r.GetCluster().GetCluster()); err == nil {
		return r, c.admit(id, false)
	}
	return r, nil // it belongs to none yet
}

// admit returns a *leases.WrongClusterError unless cluster is the pinned one.
// If none is yet and pin says so, it becomes that.
func (c *Conn) admit(cluster leases.ID, pin bool) error {
	if !c.cfg.Rules.On(rules.ClusterPin) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pinned.IsZero() {
		if pin {
			c.pinned = cluster
		}
		return nil
	}
	if c.pinned != cluster {
		return &leases.WrongClusterError{Want: c.pinned, Got: cluster}
	}
	return nil
}

// pin is the pinned cluster as an Open names it.
func (c *Conn) pin() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pinned.IsZero() {
		return nil
	}
	return bytes.Clone(c.pinned[:])
}

// launch starts a conversation's goroutines, unless c is closed.
func (c *Conn) launch(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.avoid = ""
	s.link.users++
	c.run.Go(s.send)
	c.run.Go(s.receive)
	c.cfg.Log.Debug("conversation began", "node", s.info.Node, "addr", s.link.addr)
	return true
}

// ended notes that a conversation has ended for the reason err.
func (c *Conn) ended(s *session, err error) {
	c.mu.Lock()
	c.avoid, c.first = s.link.addr, ""
	var other *leases.NotLeaderError
	if errors.As(err, &other) {
		c.first = other.Leader
	}
	c.mu.Unlock()
	c.cfg.Log.Debug("conversation ended", "node", s.info.Node, "addr", s.link.addr, "err", err)
	c.giveBack(s.link, s.link.spoiled(errors.Is(err, leases.ErrClosed)))
}
