package fsm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// Parts of an import are long: no entry has more of them than fit.
func TestEntriesOfPartsAreBounded(t *testing.T) {
	p, log := bench(t, 1, 1, rules.Set{})
	const parts = 8
	answers := make(chan answer, parts)
	for i := range uint32(parts) {
		var names []string
		for n := range leases.MaxPart {
			names = append(names, strings.Repeat("n", leases.MaxName-8)+fmt.Sprintf("%d/%d", i, n))
		}
		op := part(2, names...)
		for _, l := range op.Leases {
			l.Attributes = make([]byte, leases.MaxAttributes)
			l.Owner = leases.Owner{Label: names[0][:leases.MaxLabel], Site: names[0][:leases.MaxLabel], Host: names[0][:leases.MaxLabel]}
		}
		propose(t, p, answers, op)
	}
	propose(t, p, answers, importAll(2, parts*leases.MaxPart))
	close(log.gate)
	for range parts {
		if a := <-answers; a.err != nil || a.result.Outcome != leases.Staged {
			t.Fatalf("a part: got %v, %v", a.result.Outcome, a.err)
		}
	}
	if a := <-answers; a.err != nil || a.result.Outcome != leases.Imported {
		t.Errorf("the import: got %v, %v", a.result.Outcome, a.err)
	}
	for _, e := range log.entries {
		if n := len(e.Encode()); n > MaxBytes {
			t.Errorf("an entry has %d ops in %d bytes, want at most %d", len(e.Ops), n, MaxBytes)
		}
	}
}

// gated is a proposer over a held log whose gate the test opens and closes.
func gated(t *testing.T, shut *atomic.Pointer[error], asked *atomic.Int32) (*Proposer, *heldLog) {
	t.Helper()
	f := New(rules.Set{}, func(err error) { t.Errorf("the state machine has stopped: %v", err) })
	f.apply(birth())
	log := &heldLog{fsm: f, term: 1, gate: make(chan error)}
	p := NewProposer(log, 1, time.Second, readsAll)
	p.Gate(func() error {
		asked.Add(1)
		if err := shut.Load(); err != nil {
			return *err
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return p, log
}

// What was accepted while the gate was open is not proposed once it is shut; what
// was proposed is answered as it comes out of the log (S39).
func TestNothingIsProposedBehindAShutGate(t *testing.T) {
	var shut atomic.Pointer[error]
	var asked atomic.Int32
	p, log := gated(t, &shut, &asked)
	const waiting = 5
	first, rest := make(chan answer, 1), make(chan answer, waiting)
	propose(t, p, first, acquire("in flight"))
	for len(log.sizes()) == 0 {
		<-time.After(time.Millisecond)
	}
	for i := range waiting {
		propose(t, p, rest, acquire(fmt.Sprintf("waiting-%d", i)))
	}
	var why error = &leases.UnavailableError{Reason: "its window has closed"}
	shut.Store(&why)
	log.gate <- nil
	if a := <-first; a.err != nil || a.result.Outcome != leases.Granted {
		t.Errorf("%s: got %v, %v, want granted", a.name, a.result.Outcome, a.err)
	}
	for range waiting {
		if a := <-rest; !errors.Is(a.err, leases.ErrUnavailable) || a.err != why {
			t.Errorf("%s: got %v, want %v", a.name, a.err, why)
		}
	}
	if n := asked.Load(); len(log.sizes()) != 1 || n != 2 {
		t.Errorf("got entries %v, the gate asked %d times, want one entry, two askings", log.sizes(), n)
	}
	shut.Store(nil)
	propose(t, p, first, acquire("after"))
	log.gate <- nil
	if a := <-first; a.err != nil || a.result.Outcome != leases.Granted {
		t.Errorf("%s: got %v, %v, want granted through the open gate", a.name, a.result.Outcome, a.err)
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
