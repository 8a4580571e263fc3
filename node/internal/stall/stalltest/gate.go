// Package stalltest lets tests hold the writes of a Raft node, as a disk does
// that has stopped answering.
package stalltest

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Gate holds the writes to the stores that are behind it while it is shut. The
// writes that it held land when it opens. Reads pass always. A Gate is safe for
// concurrent use; its zero value is open.
type Gate struct {
	mu   sync.Mutex    // guards what follows
	shut chan struct{} // closed when the gate opens; nil while it is open
	held int
}

// Shut holds every write that comes from now on.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

// Open lets the held writes go, and those that come.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// Held is how many writes the gate holds now.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

// pass returns as soon as the gate is open.
func (g *Gate) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.shut != nil {
		shut := g.shut
		g.held++
		g.mu.Unlock()
		<-shut
		g.mu.Lock()
		g.held--
	}
}

// Logs puts a log store behind the gate.
func (g *Gate) Logs(inside raft.LogStore) raft.LogStore { return &logStore{inside, g} }

// Stable puts a stable store behind the gate.
func (g *Gate) Stable(inside raft.StableStore) raft.StableStore { return &stableStore{inside, g} }

type logStore struct {
	raft.LogStore
	gate *Gate
}

func (s *logStore) StoreLog(log *raft.Log) error {
	s.gate.pass()
	return s.LogStore.StoreLog(log)
}

func (s *logStore) StoreLogs(logs []*raft.Log) error {
	s.gate.pass()
	return s.LogStore.StoreLogs(logs)
}

func (s *logStore) DeleteRange(first, last uint64) error {
	s.gate.pass()
	return s.LogStore.DeleteRange(first, last)
}

type stableStore struct {
	raft.StableStore
	gate *Gate
}

func (s *stableStore) Set(key, value []byte) error {
	s.gate.pass()
	return s.StableStore.Set(key, value)
}

func (s *stableStore) SetUint64(key []byte, value uint64) error {
	s.gate.pass()
	return s.StableStore.SetUint64(key, value)
}
