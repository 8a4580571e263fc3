package nodetest

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/node/internal/identity"
)

// disk is what a node's lives share. It is in memory, and outlives a crash.
type disk struct {
	store     *raft.InmemStore
	snapshots *raft.InmemSnapshotStore
	identity  *identity.Memory
	journal   *journal
}

func newDisk() *disk {
	return &disk{
		store: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore(), identity: identity.NewMemory(),
		journal: &journal{entries: map[uint64]*raft.Log{}},
	}
}

// mount returns the disk as one life of the node sees it. Writes wait for the gate.
func (d *disk) mount(g *gate) *hook.Storage {
	m := &mounted{InmemStore: d.store, gate: g, journal: d.journal}
	s := &hook.Storage{Logs: m, Stable: m, Snapshots: d.snapshots, Identity: d.identity}
	s.Wipe = func() error {
		d.store, d.snapshots = raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		m = &mounted{InmemStore: d.store, gate: g, journal: d.journal}
		s.Logs, s.Stable, s.Snapshots = m, m, d.snapshots
		return nil
	}
	return s
}

type mounted struct {
	*raft.InmemStore
	gate    *gate
	journal *journal
}

func (m *mounted) StoreLog(l *raft.Log) error { return m.StoreLogs([]*raft.Log{l}) }

func (m *mounted) StoreLogs(l []*raft.Log) error {
	return m.gate.pass(func() error {
		m.journal.add(l)
		return m.InmemStore.StoreLogs(l)
	})
}

func (m *mounted) DeleteRange(first, last uint64) error {
	return m.gate.pass(func() error { return m.InmemStore.DeleteRange(first, last) })
}

func (m *mounted) Set(key, value []byte) error {
	return m.gate.pass(func() error { return m.InmemStore.Set(key, value) })
}

func (m *mounted) SetUint64(key []byte, value uint64) error {
	return m.gate.pass(func() error { return m.InmemStore.SetUint64(key, value) })
}

// proposals is the log that a leader proposes to, behind a gate.
type proposals struct {
	fsm.Log
	gate    *gate
	cluster *Cluster
}

func (p *proposals) Apply(entry []byte, timeout time.Duration) (f raft.ApplyFuture) {
	p.cluster.proposed(entry)
	err := p.gate.pass(func() error { f = p.Log.Apply(entry, timeout); return nil })
	if err != nil {
		return failed{err}
	}
	return f
}

// failed is the future of an entry that was never proposed.
type failed struct{ err error }

func (f failed) Error() error { return f.err }
func (failed) Response() any  { return nil }
func (failed) Index() uint64  { return 0 }

// gate is where what one life of a node does waits: its writes while it is
// paused or its disk stalls, its proposals while they are held. After the end
// of that life nothing passes.
type gate struct {
	mu      sync.Mutex // guards what follows
	dead    bool
	shut    int // how many want it shut
	changed chan struct{}
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

var errDead = errors.New("this life of the node is over")

// pass calls f as soon as the gate is open.
func (g *gate) pass(f func() error) error {
	for {
		g.mu.Lock()
		dead, shut, changed := g.dead, g.shut > 0, g.changed
		g.mu.Unlock()
		switch {
		case dead:
			return errDead
		case !shut:
			return f()
		}
		<-changed
	}
}

func (g *gate) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) close()   { g.set(func() { g.shut++ }) }
func (g *gate) open()    { g.set(func() { g.shut = max(g.shut-1, 0) }) }
func (g *gate) openAll() { g.set(func() { g.shut = 0 }) }
func (g *gate) kill()    { g.set(func() { g.dead = true }) }
