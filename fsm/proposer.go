package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/leases"
)

// Log is where a Proposer puts its entries: a *raft.Raft.
type Log interface {
	// Apply hands an entry to Raft. timeout bounds the handing over alone.
	Apply(entry []byte, timeout time.Duration) raft.ApplyFuture
}

// Answer receives what became of an op: its result as applied on this node, or
// an error that matches leases.ErrUnavailable (it certainly was not applied)
// or leases.ErrUnknownOutcome. It is called once, in the order of the log.
type Answer func(leases.Result, error)

// Proposer brings the ops of one term into the log: one entry is in flight at a
// time, and what comes meanwhile forms the next. Propose is safe for
// concurrent use.
type Proposer struct {
	log     Log
	term    uint64
	enqueue time.Duration
	reads   func() (version uint32, node string)
	open    func() error // nil: always

	mu    sync.Mutex // guards queue, spare and ended
	queue []proposal
	spare []proposal // empty: the memory of a batch that has been answered
	ended error      // the reason why nothing is taken any more
	wake  chan struct{}

	buf []byte // of the entry that is being made; Run's
}

type proposal struct {
	op     leases.Op
	answer Answer
}

// NewProposer returns the proposer of a term; Run does its work. enqueue bounds
// how long Raft may take to accept an entry. reads tells the lowest op version
// that all voters read, and which node reads no more.
func NewProposer(log Log, term uint64, enqueue time.Duration, reads func() (uint32, string)) *Proposer {
	return &Proposer{log: log, term: term, enqueue: enqueue, reads: reads, wake: make(chan struct{}, 1)}
}

// Gate has open asked just before each entry is handed to Raft, since an op that was
// accepted while this leader might grant must not be proposed when it no longer may
// (W2). Where it returns an error, which matches leases.ErrUnavailable, every op of
// the entry is answered with that, and nothing is proposed. It is called before Run.
func (p *Proposer) Gate(open func() error) { p.open = open }

// Propose puts op behind those that wait. It does not block; answer is called
// from Run's goroutine, unless the term is over: then nothing is taken, and an
// error is returned that matches leases.ErrUnavailable.
func (p *Proposer) Propose(op leases.Op, answer Answer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return p.ended
	}
	p.queue = append(p.queue, proposal{op, answer})
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// Run proposes until ctx ends; what has not been proposed by then is answered
// as unavailable, what is in flight as of unknown outcome.
func (p *Proposer) Run(ctx context.Context) {
	defer p.end(&leases.UnavailableError{Reason: fmt.Sprintf("term %d of this leader is over", p.term)})
	for {
		batch, data := p.next()
		if len(batch) > 0 {
			p.commit(ctx, batch, data)
			p.reuse(batch)
		}
		if ctx.Err() != nil {
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
	}
}

// next takes as many waiting ops as fit into one entry.
func (p *Proposer) next() ([]proposal, []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return nil, nil
	}
	data := appendEntryHeader(p.buf[:0], p.term)
	n := 0
	for n < len(p.queue) && n < MaxOps {
		longer := leases.AppendOp(data, p.queue[n].op)
		if n > 0 && len(longer) > MaxBytes {
			break
		}
		data, n = longer, n+1
	}
	p.buf = data
	batch := p.queue[:n:n]
	if n < len(p.queue) {
		p.queue = p.queue[n:]
	} else {
		batch, p.queue, p.spare = p.queue, p.spare, nil
	}
	return batch, bytes.Clone(data) // the log keeps it
}

// reuse takes back the memory of a batch, unless it is much.
func (p *Proposer) reuse(batch []proposal) {
	clear(batch)
	p.mu.Lock()
	defer p.mu.Unlock()
	if cap(batch) <= MaxOps {
		p.spare = batch[:0]
	}
}

func (p *Proposer) commit(ctx context.Context, batch []proposal, data []byte) {
	if version, node := p.reads(); !readable(batch, version) {
		fail(batch, &leases.UnavailableError{Reason: fmt.Sprintf("node %s reads ops up to version %d; upgrade it first", node, version)})
		return
	}
	if ctx.Err() != nil {
		fail(batch, &leases.UnavailableError{Reason: fmt.Sprintf("term %d of this leader is over", p.term)})
		return
	}
	if p.open != nil {
		if err := p.open(); err != nil {
			fail(batch, err)
			return
		}
	}
	future := p.log.Apply(data, p.enqueue)
	done := make(chan error, 1)
	go func() { done <- future.Error() }()
	select {
	case err := <-done:
		if err != nil {
			fail(batch, outcome(err))
			return
		}
	case <-ctx.Done():
		fail(batch, fmt.Errorf("%w: the leader lost its term while the request was in the log", leases.ErrUnknownOutcome))
		return
	}
	applied := future.Response().(Applied)
	switch {
	case applied.StaleTerm:
		fail(batch, &leases.UnavailableError{Reason: fmt.Sprintf("term %d of this leader is over", p.term)})
	case len(applied.Results) != len(batch):
		fail(batch, fmt.Errorf("%w: the entry could not be applied here", leases.ErrUnknownOutcome))
	default:
		for i, b := range batch {
			b.answer(applied.Results[i], nil)
		}
	}
}

func readable(batch []proposal, version uint32) bool {
	for _, b := range batch {
		if b.op.Kind.Version() > version {
			return false
		}
	}
	return true
}

func fail(batch []proposal, err error) {
	for _, b := range batch {
		b.answer(leases.Result{}, err)
	}
}

// outcome sorts Raft's errors: only those that it gives before it dispatches an
// entry say that the entry will never be applied.
func outcome(err error) error {
	if errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		return &leases.UnavailableError{Reason: err.Error()}
	}
	return fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, err)
}

func (p *Proposer) end(why error) {
	p.mu.Lock()
	queue := p.queue
	p.queue, p.ended = nil, why
	p.mu.Unlock()
	fail(queue, why)
}
