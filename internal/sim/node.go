package sim

import (
	"math/rand/v2"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// node is a member of the cluster: the driver of an authority.Machine, and what it
// drives.
type node struct {
	process
	s    *Sim
	id   int
	name string
	rng  *rand.Rand
	skew skew

	up      bool
	machine *authority.Machine
	cluster leases.ID // that it belongs to, kept with the log
	server  *server   // nil: it takes part in no group

	// Faults of its path to the arbiter, by when they are over.
	arbiterCut, answersCut, throttled, slow Time

	root    authority.Root // as the machine knows it
	version arbiter.Version
	wake    Time // when the machine is to be asked at the latest
	soonish bool // it is going to be asked

	tenure    *tenure       // of a leader with a window; nil: it has none
	unanimous bool          // the window rests on unanimity
	batched   [classes]Time // when the newest of the ops on their way into the log gets there
	registers *registers
}

// short is how long a message takes: mostly a few ms.
func (n *node) short() time.Duration { return short(n.rng) }

func short(rng *rand.Rand) time.Duration {
	d := 300*time.Microsecond + time.Duration(rng.Int64N(int64(4*time.Millisecond)))
	if rng.IntN(64) == 0 {
		d *= 30
	}
	return d
}

// batching is how long an op is on its way into the log: now and then very long, as a
// goroutine that is not scheduled.
func (n *node) batching() time.Duration {
	if n.chance(n.s.p.SlowBatch) {
		return time.Duration(n.rng.Int64N(int64(n.s.p.LateBy)))
	}
	return n.short() / 4
}

// timeout bounds one request to the arbiter.
func (n *node) timeout() time.Duration { return n.s.lease / 4 }

func (n *node) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

func (n *node) clock() clock.Instant { return n.skew.at(n.s.now) }

// linked reports whether messages from a get to b now.
func (s *Sim) linked(a, b *node) bool { return a == b || s.cut[a.id][b.id] <= s.now }

// start begins a life of the node. Without memory it is a new incarnation.
func (n *node) start() {
	s := n.s
	n.life++
	n.up = true
	n.until, n.parked = [classes]Time{}, [classes][]parked{}
	n.machine = authority.New(authority.Config{
		Name: n.name, Cluster: n.cluster, Params: s.params, Reform: s.reform, Rules: s.rules,
		Nonce: func() [16]byte { return nonce(n.rng) },
	})
	n.root, n.version, n.wake, n.soonish, n.tenure, n.batched = authority.Root{}, 0, 0, false, nil, [classes]Time{}
	n.registers = newRegisters(n)
	if n.server != nil {
		n.server.restart()
	}
	s.after(n.short(), &n.process, raftLoop, n.tick)
	n.drive()
}

// crash ends the node's life, and, if lose is true, its memory.
func (n *node) crash(lose bool) {
	n.life++
	n.up = false
	n.tenure = nil
	v := n.server
	if v == nil {
		return
	}
	v.leads, v.proposals = false, nil
	if lose {
		v.gone = true
		n.server, n.cluster = nil, leases.ID{}
	}
}

// nonce draws 16 bytes.
func nonce(rng *rand.Rand) (b [16]byte) {
	for i, w := 0, rng.Uint64(); i < 8; i++ {
		b[i] = byte(w >> (8 * i))
	}
	for i, w := 0, rng.Uint64(); i < 8; i++ {
		b[8+i] = byte(w >> (8 * i))
	}
	return b
}

// tick is Raft's part of what happens from time to time.
func (n *node) tick() {
	if v := n.server; v != nil {
		v.tick()
	}
	s := n.s
	s.after(s.heartbeat/2+time.Duration(n.rng.Int64N(int64(s.heartbeat))), &n.process, raftLoop, n.tick)
}

// maxServers bounds the incarnations in one group: they are counted by bits.
const maxServers = 32

// after lets something happen to the node's driver.
func (n *node) after(d time.Duration, do func()) { n.s.after(d, &n.process, driver, do) }
