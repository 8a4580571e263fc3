package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ports counts the ports that were given to tests, from a random one on.
var ports atomic.Uint32

func init() { ports.Store(rand.Uint32()) }

// freeAddress returns a loopback address that nobody listens on, and that was
// not returned before. Its port is below those that the system gives to
// connections by itself.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+ports.Add(1)%20000)
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port found")
	return ""
}

// testLog writes a node's log into the test's output.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func start(t *testing.T, cfg node.Config) *node.Node {
	t.Helper()
	if cfg.ElectionTimeout == 0 {
		cfg.ElectionTimeout = 300 * time.Millisecond
	}
	if cfg.Log == nil {
		cfg.Log = testLog(t)
	}
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, n) })
	return n
}

func stop(t *testing.T, n *node.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Errorf("close %s: %v", n.Status().Node, err)
	}
}

// cluster starts n nodes with the same flags and waits until one serves.
func cluster(t *testing.T, size int) []*node.Node {
	t.Helper()
	var addresses []string
	for range size {
		addresses = append(addresses, freeAddress(t))
	}
	var nodes []*node.Node
	for i, a := range addresses {
		nodes = append(nodes, start(t, node.Config{
			Name: fmt.Sprintf("n%d", i+1), InMemory: true, Listen: a, Join: addresses, Bootstrap: true,
		}))
	}
	serving(t, nodes)
	return nodes
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}

func serving(t *testing.T, nodes []*node.Node) (leader *node.Node) {
	t.Helper()
	eventually(t, "a node serves", func() bool {
		for _, n := range nodes {
			if n.Status().Serving {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

func dial(t *testing.T, addresses ...string) *client.Client {
	t.Helper()
	c, err := client.Dial(addresses, client.WithLog(testLog(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

func addressesOf(nodes []*node.Node) (addresses []string) {
	for _, n := range nodes {
		addresses = append(addresses, n.Address())
	}
	return addresses
}

func TestLeaseSurvivesItsLeader(t *testing.T) {
	nodes := cluster(t, 3)
	eventually(t, "all three vote", func() bool {
		voters := 0
		for _, m := range serving(t, nodes).Status().Members {
			if m.Voter {
				voters++
			}
		}
		return voters == 3
	})
	c := dial(t, addressesOf(nodes)...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := c.Acquire(ctx, "nightly", client.TTL(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	before := lease.Token()
	old := serving(t, nodes)
	stop(t, old)
	var rest []*node.Node
	for _, n := range nodes {
		if n != old {
			rest = append(rest, n)
		}
	}
	serving(t, rest)
	renewals := 0
	for renewals < 3 {
		select {
		case <-lease.Renewed():
			renewals++
		case <-lease.Done():
			t.Fatalf("the lease ended: %v", lease.Err())
		case <-ctx.Done():
			t.Fatal("no renewals")
		}
	}
	if lease.Token() != before {
		t.Errorf("token: got %v, want %v", lease.Token(), before)
	}
	other := dial(t, addressesOf(rest)...)
	if _, err := other.TryAcquire(ctx, "nightly"); !errors.Is(err, leases.ErrHeld) {
		t.Errorf("another client: got %v, want %v", err, leases.ErrHeld)
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	next, err := other.TryAcquire(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= before {
		t.Errorf("the next token: got %v, want more than %v", next.Token(), before)
	}
	if err := next.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

// A node that is closed while it founds its cluster leaves nothing behind, as
// TestMain checks.
func TestCloseWhileFounding(t *testing.T) {
	for range 10 {
		stop(t, start(t, node.Config{Name: "n1", InMemory: true, Listen: freeAddress(t), Bootstrap: true}))
	}
}

// The same client works over an embedded node, on the leader and on a follower.
func TestEmbedded(t *testing.T) {
	nodes := cluster(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, n := range nodes {
		c := client.New(n)
		lease, err := c.Acquire(ctx, "embedded")
		if err != nil {
			t.Fatalf("%s: %v", n.Status().Node, err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Errorf("%s: release: %v", n.Status().Node, err)
		}
		if err := c.Close(ctx); err != nil {
			t.Errorf("%s: close: %v", n.Status().Node, err)
		}
	}
}
