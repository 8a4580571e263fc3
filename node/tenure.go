package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// tenure is one term in which this node leads and serves: everything that is
// known of leases beside the replicated table, and that ends with the term. It
// begins when the barrier of its own term has returned.
//
// A claim goes through it like this: Acquire puts it into the line of its name;
// in its turn, and only while nobody holds the name, it is proposed; granted
// then notes the deadline and answers. What ends a lease calls the next in line.
type tenure struct {
	ctx      context.Context // ends with the term
	node     string
	term     uint64
	clock    clock.Clock
	fsm      *fsm.FSM
	proposer *fsm.Proposer
	rounds   *rounds
	limits   limits
	rules    rules.Set
	metrics  *metrics
	log      *slog.Logger

	mu       sync.Mutex // guards what follows; it is taken before the FSM's
	leases   map[string]*watched
	lines    map[string]*line
	places   places
	turns    uint64 // how many claims have come in
	waiters  int    // in all lines
	claims   int    // proposed and not answered
	bumped   uint32 // the epoch that is to end, or has; 0: none
	expiry   expiry
	sessions map[leases.ID]map[*session]struct{}
	gone     withdrawals
}

type limits struct {
	claims, waiters, waitersPerName int
}

// watched is what the leader knows of one lease that the table holds.
type watched struct {
	token    tokens.Token
	deadline clock.Instant
	// waited is set for a grant that waited, until its first renewal: its first
	// deadline may be shorter than its TTL, so every answer has to say so.
	waited bool
	// expiring is set once its expiry has been proposed: it is renewed no more.
	expiring bool
}

// begin takes the table as of the barrier: every lease in it gets a full TTL
// from now on, since a former leader may have renewed it until now (N3).
func (t *tenure) begin(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx = ctx
	began := t.clock.Now() // τ of the protocol
	t.leases = map[string]*watched{}
	t.lines = map[string]*line{}
	t.sessions = map[leases.ID]map[*session]struct{}{}
	t.gone = newWithdrawals()
	t.places = newPlaces()
	t.expiry.wake = make(chan struct{}, 1)
	t.fsm.View(func(table *leases.Table) {
		for l := range table.All() {
			deadline := began.Add(leases.Stretch(l.TTL))
			if !t.rules.On(rules.NewTermDeadlines) {
				deadline = began
			}
			t.watch(l, deadline, false)
		}
	})
}

// watch notes the deadline of a lease. It is called with mu held.
func (t *tenure) watch(l *leases.Lease, deadline clock.Instant, waited bool) {
	t.leases[l.Name] = &watched{token: l.Token, deadline: deadline, waited: waited}
	t.expiry.add(l.Name, l.Token, deadline)
	t.shrink()
}

// propose brings op into the log, under the present epoch, and anew where a
// bump came in between. It and answer are called with mu held.
func (t *tenure) propose(op leases.Op, answer fsm.Answer) {
	t.fsm.View(func(table *leases.Table) { op.Epoch = table.Epoch() })
	err := t.proposer.Propose(op, func(r leases.Result, err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case err != nil || r.Outcome != leases.StaleEpoch:
			answer(r, err)
		case op.Kind == leases.KindAcquire && t.gone.has(drawn{op.Session, op.Attempt}, t.clock):
			// Its Withdraw may be in the log already, under the new epoch.
			answer(leases.Result{}, &leases.NotHeldError{Name: op.Name, Why: leases.WhyWithdrawn})
		case op.Kind == leases.KindTransfer && t.gone.has(drawn{op.Heir, op.Attempt}, t.clock):
			op.Kind = leases.KindRelease // the same of the heir
			t.propose(op, answer)
		default:
			t.propose(op, answer)
		}
	})
	if err != nil {
		answer(leases.Result{}, err)
	}
}

// decide proposes the end of a lease and waits for its result.
func (t *tenure) decide(ctx context.Context, op leases.Op) (leases.Result, error) {
	answer, wait := awaited()
	t.mu.Lock()
	t.proposeEnd(op, answer)
	t.mu.Unlock()
	return wait(ctx)
}

// awaited returns what takes the answer to one op, and what waits for it until
// ctx ends.
func awaited() (answer fsm.Answer, wait func(context.Context) (leases.Result, error)) {
	type outcome struct {
		result leases.Result
		err    error
	}
	done := make(chan outcome, 1)
	answer = func(r leases.Result, err error) { done <- outcome{r, err} }
	wait = func(ctx context.Context) (leases.Result, error) {
		select {
		case o := <-done:
			return o.result, o.err
		case <-ctx.Done():
			return leases.Result{}, unknown(ctx)
		}
	}
	return answer, wait
}

// proposeEnd proposes the end of a lease. It and answer are called with mu held.
func (t *tenure) proposeEnd(op leases.Op, answer fsm.Answer) {
	kind := op.Kind // the closure would keep all of op
	t.propose(op, func(r leases.Result, err error) {
		if err == nil {
			t.decided(kind, r)
		}
		answer(r, err)
	})
}

// decided does what the result of a release, withdrawal or break calls for. It
// is called with mu held.
func (t *tenure) decided(kind leases.Kind, r leases.Result) {
	switch r.Outcome {
	case leases.Freed:
		t.ended(r.Lease, r.Ending)
	case leases.Marked, leases.Repeated:
		t.tell(r.Lease, leases.Breaking{Held: r.Lease.Held()})
	}
	if kind == leases.KindBreak && (r.Outcome == leases.Marked || r.Outcome == leases.Freed && !r.Lease.Broken) {
		t.metrics.breaks.Inc()
	}
}

// ended forgets a lease that the table no longer holds, tells its holder if that
// was not its own doing, and calls the next in line. It is called with mu held.
func (t *tenure) ended(l *leases.Lease, e leases.Ending) {
	t.metrics.endings[e.Why].Inc()
	t.forget(l.Held())
	if e.Why == leases.WhyExpired || e.Why == leases.WhyBroken {
		t.tell(l, leases.Ended{Held: l.Held(), Err: e.Err()})
	}
	t.advance(l.Name)
}

// tell tells a lease's holder something, on each of its conversations. It is
// called with mu held.
func (t *tenure) tell(l *leases.Lease, e leases.Event) {
	for s := range t.sessions[l.Session] {
		s.on(e)
	}
}

// forget is called with mu held.
func (t *tenure) forget(h leases.Held) {
	if w := t.leases[h.Name]; w != nil && w.token == h.Token {
		delete(t.leases, h.Name)
	}
}

// bump begins a new epoch when half of the counter's range is used, long before
// the other half could be (N6). It is called with mu held.
func (t *tenure) bump() {
	var epoch, counter uint32
	t.fsm.View(func(table *leases.Table) { epoch, counter = table.Epoch(), table.Counter() })
	if counter < tokens.MaxCounter/2 || t.bumped == epoch {
		return
	}
	t.bumped = epoch
	t.log.Info("half of the epoch's tokens are used: beginning a new epoch", "epoch", epoch+1)
	failed := func(err error) {
		t.bumped = 0 // the next grant tries again
		t.log.Warn("the epoch could not be raised", "err", err)
	}
	err := t.proposer.Propose(leases.Op{Kind: leases.KindBump, Epoch: epoch + 1}, func(_ leases.Result, err error) {
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

func (t *tenure) release(ctx context.Context, session leases.ID, h leases.Held) error {
	if err := h.Validate(); err != nil {
		return err
	}
	r, err := t.decide(ctx, releaseOp(session, h))
	return released(h, r, err)
}

func releaseOp(session leases.ID, h leases.Held) leases.Op {
	return leases.Op{Kind: leases.KindRelease, Name: h.Name, Session: session, Token: h.Token}
}

// released is how a release is answered.
func released(h leases.Held, r leases.Result, err error) error {
	if err == nil && r.Outcome != leases.Freed {
		return notHeld(h, r.Ending)
	}
	return err
}

// startRelease is release without the wait: r is answered, at the latest when
// its session ends. An error says that nothing was proposed.
func (t *tenure) startRelease(r *request, h leases.Held) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(r, nil); err != nil {
		return err
	}
	t.proposeEnd(releaseOp(r.session.id, h), func(result leases.Result, err error) {
		r.reply(leases.Grant{}, released(h, result, err))
	})
	return nil
}

// find returns the lease of a name, if the table holds one.
func (t *tenure) find(name string) (l *leases.Lease) {
	t.fsm.View(func(table *leases.Table) { l, _ = table.Get(name) })
	return l
}

// ending returns what the table remembers of a lease that has ended.
func (t *tenure) ending(h leases.Held) (e leases.Ending) {
	t.fsm.View(func(table *leases.Table) { e, _ = table.Ended(h.Name, h.Token) })
	return e
}

func notHeld(h leases.Held, e leases.Ending) error {
	return &leases.NotHeldError{Name: h.Name, Token: h.Token, Why: e.Why, Next: e.Next}
}

func unknown(ctx context.Context) error {
	return fmt.Errorf("%w: no answer so far: %w", leases.ErrUnknownOutcome, context.Cause(ctx))
}

func (t *tenure) over() error {
	return &leases.UnavailableError{Reason: fmt.Sprintf("%s no longer leads term %d", t.node, t.term)}
}

// left is how long a lease can last at most if it is not renewed. It is called
// with mu held.
func (t *tenure) left(name string) time.Duration {
	w := t.leases[name]
	if w == nil {
		return 0
	}
	return max(w.deadline.Sub(t.clock.Now()), 0)
}

// atMost is how long a lease that the table holds can last at most if it is not
// renewed. It is called with mu held.
func (t *tenure) atMost(l *leases.Lease) time.Duration {
	if w := t.leases[l.Name]; w == nil || w.token != l.Token {
		return leases.Stretch(l.TTL) // applied, and not yet noted here
	}
	return t.left(l.Name)
}
