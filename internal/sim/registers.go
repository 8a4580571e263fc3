package sim

import (
	"errors"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fallback"
	"github.com/coordd/coordd/leases"
)

// registers is how one node serves in a fallback epoch: it drives a fallback.Shard for
// each shard, and has lines of those who wait.
type registers struct {
	n      *node
	shards []*shard
	regime fallback.Regime

	lines [names]line
	gone  []leases.ID // attempts that were withdrawn
}

// shard drives one fallback.Shard.
type shard struct {
	r       *registers
	index   int
	machine *fallback.Shard
	wake    Time
}

func newRegisters(n *node) *registers {
	r := &registers{n: n}
	for k := range int(n.s.params.Shards.Count) {
		r.shards = append(r.shards, &shard{r: r, index: k, machine: n.s.newShard(n, k)})
	}
	return r
}

func (s *Sim) newShard(n *node, index int) *fallback.Shard {
	return fallback.NewShard(uint32(index), s.params.Shards, s.rules, func() arbiter.Nonce { return nonce(n.rng) })
}

// serve tells the shards under what they are served now.
func (r *registers) serve() {
	n := r.n
	regime := fallback.Regime{}
	if epoch, ok := n.machine.Serves(); ok {
		root := &n.root
		regime = fallback.Regime{Epoch: epoch, RaftEpoch: root.RaftEpoch, Fresh: root.GraceDone, Ceiling: root.Ceiling()}
	}
	if regime == r.regime {
		return
	}
	if n.s.tracing {
		n.s.trace("%s serves the registers: epoch %d, raft epoch %d, fresh %v", n.name, regime.Epoch, regime.RaftEpoch, regime.Fresh)
	}
	if regime.Epoch != r.regime.Epoch {
		for i := range r.lines {
			q := &r.lines[i]
			for _, c := range q.waiting {
				n.reply(c.request, answer{err: errNoWindow})
			}
			q.waiting = nil
		}
	}
	r.regime = regime
	for _, k := range r.shards {
		k.machine.Serve(regime)
		k.drive()
	}
	for i := range r.lines {
		r.advance(i)
	}
}

// drive asks the machine what to do, and does it.
func (k *shard) drive() {
	n := k.r.n
	act, at := k.machine.Next(n.clock())
	switch act := act.(type) {
	case fallback.Load:
		began := n.clock()
		n.s.arbiter.load(n, 1+k.index, func(reg arbiter.Register, err error) {
			k.took(k.machine.Loaded(began, n.clock(), reg, err))
		})
	case fallback.Swap:
		began := n.clock()
		n.s.arbiter.swap(n, 1+k.index, act.From, act.Write, func(err error) {
			k.took(k.machine.Swapped(began, n.clock(), err))
		})
	default:
		k.wakeAt(at)
	}
}

func (k *shard) wakeAt(i clock.Instant) {
	n := k.r.n
	if i.Sub(n.clock()) > time.Hour {
		return // it waits for an answer, or an op
	}
	at := n.skew.when(i)
	if k.wake > n.s.now && k.wake <= at {
		return
	}
	k.wake = at
	n.s.at(at, &n.process, driver, func() {
		if k.wake == at {
			k.wake = 0
			k.drive()
		}
	})
}

// took goes on after an answer of the arbiter.
func (k *shard) took(events []fallback.Event) {
	for _, e := range events {
		if gone, ok := e.(fallback.Gone); ok {
			if gone.Why == leases.WhyExpired {
				k.r.n.s.counts.Expired++
			}
			k.r.advance(nameIndex(gone.Lease.Name))
		}
	}
	if k.machine.Superseded() != 0 {
		k.r.n.machine.Reread(k.r.n.clock())
		k.r.n.soon()
	}
	k.drive()
}

// ask puts an op to the shard of its name.
func (r *registers) ask(op leases.Op, done func(leases.Result, error)) {
	n := r.n
	k := r.shards[n.s.shardOf(op.Name)]
	k.machine.Ask(op, func(res leases.Result, err error) {
		// Not from within the machine.
		n.after(0, func() { done(res, err) })
	})
	k.drive()
}

// handle answers a client's request.
func (r *registers) handle(q *request) {
	op := leases.Op{Name: leaseNames[q.name], Session: q.session, Token: q.token}
	switch q.kind {
	case acquire:
		r.acquire(q)
	case renew:
		op.Kind = leases.KindRenew
		r.keep(q, op)
	case reclaim:
		op.Kind, op.Epoch, op.TTL = leases.KindReclaim, q.epoch, q.ttl
		r.keep(q, op)
	case release:
		op.Kind = leases.KindRelease
		r.finish(q, op)
	case withdraw:
		r.gone = append(r.gone, q.attempt)
		r.lines[q.name].drop(r.n, q.attempt)
		op.Kind, op.Attempt = leases.KindWithdraw, q.attempt
		r.finish(q, op)
	case transfer:
		r.transfer(q, op)
	}
}

// keep answers a renewal or a reclaim.
func (r *registers) keep(q *request, op leases.Op) {
	r.ask(op, func(res leases.Result, err error) {
		if op.Kind == leases.KindReclaim {
			r.n.s.counts.reclaimed(res, err)
		}
		switch {
		case err != nil:
		case res.Outcome == leases.Renewed || res.Outcome == leases.Reclaimed:
		case res.Outcome == leases.Absent || res.Outcome == leases.Closed || res.Outcome == leases.Refused:
			err = &leases.NotHeldError{Name: op.Name, Token: op.Token}
		default:
			err = errNoWindow
		}
		r.n.reply(q, answer{err: err})
	})
}

// finish answers a release or a withdrawal: as done, whatever is found.
func (r *registers) finish(q *request, op leases.Op) {
	r.ask(op, func(res leases.Result, err error) {
		if isGrace(err) {
			err = nil
		}
		r.n.reply(q, answer{err: err})
	})
}

func isGrace(err error) bool {
	var grace *leases.GraceError
	return errors.As(err, &grace)
}

func (r *registers) acquire(q *request) {
	n, line := r.n, &r.lines[q.name]
	switch {
	case has(r.gone, q.attempt):
		n.reply(q, answer{err: withdrawn(q)})
	case line.takeOver(n, q):
	default:
		first := line.proposed == nil && len(line.waiting) == 0
		line.waiting = append(line.waiting, &claim{request: q, waited: !first})
		if !first && !q.wait {
			line.take(q.attempt)
			n.reply(q, answer{err: errHeld})
			return
		}
		if first {
			r.propose(q.name)
		}
	}
	r.interest(q.name)
}

// interest lets the shard be read more often while somebody waits.
func (r *registers) interest(name int) {
	k := r.shards[r.n.s.shardOf(leaseNames[name])]
	k.machine.Interest(len(r.lines[name].waiting) > 0)
	k.drive()
}

// advance proposes the first in line, if the name is free as far as this node knows.
func (r *registers) advance(name int) {
	q := &r.lines[name]
	if q.proposed != nil || len(q.waiting) == 0 || !r.regime.Fresh {
		return
	}
	if r.shards[r.n.s.shardOf(leaseNames[name])].machine.Find(leaseNames[name]) != nil {
		return
	}
	r.propose(name)
}

// propose asks for the lease for the first in line.
func (r *registers) propose(name int) {
	q := &r.lines[name]
	c := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.proposed = c
	epoch := r.regime.Epoch
	a := c.request
	r.ask(leases.Op{
		Kind: leases.KindAcquire, Name: leaseNames[name], Session: a.session, Attempt: a.attempt, TTL: a.ttl,
	}, func(res leases.Result, err error) {
		q.proposed = nil
		stays := c.request.wait && r.regime.Epoch == epoch && !has(r.gone, c.request.attempt)
		switch {
		case err == nil && (res.Outcome == leases.Granted || res.Outcome == leases.Repeated):
			r.n.reply(c.request, answer{grant: leases.Grant{Token: res.Lease.Token, Waited: c.waited}})
		case stays && (err == nil && res.Outcome == leases.Refused || isGrace(err)):
			c.waited = true
			q.waiting = append([]*claim{c}, q.waiting...)
		case err != nil:
			r.n.reply(c.request, answer{err: err})
		default:
			r.n.reply(c.request, answer{err: errHeld})
		}
		r.advance(name)
		r.interest(name)
	})
}

// transfer is a release with an heir who waits here; without one it is a release.
func (r *registers) transfer(q *request, op leases.Op) {
	line := &r.lines[q.name]
	if line.proposed != nil || len(line.waiting) == 0 {
		op.Kind = leases.KindRelease
		r.finish(q, op)
		return
	}
	heir := line.waiting[0]
	line.waiting = line.waiting[1:]
	line.proposed = heir
	h := heir.request
	op.Kind, op.Heir, op.Attempt, op.TTL = leases.KindTransfer, h.session, h.attempt, h.ttl
	r.ask(op, func(res leases.Result, err error) {
		line.proposed = nil
		switch {
		case err == nil && res.Outcome == leases.Transferred:
			r.n.reply(heir.request, answer{grant: leases.Grant{Token: res.Lease.Token, Waited: true}})
		case errors.Is(err, leases.ErrUnknownOutcome):
			r.n.reply(heir.request, answer{err: err})
		default:
			line.waiting = append([]*claim{heir}, line.waiting...)
		}
		if isGrace(err) {
			err = nil
		}
		r.n.reply(q, answer{err: err})
		r.advance(q.name)
	})
}
