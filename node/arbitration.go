package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
)

// arbitration drives this node's part in the authority protocol: it tells the
// machine what happens, and carries out what the machine asks for.
type arbitration struct {
	node  *Node
	store arbiter.Store
	key   string // of the root register

	wake   chan struct{} // has room for one: something has happened
	probed atomic.Int64  // when this node last wrote to the arbiter, before the cluster has adopted it
	silent atomic.Bool   // the newest read of the root register was not answered
	active atomic.Bool   // the cluster has the arbiter, or is to be brought forth by it

	// mu is the lock under which pledging and taking over exclude each other (W1). It
	// is taken after a tenure's, and nothing is called under it but the machine.
	mu      sync.Mutex
	machine *authority.Machine
	changed chan struct{} // closed, and replaced, whenever the machine may have changed
	strange error         // what the newest read has found in the register's place; nil: a register

	told string                // of what the register holds, the last thing that was said; run's
	seen authority.Transferral // the newest that was counted; run's

	ruled   sync.Mutex // guards ruling
	ruling  *ruling
	ceiling ceiling
}

// ruling is one term in which this node leads a Raft group, from its barrier on.
type ruling struct {
	ctx      context.Context // ends with the term
	group    *group
	term     uint64
	proposer *fsm.Proposer // of the node's own ops, which need no window
	tenure   *tenure       // that serves within the window; nil: none. Guarded by arbitration.ruled
}

// timeout bounds one call of the arbiter; a store may have a shorter one of its own.
func (a *arbitration) timeout() time.Duration { return a.node.cfg.Authority.Lease / 4 }

func newArbitration(n *Node) *arbitration {
	cfg := n.cfg
	return &arbitration{
		node: n, store: cfg.Arbiter, key: authority.RootKey(cfg.ArbiterName), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		machine: n.newMachine(),
	}
}

func (n *Node) newMachine() *authority.Machine {
	return authority.New(authority.Config{
		Name: n.cfg.Name, Cluster: n.who().Cluster, Reform: n.cfg.ReformAfter, Rules: n.cfg.Testing.Rules,
		Nonce: func() [16]byte { return arbiter.NewNonce() }, Params: n.cfg.Authority.params(n.cfg.Authority.Shards),
	})
}

// params are a cluster's, with those shards.
func (a Authority) params(shards leases.Shards) authority.Params {
	return authority.Params{
		LeaseMs: a.Lease.Milliseconds(), Rho: leases.Rho, Hash: leases.ShardHash, Shards: shards, FloorMs: a.CeilingFloor.Milliseconds(),
	}
}

// run asks the machine what to do until the node ends.
func (a *arbitration) run() {
	n := a.node
	for n.ctx.Err() == nil {
		facts := a.facts()
		a.mu.Lock()
		todo, next := a.machine.Next(n.clock.Now(), facts)
		a.tell()
		a.mu.Unlock()
		a.report()
		for _, action := range todo {
			n.loops.Go(func() {
				a.carryOut(action)
				a.poke()
			})
		}
		a.rest(next)
	}
}

// rest waits until next, or until something has happened.
func (a *arbitration) rest(next clock.Instant) {
	ctx, cancel := context.WithCancel(a.node.ctx)
	defer cancel()
	defer clock.AfterFunc(a.node.clock, next, cancel).Stop()
	select {
	case <-ctx.Done():
	case <-a.wake:
	}
}

// poke lets run look again.
func (a *arbitration) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// tell wakes up all that wait for a change of the machine. It is called with mu held.
func (a *arbitration) tell() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// with calls f with the machine and the time.
func (a *arbitration) with(f func(m *authority.Machine, now clock.Instant)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.machine, a.node.clock.Now())
}

// take tells the machine of something, and wakes up all that wait for a change.
func (a *arbitration) take(f func(m *authority.Machine, now clock.Instant)) {
	a.mu.Lock()
	f(a.machine, a.node.clock.Now())
	a.tell()
	a.mu.Unlock()
	a.poke()
}

// until waits until f returns true. It returns the cause where ctx ends first.
func (a *arbitration) until(ctx context.Context, f func(m *authority.Machine, now clock.Instant) bool) error {
	for {
		a.mu.Lock()
		done, changed := f(a.machine, a.node.clock.Now()), a.changed
		a.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// root is what is known of the root register; known is false before it was read, or
// where there is none.
func (a *arbitration) root() (root authority.Root, known bool) {
	a.with(func(m *authority.Machine, _ clock.Instant) {
		var version arbiter.Version
		root, version, known = m.Root()
		known = known && version > 0
	})
	return root, known
}

// err says why the root register cannot be used, though there is an answer.
func (a *arbitration) err() (err error) {
	a.with(func(m *authority.Machine, _ clock.Instant) { err = cmp.Or(m.Err(), a.strange) })
	return err
}

// report says, for people, what the register holds, when that has changed.
func (a *arbitration) report() {
	var line string
	err := a.err()
	root, known := a.root()
	switch {
	case err != nil:
		line = "the arbiter cannot be used: " + err.Error()
	case known:
		line = fmt.Sprintf("authority: %s, epoch %d, by %s", root.Mode, root.Epoch, root.Owner.Node)
	}
	if known && !a.node.who().Arbitrated {
		if err := a.node.become(func(self *identity.Identity) { self.Arbitrated = true }); err != nil {
			a.node.log.Error("it could not be saved that the arbiter knows the cluster", "err", err)
		}
	}
	if line == "" || line == a.told {
		return
	}
	a.told = line
	a.count(root)
	if err != nil {
		a.node.say("waiting: " + line)
		a.node.log.Error(line)
		return
	}
	a.node.log.Info(line, "group", root.Group, "grace done", root.GraceDone)
}

// count counts the changes of authority that came after those seen before.
func (a *arbitration) count(root authority.Root) {
	h := root.History
	for i := len(h) - 1; i >= 0 && a.seen != h[i]; i-- {
		if a.seen != (authority.Transferral{}) {
			a.node.metrics.changes.WithLabelValues(string(h[i].Why)).Inc()
		}
	}
	if len(h) > 0 {
		a.seen = h[len(h)-1]
	}
}

// carryOut does what the machine asks for, and tells it what came of that.
func (a *arbitration) carryOut(action authority.Action) {
	switch action := action.(type) {
	case authority.Load:
		a.load()
	case *authority.Swap:
		a.swap(action)
	case authority.Ask:
		a.ask(action)
	case authority.Cede:
		a.cede(action)
	case authority.Form:
		a.moved(action, a.node.regroup(action.Cluster, action.Group, true))
	case authority.Join:
		a.moved(action, a.node.regroup(action.Cluster, action.Group, false))
	default:
		a.done(action, a.inTerm(action))
	}
}

func (a *arbitration) load() {
	ctx, cancel := context.WithTimeout(a.node.ctx, a.timeout())
	defer cancel()
	sent := a.node.clock.Now()
	reg, err := a.store.Load(ctx, a.key)
	a.node.metrics.arbiter("load", sent, err)
	if silent := err != nil; a.silent.Swap(silent) != silent {
		if silent {
			a.node.log.Warn("the arbiter does not answer: nothing stops yet, but one more fault may", "err", err)
		} else {
			a.node.log.Info("the arbiter answers again")
		}
	}
	a.take(func(m *authority.Machine, now clock.Instant) {
		a.strange = nil
		if errors.Is(err, arbiter.ErrNotRegister) {
			a.strange = err
		}
		m.Loaded(sent, now, reg, err)
	})
}

func (a *arbitration) swap(s *authority.Swap) {
	ctx, cancel := context.WithTimeout(a.node.ctx, a.timeout())
	defer cancel()
	sent := a.node.clock.Now()
	err := a.store.CompareAndSwap(ctx, a.key, s.From, s.Write)
	a.node.metrics.arbiter("swap", sent, err)
	a.take(func(m *authority.Machine, now clock.Instant) { m.Swapped(s, now, err) })
}

func (a *arbitration) moved(action authority.Action, err error) {
	if err != nil && a.node.ctx.Err() == nil {
		a.node.log.Error("the Raft group could not be changed", "err", err)
		a.node.pause(a.node.cfg.ElectionTimeout)
	}
	a.take(func(m *authority.Machine, now clock.Instant) { m.Moved(now, action, err) })
}

func (a *arbitration) done(action authority.Action, err error) {
	if err != nil && a.node.ctx.Err() == nil {
		a.node.log.Warn("a step of a change of authority failed", "step", fmt.Sprintf("%T", action), "err", err)
		a.node.pause(a.node.cfg.ElectionTimeout / 4)
	}
	a.take(func(m *authority.Machine, now clock.Instant) { m.Done(now, action, err) })
}

// reread lets the machine read the root register now.
func (a *arbitration) reread() {
	a.take(func(m *authority.Machine, now clock.Instant) { m.Reread(now) })
}

// errTermOver: what was to be done in a term came too late.
var errTermOver = errors.New("this node no longer leads")

// inTerm does what belongs to the present term of this node as a leader.
func (a *arbitration) inTerm(action authority.Action) error {
	r := a.rules()
	if r == nil {
		return errTermOver
	}
	switch action := action.(type) {
	case authority.Import:
		return a.importLeases(r, action)
	case authority.RaiseEpoch:
		return a.raiseEpoch(r, action)
	case authority.Drain:
		return a.drain(r)
	case authority.Install:
		return a.install(r, action)
	}
	return fmt.Errorf("unknown step %T", action)
}

// rules is the term in which this node leads now, or nil.
func (a *arbitration) rules() *ruling {
	a.ruled.Lock()
	defer a.ruled.Unlock()
	return a.ruling
}

// rule lets r be the present term until the returned function is called.
func (a *arbitration) rule(r *ruling) (end func()) {
	a.ruled.Lock()
	a.ruling = r
	a.ruled.Unlock()
	a.poke()
	return func() {
		a.ruled.Lock()
		if a.ruling == r {
			a.ruling = nil
		}
		a.ruled.Unlock()
		a.poke()
	}
}
