package node

import (
	"context"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fallback"
)

// tenureRules is what an arbiter adds to a tenure by Raft: see raftConfig and tenureConfig.
type tenureRules struct {
	window   func() error
	deadline func(ttl time.Duration) clock.Instant
	longest  func(ctx context.Context, ttl time.Duration) error
}

// raftTenure returns a tenure of the term that this node leads.
func (n *Node) raftTenure(g *group, term uint64, rules tenureRules) *tenure {
	c := n.tenureConfig(term)
	if rules.longest != nil {
		c.allow, c.may = rules.longest, n.arbitration.allowed
	}
	return newRaftTenure(c, raftConfig{
		fsm: n.fsm, proposer: n.proposer(g, term), window: rules.window, deadline: rules.deadline,
		rounds: newRounds(n.clock, c.rules, n.cfg.ElectionTimeout, func(ctx context.Context) error { return n.measuredRound(ctx, g, term) }),
	})
}

// registersTenure returns the tenure of a fallback epoch.
func (n *Node) registersTenure(shards fallback.Config, regime fallback.Regime) (*tenure, *fallback.Replicator) {
	c := n.tenureConfig(0)
	c.log = n.log.With("epoch", regime.Epoch)
	return newRegistersTenure(c, shards, regime)
}

func (n *Node) tenureConfig(term uint64) tenureConfig {
	return tenureConfig{
		node: n.cfg.Name, term: term, clock: n.clock, rules: n.cfg.Testing.Rules,
		limits: limits{n.cfg.MaxClaims, n.cfg.MaxWaiters, n.cfg.MaxWaitersPerName}, metrics: n.metrics, log: n.log.With("term", term),
	}
}

// fill is how many bytes the leases of each shard take up, as far as this node knows.
func (t *tenure) fill() []uint32 {
	_, fill := t.replicator.shards()
	return fill
}

// known is how many leases this node knows of.
func (t *tenure) known() int { return t.replicator.known() }
