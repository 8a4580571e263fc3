package client

import (
	"sync"

	"github.com/coordd/coordd/clock"
)

// watcher calls ring for the leases whose turn has come.
type watcher struct {
	clock clock.Clock
	ring  func(*Lease)

	mu    sync.Mutex // guards what follows; nothing is called with it held. It may be taken under a lease's
	turns agenda
}

func newWatcher(c clock.Clock, ring func(*Lease)) *watcher {
	w := &watcher{clock: c, ring: ring}
	w.turns = agenda{clock: c, look: w.look}
	return w
}

// watch sets the turn, or moves it.
func (w *watcher) watch(t *turn, at clock.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns.put(t, at)
}

// forget ends the watch. A ring that has begun may still come.
func (w *watcher) forget(t *turn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns.drop(t)
}

// look is what the alarm calls.
func (w *watcher) look() {
	for _, l := range w.take(w.clock.Now()) {
		w.ring(l)
	}
}

func (w *watcher) take(now clock.Instant) (due []*Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t := w.turns.take(now); t != nil; t = w.turns.take(now) {
		due = append(due, t.lease)
	}
	w.turns.rang()
	return due
}

func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns.stop()
}
