package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// raftConfig is what a tenure by Raft is made of. The proposer and the rounds are the
// tenure's own: it runs them.
//
// The hooks are of a cluster with an arbiter, and nil without one. They must neither
// block nor call the tenure, whose mutex may be held.
//
// With an arbiter a term can have several tenures, one for each time that the window
// opens. The next begins when all that the one before has started has ended and,
// after that, a barrier has returned: so nothing of the one before is applied later.
type raftConfig struct {
	fsm      *fsm.FSM
	proposer *fsm.Proposer
	rounds   *rounds

	// window returns nil while the window of the term is open (W1), else an error that
	// matches leases.ErrUnavailable.
	window func() error
	// deadline is when a lease of that TTL that the table holds at the beginning may be
	// expired (W4).
	deadline func(ttl time.Duration) clock.Instant
}

// raftReplicator is the part of a tenure that belongs to a Raft leader: the table is
// what the log makes of it, the deadlines are in the leader's memory alone.
type raftReplicator struct {
	raftConfig
	tenure *tenure

	// The tenure's mutex guards what follows; it is taken before the FSM's.
	leases map[string]*watched
	expiry expiry
	bumped uint32 // the epoch that is to end, or has; 0: none
}

var _ replicator = (*raftReplicator)(nil)

// newRaftTenure returns the tenure of a leader whose table has caught up with its term.
func newRaftTenure(c tenureConfig, r raftConfig) *tenure {
	raft := &raftReplicator{raftConfig: r}
	if r.window != nil && c.rules.On(rules.WindowPropose) {
		r.proposer.Gate(r.window)
	}
	raft.tenure = &tenure{tenureConfig: c, replicator: raft}
	return raft.tenure
}

// begin takes the table as it is: every lease in it gets a full TTL from now on, since
// a former leader may have renewed it until now (N3), and with an arbiter more (W4).
func (r *raftReplicator) begin() {
	began := r.tenure.clock.Now() // τ of the protocol
	r.leases = map[string]*watched{}
	r.expiry.wake = make(chan struct{}, 1)
	var held []*leases.Lease // the hook takes a lock that is not to be taken under the FSM's
	r.fsm.View(func(table *leases.Table) { held = slices.Collect(table.All()) })
	for _, l := range held {
		deadline := began.Add(leases.Stretch(l.TTL))
		if r.deadline != nil {
			deadline = max(deadline, r.deadline(l.TTL))
		}
		if !r.tenure.rules.On(rules.NewTermDeadlines) {
			deadline = began
		}
		r.watch(l, deadline, false)
	}
}

func (r *raftReplicator) run(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { r.proposer.Run(ctx) })
	running.Go(func() { r.rounds.run(ctx, r.over()) })
	running.Go(func() { r.expire(ctx) })
}

func (r *raftReplicator) over() error {
	if r.window != nil {
		return &leases.UnavailableError{Reason: fmt.Sprintf("%s no longer serves in term %d", r.tenure.node, r.tenure.term)}
	}
	return &leases.UnavailableError{Reason: fmt.Sprintf("%s no longer leads term %d", r.tenure.node, r.tenure.term)}
}

func (r *raftReplicator) propose(op leases.Op, answer fsm.Answer) error {
	r.fsm.View(func(table *leases.Table) { op.Epoch = table.Epoch() })
	kind := op.Kind // the closure would keep all of op
	return r.proposer.Propose(op, func(result leases.Result, err error) {
		t := r.tenure
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case err != nil:
		case result.Outcome == leases.Freed:
			r.forget(result.Lease.Held())
			t.ended(result.Lease, result.Ending)
		case result.Outcome == leases.Marked, kind == leases.KindBreak && result.Outcome == leases.Repeated:
			t.breaking(result.Lease)
		}
		answer(result, err)
	})
}

// open says why this leader neither renews nor tells anything as certain now.
func (r *raftReplicator) open() error {
	switch {
	case r.window == nil:
		return nil
	case r.tenure.ctx.Err() != nil:
		return r.over()
	}
	return r.window()
}

// certain holds a round of the voters: the table of a leader that has lost its term
// without knowing it may be old.
func (r *raftReplicator) certain(ctx context.Context, _ string) error {
	if _, err := r.rounds.join(ctx); err != nil {
		return err
	}
	return r.open()
}

func (r *raftReplicator) interest(string, bool) {}

func (r *raftReplicator) find(name string) (l *leases.Lease) {
	r.fsm.View(func(table *leases.Table) { l, _ = table.Get(name) })
	return l
}

func (r *raftReplicator) look(name string) (l *leases.Lease, last leases.Ending) {
	r.fsm.View(func(table *leases.Table) {
		l, _ = table.Get(name)
		last, _ = table.Last(name)
	})
	return l, last
}

func (r *raftReplicator) list(ctx context.Context, prefix, after string, limit int) (p page, err error) {
	if err := r.certain(ctx, prefix); err != nil {
		return page{}, err
	}
	r.fsm.View(func(table *leases.Table) {
		p.at = leases.Position{Epoch: table.Epoch(), Revision: table.Revision()}
		for l := range table.From(prefix, after) {
			if p.more = len(p.leases) == limit; p.more {
				return
			}
			p.leases = append(p.leases, l)
		}
	})
	return p, nil
}

func (r *raftReplicator) longest() (ttl time.Duration) {
	r.fsm.View(func(table *leases.Table) { ttl = table.MaxTTL() })
	return ttl
}

func (r *raftReplicator) known() (n int) {
	r.fsm.View(func(t *leases.Table) { n = t.Len() })
	return n
}

func (r *raftReplicator) shards() (s leases.Shards, fill []uint32) {
	r.fsm.View(func(table *leases.Table) { s, fill = table.Shards(), slices.Clone(table.Fill()) })
	return s, fill
}

// bump begins a new epoch when half of the counter's range is used, long before
// the other half could be (N6). With an arbiter that is not the tenure's to do: the
// root register comes first. It is called with mu held.
func (r *raftReplicator) bump() {
	var epoch, counter uint32
	r.fsm.View(func(table *leases.Table) { epoch, counter = table.Epoch(), table.Counter() })
	if r.window != nil || counter < tokens.MaxCounter/2 || r.bumped == epoch {
		return
	}
	r.bumped = epoch
	t := r.tenure
	t.log.Info("half of the epoch's tokens are used: beginning a new epoch", "epoch", epoch+1)
	failed := func(err error) {
		r.bumped = 0 // the next grant tries again
		t.log.Warn("the epoch could not be raised", "err", err)
	}
	err := r.proposer.Propose(leases.Op{Kind: leases.KindBump, Epoch: epoch + 1}, func(_ leases.Result, err error) {
		if err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			failed(err)
		}
	})
	if err != nil {
		failed(err)
	}
}
