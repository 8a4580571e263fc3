package drill

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// sites are where the nodes of a drill are: half of them each.
var sites = [...]string{"east", "west"}

// nodeCount is how many nodes there are. They all vote: three are a majority.
const nodeCount = 4

// shards is few: a drill has few leases, and each shard is written at each change of
// authority.
const shards = 16

// stopTimeout bounds the end of a node, or of a client.
const stopTimeout = 10 * time.Second

// member is one node of the drill, and its machine.
type member struct {
	stage *stage
	name  string
	site  string
	clock *machineClock
	rand  *rand.Rand // of the arbiter's refusals; guarded by mu

	mu   sync.Mutex // guards what follows
	addr string     // where it listens, in every life; empty before the first
	node *node.Node // nil: there is no process
	way  *faulty.Store
	plan faulty.Plan // of way, in every life
}

// start begins a life of the node, with an empty memory.
func (m *member) start(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	listen := m.addr
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	s := m.stage
	way := faulty.New(s.cfg.Store)
	way.SetPlan(m.plan)
	n, err := node.New(node.Config{
		Name: m.name, Site: m.site, InMemory: true, Listen: listen,
		ElectionTimeout: ElectionTimeout, ReformAfter: ReformAfter,
		Arbiter: way, ArbiterName: s.cfg.Cluster,
		Authority: node.Authority{Lease: AuthorityLease, CeilingFloor: CeilingFloor, Shards: leases.Shards{Count: shards, Bytes: leases.DefaultShardBytes}},
		Network:   s.net.Host(m.name), Clock: m.clock, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	m.node, m.way, m.addr = n, way, n.Address()
	return nil
}

// now returns the node of the present life; nil: there is none.
func (m *member) now() *node.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// kill ends the node as SIGKILL ends a process, its memory with it. What it has begun
// to send to the arbiter may still arrive, and nothing after that.
func (m *member) kill() {
	m.mu.Lock()
	n := m.node
	if n == nil {
		m.mu.Unlock()
		return
	}
	m.node = nil
	m.way.SetPlan(unreachable)
	m.stage.net.Kill(m.name)
	m.mu.Unlock()
	m.stage.graves.Go(func() { m.bury(n) })
}

// bury releases what a node that is cut off from everything still has.
func (m *member) bury(n *node.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_ = n.Close(ctx) // a dead process has nobody to tell
}

// arbiter sets what befalls the node's calls of the arbiter from now on; nil: nothing.
func (m *member) arbiter(p faulty.Plan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plan = p
	if m.node != nil {
		m.way.SetPlan(p)
	}
}

// unreachable is the plan of a node that is cut off from the arbiter.
func unreachable(faulty.Call) faulty.Fault { return faulty.Fault{Kind: faulty.Unreachable} }

// throttled is the plan of a node whose arbiter refuses most calls, and is slow with
// the others.
func (m *member) throttled(faulty.Call) faulty.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rand.Float64() < 0.9 {
		return faulty.Fault{Kind: faulty.Throttled}
	}
	slow := 20*time.Millisecond + time.Duration(m.rand.Int64N(int64(200*time.Millisecond)))
	return faulty.Fault{There: faulty.Delay(m.clock, slow)}
}
