package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/node/internal/raftlog"
)

// group is this node's part in the Raft group of its cluster.
type group struct {
	raft      *raft.Raft
	transport *raft.NetworkTransport
	storage   storage
	streams   *streams
	loops     sync.WaitGroup
	barriers  sync.WaitGroup  // that have not been answered
	patience  time.Duration   // how long that may take
	running   sync.WaitGroup  // the node's loops that belong to this group
	ended     sync.Once       // guards that transport and storage are closed once
	endErr    error           // of that
	ctx       context.Context // ends with the group
	stop      context.CancelFunc
	joined    atomic.Bool // a configuration has named this node, now or before; only ever set

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	closing bool   // no barrier is begun any more
	redo    func() // ends what serves in the present term, so that it begins anew; nil: nothing does
}

// Raft's traffic is timed by the election timeout.
const (
	snapshotInterval  = 10 * time.Second
	snapshotThreshold = 8192
	trailingLogs      = 10240
	cachedEntries     = 512 // of the log, for replication
)

// startGroup starts Raft under the node's identity.
func (n *Node) startGroup() error {
	self := n.who()
	kept, err := n.openStorage()
	if err != nil {
		return err
	}
	notify := make(chan bool, 1)
	g := &group{storage: kept, changed: make(chan struct{}), patience: 2 * n.cfg.ElectionTimeout}
	g.ctx, g.stop = context.WithCancel(n.ctx)
	g.streams = newStreams(n, self.ServerID())
	g.transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: g.streams, MaxPool: 3,
		// No pipelining: where the decoder of its answers has met a newer term, the
		// sender can be blocked for good, and Shutdown waits for it (hashicorp/raft
		// issue 612). With group commit there is nothing to gain by it.
		MaxRPCsInFlight: 1,
		Timeout:         max(4*n.cfg.ElectionTimeout, 2*time.Second), Logger: raftlog.New(n.log), MsgpackUseNewTimeFormat: true,
	})
	err = kept.guard.Run(func() (err error) {
		if self.Founding {
			if err := n.bootstrap(kept, g.transport); err != nil {
				return err
			}
		}
		g.raft, err = raft.NewRaft(n.raftConfig(notify), measuredFSM{n.fsm, n.metrics}, kept.logs, kept.stable, kept.snapshots, g.transport)
		return err
	})
	if err != nil {
		g.stop()
		return errors.Join(fmt.Errorf("start Raft: %w", err), g.transport.Close(), kept.release())
	}
	g.joined.Store(g.raft.LastIndex() > 0) // only members are sent the log
	g.loops.Go(func() { g.drain(notify) })
	if self.Founding { // from now on a lost log makes another incarnation, not a second founding
		if err := n.become(func(self *identity.Identity) { self.Founding = false }); err != nil {
			return errors.Join(err, g.close(n.ctx))
		}
	}
	n.mu.Lock()
	ended := n.ctx.Err() // Close and die end ctx before they look for a group to end
	if ended == nil {
		n.group = g
	}
	n.mu.Unlock()
	if ended != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(n.ctx), 5*time.Second)
		defer cancel()
		return errors.Join(leases.ErrClosed, g.close(ctx), g.streams.drain(ctx))
	}
	g.running.Add(2)
	n.loops.Go(func() { defer g.running.Done(); n.lead(g) })
	n.loops.Go(func() { defer g.running.Done(); n.attend(g) })
	return nil
}

func (n *Node) raftConfig(notify chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.who().ServerID())
	c.HeartbeatTimeout, c.ElectionTimeout = n.cfg.ElectionTimeout, n.cfg.ElectionTimeout
	c.LeaderLeaseTimeout = n.cfg.ElectionTimeout / 2
	c.CommitTimeout = min(50*time.Millisecond, n.cfg.ElectionTimeout/10)
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = snapshotInterval, snapshotThreshold, trailingLogs
	c.ShutdownOnRemove = false
	c.NotifyCh = notify
	c.Logger = raftlog.New(n.log)
	c.NoLegacyTelemetry = true
	return n.cfg.Testing.Configure(c)
}

// bootstrap gives an empty log the configuration of a founder: itself alone.
func (n *Node) bootstrap(s storage, t raft.Transport) error {
	exists, err := raft.HasExistingState(s.logs, s.stable, s.snapshots)
	if err != nil || exists {
		return err
	}
	id := n.who().ServerID()
	founder := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}}}
	return raft.BootstrapCluster(n.raftConfig(nil), s.logs, s.stable, s.snapshots, t, founder)
}

// drain keeps Raft from blocking on its notifications, which coalesce: whoever
// waits for a change compares state and term.
func (g *group) drain(notify <-chan bool) {
	for {
		select {
		case <-notify:
			g.mu.Lock()
			close(g.changed)
			g.changed = make(chan struct{})
			g.mu.Unlock()
		case <-g.ctx.Done():
			return
		}
	}
}

// change is closed at the next change of leadership.
func (g *group) change() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// again lets the present term, if this node leads it, begin anew.
func (g *group) again() {
	g.mu.Lock()
	redo := g.redo
	g.mu.Unlock()
	if redo != nil {
		redo()
	}
}

// serves notes what ends the present term's serving.
func (g *group) serves(redo func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.redo = redo
}

// leads reports whether this node leads term, as far as it knows.
func (g *group) leads(term uint64) bool {
	return g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term
}

// servers is the newest configuration that this node knows, committed or not.
func (g *group) servers() []raft.Server {
	f := g.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}

func (g *group) server(id string) (raft.Server, bool) { return serverOf(g.servers(), id) }

// serverOf returns the server of an id, if a configuration names it.
func serverOf(servers []raft.Server, id string) (raft.Server, bool) {
	i := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.ID) == id })
	if i < 0 {
		return raft.Server{}, false
	}
	return servers[i], true
}

func voters(servers []raft.Server) int {
	n := 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// handOver makes another voter the leader, if this node leads. It takes at most
// half of the time that ctx has left.
func (g *group) handOver(ctx context.Context, log *slog.Logger) {
	if g.raft.State() != raft.Leader || voters(g.servers()) < 2 {
		return
	}
	if end, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	if err := await(ctx, g.raft.LeadershipTransfer()); err != nil {
		log.Warn("leadership could not be handed over", "err", err)
	}
}

// barrier waits until everything that this leader's log holds has been applied.
func (g *group) barrier(ctx context.Context) error {
	done := make(chan error, 1)
	if !g.await(func() { done <- g.raft.Barrier(0).Error() }) {
		return raft.ErrRaftShutdown
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await calls f in a goroutine that close waits for, unless that has begun.
func (g *group) await(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return false
	}
	g.barriers.Go(f)
	return true
}

// close ends Raft, and the storage only after it.
func (g *group) close(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	// Raft that is shut down never answers a barrier that its state machine has not come to.
	soon, cancel := context.WithTimeout(ctx, g.patience)
	_ = wait(soon, &g.barriers, "barriers")
	cancel()
	err := await(ctx, g.raft.Shutdown())
	g.stop()
	g.loops.Wait()
	if err != nil {
		return fmt.Errorf("the Raft group was not left in time: %w", err)
	}
	g.ended.Do(func() { g.endErr = errors.Join(g.transport.Close(), g.storage.release()) })
	return g.endErr
}

// await waits for a future until ctx ends. A future's Error has no limit of its
// own, and only one goroutine may wait for it.
func await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
