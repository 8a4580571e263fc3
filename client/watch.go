package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/coordd/coordd/leases"
)

// WatchOption configures one watch.
type WatchOption func(*watch)

// From lets a watch begin after p: the At of a batch of an earlier watch, or of
// a page of a list. Without it a watch begins now.
func From(p leases.Position) WatchOption { return func(w *watch) { w.from = p } }

// Watch tells every change to the leases whose names begin with prefix, each
// once and in order. Its first batch comes as soon as a node answers, without
// changes, and says where the watch begins; later ones may have none either. It
// goes on by itself over broken connections and other nodes. What a node tells
// may lag behind, and a body of the loop that takes its time delays nobody else.
//
// It ends with an error, its last: ctx's cause; leases.ErrClosed;
// leases.ErrInvalid; leases.ErrMissed, where the loop, or the watch, was away
// for so long that no node remembers all changes since; and, before its first
// batch only, leases.ErrExhausted.
//
// For a mirror of the leases, list them by Pages and keep what is listed, then
// watch From the first page's At and apply each change: after one that is Free
// the name is not held, after a leases.ChangeGranted it is held under Token, after a
// leases.ChangeTransferred under Next; after any other it is broken, and still
// held. What was listed after that place is told once more, so the mirror may
// show an older state until it has caught up. After leases.ErrMissed, begin
// anew. The example does all of that.
func (c *Client) Watch(ctx context.Context, prefix string, opts ...WatchOption) iter.Seq2[leases.Batch, error] {
	w := watch{client: c, prefix: prefix}
	for _, opt := range opts {
		opt(&w)
	}
	return func(yield func(leases.Batch, error) bool) {
		ctx, cancel := bound(ctx, c.waits)
		defer cancel()
		w := w // each loop over it begins in the same place
		if err := w.run(ctx, yield); err != nil && !w.left {
			yield(leases.Batch{}, err)
		}
	}
}

// watch is one loop over a Watch.
type watch struct {
	client *Client
	prefix string
	from   leases.Position // everything up to it has been told
	begun  bool            // a batch has been told
	left   bool            // the loop was left
	word   error           // why nothing is heard now; nil: it is
}

func (w *watch) run(ctx context.Context, yield func(leases.Batch, error) bool) error {
	c := w.client
	for n := 0; ; n++ {
		sleep(ctx, c.clock, backoff(n, maxPatience))
		if ctx.Err() != nil {
			return ended(ctx, fmt.Sprintf("watch leases %q", w.prefix), w.word)
		}
		began := c.clock.Now()
		heard, err := w.try(ctx, slower(n), yield)
		switch {
		case w.left || beyondHelp(err) || !w.begun && matches(err, leases.ErrExhausted):
			return err
		case ctx.Err() == nil:
			w.word = err
			c.log.Debug("a watch is taken up again", "prefix", w.prefix, "after", w.from, "error", err)
		}
		if heard && c.clock.Now().Sub(began) > maxPatience {
			n = 0
		}
	}
}

// try watches as long as one node tells. It gives up after limit without a word:
// a node that hangs is not a closed connection. The directory is not called in
// the loop's own goroutine, so that nothing waits for the body but its watch.
func (w *watch) try(ctx context.Context, limit time.Duration, yield func(leases.Batch, error) bool) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, batches, ended := w.from, make(chan leases.Batch), make(chan error, 1)
	if !w.client.spawn(func() {
		ended <- w.client.directory.Watch(ctx, w.prefix, from, func(b leases.Batch) error {
			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}) {
		return false, errClosed
	}
	silence := time.NewTimer(limit)
	defer silence.Stop()
	for {
		select {
		case b := <-batches:
			silence.Stop()
			heard, w.word = true, nil
			if w.left = !w.tell(b, yield); w.left {
				return heard, nil
			}
		case err := <-ended:
			return heard, err
		case <-silence.C:
			return heard, &leases.UnavailableError{Reason: fmt.Sprintf("no answer within %v", limit)}
		case <-ctx.Done():
			return heard, context.Cause(ctx)
		}
	}
}

// tell reports whether the loop goes on.
func (w *watch) tell(b leases.Batch, yield func(leases.Batch, error) bool) bool {
	if w.begun && len(b.Changes) == 0 && b.At == w.from {
		return true // the watch was taken up again where it had broken
	}
	w.from, w.begun = b.At, true
	return yield(b, nil)
}
