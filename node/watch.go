package node

import (
	"context"
	"fmt"

	"github.com/coordd/coordd/leases"
)

// deafAfter is for how many election timeouts a member may hear no leader and
// still serve watches: an election takes less, and a watch that stays silent
// although leases change is worse than one that ends.
const deafAfter = 8

// lookOften is how often in an election timeout a member looks whether it hears one.
const lookOften = 4

// Watch implements leases.Directory. Every member that has applied the ops of
// its cluster remembers the last changes, so none is asked but this one. It ends
// with ErrNoQuorum at a member that is cut off.
func (n *Node) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	if err := leases.ValidatePart("prefix", prefix); err != nil {
		return err
	}
	if n.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", leases.ErrClosed, n.notServing())
	}
	hearing := n.hears()
	switch {
	case hearing != nil:
	case n.member() == nil:
		return n.notServing()
	default:
		return fmt.Errorf("%w: %s hears no leader", leases.ErrNoQuorum, n.cfg.Name)
	}
	at, err := n.fsm.Begin(from)
	if err != nil {
		n.metrics.missed(err)
		return err
	}
	if at == (leases.Position{}) { // to go on from there would be from then on
		return &leases.UnavailableError{Reason: n.cfg.Name + " has not caught up with its cluster yet"}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(hearing, func() { cancel(context.Cause(hearing)) })()
	n.metrics.watchers.Inc()
	defer n.metrics.watchers.Dec()
	for b := (leases.Batch{At: at}); ; {
		if err := on(b); err != nil {
			return err
		}
		if b, err = n.fsm.Changes(ctx, prefix, b.At); err != nil {
			n.metrics.missed(err)
			return err
		}
	}
}

// hears returns what ends when the node does, or when it is cut off; nil: it is
// cut off, or belongs to no cluster yet.
func (n *Node) hears() context.Context {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hearing
}

// attend ends the watches when no leader has been heard for long.
func (n *Node) attend(g *group) {
	var deafen context.CancelCauseFunc
	for silent := 0; g.ctx.Err() == nil; n.pause(n.cfg.ElectionTimeout / lookOften) {
		_, leader := g.raft.LeaderWithID()
		switch {
		case leader == "":
			silent++
		case deafen == nil:
			deafen = n.hear()
			fallthrough
		default:
			silent = 0
		}
		if silent == deafAfter*lookOften && deafen != nil {
			n.deaf()
			deafen(fmt.Errorf("%w: %s has heard no leader for %v", leases.ErrNoQuorum, n.cfg.Name, deafAfter*n.cfg.ElectionTimeout))
			deafen = nil
		}
	}
	n.deaf()
	if deafen != nil {
		deafen(n.notServing())
	}
}

func (n *Node) hear() context.CancelCauseFunc {
	ctx, cancel := context.WithCancelCause(context.Background())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hearing = ctx
	return cancel
}

func (n *Node) deaf() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hearing = nil
}
