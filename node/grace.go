package node

import (
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// grace is the time after a takeover in which holders reclaim their leases, and nothing
// is granted anew. The tenure's mutex guards it.
type grace struct {
	epoch uint32        // of the takeover; 0: there is no grace, or it is over
	until clock.Instant // at the latest, for people
}

// fresh returns nil, or the *leases.GraceError because of which nothing is granted anew
// for a while. It is called with mu held.
func (t *tenure) fresh() error {
	if t.grace.epoch == 0 {
		return nil
	}
	return &leases.GraceError{Epoch: t.grace.epoch, FreshIn: max(t.grace.until.Sub(t.clock.Now()), 0)}
}

// begun is called when the grace is over, and the replicator knows that: leases are
// granted anew from now on.
func (t *tenure) begun() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.grace = grace{}
	for name := range t.lines {
		t.advance(name)
	}
}

// settled says why nobody can tell which names are free: in a grace one that nobody
// has reclaimed yet may be held. It is called with mu held.
func (t *tenure) settled() error {
	if err := t.fresh(); err != nil {
		return &leases.UnavailableError{Reason: err.Error()}
	}
	return nil
}
