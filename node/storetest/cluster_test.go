package storetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/dynamodb"
	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/dynamolocal"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(dynamolocal.Main(m)) }

// table makes a table for one test, and returns how to open it.
func table(t *testing.T) func() *dynamodb.Store {
	t.Helper()
	endpoint := dynamolocal.Endpoint(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "local")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "local")
	cfg := dynamodb.Config{Table: "t-" + rand.Text(), Endpoint: endpoint, Region: "eu-central-1"}
	open := func() *dynamodb.Store {
		s, err := dynamodb.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	if _, err := open().CreateTable(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	return open
}

// cluster is a number of nodes in this process, on loopback, with one arbiter.
type cluster struct {
	t     *testing.T
	name  string
	store arbiter.Store // as it is
	ways  []*faulty.Store
	nodes []*node.Node
}

func newCluster(t *testing.T, name string, size int, open func() *dynamodb.Store) *cluster {
	c := &cluster{t: t, name: name, store: open(), nodes: make([]*node.Node, size)}
	for range size {
		c.ways = append(c.ways, faulty.New(open()))
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
		}
	})
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	if c.nodes[i] != nil {
		return
	}
	n, err := node.New(node.Config{
		Name: fmt.Sprintf("n%d", i+1), InMemory: true, Listen: "127.0.0.1:0", ElectionTimeout: 200 * time.Millisecond,
		Arbiter: c.ways[i], ArbiterName: c.name, ReformAfter: 2 * time.Second,
		Authority: node.Authority{Lease: 2 * time.Second, Shards: leases.Shards{Count: 4, Bytes: 16 << 10}, CeilingFloor: time.Second},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := n.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.nodes[i] = n
}

func (c *cluster) startAll() {
	for i := range c.nodes {
		c.start(i)
	}
}

// stop ends node i without a word to the others, and with all that it has in memory.
func (c *cluster) stop(i int) {
	if c.nodes[i] == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = c.nodes[i].Close(ctx)
	c.nodes[i] = nil
}

func (c *cluster) addresses() (all []string) {
	for _, n := range c.nodes {
		if n != nil {
			all = append(all, n.Address())
		}
	}
	return all
}

// eventually waits for a condition.
func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if condition() {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("not within a minute: %s\n%s", what, c.state())
		}
	}
}

// state is what each node does, for people.
func (c *cluster) state() string {
	var b strings.Builder
	for _, n := range c.nodes {
		if n != nil {
			s := n.Status()
			fmt.Fprintf(&b, "%s: %s; serving %v, leader %s, %d members", s.Node, s.Doing, s.Serving, s.Leader, len(s.Members))
			if a := s.Authority; a != nil {
				fmt.Fprintf(&b, ", %s, epoch %d, grace left %v", a.Root.Mode, a.Root.Epoch, a.GraceLeft)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func (c *cluster) root() authority.Root {
	reg, err := c.store.Load(c.t.Context(), authority.RootKey(c.name))
	if err != nil || reg.Version == 0 {
		return authority.Root{}
	}
	root, err := authority.DecodeRoot(reg.Data)
	if err != nil {
		c.t.Fatal(err)
	}
	return root
}

func (c *cluster) mode(m authority.Mode) {
	c.t.Helper()
	c.eventually("mode "+string(m), func() bool { return c.root().Mode == m })
}

// leader waits until a node leads and serves.
func (c *cluster) leader() (leader int) {
	c.t.Helper()
	c.eventually("a leader serves", func() bool {
		for i, n := range c.nodes {
			if n == nil {
				continue
			}
			if s := n.Status(); s.Serving && s.Leader == s.Node {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// allVote waits until every node is a voter.
func (c *cluster) allVote() {
	c.t.Helper()
	c.eventually("all vote", func() bool {
		s := c.nodes[c.leader()].Status()
		votes := 0
		for _, m := range s.Members {
			if m.Voter {
				votes++
			}
		}
		return votes == len(c.nodes)
	})
}

// client returns a client that asks every node.
func (c *cluster) client() *client.Client {
	c.t.Helper()
	conn, err := transport.Dial(transport.DialConfig{Addrs: c.addresses()})
	if err != nil {
		c.t.Fatal(err)
	}
	k := client.New(conn)
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		k.Close(ctx)
		conn.Close()
	})
	return k
}

// grantable waits until a fresh lease can be had.
func (c *cluster) grantable() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	l, err := c.client().Acquire(ctx, "fresh", client.TTL(time.Second))
	if err != nil {
		c.t.Fatalf("nothing is granted: %v\n%s", err, c.state())
	}
	l.Release(ctx)
}

// lose lets one call of a step go wrong.
func (c *cluster) lose(plan func(faulty.Call) faulty.Kind) (lost func() bool) {
	var mu sync.Mutex
	done := false
	for _, w := range c.ways {
		w.SetPlan(func(call faulty.Call) faulty.Fault {
			kind := plan(call)
			mu.Lock()
			defer mu.Unlock()
			if done || kind == faulty.None {
				return faulty.Fault{}
			}
			done = true
			return faulty.Fault{Kind: kind}
		})
	}
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return done
	}
}
