package fsm

import (
	"context"

	"github.com/coordd/coordd/leases"
)

// quiet is how many revisions without a change of its names a watcher is spared.
// After so many it is told how far it has come, lest its place be forgotten.
const quiet = RememberedChanges / 10

// Position is where the history of the table stands now.
func (f *FSM) Position() leases.Position {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.feed.newest()
}

// Begin is the place where a watch from from begins: there, or with the zero
// Position where the history stands now. The error is a *leases.MissedError.
func (f *FSM) Begin(from leases.Position) (leases.Position, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if from == (leases.Position{}) {
		return f.feed.newest(), nil
	}
	return from, f.feed.missed(from)
}

// Changes waits until there is a change after from of a name that begins with
// prefix, and returns what there is of them, at most MaxBatch. The batch may be
// empty: then only its place has moved on. A place that this node has not come
// to yet is waited for. The errors are a *leases.MissedError, and ctx's cause.
func (f *FSM) Changes(ctx context.Context, prefix string, from leases.Position) (leases.Batch, error) {
	for at := from; ; {
		batch, more, err := f.since(prefix, at)
		switch {
		case err != nil:
			return leases.Batch{}, err
		case len(batch.Changes) > 0 || batch.At.Revision-from.Revision >= quiet:
			return batch, nil
		}
		at = batch.At
		select {
		case <-more:
		case <-ctx.Done():
			return leases.Batch{}, context.Cause(ctx)
		}
	}
}

// since returns what there is now. more is closed when there is something else.
func (f *FSM) since(prefix string, from leases.Position) (b leases.Batch, more <-chan struct{}, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	b, err = f.feed.since(prefix, from)
	return b, f.feed.wait(), err
}
