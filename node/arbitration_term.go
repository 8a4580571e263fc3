package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fallback"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// ask asks every taker for a pledge, this node included.
func (a *arbitration) ask(action authority.Ask) {
	n := a.node
	ctx, cancel := context.WithTimeout(n.ctx, a.timeout())
	defer cancel()
	answers := make(chan func(*authority.Machine, clock.Instant), len(action.Names))
	for _, name := range action.Names {
		n.loops.Go(func() {
			yes, reaches := a.askOne(ctx, name, action.Pledge)
			answers <- func(m *authority.Machine, now clock.Instant) { m.Pledged(now, action.Pledge, name, yes, reaches) }
		})
	}
	for range action.Names {
		a.take(<-answers)
	}
}

func (a *arbitration) askOne(ctx context.Context, name string, p authority.Pledge) (yes, reaches bool) {
	n := a.node
	if name == n.cfg.Name {
		return a.pledge(p), false
	}
	g := n.member()
	if g == nil {
		return false, false
	}
	server, err := g.named(name)
	if err != nil {
		return false, false
	}
	e, ok := n.book.get(string(server.ID))
	if !ok {
		return false, false
	}
	client, err := n.book.dial(e.address, n.cfg.TLS, n.cfg.Network)
	if err != nil {
		return false, false
	}
	resp, err := client.Pledge(ctx, &peerv1.PledgeRequest{
		Cluster: p.Cluster[:], Group: p.Group[:], ServerId: string(server.ID), Epoch: p.Epoch, Term: p.Term, Sequence: uint64(p.Seq), Nonce: p.Nonce,
	})
	return err == nil && resp.GetYes() && resp.GetNonce() == p.Nonce, resp.GetReachesArbiter()
}

// pledge answers a request for a pledge: yes says that this node starts no takeover for
// L(1+ρ). It follows the asking leader if it is in that term of that group.
func (a *arbitration) pledge(p authority.Pledge) (yes bool) {
	n := a.node
	self, g := n.here()
	follows := g != nil && self.Group == p.Group && g.raft.CurrentTerm() == p.Term
	if follows {
		_, id := g.raft.LeaderWithID()
		follows = id != "" // in a term there is one leader at most, and the one that asks is it
	}
	a.take(func(m *authority.Machine, now clock.Instant) { yes = m.Pledge(now, p, follows) })
	return yes
}

// cede hands leadership to a voter that reaches the arbiter (V2).
func (a *arbitration) cede(action authority.Cede) {
	n, g := a.node, a.node.member()
	if g == nil || g.raft.State() != raft.Leader || voters(g.servers()) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, 2*n.cfg.ElectionTimeout)
	defer cancel()
	for _, s := range g.servers() {
		if s.Suffrage != raft.Voter || !slices.Contains(action.Reaching, identity.NameOf(string(s.ID))) {
			continue
		}
		n.log.Warn("this leader has no window, and hands leadership to a member that reaches the arbiter", "to", s.ID)
		if err := await(ctx, g.raft.LeadershipTransferToServer(s.ID, s.Address)); err != nil {
			n.log.Warn("leadership could not be handed over", "err", err)
		}
		return
	}
}

// registers is how the shards of this cluster are reached.
func (a *arbitration) registers(root authority.Root) fallback.Config {
	n := a.node
	return fallback.Config{
		Store: a.store, Shards: root.Params.Shards, Clock: n.clock, By: n.cfg.Name, Timeout: a.timeout(), Rules: n.cfg.Testing.Rules, Log: n.log,
		Key: func(shard uint32) string { return authority.ShardKey(n.cfg.ArbiterName, root.Cluster, shard) },
	}
}

// importLeases is F2: it seals every shard, and brings the leases that are current
// into the log, in parts that no heartbeat waits for (V9).
func (a *arbitration) importLeases(r *ruling, action authority.Import) error {
	n := a.node
	root, _ := a.root()
	n.say(fmt.Sprintf("taking the leases over from the arbiter, for epoch %d", action.Epoch))
	exported, err := fallback.SealAll(r.ctx, a.registers(root), action.Epoch, action.RaftEpoch, nil)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(exported, leases.MaxPart) {
		if err := r.apply(leases.Op{Kind: leases.KindImportPart, Epoch: action.Epoch, Leases: part}, leases.Staged); err != nil {
			return err
		}
	}
	if err := r.apply(leases.Op{Kind: leases.KindImport, Epoch: action.Epoch, Count: uint32(len(exported))}, leases.Imported); err != nil {
		return err
	}
	n.log.Info("the leases are taken over from the arbiter", "epoch", action.Epoch, "leases", len(exported))
	return nil
}

// apply proposes an op of the node's own, and wants that outcome.
func (r *ruling) apply(op leases.Op, want leases.Outcome) error {
	result, err := propose(r.ctx, r.proposer, op)
	if err == nil && result.Outcome != want {
		err = fmt.Errorf("%v of epoch %d: the table answered %v", op.Kind, op.Epoch, result.Outcome)
	}
	return err
}

func (a *arbitration) raiseEpoch(r *ruling, action authority.RaiseEpoch) error {
	return r.apply(leases.Op{Kind: leases.KindBump, Epoch: action.Epoch}, leases.Bumped)
}

// drain ends the serving of this term's window for a hand-over, and waits for what has
// been proposed (S9).
func (a *arbitration) drain(r *ruling) error {
	ctx, cancel := context.WithTimeout(r.ctx, a.node.cfg.Authority.Lease/2)
	defer cancel()
	a.ruled.Lock()
	t := r.tenure
	a.ruled.Unlock()
	if t != nil {
		if err := t.drain(ctx); err != nil {
			return err
		}
	}
	return r.group.barrier(ctx)
}

// install writes the leases of the table into the shards, for a fallback epoch that
// has just begun as planned (section 8).
func (a *arbitration) install(r *ruling, action authority.Install) error {
	root, _ := a.root()
	var held []*leases.Lease
	a.node.fsm.View(func(t *leases.Table) { held = slices.Collect(t.All()) })
	ctx, cancel := context.WithTimeout(r.ctx, root.Grace())
	defer cancel()
	return fallback.InstallAll(ctx, a.registers(root), action.Epoch, action.RaftEpoch, held)
}

// window returns nil while this node may grant and renew in that term (W1), by a window
// that goes back to the one that was opened then: since another, authority may have
// been elsewhere.
func (a *arbitration) window(term uint64, opened clock.Instant) error {
	var left time.Duration
	a.with(func(m *authority.Machine, now clock.Instant) {
		left = m.WindowSince(now, term, opened)
	})
	if left <= 0 {
		return &leases.UnavailableError{Reason: fmt.Sprintf("%s has no open window in term %d", a.node.cfg.Name, term)}
	}
	return nil
}

// serveWindows serves leases in a term whenever its window is open, until the term ends.
func (n *Node) serveWindows(ctx context.Context, g *group, term uint64, internal *fsm.Proposer) {
	a := n.arbitration
	r := &ruling{ctx: ctx, group: g, term: term, proposer: internal}
	defer a.rule(r)()
	for ctx.Err() == nil {
		if root, _ := a.root(); root.Mode != authority.Fallback { // else it serves by the registers
			n.say("leading, not serving: waiting for a window from the arbiter")
		}
		var opened clock.Instant
		err := a.until(ctx, func(m *authority.Machine, now clock.Instant) bool {
			opened = m.Opened(term)
			left, _ := m.Window(now, term)
			return left > 0
		})
		if err != nil {
			continue
		}
		// What an earlier tenure of this term has proposed is applied before the next begins.
		if err := g.barrier(ctx); err != nil {
			n.log.Warn("a barrier failed", "term", term, "err", err)
			n.pause(n.cfg.ElectionTimeout / 10)
			continue
		}
		n.serveWindow(ctx, r, opened)
	}
}

// serveWindow serves until the window that was opened then closes, or the term ends.
func (n *Node) serveWindow(ctx context.Context, r *ruling, opened clock.Instant) {
	a := n.arbitration
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := n.raftTenure(r.group, r.term, tenureRules{
		window:   func() error { return a.window(r.term, opened) },
		deadline: func(ttl time.Duration) (at clock.Instant) { return a.deadline(ttl) },
		longest:  func(ctx context.Context, ttl time.Duration) error { return a.allow(ctx, r, ttl) },
	})
	end := n.serveWhile(ctx, t)
	a.serves(r, t)
	defer func() {
		a.serves(r, nil)
		cancel(nil)
		end()
	}()
	for ctx.Err() == nil {
		var left time.Duration
		var handing bool
		var changed <-chan struct{}
		a.with(func(m *authority.Machine, now clock.Instant) {
			left = m.WindowSince(now, r.term, opened)
			handing, changed = m.Handing(), a.changed
		})
		switch {
		case handing: // what was proposed is to finish first
			left = a.timeout()
		case t.drains() && left > 0: // the hand-over has failed; this tenure takes nothing in any more
			cancel(&leases.UnavailableError{Reason: "a hand-over has failed; the leader goes on"})
			return
		case left <= 0:
			n.log.Warn("the window of this leader is closed: it grants and renews nothing", "term", r.term)
			cancel(a.window(r.term, opened))
			return
		}
		wait, stop := context.WithCancel(ctx)
		timer := clock.AfterFunc(n.clock, n.clock.Now().Add(left), stop)
		select {
		case <-wait.Done():
		case <-changed:
		}
		timer.Stop()
		stop()
	}
}

// serves notes which tenure serves in a term, if one does.
func (a *arbitration) serves(r *ruling, t *tenure) {
	a.ruled.Lock()
	defer a.ruled.Unlock()
	r.tenure = t
}

// deadline is when a lease that this leader finds in its table now may be expired (W4).
func (a *arbitration) deadline(ttl time.Duration) (at clock.Instant) {
	a.with(func(m *authority.Machine, now clock.Instant) { at = m.Deadline(now, ttl) })
	return at
}
