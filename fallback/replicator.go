package fallback

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// Answer receives what became of an op; see Shard.Ask for what it is told. It is called
// once, from a goroutine of the Replicator's with none of its locks held, and must not
// block: the other answers of its shard wait for it.
type Answer func(leases.Result, error)

// Replicator serves all shards on one node. It is safe for concurrent use. A shard
// takes up a goroutine only while something is under way there.
type Replicator struct {
	cfg       Config
	registers []*register
	ctx       context.Context // of every request to the store
	cancel    context.CancelFunc
	running   sync.WaitGroup
	passed    chan uint32

	mu     sync.Mutex // guards what follows; it is taken after a register's
	newest uint32     // epoch that was seen to supersede ours
	down   bool       // it was said that the arbiter does not answer
	said   clock.Instant
}

// New returns a replicator that serves nothing yet.
func New(cfg Config) *Replicator {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Replicator{cfg: cfg.withDefaults(), ctx: ctx, cancel: cancel, passed: make(chan uint32, 1)}
	for k := range r.cfg.Shards.Count {
		r.registers = append(r.registers, newRegister(r, k))
	}
	return r
}

// Close stops serving: what waits is answered as unavailable, what is being written
// as of unknown outcome. It returns when nothing of it runs any more.
func (r *Replicator) Close() {
	for _, g := range r.registers {
		g.close()
	}
	r.cancel()
	r.running.Wait()
}

// Serve tells under what the shards are served from now on; the zero Regime: they are
// not served. See Shard.Serve.
func (r *Replicator) Serve(regime Regime) {
	for _, g := range r.registers {
		g.use(func() { g.shard.Serve(regime) })
	}
}

// Superseded tells of a greater epoch than the regime's, to which somebody has moved a
// shard: the root register is to be read. Only the newest is kept.
func (r *Replicator) Superseded() <-chan uint32 { return r.passed }

// Propose puts an op behind those of its shard that wait. It does not block. After
// Close it takes nothing, and returns an error that matches leases.ErrUnavailable.
func (r *Replicator) Propose(op leases.Op, answer Answer) error {
	g := r.at(op.Name)
	if !g.use(func() { g.shard.Ask(op, func(res leases.Result, err error) { g.give(func() { answer(res, err) }) }) }) {
		return errClosed
	}
	return nil
}

var errClosed = &leases.UnavailableError{Reason: "this node is closing"}

// Find returns the lease of a name as far as this node knows, or nil.
func (r *Replicator) Find(name string) (l *leases.Lease) {
	g := r.at(name)
	g.look(func() { l = g.shard.Find(name) })
	return l
}

// Confirm returns nil once a reading of the arbiter begun after the call has shown
// what Find tells of a name; else an error that matches leases.ErrUnavailable.
func (r *Replicator) Confirm(ctx context.Context, name string) error {
	_, err := r.at(name).confirm(ctx)
	return err
}

// ConfirmAll returns all leases, in the order of their names, each shard's as of a
// moment after the call. Its error matches leases.ErrUnavailable.
func (r *Replicator) ConfirmAll(ctx context.Context) ([]*leases.Lease, error) {
	found := make([][]*leases.Lease, len(r.registers))
	err := each(ctx, len(r.registers), func(ctx context.Context, i int) (err error) {
		found[i], err = r.registers[i].confirm(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return sorted(found), nil
}

// Interest tells that one more waits for a name, or one less: its shard is read more
// often as long as anybody waits.
func (r *Replicator) Interest(name string, waits bool) {
	g := r.at(name)
	g.use(func() {
		if waits {
			g.waits++
		} else {
			g.waits--
		}
		g.shard.Interest(g.waits > 0)
	})
}

// Fill is how many bytes the leases of each shard take up, as far as this node knows.
func (r *Replicator) Fill() []uint32 {
	fill := make([]uint32, len(r.registers))
	for i, g := range r.registers {
		g.look(func() { fill[i] = g.shard.Fill() })
	}
	return fill
}

// Len is how many leases there are, as far as this node knows.
func (r *Replicator) Len() (n int) {
	for _, g := range r.registers {
		g.look(func() { n += len(g.shard.Leases()) })
	}
	return n
}

// Queued is how many ops wait, in all shards.
func (r *Replicator) Queued() (n int) {
	for _, g := range r.registers {
		g.look(func() { n += g.shard.Queued() })
	}
	return n
}

func (r *Replicator) at(name string) *register { return r.registers[r.cfg.Shards.Of(name)] }

// tell passes on to which epoch a shard has been moved.
func (r *Replicator) tell(epoch uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch <= r.newest {
		return
	}
	r.newest = epoch
	select {
	case <-r.passed:
	default:
	}
	r.passed <- epoch
}

// quiet is how long nothing more is said of an arbiter that comes and goes.
const quiet = time.Minute

// reached notes whether the arbiter has answered a request.
func (r *Replicator) reached(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Clock.Now()
	if r.ctx.Err() != nil {
		return
	}
	down := err != nil && !errors.Is(err, arbiter.ErrConflict) && !errors.Is(err, arbiter.ErrTooLarge)
	switch {
	case down == r.down, down && r.said != 0 && now.Before(r.said.Add(quiet)):
	case down:
		r.down, r.said = true, now
		r.cfg.Log.Warn("the arbiter does not answer: its registers cannot be served meanwhile", "err", err)
	default:
		r.down = false
		r.cfg.Log.Info("the arbiter answers again")
	}
}
