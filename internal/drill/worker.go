package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
)

// jobs are the names that the workers compete for.
var jobs = [...]string{"billing", "mailing", "reports"}

const (
	writeEvery = 100 * time.Millisecond // while a worker holds a lease
	probeEvery = 25 * time.Millisecond  // between two fresh grants, where they are granted
	askFor     = 10 * time.Second       // how long a worker waits for a lease
)

// work takes one lease after the other, writes to the register under each, and gives it
// back, until ctx ends.
func (a *actor) work(ctx context.Context, chance *rand.Rand) {
	for ctx.Err() == nil {
		a.job(ctx, jobs[chance.IntN(len(jobs))], some(chance, 500*time.Millisecond, 4*time.Second))
		a.stage.rest(ctx, some(chance, 50*time.Millisecond, 400*time.Millisecond))
	}
}

// job does one job, for so long, or until its lease ends.
func (a *actor) job(ctx context.Context, name string, d time.Duration) {
	waits, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	h, err := a.acquire(waits, name, client.TTL(WorkerTTL))
	if err != nil {
		return // held by others, or nobody grants: it is all in the history
	}
	s := a.stage
	for end := s.clock.Now().Add(d); ctx.Err() == nil && s.clock.Now().Before(end) && h.Err() == nil; {
		h.write()
		s.rest(ctx, writeEvery)
	}
	h.part()
}

// part gives a lease back, and waits for the answer as long as the lease could last.
func (h *hold) part() {
	ctx, cancel := context.WithTimeout(context.Background(), WorkerTTL)
	defer cancel()
	_ = h.release(ctx) // without an answer it lapses
}

// prober is the probe's name.
const prober = "probe"

// probe is granted a new name again and again, so that the time can be told in which
// nothing is granted anew. granted is when that was last.
type probe struct {
	*actor
	granted atomic.Int64 // a clock.Instant: when the newest fresh grant was asked for
}

func (p *probe) run(ctx context.Context) {
	s := p.stage
	for n := 1; ctx.Err() == nil; n++ {
		p.ask(ctx, fmt.Sprintf("probe-%d", n))
		s.rest(ctx, probeEvery)
	}
}

// ask is granted one name, and gives it back. Where nothing is granted anew it goes on
// asking until something is, and tells of that.
func (p *probe) ask(ctx context.Context, name string) {
	s, asked := p.stage, p.stage.clock.Now()
	late := clock.AfterFunc(s.clock, asked.Add(noticeable), func() {
		s.journal.note(GrantsEvent, "nothing is granted anew")
	})
	h, err := p.try(ctx, name, client.TTL(probeTTL))
	late.Stop()
	if err != nil {
		return
	}
	if took := s.clock.Now().Sub(asked); took >= noticeable {
		s.journal.note(GrantsEvent, "something is granted anew, after %.1f s", took.Seconds())
	}
	p.granted.Store(int64(asked))
	ctx, cancel := context.WithTimeout(ctx, probeTTL)
	defer cancel()
	_ = h.release(ctx) // without an answer it lapses
}

// keeper holds one lease through everything.
type keeper struct {
	*actor
	lease *hold
}

// watch notes when the keeper's lease ends, which it is not to.
func (k *keeper) watch(ctx context.Context) {
	select {
	case <-k.lease.Done():
		k.stage.journal.note(LeaseEvent, "the keeper has lost its lease: %v", context.Cause(k.lease.Context()))
	case <-ctx.Done():
	}
}

// some is a random time between two.
func some(chance *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(chance.Int64N(int64(to-from)))
}
