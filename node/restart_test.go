package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/tokens"
)

// acquire takes a lease, gives it back and returns its token.
func acquire(t *testing.T, c *client.Client, name string) tokens.Token {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := c.Acquire(ctx, name, client.TTL(leases.MinTTL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lease.Release(ctx); err != nil {
			t.Errorf("release: %v", err)
		}
	}()
	return lease.Token()
}

// A node that has lost its log comes back under its name and address as another
// server: it neither votes nor acknowledges for its predecessor (S18). n3, which
// had acknowledged a grant that n2 has never seen, loses it; n2 must not be
// elected by it. With the handshake off n2 is, and has lost an acknowledged
// grant, whose token it would hand out again.
func TestNodeWithoutItsLogIsAnotherServer(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("handshake off %v", off), func(t *testing.T) {
			t.Parallel()
			configs := site(t)
			if off {
				for i := range configs {
					configs[i].Testing = hook.Testing{Rules: rules.Without(rules.Identity)}
				}
			}
			nodes := make([]*node.Node, 3)
			for i, c := range configs {
				nodes[i] = start(t, c)
			}
			first := oneCluster(t, nodes...)

			stop(t, nodes[1])
			serving(t, []*node.Node{nodes[0], nodes[2]})
			granted := acquire(t, dial(t, configs[0].Listen, configs[2].Listen), "job")
			acknowledged := nodes[0].Status().Revision
			stop(t, nodes[0])
			stop(t, nodes[2])
			if err := os.RemoveAll(configs[2].Data); err != nil {
				t.Fatal(err)
			}
			nodes[1] = start(t, configs[1])
			nodes[2] = start(t, configs[2])
			eventually(t, "n3 has found its cluster", func() bool { return nodes[2].Status().Cluster == first })

			if off {
				eventually(t, "n2 is elected by who is not n3, as it must not be", func() bool {
					s := nodes[1].Status() // it may not come to serve: who elected it then joins, in its own name
					return s.Leader == s.Node
				})
				if got := nodes[1].Status().Revision; got >= acknowledged {
					t.Errorf("with the handshake off the leader has revision %d of %d: nothing was lost", got, acknowledged)
				}
				return
			}
			never(t, 10*configs[1].ElectionTimeout, "a node serves", func() bool {
				return nodes[1].Status().Serving || nodes[2].Status().Serving
			})
			nodes[0] = start(t, configs[0])
			allVote(t, nodes...)
			if next := acquire(t, dial(t, configs[1].Listen, configs[2].Listen), "job"); next <= granted {
				t.Errorf("the next token is %v, after %v", next, granted)
			}
		})
	}
}

// never checks that a condition does not come true within a time.
func never(t *testing.T, within time.Duration, what string, condition func() bool) {
	t.Helper()
	end := time.NewTimer(within)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if condition() {
				t.Fatalf("it must not be that %s", what)
			}
		case <-end.C:
			return
		}
	}
}

// All three nodes come back with their data under other addresses: they find
// each other by the addresses that they are given, leases and tokens go on.
func TestAllAddressesChange(t *testing.T) {
	configs := site(t)
	nodes := make([]*node.Node, 3)
	for i, c := range configs {
		nodes[i] = start(t, c)
	}
	cluster := oneCluster(t, nodes...)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	// This client knows the old addresses alone; its lease lapses without it.
	c, err := client.Dial([]string{configs[0].Listen, configs[1].Listen, configs[2].Listen})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := c.Acquire(ctx, "kept", client.TTL(leases.MaxTTL))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		stop(t, n)
	}
	var addresses []string
	for range configs {
		addresses = append(addresses, freeAddress(t))
	}
	for i := range configs {
		configs[i].Listen, configs[i].Join = addresses[i], addresses
		nodes[i] = start(t, configs[i])
	}
	if again := oneCluster(t, nodes...); again != cluster {
		t.Fatalf("cluster: got %v, want %v", again, cluster)
	}
	moved := dial(t, addresses...)
	_, err = moved.TryAcquire(ctx, "kept")
	var held *leases.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("the lease was lost: got %v, want held", err)
	}
	if held.AtMost <= 0 {
		t.Errorf("got %v, want a bound for how long it is held", held)
	}
	if next := acquire(t, moved, "new"); next <= lease.Token() {
		t.Errorf("the next token is %v, after %v", next, lease.Token())
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if err := c.Close(short); !strings.Contains(fmt.Sprint(err), "kept") {
		t.Errorf("close with a lease in use: got %v, want an error that names it", err)
	}
}
