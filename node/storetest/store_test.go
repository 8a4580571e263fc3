package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/node/nodetest"
)

// Two nodes race for the birth of a cluster, a hundred times: it is always one.
func TestBirthRace(t *testing.T) {
	open := table(t)
	for round := range 20 {
		var births sync.WaitGroup
		clusters := make([]*cluster, 5)
		for i := range clusters {
			clusters[i] = newCluster(t, fmt.Sprintf("birth-%d-%d", round, i), 2, open)
		}
		for _, c := range clusters {
			for i := range c.nodes {
				births.Go(func() { c.start(i) })
			}
		}
		births.Wait()
		for _, c := range clusters {
			c.allVote()
			one, two := c.nodes[0].Status(), c.nodes[1].Status()
			if one.Cluster != two.Cluster || one.Cluster.IsZero() || one.Cluster != c.root().Cluster {
				t.Fatalf("got clusters %v and %v, the arbiter knows %v", one.Cluster, two.Cluster, c.root().Cluster)
			}
			if h := c.root().History; h[0].Why != authority.Birth || len(h) != 2 {
				t.Errorf("got the history %+v, want a birth and its import", h)
			}
			for i := range c.nodes {
				c.stop(i)
			}
		}
	}
}

// Each kind of call is lost once, before its effect and after it, on the way from birth
// through a takeover, a failback, a hand-over and back; a lease is kept all the same.
func TestLostAnswers(t *testing.T) {
	open := table(t)
	for _, kind := range []faulty.Kind{faulty.LostRequest, faulty.LostAnswer} {
		for _, step := range nodetest.Steps {
			t.Run(fmt.Sprintf("%s/%v", step, kind), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, fmt.Sprintf("lost-%x-%d", step, kind), 3, open)
				lost := c.lose(func(call faulty.Call) faulty.Kind {
					if nodetest.Step(t.Context(), c.store, call) == step {
						return kind
					}
					return faulty.None
				})
				throughAll(c)
				if !lost() {
					t.Error("no such call was made")
				}
			})
		}
	}
}

// throughAll takes a lease through a takeover, a failback, a hand-over and back.
func throughAll(c *cluster) {
	c.t.Helper()
	c.startAll()
	c.allVote()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	kept, err := c.client().Acquire(ctx, "kept", client.TTL(20*time.Second))
	if err != nil {
		c.t.Fatal(err)
	}
	token := kept.Token()
	first := c.leader()
	second := (first + 1) % len(c.nodes)
	c.stop(first)
	c.stop(second)
	c.mode(authority.Fallback)
	c.start(first)
	c.start(second)
	c.mode(authority.Raft)
	c.allVote()
	c.grantable()
	c.handOver(ctx, authority.Fallback)
	c.grantable()
	c.handOver(ctx, authority.Raft)
	c.grantable()
	if err := kept.Err(); err != nil || kept.Token() != token {
		c.t.Errorf("the lease was lost, or has another token: %v\n%s", err, c.state())
	}
	kept.Release(ctx)
}

// handOver passes authority on as an operator does, again where it could not be done.
func (c *cluster) handOver(ctx context.Context, to authority.Mode) {
	c.t.Helper()
	c.eventually("authority is with "+string(to), func() bool {
		if c.root().Mode == to {
			return true
		}
		for _, n := range c.nodes {
			if s := n.Status(); s.Serving && (s.Leader == s.Node || to == authority.Raft) {
				_, _ = n.HandOver(ctx, string(to))
				break
			}
		}
		return c.root().Mode == to
	})
}
