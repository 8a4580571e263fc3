package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// lead follows Raft's leadership: gained, it runs one term of it; lost, it waits
// for the next. What a term has started ends with it.
func (n *Node) lead(g *group) {
	for g.ctx.Err() == nil {
		changed := g.change()
		if n.governed() {
			n.arbitration.poke()
		}
		if g.raft.State() == raft.Leader {
			n.rule(g, g.raft.CurrentTerm())
			if g.raft.State() == raft.Leader && g.ctx.Err() == nil {
				continue // already another term
			}
		}
		select {
		case <-changed:
		case <-g.ctx.Done():
		}
	}
}

// rule runs one term of leadership until it is over.
func (n *Node) rule(g *group, term uint64) {
	log := n.log.With("term", term)
	ctx, cancel := context.WithCancelCause(g.ctx)
	g.serves(func() { cancel(&leases.UnavailableError{Reason: "this leader begins its term anew"}) })
	defer g.serves(nil)
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel(&leases.NotLeaderError{Node: n.cfg.Name})
		for g.leads(term) && ctx.Err() == nil {
			changed := g.change()
			if !g.leads(term) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	if err := n.serve(ctx, g, term, &running); err != nil && ctx.Err() == nil {
		log.Warn("this leader cannot serve and hands leadership on", "err", err)
		g.handOver(ctx, log)
		n.pause(n.cfg.ElectionTimeout / 2)
		cancel(err)
	}
	<-ctx.Done()
	if t := n.leads(); t != nil && t.term == term {
		n.serveNoMore(t)
	}
	cancel(nil)
	running.Wait()
	n.say("following")
}

// serve begins to serve in a term; what it starts ends with ctx.
func (n *Node) serve(ctx context.Context, g *group, term uint64, running *sync.WaitGroup) error {
	n.say("leading, not serving yet: applying what earlier leaders have committed")
	if err := g.barrier(ctx); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if !g.leads(term) {
		return nil
	}
	own := n.proposer(g, term)
	running.Go(func() { own.Run(ctx) })
	if _, ok := n.adopted(); ok && n.arbitration == nil {
		return errors.New("this cluster has an arbiter, and this node was given none: start it with the flags of the others")
	} else if ok {
		n.govern()
	}
	if n.governed() {
		if err := n.give(ctx, g, own); err != nil {
			return err
		}
		running.Go(func() { n.serveWindows(ctx, g, term, own) })
		return nil
	}
	t := n.raftTenure(g, term, tenureRules{})
	t.begin(ctx)
	if err := n.give(ctx, g, own); err != nil {
		return err
	}
	if err := n.raise(ctx, own); err != nil {
		return err
	}
	t.run(ctx, running)
	n.serveBy(ctx, t)
	return nil
}

// proposer returns one for a term; what it proposes is measured.
func (n *Node) proposer(g *group, term uint64) *fsm.Proposer {
	return fsm.NewProposer(measuredLog{n.cfg.Testing.Proposals(g.raft), n.metrics}, term, n.cfg.ElectionTimeout, func() (uint32, string) { return n.readBy(g) })
}

// serveBy lets a tenure answer clients from now on, unless it is over already.
func (n *Node) serveBy(ctx context.Context, t *tenure) {
	n.mu.Lock()
	ended := ctx.Err() != nil
	if !ended {
		n.serving, n.doing = t, "serving"
	}
	n.mu.Unlock()
	if !ended { // not said with the lock held: a log can be slow
		n.log.Info("serving", "term", t.term)
	}
}

// serveNoMore ends what serveBy began.
func (n *Node) serveNoMore(t *tenure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.serving == t {
		n.serving = nil
	}
}

// give proposes the birth of a cluster that has none in its log, and waits until
// a majority of the members that its founder was given are voters (N1).
func (n *Node) give(ctx context.Context, g *group, proposer *fsm.Proposer) error {
	self := n.who()
	var born bool
	n.fsm.View(func(t *leases.Table) { born = !t.Cluster().IsZero() })
	if !born {
		op := leases.Op{Kind: leases.KindBirth, Epoch: max(self.FirstEpoch, 1), Cluster: self.Cluster, Founders: max(self.Founders, 1)}
		if n.governed() {
			root, _ := n.arbitration.root()
			op.Shards = root.Params.Shards
		}
		if _, err := propose(ctx, proposer, op); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("birth: %w", err)
		}
	}
	var founders int
	var virgin bool
	n.fsm.View(func(t *leases.Table) {
		founders, virgin = int(t.Founders()), t.Revision() <= 1 && self.Recovered == nil
	})
	for virgin && voters(g.servers()) < founders/2+1 {
		n.say(fmt.Sprintf("leading, not serving yet: %d of the %d members that this cluster was founded with vote, %d are needed", voters(g.servers()), founders, founders/2+1))
		if clock.Wait(ctx, n.clock, n.clock.Now().Add(n.cfg.ElectionTimeout/8)) != nil {
			return nil
		}
	}
	return nil
}

// propose brings an op of the node's own into the log and waits for its result.
func propose(ctx context.Context, p *fsm.Proposer, op leases.Op) (leases.Result, error) {
	answer, wait := awaited()
	if err := p.Propose(op, answer); err != nil {
		return leases.Result{}, err
	}
	return wait(ctx)
}

// readBy is the lowest op version that a voter has said that it reads, and which
// voter that is. Version 1 is read by every release.
func (n *Node) readBy(g *group) (version uint32, node string) {
	version = leases.OpVersion
	for _, s := range g.servers() {
		if s.Suffrage != raft.Voter || string(s.ID) == n.who().ServerID() {
			continue
		}
		e, _ := n.book.get(string(s.ID))
		if reads := max(e.reads, 1); reads < version {
			version, node = reads, identity.NameOf(string(s.ID))
		}
	}
	return version, node
}

func (n *Node) measuredRound(ctx context.Context, g *group, term uint64) error {
	began, outcome := n.clock.Now(), "confirmed"
	err := n.confirm(ctx, g, term)
	if err != nil {
		outcome = "failed"
	}
	n.metrics.rounds.WithLabelValues(outcome).Inc()
	n.metrics.round.Observe(n.metrics.since(began))
	return err
}

// confirm holds one round of the voters (N4): it returns nil once a majority of
// them, each asked after the call and counted once by its server id, has said
// that its term is still this one. It leaves no goroutine behind.
func (n *Node) confirm(ctx context.Context, g *group, term uint64) error {
	self := n.who()
	var others []raft.Server
	yes, all := 0, 0
	for _, s := range g.servers() {
		if s.Suffrage != raft.Voter && n.cfg.Testing.Rules.On(rules.RoundVoters) {
			continue
		}
		if s.Suffrage == raft.Voter {
			all++
		}
		if string(s.ID) == self.ServerID() {
			if s.Suffrage == raft.Voter && g.leads(term) {
				yes++
			}
			continue
		}
		others = append(others, s)
	}
	needed := all/2 + 1
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan bool, len(others))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, s := range others {
		asking.Go(func() { answers <- n.ask(ctx, string(s.ID), term) })
	}
	for range others {
		if yes >= needed {
			break
		}
		if <-answers {
			yes++
		}
	}
	if yes < needed || !g.leads(term) {
		return fmt.Errorf("%w: %d of %d voters confirm term %d of %s, %d are needed", leases.ErrNoQuorum, yes, all, term, self.Name, needed)
	}
	return nil
}

// ask puts one voter's question of a round.
func (n *Node) ask(ctx context.Context, id string, term uint64) bool {
	e, ok := n.book.get(id)
	if !ok {
		return false
	}
	client, err := n.book.dial(e.address, n.cfg.TLS, n.cfg.Network)
	if err != nil {
		return false
	}
	cluster, nonce := n.who().Cluster, random()
	resp, err := client.Confirm(ctx, &peerv1.ConfirmRequest{Cluster: cluster[:], ServerId: id, Term: term, Nonce: nonce})
	return err == nil && resp.GetYes() && resp.GetNonce() == nonce && resp.GetTerm() == term
}
