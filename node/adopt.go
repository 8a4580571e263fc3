package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
)

// governed reports whether the arbiter has a say in this node's cluster, or is to bring
// one forth. A node that was given an arbiter and whose cluster has not adopted it
// goes on as without one.
func (n *Node) governed() bool { return n.arbitration != nil && n.arbitration.active.Load() }

// govern begins to take part in the authority protocol; once begun it goes on. It
// reports whether that was now.
func (n *Node) govern() bool {
	a := n.arbitration
	a.mu.Lock()
	begun := a.active.Swap(true)
	if !begun {
		a.machine = n.newMachine() // which knows the cluster that the node belongs to by now
	}
	a.mu.Unlock()
	if begun {
		return false
	}
	n.loops.Go(n.arbitration.run)
	n.loops.Go(n.belongByArbiter)
	n.loops.Go(n.serveRegisters)
	return true
}

// governAnew is govern for a node that may lead already: its term goes on with windows.
func (n *Node) governAnew() {
	if !n.govern() {
		return
	}
	if g := n.member(); g != nil {
		g.again()
	}
}

// adopted returns how the arbiter shares the leases out; false: the log of this node's
// cluster has adopted none.
func (n *Node) adopted() (s leases.Shards, ok bool) {
	n.fsm.View(func(t *leases.Table) { s = t.Shards() })
	return s, s != leases.Shards{}
}

// await governs as soon as the log has adopted the arbiter. Until then it looks whether
// this node reaches it: that is what an adoption begins with (N9).
func (a *arbitration) await() {
	n := a.node
	for said := false; n.ctx.Err() == nil && !n.governed(); {
		if _, ok := n.adopted(); ok {
			n.governAnew()
			return
		}
		a.probe()
		if n.member() != nil && !said {
			said = true
			n.log.Warn("this node was given an arbiter, which its cluster has not adopted: it has no say (coordd arbiter adopt)")
		}
		n.pause(n.cfg.ElectionTimeout)
	}
}

// knows reports whether the arbiter knows a cluster; then this node goes by it.
func (a *arbitration) knows() (bool, error) {
	ctx, cancel := context.WithTimeout(a.node.ctx, a.timeout())
	defer cancel()
	reg, err := a.store.Load(ctx, a.key)
	if err != nil {
		a.node.say("waiting for the arbiter, which may know the cluster: " + err.Error())
		return false, err
	}
	if reg.Version > 0 {
		a.node.govern()
	}
	return reg.Version > 0, nil
}

// probe makes a conditional write to a register of this node's own.
func (a *arbitration) probe() {
	n := a.node
	ctx, cancel := context.WithTimeout(n.ctx, a.timeout())
	defer cancel()
	key := n.cfg.ArbiterName + "/scratch/" + n.cfg.Name
	reg, err := a.store.Load(ctx, key)
	if err == nil {
		err = a.store.CompareAndSwap(ctx, key, reg.Version, arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte(`{"scratch":true}`), By: n.cfg.Name})
	}
	if err == nil {
		a.probed.Store(int64(n.clock.Now()))
	}
}

// reaches reports whether this node reaches the arbiter.
func (a *arbitration) reaches() (yes bool) {
	if !a.active.Load() {
		last := clock.Instant(a.probed.Load())
		return last != 0 && a.node.clock.Now().Sub(last) < 5*a.node.cfg.ElectionTimeout
	}
	a.with(func(m *authority.Machine, now clock.Instant) { yes = m.Reaches(now) })
	return yes
}

// Adopt gives a running cluster the arbiter that its nodes were given (N9). This node
// must lead. Every voter must reach the arbiter, the arbiter must know of no cluster of
// that name, and the leases must fit.
func (n *Node) Adopt(ctx context.Context, shards leases.Shards) (Change, error) {
	began, a, g := n.clock.Now(), n.arbitration, n.member()
	if a == nil {
		return Change{}, &leases.InvalidError{Field: "arbiter", Value: "none", Bounds: "nodes that were started with the arbiter that is to be adopted"}
	}
	if g == nil || g.raft.State() != raft.Leader {
		return Change{}, n.notServing()
	}
	if root, known := a.root(); known && n.who().Arbitrated { // this has been done
		return Change{Epoch: root.Epoch}, nil
	}
	if err := n.mayAdopt(ctx, g); err != nil {
		return Change{}, err
	}
	term := g.raft.CurrentTerm()
	own, run := n.proposer(g, term), make(chan struct{})
	proposing, end := context.WithCancel(ctx)
	go func() { defer close(run); own.Run(proposing) }()
	var epoch uint32
	n.fsm.View(func(t *leases.Table) { epoch = t.Epoch() })
	r, err := propose(ctx, own, leases.Op{Kind: leases.KindAdopt, Epoch: epoch, Shards: shards})
	end()
	<-run
	switch {
	case err != nil:
		return Change{}, err
	case r.Outcome == leases.NoRoom:
		return Change{}, &leases.ExhaustedError{What: fmt.Sprintf("bytes of a shard, of %d: the leases that are held do not fit; choose more shards or larger ones", shards.Count), Bound: uint64(shards.Bytes)}
	case r.Outcome != leases.Adopted && r.Outcome != leases.Repeated:
		return Change{}, &leases.UnavailableError{Reason: "the table answered " + r.Outcome.String()}
	}
	n.log.Info("the log has adopted the arbiter", "shards", shards.Count)
	n.governAnew()
	var root authority.Root
	var foreign error
	err = a.until(ctx, func(m *authority.Machine, now clock.Instant) bool {
		root, _, _ = m.Root()
		foreign = m.Err()
		_, open := m.Window(now, g.raft.CurrentTerm()) // which a table has that is at R's epoch
		return open != "" || root.Owner.Node != "" && root.Owner.Node != n.cfg.Name || foreign != nil
	})
	switch {
	case err != nil:
		return Change{}, unknown(ctx)
	case foreign != nil:
		return Change{}, &leases.UnavailableError{Reason: foreign.Error()}
	}
	return Change{Epoch: root.Epoch, Took: n.clock.Now().Sub(began)}, nil
}

// mayAdopt says what keeps the cluster from adopting the arbiter.
func (n *Node) mayAdopt(ctx context.Context, g *group) error {
	reg, err := n.arbitration.store.Load(ctx, n.arbitration.key)
	switch {
	case err != nil:
		return &leases.UnavailableError{Reason: err.Error()}
	case reg.Version != 0:
		root, err := authority.DecodeRoot(reg.Data)
		if err == nil {
			err = fmt.Errorf("%w: it is of cluster %v", authority.ErrForeign, root.Cluster)
		}
		return &leases.InvalidError{Field: "arbiter name", Value: n.cfg.ArbiterName, Bounds: "one under which the arbiter knows of no cluster: " + err.Error()}
	}
	var cannot []string
	for _, s := range g.servers() {
		if s.Suffrage != raft.Voter || string(s.ID) == n.who().ServerID() {
			continue
		}
		e, ok := n.book.get(string(s.ID))
		if ok {
			resp, err := n.hello(e.address)
			ok = err == nil && resp.GetReachesArbiter()
		}
		if !ok {
			cannot = append(cannot, identity.NameOf(string(s.ID)))
		}
	}
	if !n.arbitration.reaches() {
		cannot = append(cannot, n.cfg.Name)
	}
	if len(cannot) > 0 {
		return &leases.UnavailableError{Reason: "these voters have not reported a successful write to the arbiter: " + strings.Join(cannot, ", ") + "; start each with the same --arbiter flags"}
	}
	return nil
}

// adopts is what the machine needs to make the cluster known to the arbiter.
func (n *Node) adopts() *authority.Params {
	shards, ok := n.adopted()
	if !ok || n.who().Arbitrated {
		return nil
	}
	return new(n.cfg.Authority.params(shards))
}

// longestHeld is the longest TTL in the table.
func (n *Node) longestHeld() (ttl time.Duration) {
	n.fsm.View(func(t *leases.Table) { ttl = t.MaxTTL() })
	return ttl
}
