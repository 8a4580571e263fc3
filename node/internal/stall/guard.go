// Package stall ends a node whose disk has stopped answering. Raft sends its
// heartbeats from other goroutines than the one that writes, so a leader with a
// hung disk would keep its followers loyal for ever while nothing commits.
package stall

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Guard stands before the two stores of one Raft node and sees to it that no
// write to either outlasts a limit. The first write that takes longer, or
// fails, is fatal: the node is told, nothing is written after it, although the
// write that hangs may still land, and every later call on either store fails
// with the same *WriteError, except that
//
//   - GetLog still reads the entries that the fatal write did not concern,
//     since Raft panics where it cannot read an entry that it knows to be
//     committed;
//   - Set and SetUint64 do not return: they end the goroutine that called them
//     (runtime.Goexit), since Raft panics where it cannot save its term. The
//     deferred calls of Raft's main loop do run: it gives up leadership and
//     stops its heartbeats, and raft.Shutdown's future is answered as ever.
//
// What builds or bootstraps Raft on guarded stores therefore belongs into Run.
//
// Only time in which the process runs counts towards the limit: being stopped
// or suspended is not held against the disk. Reads have no limit. A Guard is
// safe for concurrent use and makes one write at a time.
type Guard struct {
	logs   raft.LogStore
	stable raft.StableStore
	limit  time.Duration
	onEnd  func(error)

	// turn is full while somebody writes. It stays full after a fatal write and
	// after Close, so that nobody writes any more.
	turn   chan struct{}
	start  sync.Once         // of the goroutine that writes
	writes chan func() error // to it; closed by the last one to have the turn
	done   chan error        // what it says; holds the answer to a write that came too late

	ended chan struct{} // closed once what follows is set
	fatal write
	err   error
}

// New returns a guard of two stores, which may be the same one. onEnd is called
// once, for a fatal write, in a goroutine of its own; it should stop the node.
// The guard is to be closed.
func New(logs raft.LogStore, stable raft.StableStore, limit time.Duration, onEnd func(error)) *Guard {
	return &Guard{
		logs: logs, stable: stable, limit: limit, onEnd: onEnd,
		turn: make(chan struct{}, 1), writes: make(chan func() error), done: make(chan error, 1),
		ended: make(chan struct{}),
	}
}

// Logs is the guarded log store.
func (g *Guard) Logs() raft.LogStore { return &logStore{g, g.logs} }

// Stable is the guarded stable store.
func (g *Guard) Stable() raft.StableStore { return &stableStore{g, g.stable} }

// Err is nil until a write was fatal or the guard was closed.
func (g *Guard) Err() error {
	select {
	case <-g.ended:
		return g.err
	default:
		return nil
	}
}

// Close ends the guard after Raft has shut down. It does not close the stores.
// Its error is that of a write that hangs still: the stores must not be closed
// then, since that would hang too.
func (g *Guard) Close() error {
	select {
	case <-g.ended:
	case g.turn <- struct{}{}:
		g.end(write{}, ErrClosed)
	}
	if landed := len(g.done) > 0; errors.Is(g.err, ErrStalled) && !landed {
		return g.err
	}
	return nil
}

func (g *Guard) do(w write, store func() error) error {
	select {
	case <-g.ended:
		return g.err
	case g.turn <- struct{}{}:
	}
	g.start.Do(func() { go g.work() })
	g.writes <- store
	if err, ok := g.await(); !ok || err != nil {
		g.end(w, &WriteError{Write: w.String(), Limit: g.limit, Cause: err})
		go g.onEnd(g.err) // not waited for: a node that logs to the same disk would hang in it
		return g.err
	}
	<-g.turn
	return nil
}

// work is the goroutine that writes. It ends as soon as the disk lets it.
func (g *Guard) work() {
	for store := range g.writes {
		g.done <- store()
	}
}

// ticks is in how many parts the limit is counted. A process that was stopped
// finds at most two of them over when it wakes, however long it was away.
const ticks = 8

// await reports false if the write was not done within the limit. It measures
// with Go's own timers, because they stand still in suspend.
func (g *Guard) await() (error, bool) {
	tick := time.NewTicker(max(g.limit/ticks, 1))
	defer tick.Stop()
	for range ticks {
		select {
		case err := <-g.done:
			return err, true
		case <-tick.C:
		}
	}
	select {
	case err := <-g.done:
		return err, true
	default:
		return nil, false
	}
}

// end is called by whoever has the turn and keeps it, and so once.
func (g *Guard) end(w write, err error) {
	g.fatal, g.err = w, err
	close(g.ended)
	close(g.writes)
}

type logStore struct {
	*Guard
	store raft.LogStore
}

func (s *logStore) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

func (s *logStore) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return s.Err()
	}
	w := write{verb: "storing", first: logs[0].Index, last: logs[len(logs)-1].Index}
	return s.do(w, func() error { return s.store.StoreLogs(logs) })
}

func (s *logStore) DeleteRange(first, last uint64) error {
	w := write{verb: "deleting", first: first, last: last}
	return s.do(w, func() error { return s.store.DeleteRange(first, last) })
}

func (s *logStore) GetLog(index uint64, log *raft.Log) error {
	if err := s.Err(); err != nil && s.fatal.concerns(index) {
		return err
	}
	return s.store.GetLog(index, log)
}

func (s *logStore) FirstIndex() (uint64, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	return s.store.FirstIndex()
}

func (s *logStore) LastIndex() (uint64, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	return s.store.LastIndex()
}

// IsMonotonic passes on what raft.MonotonicLogStore says of the store inside.
func (s *logStore) IsMonotonic() bool {
	m, ok := s.store.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

type stableStore struct {
	*Guard
	store raft.StableStore
}

func (s *stableStore) Set(key, value []byte) error {
	s.save(key, func() error { return s.store.Set(key, value) })
	return nil
}

func (s *stableStore) SetUint64(key []byte, value uint64) error {
	s.save(key, func() error { return s.store.SetUint64(key, value) })
	return nil
}

// save returns only if the write has succeeded.
func (s *stableStore) save(key []byte, store func() error) {
	if err := s.do(write{verb: "saving", key: string(key)}, store); err != nil {
		runtime.Goexit()
	}
}

func (s *stableStore) Get(key []byte) ([]byte, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	return s.store.Get(key)
}

func (s *stableStore) GetUint64(key []byte) (uint64, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	return s.store.GetUint64(key)
}
