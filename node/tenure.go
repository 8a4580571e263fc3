package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// tenure is a time in which this node serves: a term in which it leads a Raft group
// (newRaftTenure), or a fallback epoch of the arbiter (newRegistersTenure). It has
// everything that is known of leases beside the replicator, and that ends with it.
//
// A claim goes through it like this: Acquire puts it into the line of its name;
// in its turn, and only while nobody is known to hold the name, it is proposed; granted
// then answers. What ends a lease calls the next in line.
type tenure struct {
	tenureConfig
	replicator replicator
	ctx        context.Context // ends with the tenure

	mu       sync.Mutex // guards what follows, and what the replicator says
	lines    map[string]*line
	places   places
	turns    uint64 // how many claims have come in
	waiters  int    // in all lines
	claims   int    // proposed and not answered
	ttls     ttls   // of all these
	sessions map[leases.ID]map[*session]struct{}
	gone     withdrawals
	grace    grace
	draining drain
}

// tenureConfig is what a tenure is made of, whatever its replicator.
type tenureConfig struct {
	node    string
	term    uint64 // of Raft; 0 where the registers are served
	clock   clock.Clock
	limits  limits
	rules   rules.Set
	metrics *metrics
	log     *slog.Logger

	// Where there is a ceiling of TTLs (W5), may reports whether a lease of that TTL may
	// be granted now, and allow waits until one may be, or says why not. may must
	// neither block nor call the tenure, whose mutex is held. nil: there is no ceiling.
	may   func(ttl time.Duration) bool
	allow func(ctx context.Context, ttl time.Duration) error
}

type limits struct {
	claims, waiters, waitersPerName int
}

// begin takes the leases as they are. The tenure lasts until ctx ends.
func (t *tenure) begin(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx = ctx
	t.lines = map[string]*line{}
	t.ttls = ttls{}
	t.sessions = map[leases.ID]map[*session]struct{}{}
	t.gone = newWithdrawals()
	t.places = newPlaces()
	t.replicator.begin()
}

// run starts all that the tenure does by itself, until ctx ends.
func (t *tenure) run(ctx context.Context, running *sync.WaitGroup) {
	t.replicator.run(ctx, running)
	running.Go(func() { t.tellPlaces(ctx) })
}

// serves says why nothing is taken in any more; nil: it is. It is called with mu held.
func (t *tenure) serves() error {
	if t.ctx.Err() != nil {
		return t.over()
	}
	return t.draining.reason
}

func (t *tenure) over() error { return t.replicator.over() }

// propose has op carried out, and anew where a new epoch came in between. It and
// answer are called with mu held.
func (t *tenure) propose(op leases.Op, answer fsm.Answer) {
	err := t.serves()
	if err == nil {
		err = t.replicator.propose(op, func(r leases.Result, err error) {
			t.draining.proposed--
			if err == nil && r.Outcome == leases.StaleEpoch {
				t.metrics.stale.Inc()
				t.proposeAnew(op, answer)
			} else {
				answer(r, err)
			}
			t.drained()
		})
	}
	if err != nil {
		answer(leases.Result{}, err)
		return
	}
	t.draining.proposed++
}

// proposeAnew proposes an op of an epoch that has ended. It is called with mu held.
func (t *tenure) proposeAnew(op leases.Op, answer fsm.Answer) {
	switch {
	case op.Kind == leases.KindAcquire && t.gone.has(drawn{op.Session, op.Attempt}, t.clock):
		// Its Withdraw may have been carried out already, under the new epoch.
		answer(leases.Result{}, &leases.NotHeldError{Name: op.Name, Why: leases.WhyWithdrawn})
		return
	case op.Kind == leases.KindTransfer && t.gone.has(drawn{op.Heir, op.Attempt}, t.clock):
		op.Kind = leases.KindRelease // the same of the heir
	}
	t.propose(op, answer)
}

// decide proposes op and waits for its result.
func (t *tenure) decide(ctx context.Context, op leases.Op) (leases.Result, error) {
	answer, wait := awaited()
	t.mu.Lock()
	t.propose(op, answer)
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

// ended tells the holder of a lease that is held no more, if that was not its own
// doing, and calls the next in line. It is called with mu held.
func (t *tenure) ended(l *leases.Lease, e leases.Ending) {
	t.metrics.endings[e.Why].Inc()
	if e.Why == leases.WhyExpired || e.Why == leases.WhyBroken {
		t.tell(l, leases.Ended{Held: l.Held(), Err: e.Err()})
	}
	t.advance(l.Name)
}

// breaking tells the holder of a lease that an operator has broken it. It is called
// with mu held.
func (t *tenure) breaking(l *leases.Lease) { t.tell(l, leases.Breaking{Held: l.Held()}) }

// tell tells a lease's holder something, on each of its conversations. It is
// called with mu held.
func (t *tenure) tell(l *leases.Lease, e leases.Event) {
	for s := range t.sessions[l.Session] {
		s.on(e)
	}
}

func (t *tenure) find(name string) *leases.Lease { return t.replicator.find(name) }

func (t *tenure) renew(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error) {
	for _, h := range held {
		if err := h.Validate(); err != nil {
			return nil, err
		}
	}
	return t.replicator.renew(ctx, session, held)
}

func (t *tenure) reclaim(ctx context.Context, session leases.ID, epoch uint32, held []leases.Claimed) ([]error, error) {
	for _, c := range held {
		if err := c.Validate(); err != nil {
			return nil, err
		}
	}
	return t.replicator.reclaim(ctx, session, epoch, held)
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

// released is how a release is answered. In a grace one of a lease that is not known
// is done: nobody reclaims what it has given back.
func released(h leases.Held, r leases.Result, err error) error {
	switch {
	case errors.Is(err, leases.ErrGrace):
		return nil
	case err == nil && r.Outcome != leases.Freed:
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
	t.propose(releaseOp(r.session.id, h), func(result leases.Result, err error) {
		r.reply(leases.Grant{}, released(h, result, err))
	})
	return nil
}

func notHeld(h leases.Held, e leases.Ending) error {
	return &leases.NotHeldError{Name: h.Name, Token: h.Token, Why: e.Why, Next: e.Next}
}

func unknown(ctx context.Context) error {
	return fmt.Errorf("%w: no answer so far: %w", leases.ErrUnknownOutcome, context.Cause(ctx))
}
