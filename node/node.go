// Package node is the embeddable member of a coordd cluster: it founds or joins
// a cluster, takes part in its Raft group, and serves leases while it leads; with an
// arbiter it also takes part in the authority protocol (arbitration.go), and serves by
// the arbiter's registers while those have authority (registers_serve.go).
//
// The way of a grant: a client's Acquire comes in over a session (session.go),
// stands in the line of its name (line.go), is proposed in its turn to the replicator
// of the tenure (replicator.go): through Raft's log (raft_replicator.go, package fsm)
// or in the registers (registers.go, package fallback), and answered with the token.
// By Raft, deadlines live in the leader's memory (deadlines.go, renew.go, expiry.go),
// and rounds of the voters keep a leader that has lost its term from answering (rounds.go).
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/node/internal/stall"
	"github.com/coordd/coordd/transport"
	"github.com/coordd/coordd/transport/gateway"
)

// Fatal ends of a node, as Err tells them.
var (
	// ErrDiskStalled: a write to the log took too long. The late write may still
	// land, so the node never goes on: end the process.
	ErrDiskStalled = stall.ErrStalled
	// ErrDiskFailed: a write to the log has failed.
	ErrDiskFailed = stall.ErrFailed
	// ErrUnreadableOp: the log holds what only a newer release can read.
	ErrUnreadableOp = leases.ErrUnreadable
	// ErrRemoved: the cluster has taken this member out for good.
	ErrRemoved = errors.New("removed from the cluster")
)

// Node is one member. It is safe for concurrent use.
type Node struct {
	cfg         Config
	log         *slog.Logger
	clock       clock.Clock
	book        *book
	fsm         *fsm.FSM
	folder      hook.Identity // keeps who the node is
	locked      io.Closer     // the data folder; nil without one
	saves       sync.Mutex    // held while self is changed and saved
	server      *transport.Server
	metrics     *metrics
	service     *transport.Service // behind http
	http        *gateway.Server    // nil: there is none
	httpAddress string
	admin       *grpc.Server // on the Unix socket; nil without a data folder
	blank       bool         // its folder held no identity: it may found a cluster
	knew        []string     // addresses of the members in its folder
	started     clock.Instant
	arbitration *arbitration  // nil without an arbiter
	raftEnded   chan struct{} // closed when no Raft connection comes in any more

	ctx    context.Context // ends with the node; the cause says why
	cancel context.CancelCauseFunc
	loops  sync.WaitGroup
	joins  chan struct{} // has room for one: full while the membership is changed on behalf of a Join
	fatal  chan struct{}
	closed sync.Once

	mu      sync.Mutex // guards what follows
	self    identity.Identity
	group   *group  // nil until the node belongs to a cluster
	leaving *group  // that it takes part in no more, and whose end is not done
	serving *tenure // nil unless this node leads and serves
	doing   string  // for people
	err     error
	hearing context.Context            // ends when the node is cut off; nil while it is
	forward map[string]*transport.Conn // to leaders, by address, for Open
}

// New returns a node that has been checked and does nothing yet. The error
// joins every problem of cfg.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Network == nil {
		cfg.Network = transport.TCP()
	}
	n := &Node{
		cfg: cfg, log: cfg.Log.With("node", cfg.Name), clock: cfg.Clock, fatal: make(chan struct{}), raftEnded: make(chan struct{}), joins: make(chan struct{}, 1),
		doing: "not started", forward: map[string]*transport.Conn{},
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.fsm = fsm.New(cfg.Testing.Rules, n.die)
	n.metrics = newMetrics(n.clock, n.Status)
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(n.metrics); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return n, nil
}

// Start listens, and takes part in the cluster that the node belongs to. A node
// that belongs to none founds one or joins one in the background: Status tells
// how far it is. ctx bounds the start alone. On an error everything that was
// begun is undone.
func (n *Node) Start(ctx context.Context) error {
	if err := n.start(ctx); err != nil {
		n.shut(err)
		return fmt.Errorf("node %s: %w", n.cfg.Name, err)
	}
	return nil
}

func (n *Node) start(ctx context.Context) error {
	n.started = n.clock.Now()
	if err := n.identify(); err != nil {
		return err
	}
	if n.cfg.Arbiter != nil { // before anybody can ask for it
		n.arbitration = newArbitration(n)
	}
	if err := n.listen(ctx); err != nil {
		return err
	}
	if err := n.listenAdmin(); err != nil {
		return err
	}
	if err := n.listenHTTP(ctx); err != nil {
		return err
	}
	self := n.who()
	// Where others are to be asked, they may belong to a cluster that has not adopted it.
	arbitrated := n.arbitration != nil && (self.Arbitrated || self.Cluster.IsZero() && len(n.cfg.Join) == 0)
	if self.Cluster.IsZero() && len(n.cfg.Join)+len(n.knew) == 0 && !n.cfg.Bootstrap && !arbitrated {
		return &leases.InvalidError{Field: "join", Value: "no addresses", Bounds: "the addresses of other members, or bootstrap"}
	}
	if !self.Cluster.IsZero() {
		if err := n.discard(); err != nil {
			return err
		}
		if err := n.startGroup(); err != nil {
			return err
		}
	}
	n.loops.Go(func() { n.dispatch(n.server.Raft()) })
	if arbitrated {
		n.govern()
	} else {
		n.loops.Go(n.belong)
		if n.arbitration != nil {
			n.loops.Go(n.arbitration.await)
		}
	}
	n.loops.Go(n.greet)
	n.loops.Go(func() {
		<-n.ctx.Done()
		if err := n.Err(); err != nil {
			n.log.Error("this node cannot go on", "err", err)
		}
	})
	return nil
}

// identify loads who the node is, or draws it.
func (n *Node) identify() error {
	if err := n.openFolder(); err != nil {
		return err
	}
	self, known, err := n.folder.Load()
	if err != nil {
		return err
	}
	if !known {
		self = identity.New(n.cfg.Name)
	}
	if err := self.CheckName(n.cfg.Name); err != nil {
		return err
	}
	self.Starts++
	if known {
		if err := n.folder.Save(self); err != nil {
			return err
		}
	}
	n.self, n.blank = self, !known
	n.book = newBook(self.ServerID(), n.clock)
	for _, m := range self.Members {
		n.book.hint(m)
		n.knew = append(n.knew, m.Address)
	}
	return nil
}

func (n *Node) openFolder() error {
	switch {
	case n.cfg.Testing.Storage != nil:
		n.folder = n.cfg.Testing.Storage.Identity
	case n.cfg.InMemory:
		n.folder = identity.NewMemory()
	default:
		folder, err := identity.Open(n.cfg.Data, n.cfg.Name)
		if err != nil {
			return err
		}
		n.folder, n.locked = folder, folder
	}
	return nil
}

func (n *Node) listen(ctx context.Context) error {
	listener, err := n.cfg.Network.Listen(ctx, n.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", n.cfg.Listen, err)
	}
	if n.cfg.Advertise == "" {
		n.cfg.Advertise = listener.Addr().String()
	}
	n.server = transport.NewServer(transport.ServerConfig{
		Listener: listener, TLS: n.cfg.TLS, Log: n.log,
		Sessions: local{n}, Anywhere: n, Reflection: n.cfg.Reflection, Status: n.answerStatus, Peer: &peer{node: n}, AcceptRaft: n.acceptRaft,
	})
	n.server.Start()
	return nil
}

// who returns the node's identity.
func (n *Node) who() identity.Identity {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self
}

// here returns the node's identity and the group that it takes part in under it.
func (n *Node) here() (identity.Identity, *group) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self, n.group
}

// become changes the node's identity and saves it, before anything relies on it.
func (n *Node) become(change func(*identity.Identity)) error {
	n.saves.Lock()
	defer n.saves.Unlock()
	self := n.who()
	change(&self)
	if err := n.folder.Save(self); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.self = self
	return nil
}

// member returns the Raft group, nil while the node belongs to no cluster.
func (n *Node) member() *group {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.group
}

// leads returns the tenure that serves now, or nil.
func (n *Node) leads() *tenure {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.serving
}

// say notes, for people, what the node is doing.
func (n *Node) say(doing string) {
	n.mu.Lock()
	changed := n.doing != doing
	n.doing = doing
	n.mu.Unlock()
	if changed {
		n.log.Info(doing)
	}
}

// Address is where the others find this node, once it has been started.
func (n *Node) Address() string { return n.cfg.Advertise }

// Done is closed when the node cannot go on; Err then tells why. Close is still
// to be called.
func (n *Node) Done() <-chan struct{} { return n.fatal }

// Err is nil until Done is closed.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// die ends the node for good. It may be called from any goroutine, Raft's too,
// and waits for nothing: the log may be on the disk that has stalled.
func (n *Node) die(err error) {
	n.mu.Lock()
	first := n.err == nil
	if first {
		n.err = err
		close(n.fatal)
		n.cancel(err)
	}
	g := n.group
	n.mu.Unlock()
	if first && g != nil {
		g.raft.Shutdown() // not waited for: Raft's own goroutine may be here
	}
}

// Close hands leadership over where that is possible, and releases everything.
// It returns when ctx ends at the latest, also when a write to the disk hangs.
// The node stays a member of its cluster. Close is idempotent.
func (n *Node) Close(ctx context.Context) (err error) {
	n.closed.Do(func() {
		if g := n.member(); g != nil && n.Err() == nil {
			g.handOver(ctx, n.log)
		}
		err = n.release(ctx)
	})
	return err
}

// shut undoes a failed start.
func (n *Node) shut(why error) {
	n.closed.Do(func() {
		n.cancel(why)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = n.release(ctx)
	})
}

func (n *Node) release(ctx context.Context) error {
	var errs []error
	if n.service != nil { // before all that it needs to withdraw what nobody will hear of, and before its port
		errs = append(errs, n.service.Close(ctx))
	}
	n.cancel(leases.ErrClosed)
	if n.cfg.Metrics != nil {
		n.cfg.Metrics.Unregister(n.metrics)
	}
	stalled := errors.Is(n.Err(), ErrDiskStalled)
	n.mu.Lock()
	g, forward := cmp.Or(n.group, n.leaving), n.forward
	n.forward = nil
	n.mu.Unlock()
	for _, c := range forward {
		errs = append(errs, c.Close())
	}
	if n.http != nil {
		errs = append(errs, n.http.Close(ctx))
	}
	if n.admin != nil {
		var stopping sync.WaitGroup
		stopping.Go(n.admin.Stop)
		errs = append(errs, wait(ctx, &stopping, "the operators' calls"))
	}
	if g != nil {
		errs = append(errs, g.close(ctx))
	}
	if n.server != nil {
		errs = append(errs, n.server.Close(ctx))
	}
	if g != nil {
		errs = append(errs, g.streams.drain(ctx))
	}
	errs = append(errs, wait(ctx, &n.loops, "the node's loops"))
	if n.book != nil {
		n.book.close()
	}
	if n.locked != nil && !stalled { // else the process is to end
		errs = append(errs, n.locked.Close())
	}
	return errors.Join(errs...)
}

// wait waits for a group of goroutines until ctx ends.
func wait(ctx context.Context, group *sync.WaitGroup, what string) error {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s have not ended in time: %w", what, context.Cause(ctx))
	}
}
