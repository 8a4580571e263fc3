package fsm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// heldLog is a log whose writes the test holds back and lets go.
type heldLog struct {
	fsm  *FSM
	term uint64
	gate chan error // one receive per entry: nil lets it apply

	mu      sync.Mutex
	entries []Entry
}

type future struct {
	done     chan struct{}
	err      error
	response any
}

func (f *future) Error() error  { <-f.done; return f.err }
func (f *future) Response() any { return f.response }
func (f *future) Index() uint64 { return 0 }

func (l *heldLog) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	entry, err := DecodeEntry(data)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	l.entries = append(l.entries, entry)
	index := uint64(len(l.entries))
	l.mu.Unlock()
	f := &future{done: make(chan struct{})}
	go func() {
		defer close(f.done)
		if f.err = <-l.gate; f.err == nil {
			f.response = l.fsm.Apply(&raft.Log{Index: index, Term: l.term, Data: data})
		}
	}()
	return f
}

func (l *heldLog) sizes() (sizes []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		sizes = append(sizes, len(e.Ops))
	}
	return sizes
}

func readsAll() (uint32, string) { return leases.OpVersion, "" }

// bench is a proposer over a held log with a table that has been born.
func bench(t *testing.T, proposed, logged uint64, set rules.Set) (*Proposer, *heldLog) {
	t.Helper()
	f := New(set, func(err error) { t.Errorf("the state machine has stopped: %v", err) })
	f.apply(birth())
	log := &heldLog{fsm: f, term: logged, gate: make(chan error)}
	p := NewProposer(log, proposed, time.Second, readsAll)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return p, log
}

func birth() leases.Op {
	return leases.Op{Kind: leases.KindBirth, Epoch: 1, Cluster: leases.ID{1}, Founders: 3}
}

func acquire(name string) leases.Op {
	return leases.Op{
		Kind: leases.KindAcquire, Epoch: 1, Name: name, Session: leases.ID{1}, Attempt: leases.NewID(),
		TTL: 15 * time.Second,
	}
}

type answer struct {
	name   string
	result leases.Result
	err    error
}

func propose(t *testing.T, p *Proposer, answers chan answer, op leases.Op) {
	t.Helper()
	if err := p.Propose(op, func(r leases.Result, err error) { answers <- answer{op.Name, r, err} }); err != nil {
		t.Fatalf("Propose: %v", err)
	}
}

func TestOpsThatWaitShareEntries(t *testing.T) {
	const callers = 512
	p, log := bench(t, 1, 1, rules.Set{})
	answers := make(chan answer, callers)
	for i := range callers {
		propose(t, p, answers, acquire(fmt.Sprintf("job-%d", i)))
	}
	close(log.gate)
	seen := map[string]bool{}
	for range callers {
		a := <-answers
		if a.err != nil || a.result.Outcome != leases.Granted {
			t.Fatalf("%s: got %v, %v, want granted", a.name, a.result.Outcome, a.err)
		}
		seen[a.name] = true
	}
	if len(seen) != callers {
		t.Errorf("got %d answers, want %d", len(seen), callers)
	}
	if sizes := log.sizes(); len(sizes) > 3 {
		t.Errorf("%d acquires behind a held write took %d entries %v, want at most 3", callers, len(sizes), sizes)
	}
}

func TestEntriesAreBounded(t *testing.T) {
	p, log := bench(t, 1, 1, rules.Set{})
	const ops = 6000
	answers := make(chan answer, ops)
	for i := range ops {
		op := acquire(fmt.Sprintf("job-%d", i))
		op.Attributes = make([]byte, 200)
		propose(t, p, answers, op)
	}
	close(log.gate)
	for range ops {
		<-answers
	}
	for _, e := range log.entries {
		if n := len(e.Encode()); len(e.Ops) > MaxOps || n > MaxBytes {
			t.Errorf("an entry has %d ops in %d bytes, want at most %d in %d", len(e.Ops), n, MaxOps, MaxBytes)
		}
	}
}

func TestOutcomesOfFailedEntries(t *testing.T) {
	tests := []struct {
		err  error
		want error
	}{
		{raft.ErrNotLeader, leases.ErrUnavailable},
		{raft.ErrEnqueueTimeout, leases.ErrUnavailable},
		{raft.ErrLeadershipTransferInProgress, leases.ErrUnavailable},
		{raft.ErrLeadershipLost, leases.ErrUnknownOutcome},
		{raft.ErrRaftShutdown, leases.ErrUnknownOutcome},
		{errors.New("disk full"), leases.ErrUnknownOutcome},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			p, log := bench(t, 1, 1, rules.Set{})
			answers := make(chan answer, 1)
			propose(t, p, answers, acquire("job"))
			log.gate <- tt.err
			if a := <-answers; !errors.Is(a.err, tt.want) {
				t.Errorf("got %v, want %v", a.err, tt.want)
			}
		})
	}
}

func TestEndOfTermAnswersEverything(t *testing.T) {
	f := New(rules.Set{}, nil)
	log := &heldLog{fsm: f, term: 1, gate: make(chan error)}
	p := NewProposer(log, 1, time.Second, readsAll)
	answers := make(chan answer, 2)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	propose(t, p, answers, acquire("in flight"))
	for len(log.sizes()) == 0 {
		<-time.After(time.Millisecond)
	}
	propose(t, p, answers, acquire("waiting"))
	cancel()
	<-ended
	close(log.gate)
	for _, want := range []error{leases.ErrUnknownOutcome, leases.ErrUnavailable} {
		if a := <-answers; !errors.Is(a.err, want) {
			t.Errorf("%s: got %v, want %v", a.name, a.err, want)
		}
	}
	if err := p.Propose(acquire("late"), nil); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("late: got %v, want %v", err, leases.ErrUnavailable)
	}
}

// An op decided in one term and proposed in a later one of the same node must
// not apply (S41).
func TestEntryOfAnotherTermIsNotApplied(t *testing.T) {
	for _, off := range []bool{false, true} {
		set := rules.Set{}
		if off {
			set = rules.Without(rules.DecidedTerm)
		}
		p, log := bench(t, 1, 3, set)
		answers := make(chan answer, 1)
		propose(t, p, answers, acquire("job"))
		log.gate <- nil
		a := <-answers
		if applied := log.fsm.table.Len() == 1; applied != off || off != (a.err == nil) {
			t.Errorf("rule off %v: applied %v, answered %v", off, applied, a.err)
		}
	}
}

// No leader proposes an op that a voter has not said that it reads.
func TestOpThatAVoterDoesNotReadIsNotProposed(t *testing.T) {
	f := New(rules.Set{}, nil)
	log := &heldLog{fsm: f, term: 1, gate: make(chan error)}
	p := NewProposer(log, 1, time.Second, func() (uint32, string) { return 0, "n2" })
	answers := make(chan answer, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	propose(t, p, answers, acquire("job"))
	a := <-answers
	if !errors.Is(a.err, leases.ErrUnavailable) || len(log.sizes()) != 0 {
		t.Errorf("got %v and %d entries, want %v and none", a.err, len(log.sizes()), leases.ErrUnavailable)
	}
}
