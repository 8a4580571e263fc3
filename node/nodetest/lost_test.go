package nodetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// lose lets that many calls of one step go wrong, whichever node makes them.
func (c *Cluster) lose(step string, kind faulty.Kind, times int) {
	var mu sync.Mutex
	c.Note("lose %d × %s: %v", times, step, kind)
	plan := func(call faulty.Call) faulty.Fault {
		if Step(c.t.Context(), c.arbiter, call) != step {
			return faulty.Fault{}
		}
		mu.Lock()
		defer mu.Unlock()
		if times == 0 {
			return faulty.Fault{}
		}
		times--
		c.Note("lost: %s", step)
		return faulty.Fault{Kind: kind}
	}
	for _, m := range c.members {
		m.way.SetPlan(plan)
	}
}

// Every call of the arbiter is lost once, before and after its effect, or takes
// effect late; a lease is kept through takeover, failback and hand-over all the same.
func TestLostAnswers(t *testing.T) {
	for _, kind := range []faulty.Kind{faulty.LostRequest, faulty.LostAnswer, faulty.Late} {
		for _, step := range Steps {
			if kind == faulty.Late && strings.HasPrefix(step, "read") {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", step, kind), func(t *testing.T) {
				t.Parallel()
				lost := false
				cfg := arbitrated()
				cfg.Nodes = 3
				cfg.Lose = func(c *Cluster) { c.lose(step, kind, 1) }
				s := scenario{config: cfg, run: func(c *Cluster) {
					throughAll(c)
					if kind == faulty.Late {
						c.releaseLate()
						c.grantable("after what was late")
					}
					lost = strings.Contains(c.Schedule(), "lost: "+step)
				}}
				c := s.play(t, 1, rules.Set{})
				if err := c.Check(time.Minute); err != nil {
					t.Fatalf("%v\n%s", err, c.Schedule())
				}
				if !lost {
					t.Errorf("no such call was made\n%s", c.Schedule())
				}
			})
		}
	}
}

// releaseLate lets the writes that are late arrive.
func (c *Cluster) releaseLate() {
	for _, m := range c.members {
		for _, w := range m.way.Late() {
			_ = w.Release(c.t.Context())
		}
	}
}

// throughAll takes a lease through a takeover, a failback, a hand-over and back.
func throughAll(c *Cluster) {
	h := c.keeper("keeper", "kept", 8*time.Second)
	c.Crash(c.Leader())
	c.Crash(c.Leader())
	c.Mode(authority.Fallback)
	c.grantable("in-fallback")
	c.kept(h)
	for i := range c.Size() {
		c.Restart(i)
	}
	c.Mode(authority.Raft)
	c.AllVote()
	c.grantable("after-failback")
	c.kept(h)
	c.handOver("fallback")
	c.grantable("after-hand-over")
	c.handOver("raft")
	c.grantable("at-the-end")
	c.kept(h)
	h.Release(context.Background())
}

// handOver passes authority on as an operator does, again where it could not be done.
func (c *Cluster) handOver(to string) {
	c.t.Helper()
	want := authority.Mode(to)
	c.eventually("the mode is "+to, func() bool {
		if c.Root().Mode == want {
			return true
		}
		i, ok := c.Serving()
		if !ok {
			return false
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := c.Node(i).HandOver(ctx, to)
		c.Note("%s hands over to %s: %v", c.Host(i), to, err)
		return c.Root().Mode == want
	})
}

// Ten thousand leases are kept through all of it.
func TestManyLeasesThroughEverything(t *testing.T) {
	count := 10_000
	if raceDetector {
		count = 1_000
	}
	cfg := arbitrated()
	cfg.Arbiter.Shards = leases.Shards{Count: 256, Bytes: leases.DefaultShardBytes}
	s := scenario{config: cfg, run: func(c *Cluster) {
		k := c.Client("many", ClientConfig{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		held := make([]*Hold, count)
		var acquiring sync.WaitGroup
		gate := make(chan struct{}, 256)
		for i := range held {
			acquiring.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				h, err := k.Acquire(ctx, fmt.Sprintf("job/%05d", i), client.TTL(20*time.Second))
				if err != nil {
					c.Broken("acquire: %w", err)
					return
				}
				held[i] = h
			})
		}
		acquiring.Wait()
		throughAll(c)
		for _, h := range held {
			if h != nil {
				c.kept(h)
			}
		}
	}}
	c := s.play(t, 1, rules.Set{})
	if err := c.brokenPromises(); err != nil { // the check of so long a history takes minutes
		t.Fatalf("%v\n%s", err, c.Schedule())
	}
}
