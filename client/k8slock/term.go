package k8slock

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// over is a context that has ended: a release is only sent with it, not waited for.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// errUnwarned refuses to give a lease back while the leader may be at work.
var errUnwarned = errors.New("the lease is not given back but lapses: it was not renewed in time, so the leader has yet to be told to stop")

// term is a time of leadership under one lease, from its grant until
// leaderelection says that it has stopped leading. In between nothing takes the
// lease anew, so whoever leads again was stopped before, and has a new token.
// leaderelection's goroutine has it.
type term struct {
	lease  *client.Lease
	record resourcelock.LeaderElectionRecord // the newest that leaderelection wrote
	failed bool                              // a renewal was not confirmed in time
}

// err says why the term's lease is not held any more; nil: it is.
func (t *term) err() error {
	if err := t.lease.Err(); err != nil {
		return fmt.Errorf("the leader's lease %q, token %v, has ended: %w", t.lease.Name(), t.lease.Token(), err)
	}
	return nil
}

// ttl is the lease's.
func (t *term) ttl() time.Duration { return ttl(t.record) }

func ttl(r resourcelock.LeaderElectionRecord) time.Duration {
	return time.Duration(r.LeaseDurationSeconds) * time.Second
}

// conflict is that somebody else holds the lease, to client-go too.
type conflict struct {
	*apierrors.StatusError
	held error
}

func (c conflict) Unwrap() error { return c.held }

// acquire tries to begin a term.
func (l *Lock) acquire(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := l.yield(limited); err != nil {
		return err
	}
	lease, err := l.client.TryAcquire(limited, l.name, client.TTL(ttl(r)), client.Label(l.identity), client.Attributes(attributesOf(r)))
	switch {
	case errors.Is(err, leases.ErrHeld):
		return conflict{apierrors.NewConflict(resource, l.name, err), err}
	case err != nil:
		return err
	}
	t := &term{lease: lease, record: r}
	if err := l.outlast(ctx, t); err != nil {
		_ = lease.Release(over) // nobody has led under it
		return err
	}
	l.begin(t)
	return nil
}

func (l *Lock) begin(t *term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.newest = t, t.lease
	l.transitions = max(l.transitions, t.record.LeaderTransitions)
	lose := l.lose
	context.AfterFunc(t.lease.Context(), func() { lose(context.Cause(t.lease.Context())) })
}

// renew lets leaderelection go on as the leader.
func (l *Lock) renew(ctx context.Context, t *term, r resourcelock.LeaderElectionRecord) error {
	if err := l.outlast(ctx, t); err != nil {
		t.failed = t.failed || errors.Is(ctx.Err(), context.DeadlineExceeded)
		return err
	}
	t.record = r
	return nil
}

// outlast waits until the lease, which its client renews, lasts for longer than
// leaderelection may lead without asking again. That is RetryPeriod plus
// RenewDeadline. The lock knows neither, but the latter is what ctx has left
// where leaderelection renews, and the former is less.
func (l *Lock) outlast(ctx context.Context, t *term) error {
	enough := t.ttl() / 10 * 9
	if end, ok := ctx.Deadline(); ok {
		enough = min(enough, 2*time.Until(end))
	}
	for {
		switch err := t.err(); {
		case err != nil:
			return err
		case ctx.Err() != nil: // leaderelection asks twice
			return fmt.Errorf("lease %q, token %v, was not renewed in time: %w", l.name, t.lease.Token(), context.Cause(ctx))
		case t.lease.Deadline().Sub(l.clock.Now()) >= enough:
			return nil
		}
		select {
		case <-t.lease.Renewed():
		case <-t.lease.Done():
		case <-ctx.Done():
		}
	}
}

// release gives the lease back, since ReleaseOnCancel says so. leaderelection
// calls for it before it ends the leader's context, unless that is what ended
// the term.
func (t *term) release(ctx context.Context) error {
	switch {
	case t == nil:
		return nil
	case t.failed:
		return errUnwarned
	}
	return t.lease.Release(ctx)
}

// stop ends the term. A lease that was not given back is as good as renewed no
// more: others get it when its deadline, as it is now, has passed; until then
// the leader may wind up its work. Closing the client after that says that it has.
func (l *Lock) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == nil {
		return
	}
	lease := l.term.lease
	l.term, l.lingering = nil, lease
	l.loss, l.lose = context.WithCancelCause(context.Background())
	timer := clock.AfterFunc(l.clock, lease.Deadline(), func() { _ = lease.Release(over) })
	if lease.Err() == nil {
		context.AfterFunc(lease.Context(), func() {
			timer.Stop()
			_ = lease.Release(over)
		})
	}
}

// yield gives the lease of the last term back, if it is still there: the next
// term needs one of its own. One that an operator has broken is an error, once:
// so others have a chance to take it.
func (l *Lock) yield(ctx context.Context) error {
	l.mu.Lock()
	lease := l.lingering
	l.lingering = nil
	l.mu.Unlock()
	if lease == nil {
		return nil
	}
	if err := lease.Release(ctx); err != nil && !errors.Is(err, leases.ErrExpired) {
		return err
	}
	return nil
}
