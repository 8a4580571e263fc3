package nodetest

import (
	"context"
	"testing"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// arbitrated is a cluster of four nodes with an arbiter, and with short times: a
// takeover takes about 2 s of rest and 3 s of grace.
func arbitrated() Config {
	return Config{
		Nodes: 4, ElectionTimeout: 300 * time.Millisecond, ReformAfter: 3 * time.Second,
		Arbiter: &node.Authority{Lease: 2 * time.Second, Shards: leases.Shards{Count: 4, Bytes: 16 << 10}, CeilingFloor: 3 * time.Second},
	}
}

// keeper holds a lease and notes every change of its token, and its end.
func (c *Cluster) keeper(host, lease string, ttl time.Duration) *Hold {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h, err := c.Client(host, ClientConfig{}).Acquire(ctx, lease, client.TTL(ttl))
	if err != nil {
		c.t.Fatalf("%v\n%s", err, c.Schedule())
	}
	return h
}

// grantable waits until a fresh lease can be had.
func (c *Cluster) grantable(host string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	k := c.Client(host, ClientConfig{})
	h, err := k.Acquire(ctx, "fresh", client.TTL(time.Second))
	if err != nil {
		c.t.Fatalf("nothing is granted: %v\n%s", err, c.Schedule())
	}
	c.Note("%s was granted token %v", host, h.Token())
	h.Release(ctx)
}

// sameTables waits until all nodes have applied the same.
func (c *Cluster) sameTables() {
	c.t.Helper()
	c.eventually("all nodes have the same table", func() bool {
		first := c.Node(0).Status()
		for i := range c.Size() {
			if s := c.Node(i).Status(); s.Epoch != first.Epoch || s.Revision != first.Revision || s.Leases != first.Leases {
				return false
			}
		}
		return true
	})
}

// kept breaks a promise if a lease has been lost.
func (c *Cluster) kept(h *Hold) {
	if err := h.Err(); err != nil {
		c.Broken("the lease of token %v was lost: %w", h.Token(), err)
	}
}

// A lease is held through all that can happen to authority, with the same token.
func TestLeaseThroughEverything(t *testing.T) {
	explore(t, scenario{config: arbitrated(), heavy: 4, run: func(c *Cluster) {
		h := c.keeper("keeper", "kept", 6*time.Second)

		c.Crash(c.Leader())
		c.grantable("after-leader-change")
		c.kept(h)
		for i := range c.Size() {
			c.Restart(i)
		}
		c.AllVote()

		// Quorum is lost: two are left of four.
		c.Crash(c.Leader())
		c.Crash(c.Leader())
		c.Mode(authority.Fallback)
		c.grantable("in-fallback")
		c.kept(h)

		// They come back with nothing in memory; a group is formed anew.
		for i := range c.Size() {
			c.Restart(i)
		}
		c.Mode(authority.Raft)
		c.grantable("after-failback")
		c.AllVote()
		c.kept(h)

		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := c.Node(c.Leader()).HandOver(ctx, "fallback"); err != nil {
			c.Broken("hand-over: %w", err)
		}
		c.Mode(authority.Fallback)
		c.grantable("after-hand-over")
		c.kept(h)
		if _, err := c.Node(0).HandOver(ctx, "raft"); err != nil {
			c.Broken("hand back: %w", err)
		}
		c.Mode(authority.Raft)
		c.grantable("at-the-end")
		c.kept(h)
		c.sameTables()
		h.Release(ctx)
	}})
}

// All nodes and all that they know are lost; the holders and the arbiter are left.
func TestTotalLoss(t *testing.T) {
	explore(t, scenario{config: arbitrated(), heavy: 4, run: func(c *Cluster) {
		h := c.keeper("keeper", "kept", 8*time.Second)
		for i := range c.Size() {
			c.Crash(i)
		}
		for i := range c.Size() {
			c.Restart(i)
		}
		c.Mode(authority.Fallback)
		c.Mode(authority.Raft)
		c.grantable("after")
		c.kept(h)
	}})
}

// Partitions of every kind between nodes, arbiter and clients, under load.
func TestArbitratedPartitions(t *testing.T) {
	cfg := arbitrated()
	explore(t, scenario{config: cfg, heavy: 4, run: underLoad(2*time.Second, func(c *Cluster) {
		for range 3 {
			switch c.Rand.IntN(4) {
			case 0: // two and two; one half reaches the arbiter
				a, b := c.nodes(0, 1), c.nodes(2, 3)
				c.Partition(a, b)
				c.CutArbiter(0, 1)
			case 1: // nobody reaches the arbiter: unanimity
				c.CutArbiter(0, 1, 2, 3)
			case 2: // the leader alone
				if leader, ok := c.Serving(); ok {
					c.Partition(c.nodes(leader), c.others(leader))
				}
			case 3: // the leader does not reach the arbiter
				if leader, ok := c.Serving(); ok {
					c.CutArbiter(leader)
				}
			}
			time.Sleep(c.some(time.Second, 12*time.Second))
			c.HealAll()
			c.MendArbiter()
			time.Sleep(c.some(time.Second, 6*time.Second))
		}
	}), least: history.Counts{Grants: 5, Renewals: 3, Releases: 2}})
}

// An outage of the arbiter alone, or the loss of a minority alone, stops no grants.
func TestOneFaultStopsNothing(t *testing.T) {
	for seed := range share(t) {
		s := scenario{config: arbitrated(), run: func(c *Cluster) {
			c.CutArbiter(0, 1, 2, 3)
			c.noPause("no arbiter", 10*time.Second)
			c.MendArbiter()
			time.Sleep(5 * time.Second)
			leader := c.Leader()
			c.Crash((leader + 1) % c.Size())
			c.noPause("a follower lost", 10*time.Second)
		}}
		c := s.play(t, seed, rules.Set{})
		if err := c.Check(time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, c.Schedule())
		}
	}
}

// share is a few seeds.
func share(t *testing.T) uint64 { return max(seeds(t)/10, 1) }

// noPause grants something every 100 ms for d; each has to be granted at once.
func (c *Cluster) noPause(host string, d time.Duration) {
	k := c.Client(host, ClientConfig{})
	k.connect()
	for end := c.True.Now().Add(d); c.True.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		h, err := k.Acquire(ctx, "fresh", client.TTL(time.Second))
		cancel()
		if err != nil {
			c.Broken("%s: nothing is granted: %w", host, err)
			return
		}
		h.Release(context.Background())
	}
}

// A running cluster gets an arbiter, under load, while its leaders die.
func TestAdoption(t *testing.T) {
	cfg := arbitrated()
	cfg.Nodes, cfg.Unadopted = 3, true
	explore(t, scenario{config: cfg, heavy: 4, run: func(c *Cluster) {
		h := c.keeper("keeper", "kept", 6*time.Second)
		l := startLoad(c, 4, 2, 2*time.Second)
		var killed bool
		kill := time.AfterFunc(c.some(0, 60*time.Millisecond), func() {
			if leader, ok := c.Serving(); ok && c.Root().Cluster.IsZero() {
				killed = true
				c.Crash(leader)
			}
		})
		c.adopt()
		kill.Stop()
		c.Mode(authority.Raft)
		if killed {
			for i := range c.Size() {
				c.Restart(i)
			}
		}
		c.AllVote()
		c.grantable("adopted")
		c.kept(h)

		c.Crash(c.Leader())
		c.Crash(c.Leader())
		c.Mode(authority.Fallback)
		c.grantable("in-fallback")
		c.kept(h)
		for i := range c.Size() {
			c.Restart(i)
		}
		c.Mode(authority.Raft)
		c.grantable("at-the-end")
		c.kept(h)
		l.end()
	}})
}

// adopt lets the leader adopt the arbiter, and its successor if need be.
func (c *Cluster) adopt() {
	c.t.Helper()
	c.eventually("the arbiter is adopted", func() bool {
		leader, ok := c.Serving()
		if !ok || c.Node(leader) == nil {
			return !c.Root().Cluster.IsZero()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		change, err := c.Node(leader).Adopt(ctx, c.cfg.Arbiter.Shards)
		c.Note("%s adopts the arbiter: epoch %d, %v", c.Host(leader), change.Epoch, err)
		if err != nil { // every voter has to report that it reaches the arbiter
			for i := range c.Size() {
				c.Restart(i)
			}
			time.Sleep(500 * time.Millisecond)
		}
		return err == nil || !c.Root().Cluster.IsZero()
	})
}

// An adopted cluster loses all of its disks: its nodes go by what the arbiter knows, though
// they were told to found a cluster once.
func TestTotalLossAfterAdoption(t *testing.T) {
	cfg := arbitrated()
	cfg.Nodes, cfg.Unadopted = 3, true
	explore(t, scenario{config: cfg, heavy: 10, run: func(c *Cluster) {
		h := c.keeper("keeper", "kept", 8*time.Second)
		time.Sleep(2 * time.Second)
		c.adopt()
		c.Mode(authority.Raft)
		for i := range c.Size() {
			c.Crash(i)
			c.Wipe(i)
		}
		for i := range c.Size() {
			c.Restart(i)
		}
		c.Mode(authority.Fallback)
		c.Mode(authority.Raft)
		c.grantable("after")
		c.kept(h)
		c.AllVote()
		c.sameTables()
	}})
}
