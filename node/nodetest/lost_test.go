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

// step names what a call of the arbiter is for.
func (c *Cluster) step(call faulty.Call) string {
	switch {
	case strings.Contains(call.Key, "/shard/") && !call.Swap:
		return "read of a shard"
	case strings.Contains(call.Key, "/shard/"):
		before, err := c.arbiter.Load(c.t.Context(), call.Key)
		was, err2 := leases.DecodeShard(before.Data)
		is, err3 := leases.DecodeShard(call.Write.Data)
		if err != nil || err2 != nil || err3 != nil || was.Epoch == is.Epoch {
			return "write of a shard"
		}
		if c.Root().Mode == authority.Importing {
			return "import"
		}
		return "move"
	case !call.Swap:
		return "read of the root"
	}
	is, err := authority.DecodeRoot(call.Write.Data)
	if err != nil {
		return "garbage"
	}
	was := c.Root()
	switch {
	case call.From == 0:
		return "birth"
	case was.Mode == authority.Raft && is.Mode == authority.Raft:
		return "window"
	case was.GraceDone != is.GraceDone && is.Mode == authority.Fallback && was.Epoch == is.Epoch:
		return "end of the grace"
	case was.Held && !is.Held && is.Mode == authority.Fallback:
		return "release"
	case was.Mode == is.Mode && was.Epoch == is.Epoch:
		return "other"
	case is.Held && !was.Held:
		return "hand-over"
	case is.Mode == authority.Fallback:
		return "takeover"
	case is.Mode == authority.Importing:
		return "failback"
	}
	return "imported"
}

// lose lets that many calls of one step go wrong, whichever node makes them.
func (c *Cluster) lose(step string, kind faulty.Kind, times int) {
	var mu sync.Mutex
	c.Note("lose %d × %s: %v", times, step, kind)
	plan := func(call faulty.Call) faulty.Fault {
		if c.step(call) != step {
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
	steps := []string{
		"birth", "window", "takeover", "move", "write of a shard", "read of a shard", "read of the root", "end of the grace",
		"failback", "import", "imported", "hand-over", "release",
	}
	for _, kind := range []faulty.Kind{faulty.LostRequest, faulty.LostAnswer, faulty.Late} {
		for _, step := range steps {
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
