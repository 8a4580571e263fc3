// Package nodetest runs a whole cluster in one process, over a network in
// memory, with the faults of networks, machines and disks at hand, and records
// what its clients were told. It is meant for virtual time: make the cluster
// inside of a testing/synctest bubble.
package nodetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/transport/faults"
)

// Config says what a Cluster is like. Its zero value is three nodes.
type Config struct {
	Nodes           int           // default 3
	Spare           int           // further ones, which are not started
	Seed            uint64        // fixes Rand and the delays of the network
	ElectionTimeout time.Duration // default 1 s
	Rules           rules.Set     // of nodes and clients
	Delay, Jitter   time.Duration // of every link; the default is 1 ms each
	Keep            int           // entries of the log behind a snapshot, which is taken whenever there are twice as many; 0: the nodes' own
	Log             *slog.Logger  // of the nodes; nil: silent
	// Arbiter gives the cluster an arbiter in memory, with this authority; nil: none. Its
	// nodes then keep nothing from one life to the next, unless Disks is set.
	Arbiter     *node.Authority
	Disks       bool
	Unadopted   bool // the cluster is founded as without the arbiter; it implies Disks
	ReformAfter time.Duration
	Lose        func(*Cluster) // called before the first node starts, to plan faults of the ways to the arbiter
}

// Cluster is a number of nodes and the world around them. Nodes are numbered
// from 0; the host of node i is Host(i). Its methods are for one goroutine,
// except where they say otherwise.
type Cluster struct {
	Net     *faults.Fabric
	Rand    *rand.Rand        // for the schedule; for one goroutine
	True    clock.Clock       // the one that the history is told in
	History *history.Recorder // what the clients were told

	t       testing.TB
	cfg     Config
	members []*member
	arbiter *arbiter.Memory
	graves  sync.WaitGroup // the closing of lives that have crashed

	mu       sync.Mutex // guards what follows
	clients  []*Client
	conns    []io.Closer // of others than clients
	schedule []string
	broken   []error // promises that a scenario has seen broken
	claims   map[string]int
}

type member struct {
	host  string
	disk  *disk
	clock *Clock
	way   *faulty.Store // to the arbiter; nil without one

	electionTimeout time.Duration // of its next life

	// One life.
	node      atomic.Pointer[node.Node] // nil: it is down
	writes    *gate                     // to the disk
	proposals *gate
	paused    atomic.Bool
}

// New starts a cluster and waits until it serves. It closes it when the test ends.
func New(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	c := newCluster(t, cfg)
	if cfg.Lose != nil {
		cfg.Lose(c)
	}
	for i := range c.cfg.Nodes {
		c.Start(i)
	}
	c.Leader()
	c.AllVote()
	return c
}

// AllVote waits until every node that is up is a voter.
func (c *Cluster) AllVote() {
	c.t.Helper()
	c.eventually("all nodes vote", func() bool {
		for _, m := range c.members {
			if n := m.node.Load(); n != nil && !votes(n) {
				return false
			}
		}
		return true
	})
}

func newCluster(t testing.TB, cfg Config) *Cluster {
	if cfg.Nodes == 0 {
		cfg.Nodes = 3
	}
	if cfg.ElectionTimeout == 0 {
		cfg.ElectionTimeout = node.DefaultElectionTimeout
	}
	if cfg.Delay == 0 {
		cfg.Delay, cfg.Jitter = time.Millisecond, time.Millisecond
	}
	c := &Cluster{
		Net: faults.New(cfg.Seed), Rand: rand.New(rand.NewPCG(cfg.Seed, 1)), True: clock.NewRuntime(),
		t: t, cfg: cfg, claims: map[string]int{},
	}
	c.Net.DelayAll(cfg.Delay, cfg.Jitter)
	c.History = history.NewRecorder(c.True)
	for i := range cfg.Nodes + cfg.Spare {
		c.members = append(c.members, &member{host: fmt.Sprintf("n%d", i+1), disk: newDisk(), clock: newClock(c.True), electionTimeout: cfg.ElectionTimeout})
	}
	if cfg.Arbiter != nil {
		c.arbiter = arbiter.NewMemory()
		for _, m := range c.members {
			m.way = faulty.New(c.arbiter)
		}
	}
	t.Cleanup(c.close)
	return c
}

// votes reports whether a node knows that it is a voter.
func votes(n *node.Node) bool {
	s := n.Status()
	for _, m := range s.Members {
		if m.Name == s.Node {
			return m.Voter
		}
	}
	return false
}

// Size is how many nodes there are.
func (c *Cluster) Size() int { return len(c.members) }

// Host is the name of node i and of its host.
func (c *Cluster) Host(i int) string { return c.members[i].host }

// Addrs are the addresses of all nodes but the spare ones.
func (c *Cluster) Addrs() (addrs []string) {
	for i := range c.cfg.Nodes {
		addrs = append(addrs, c.Addr(i))
	}
	return addrs
}

// Addr is the address of node i.
func (c *Cluster) Addr(i int) string { return c.members[i].host + ":7420" }

// Node is node i; nil while it is down. It is safe for concurrent use.
func (c *Cluster) Node(i int) *node.Node { return c.members[i].node.Load() }

// Start begins a life of node i.
func (c *Cluster) Start(i int) {
	m := c.members[i]
	m.writes, m.proposals = newGate(), newGate()
	proposed := m.proposals
	cfg := node.Config{
		Name: m.host, Listen: m.host + ":7420", Join: c.Addrs(), Bootstrap: true,
		ElectionTimeout: m.electionTimeout, Network: c.Net.Host(m.host), Clock: m.clock, Log: c.cfg.Log,
		Testing: hook.Testing{
			Rules: c.cfg.Rules, Storage: m.disk.mount(m.writes),
			Log:  func(l fsm.Log) fsm.Log { return &proposals{l, proposed, c} },
			Raft: c.keep,
		},
	}
	if m.way != nil {
		if !c.cfg.Disks && !c.cfg.Unadopted {
			m.disk = newDisk()
			cfg.Testing.Storage = m.disk.mount(m.writes)
		}
		cfg.Arbiter, cfg.Authority, cfg.ReformAfter = m.way, *c.cfg.Arbiter, c.cfg.ReformAfter
		if !c.cfg.Unadopted {
			cfg.Bootstrap, cfg.Join = false, nil
		}
	}
	n, err := node.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := n.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	m.node.Store(n)
}

// keep lets the log be compacted as the cluster's configuration says.
func (c *Cluster) keep(r *raft.Config) {
	if n := uint64(c.cfg.Keep); n > 0 {
		r.SnapshotInterval, r.SnapshotThreshold, r.TrailingLogs = 500*time.Millisecond, n, n
	}
}

// Leader waits until a node serves, and returns the one with the newest term.
func (c *Cluster) Leader() (leader int) {
	c.t.Helper()
	c.eventually("a node serves", func() (ok bool) {
		leader, ok = c.Serving()
		return ok
	})
	return leader
}

// Serving returns the node that serves in the newest term, if there is one. A
// node that is paused is not asked. It is safe for concurrent use.
func (c *Cluster) Serving() (leader int, ok bool) {
	var newest uint64
	for i, m := range c.members {
		n := m.node.Load()
		if n == nil || m.paused.Load() {
			continue
		}
		if s := n.Status(); s.Serving && s.Term > newest {
			leader, newest = i, s.Term
		}
	}
	return leader, newest > 0
}

// eventually looks every 10 ms of virtual time.
func (c *Cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	for range 60_000 / 10 {
		if condition() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Fatalf("not within a minute: %s\n%s", what, c.Schedule())
}

// Schedule is what was done to the cluster, and when.
func (c *Cluster) Schedule() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("seed %d\n%s", c.cfg.Seed, strings.Join(c.schedule, "\n"))
}

// Note adds a line to the schedule. It is safe for concurrent use.
func (c *Cluster) Note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Duration(c.True.Now()).Round(time.Millisecond)
	c.schedule = append(c.schedule, fmt.Sprintf("%9v %s", at, fmt.Sprintf(format, args...)))
}

// Claims is how many claims of a name were proposed by leaders. It is safe for
// concurrent use.
func (c *Cluster) Claims(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claims[name]
}

// proposed counts the claims in an entry of the log.
func (c *Cluster) proposed(entry []byte) {
	e, err := fsm.DecodeEntry(entry)
	if err != nil {
		c.Broken("a leader proposes what cannot be read: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range e.Ops {
		if op.Kind == leases.KindAcquire {
			c.claims[op.Name]++
		}
	}
}

// Broken notes that a promise was broken which the history does not tell of. It
// is safe for concurrent use.
func (c *Cluster) Broken(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, fmt.Errorf("at %v: "+format, append([]any{time.Duration(c.True.Now()).Round(time.Millisecond)}, args...)...))
}

// Check returns nil if every promise was kept. It is to be called outside of the
// synctest bubble.
func (c *Cluster) Check(timeout time.Duration) error {
	return errors.Join(c.brokenPromises(), c.History.History().Check(timeout))
}

// brokenPromises are those that Broken has noted.
func (c *Cluster) brokenPromises() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.broken...)
}

// close ends everything: the clients in order, then the nodes.
func (c *Cluster) close() {
	c.Net.HealAll()
	for i, m := range c.members {
		c.Resume(i)
		m.writes.openAll()
		m.proposals.openAll()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c.mu.Lock()
	clients := c.clients
	c.mu.Unlock()
	var closing sync.WaitGroup
	for _, client := range clients {
		closing.Go(func() { client.Close(ctx) })
	}
	closing.Wait()
	for _, conn := range c.conns {
		conn.Close()
	}
	for _, m := range c.members {
		if n := m.node.Load(); n != nil {
			closing.Go(func() { c.bury(n) })
		}
	}
	closing.Wait()
	c.graves.Wait()
}

// bury closes a node, which may have lost everything around it.
func (c *Cluster) bury(n *node.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil && !errors.Is(err, leases.ErrClosed) {
		c.Note("close %s: %v", n.Status().Node, err)
	}
}
