package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coordd/coordd/fallback"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
)

// registers is the part of a tenure that belongs to the registers of an arbiter, in one
// fallback epoch. Every node can have such a tenure at the same time: what is known of
// a lease is what this node has last read of its shard, so an op may find that another
// node was faster. Deadlines are what the registers' stamps make of them.
type registers struct {
	tenure     *tenure
	config     fallback.Config
	regime     fallback.Regime // in which it began
	replicator *fallback.Replicator
}

var _ replicator = (*registers)(nil)

// newRegistersTenure returns the tenure of a fallback epoch, and what drives its shards.
// The caller serves every later regime of the epoch by that, calls begun after the one
// in which the grace is over, and closes it when the tenure has ended.
func newRegistersTenure(c tenureConfig, config fallback.Config, regime fallback.Regime) (*tenure, *fallback.Replicator) {
	r := &registers{config: config, regime: regime}
	r.tenure = &tenure{tenureConfig: c, replicator: r}
	if !regime.Fresh {
		r.tenure.grace = grace{epoch: regime.Epoch, until: regime.FreshAt}
	}
	config.Changed = r.changed
	r.replicator = fallback.New(config)
	return r.tenure, r.replicator
}

func (r *registers) begin() {}

func (r *registers) run(context.Context, *sync.WaitGroup) { r.replicator.Serve(r.regime) }

func (r *registers) over() error {
	return &leases.UnavailableError{Reason: fmt.Sprintf("%s no longer serves by the arbiter's registers in epoch %d", r.tenure.node, r.regime.Epoch)}
}

func (r *registers) propose(op leases.Op, answer fsm.Answer) error {
	return r.replicator.Propose(op, func(result leases.Result, err error) {
		r.stale(err)
		r.tenure.mu.Lock()
		defer r.tenure.mu.Unlock()
		answer(result, err)
	})
}

// stale counts what was refused since another epoch has begun.
func (r *registers) stale(err error) {
	var superseded *fallback.SupersededError
	if errors.As(err, &superseded) {
		r.tenure.metrics.stale.Inc()
	}
}

// changed takes what has happened to the leases that this node knew of.
func (r *registers) changed(events []fallback.Event) {
	r.tenure.mu.Lock()
	defer r.tenure.mu.Unlock()
	for _, e := range events {
		switch e := e.(type) {
		case fallback.Broke:
			r.tenure.breaking(e.Lease)
		case fallback.Gone:
			r.gone(e)
		}
	}
}

// gone is called with mu held.
func (r *registers) gone(e fallback.Gone) {
	if e.Why == leases.WhyUnknown || e.Why == leases.WhyTransferred {
		r.tenure.advance(e.Lease.Name) // the node that has done it counts it, and tells the holder
		return
	}
	ending := leases.Ending{Name: e.Lease.Name, Token: e.Lease.Token, Why: e.Why}
	if e.Next != nil {
		ending.Next = e.Next.Token
	}
	r.tenure.ended(e.Lease, ending)
}

func (r *registers) find(name string) *leases.Lease { return r.replicator.Find(name) }

// look knows of no endings: the registers keep none.
func (r *registers) look(name string) (*leases.Lease, leases.Ending) {
	return r.find(name), leases.Ending{}
}

func (r *registers) certain(ctx context.Context, name string) error {
	return r.replicator.Confirm(ctx, name)
}

// list reads all shards. There is no watch from its place on: the registers have no
// history.
func (r *registers) list(ctx context.Context, prefix, after string, limit int) (page, error) {
	all, err := r.replicator.ConfirmAll(ctx)
	if err != nil {
		return page{}, err
	}
	p := page{at: leases.Position{Epoch: r.regime.Epoch}}
	first, _ := slices.BinarySearchFunc(all, max(prefix, after), func(l *leases.Lease, name string) int { return cmp.Compare(l.Name, name) })
	for _, l := range all[first:] {
		switch {
		case l.Name == after:
			continue
		case !strings.HasPrefix(l.Name, prefix):
			return p, nil
		case len(p.leases) == limit:
			p.more = true
			return p, nil
		}
		p.leases = append(p.leases, l)
	}
	return p, nil
}

func (r *registers) interest(name string, yes bool) { r.replicator.Interest(name, yes) }

func (r *registers) renew(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error) {
	ops := make([]leases.Op, len(held))
	for i, h := range held {
		ops[i] = leases.Op{Kind: leases.KindRenew, Name: h.Name, Session: session, Token: h.Token}
	}
	return r.each(ctx, ops), nil
}

func (r *registers) reclaim(ctx context.Context, session leases.ID, epoch uint32, held []leases.Claimed) ([]error, error) {
	ops := make([]leases.Op, len(held))
	for i, c := range held {
		ops[i] = leases.Op{
			Kind: leases.KindReclaim, Epoch: epoch, Name: c.Name, Session: session, Token: c.Token,
			TTL: c.TTL, Owner: c.Owner, Attributes: c.Attributes, AcquiredAt: c.AcquiredAt,
		}
	}
	return r.each(ctx, ops), nil
}

// each has ops carried out that keep leases, at the same time, and returns how each was
// answered: of which there is no answer when ctx ends nothing is known.
func (r *registers) each(ctx context.Context, ops []leases.Op) []error {
	type kept struct {
		i   int
		err error
	}
	answers := make(chan kept, len(ops))
	for i, op := range ops {
		h := leases.Held{Name: op.Name, Token: op.Token}
		err := r.replicator.Propose(op, func(result leases.Result, err error) {
			r.stale(err)
			answers <- kept{i, keeps(h, result, err)}
		})
		if err != nil {
			answers <- kept{i, err}
		}
	}
	errs := make([]error, len(ops))
	for i := range errs {
		errs[i] = unknown(ctx)
	}
	for range ops {
		select {
		case a := <-answers:
			errs[a.i] = a.err
		case <-ctx.Done():
			return errs
		}
	}
	return errs
}

// keeps is how the renewal or reclaim of a lease is answered.
func keeps(h leases.Held, result leases.Result, err error) error {
	switch {
	case err != nil:
		return err
	case result.Outcome == leases.Renewed || result.Outcome == leases.Reclaimed:
		return nil
	case result.Outcome == leases.Refused: // somebody has it under a greater token
		return notHeld(h, leases.Ending{Next: result.Lease.Token})
	case result.Outcome == leases.Absent || result.Outcome == leases.Closed:
		return notHeld(h, result.Ending)
	}
	return &leases.UnavailableError{Reason: "the shard answered " + result.Outcome.String()}
}

// granted has nothing to note: the register keeps the stamp of the grant.
func (r *registers) granted(*leases.Lease, bool) {}

// unconfirmed: a lease in a register always lasts for its TTL at least, counted from
// its grant.
func (r *registers) unconfirmed(*leases.Lease) bool { return false }

func (r *registers) atMost(l *leases.Lease) time.Duration { return leases.Stretch(l.TTL) }

// longest: a fallback epoch never lowers the ceiling (W5).
func (r *registers) longest() time.Duration { return 0 }

func (r *registers) known() int { return r.replicator.Len() }

func (r *registers) shards() (leases.Shards, []uint32) { return r.config.Shards, r.replicator.Fill() }
