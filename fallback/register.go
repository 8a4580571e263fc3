package fallback

import (
	"context"
	"fmt"
	"sync"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// register drives the machine of one shard.
type register struct {
	r     *Replicator
	index uint32

	mu      sync.Mutex // guards what follows
	shard   *Shard
	waits   int      // who wait for names of the shard
	out     []func() // answers to be given, in order
	running bool     // run is
	ended   bool
	timer   *clock.Timer // calls turn; nil: there is nothing to wait for
	wake    clock.Instant
	bad     bool // it was logged that the register cannot be read
}

func newRegister(r *Replicator, index uint32) *register {
	return &register{r: r, index: index, shard: NewShard(index, r.cfg.Shards, r.cfg.Rules, arbiter.NewNonce)}
}

// use calls do with the machine and goes on with what it says then, unless the
// register is closed: then it returns false.
func (g *register) use(do func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return false
	}
	do()
	g.turn()
	return true
}

// look calls do, which changes nothing in the machine.
func (g *register) look(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

// give has do called with no lock held. It is called with mu held.
func (g *register) give(do func()) { g.out = append(g.out, do) }

// turn asks the machine what to do now. It is called with mu held.
func (g *register) turn() {
	if g.running {
		return
	}
	act, at := g.shard.Next(g.r.cfg.Clock.Now())
	if act == nil && len(g.out) == 0 {
		g.wait(at)
		return
	}
	g.running = true
	g.r.running.Go(func() { g.run(act) })
}

// run does what the machine says, and gives the answers, until there is nothing more
// of either.
func (g *register) run(act Action) {
	for {
		var events []Event
		if act != nil {
			events = g.do(act)
		}
		g.mu.Lock()
		next, at := g.shard.Next(g.r.cfg.Clock.Now())
		act = next
		out := g.out
		g.out = nil
		if act == nil && len(out) == 0 && len(events) == 0 {
			g.running = false
			g.wait(at)
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		for _, give := range out {
			give()
		}
		if len(events) > 0 && g.r.cfg.Changed != nil {
			g.r.cfg.Changed(events)
		}
	}
}

// do carries one action out.
func (g *register) do(act Action) (events []Event) {
	cfg := &g.r.cfg
	began := cfg.Clock.Now()
	var take func(now clock.Instant) []Event
	var err error
	switch act := act.(type) {
	case Load:
		var reg arbiter.Register
		reg, err = cfg.load(g.r.ctx, g.index)
		take = func(now clock.Instant) []Event { return g.shard.Loaded(began, now, reg, err) }
	case Swap:
		err = cfg.swap(g.r.ctx, g.index, act)
		take = func(now clock.Instant) []Event { return g.shard.Swapped(began, now, err) }
	}
	g.r.reached(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	events = take(cfg.Clock.Now())
	if epoch := g.shard.Superseded(); epoch != 0 {
		g.r.tell(epoch)
	}
	g.complain()
	return events
}

// complain logs once that the register cannot be read. It is called with mu held.
func (g *register) complain() {
	err, bad := g.shard.Unreadable(), g.bad
	g.bad = err != nil
	if err != nil && !bad {
		g.r.cfg.Log.Error("a shard cannot be served", "key", g.r.cfg.Key(g.index), "err", err)
	}
}

// wait has turn called at an instant. It is called with mu held.
func (g *register) wait(at clock.Instant) {
	switch {
	case g.timer != nil && g.wake == at:
		return
	case g.timer != nil && at != never && g.timer.Reset(at):
	default:
		g.stop()
		if at == never || g.ended {
			return
		}
		var t *clock.Timer
		t = clock.AfterFunc(g.r.cfg.Clock, at, func() {
			g.use(func() {
				if g.timer == t {
					g.timer = nil
				}
			})
		})
		g.timer = t
	}
	g.wake = at
}

// stop is called with mu held.
func (g *register) stop() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
}

// confirm waits for a reading begun after the call, and returns the leases that it showed.
func (g *register) confirm(ctx context.Context) ([]*leases.Lease, error) {
	type shown struct {
		leases []*leases.Lease
		err    error
	}
	done := make(chan shown, 1)
	if !g.use(func() { g.shard.Read(func(err error) { done <- shown{g.shard.Leases(), err} }) }) {
		return nil, errClosed
	}
	select {
	case s := <-done:
		return s.leases, s.err
	case <-ctx.Done():
		return nil, unavailable(g.index, fmt.Errorf("the arbiter has not answered so far: %w", context.Cause(ctx)))
	}
}

// close refuses what waits, and takes nothing more.
func (g *register) close() {
	g.use(func() { g.shard.Serve(Regime{}) }) // answers, in a goroutine
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.stop()
}
