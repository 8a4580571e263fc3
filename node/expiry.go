package node

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// expiry has one entry per watched lease, the earliest first. A renewal does
// not touch it: an entry that comes up too early is put back. The tenure's
// mutex guards it.
type expiry struct {
	due  dueHeap
	wake chan struct{} // has room for one: an entry became the earliest
}

type due struct {
	at    clock.Instant
	name  string
	token tokens.Token
}

func (e *expiry) add(name string, token tokens.Token, at clock.Instant) {
	heap.Push(&e.due, due{at, name, token})
	if e.due[0].token == token {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// shrink forgets the leases that have ended, once they are more than those that
// have not: with long TTLs and short work they would be very many. It is called
// with mu held.
func (r *raftReplicator) shrink() {
	if len(r.expiry.due) < 2*len(r.leases)+128 {
		return
	}
	r.expiry.due = slices.DeleteFunc(r.expiry.due, func(d due) bool {
		w := r.leases[d.name]
		return w == nil || w.token != d.token
	})
	heap.Init(&r.expiry.due)
}

// idle is how long the expirer sleeps when nothing is watched; an added entry
// wakes it.
const idle = time.Minute

// expire proposes the end of every lease whose deadline has passed, until ctx
// ends.
func (r *raftReplicator) expire(ctx context.Context) {
	for ctx.Err() == nil {
		next := r.expireDue()
		wake, cancel := context.WithCancel(ctx)
		stop := clock.AfterFunc(r.tenure.clock, next, cancel)
		select {
		case <-wake.Done():
		case <-r.expiry.wake:
		}
		stop.Stop()
		cancel()
	}
}

// expireDue returns when to look again: at once where there were very many, lest
// those that renew meanwhile wait for it.
func (r *raftReplicator) expireDue() clock.Instant {
	r.tenure.mu.Lock()
	defer r.tenure.mu.Unlock()
	now := r.tenure.clock.Now()
	for range atOnce {
		if len(r.expiry.due) == 0 {
			return now.Add(idle)
		}
		d := r.expiry.due[0]
		if now.Before(d.at) {
			return d.at
		}
		heap.Pop(&r.expiry.due)
		w := r.leases[d.name]
		switch {
		case w == nil || w.token != d.token || w.expiring:
		case now.Before(w.deadline):
			heap.Push(&r.expiry.due, due{w.deadline, d.name, d.token})
		default:
			w.expiring = true
			r.proposeExpiry(d, w.deadline)
		}
	}
	return now
}

// atOnce is how many leases or claims are dealt with in one hold of the
// tenure's lock.
const atOnce = 1000

// retry is how long an expiry, or a line, waits that did not get into the log.
const retry = 100 * time.Millisecond

func (r *raftReplicator) proposeExpiry(d due, deadline clock.Instant) {
	t := r.tenure
	t.propose(leases.Op{Kind: leases.KindExpire, Name: d.name, Token: d.token}, func(result leases.Result, err error) {
		if w := r.leases[d.name]; err != nil && w != nil && w.token == d.token {
			// Raft refuses entries for moments too, not only when the term is over.
			w.expiring = false
			r.expiry.add(d.name, d.token, t.clock.Now().Add(retry))
			return
		}
		if err == nil && result.Outcome == leases.Freed { // else its holder was faster
			t.metrics.lag.Observe(t.metrics.since(deadline))
		}
	})
}

// dueHeap is a heap.Interface with the earliest first.
type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	*h = (*h)[:last]
	return d
}
