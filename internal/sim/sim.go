// Package sim runs the protocol of docs/protocol.md in virtual time: the state machines
// that ship (authority.Machine, fallback.Shard, Rewrite, leases.Table, holder.Holder),
// on nodes and clients that crash, pause and lose their memory, over a network and an
// arbiter that lose, delay and repeat what they carry. Only Raft, the network, the
// arbiter and the Raft leader's deadlines are simulated. One seed is one run: there is
// no goroutine, no real clock and no other chance.
package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// names is how many lease names there are; the last one is the probe's, which looks at
// the end of a run whether leases are granted.
const names = 4

var (
	leaseNames = [names]string{"x", "y", "z", "probe"}
	nodeNames  = [...]string{"n0", "n1", "n2", "n3"}
)

func nameIndex(name string) int {
	for i, n := range leaseNames {
		if n == name {
			return i
		}
	}
	panic("sim: no such lease: " + name)
}

// Config says what to run.
type Config struct {
	Seed    uint64
	Profile *Profile
	Rules   rules.Set
	Steps   []Step     // nil: as the seed has it
	Script  func(*Sim) // called at the beginning, to put more on the schedule; nil: nothing is
	Length  Time       // for how long at least faults last
	Tracing bool
	Only    string // the one invariant that is looked at; empty: all
}

// Sim is one run.
type Sim struct {
	rules rules.Set
	p     Profile
	now   Time
	queue queue

	lease, heartbeat, reform, leaderLease time.Duration
	params                                authority.Params

	nodes   []*node
	clients []*client
	groups  []*group
	arbiter store
	root    authority.Root // as R is now

	cut        [len(nodeNames)][len(nodeNames)]Time // by when messages get from one to another again
	clientCut  [maxClients][len(nodeNames)]Time
	answersCut [len(nodeNames)][maxClients]Time
	fences     [names]fence
	handed     []*attempt // that have been believed in

	kept      int // writes that a script has kept back
	counts    Counts
	violation *Violation
	healed    bool
	live      bool // it has come back into service after all faults were over
	tracing   bool
	asserted  string // the one invariant that is looked at; empty: all
	lines     []string
}

const maxClients = 4 // the last one is the probe

// Result is what has come of a run.
type Result struct {
	Violation *Violation // nil: there was none
	Counts    Counts
	Steps     []Step
	Trace     []string
	End       Time // when it was over
}

// Run runs a schedule to its end, or up to its first violation.
func Run(cfg Config) Result {
	s := New(cfg)
	steps := cfg.Steps
	if steps == nil {
		steps = s.draw(cfg.Seed)
	}
	end := cfg.Length
	for _, step := range steps {
		end = max(end, step.At)
		s.at(step.At, nil, driver, func() { s.apply(step) })
	}
	if cfg.Script != nil {
		cfg.Script(s)
	}
	s.play(end + s.lease)
	if s.violation == nil {
		s.heal()
		s.play(s.now + s.bound())
		if !s.live {
			s.violate("live", "it is not in service %v after all faults were over", s.bound())
		}
	}
	return Result{Violation: s.violation, Counts: s.counts, Steps: steps, Trace: s.lines, End: s.now}
}

// play lets things happen until end.
func (s *Sim) play(end Time) {
	for s.violation == nil && !s.live && s.step(end) {
	}
	s.now = max(s.now, end)
}

// New returns a run in which nothing has happened yet but that all nodes are started.
func New(cfg Config) *Sim {
	rng := rand.New(rand.NewPCG(cfg.Seed, 1))
	s := &Sim{rules: cfg.Rules, p: *cfg.Profile, tracing: cfg.Tracing, asserted: cfg.Only}
	p := &s.p
	if p.Wild {
		p.draw(rng)
	}
	s.lease = pick(rng, p.Leases)
	s.heartbeat = s.lease / 10
	s.reform = 2 * s.lease
	s.leaderLease = 4 * s.heartbeat
	if rng.IntN(3) == 0 {
		s.leaderLease = time.Hour // a leader that nobody follows does not notice
	}
	p.LateBy = time.Duration(p.Lateness * float64(s.lease))
	s.params = authority.Params{
		LeaseMs: s.lease.Milliseconds(), Rho: leases.Rho, Hash: leases.ShardHash, Shards: leases.Shards{Count: 2, Bytes: leases.MinShardBytes},
		FloorMs: (s.lease * 3 / 2).Milliseconds(),
	}
	s.arbiter = store{s: s, regs: make([]arbiter.Register, 1+s.params.Shards.Count)}
	within := pick(rng, []time.Duration{10 * time.Millisecond, s.lease / 4})
	for i := range pick(rng, p.Nodes) {
		n := &node{s: s, id: i, name: nodeNames[i], rng: rand.New(rand.NewPCG(cfg.Seed, uint64(100+i))), skew: newSkew(rng)}
		s.nodes = append(s.nodes, n)
		if at := time.Duration(rng.Int64N(int64(within))); i < len(nodeNames)-1 || !p.Spare {
			s.after(at, nil, driver, n.start)
		}
	}
	for i := range maxClients {
		c := &client{s: s, id: i, name: fmt.Sprintf("c%d", i), rng: rand.New(rand.NewPCG(cfg.Seed, uint64(200+i))), skew: newSkew(rng)}
		c.session = nonce(c.rng)
		s.clients = append(s.clients, c)
	}
	return s
}

func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }

// shardOf is the shard of a name.
func (s *Sim) shardOf(name string) int { return int(s.params.Shards.Of(name)) }

// names are those of nodes, by bits.
func (s *Sim) names(nodes uint32) []string { return nodeSets[nodes] }

// nodeSets has the names of each set of nodes. They are shared, and never written to.
var nodeSets = func() (sets [1 << len(nodeNames)][]string) {
	for set := range sets {
		for i, name := range nodeNames {
			if set&(1<<i) != 0 {
				sets[set] = append(sets[set], name)
			}
		}
		sets[set] = sets[set][:len(sets[set]):len(sets[set])]
	}
	return sets
}()

// group returns the Raft group of that id.
func (s *Sim) group(id leases.ID) *group {
	for _, g := range s.groups {
		if g.id == id {
			return g
		}
	}
	g := &group{s: s, id: id}
	s.groups = append(s.groups, g)
	return g
}

// heal ends all faults, and lets the probe ask for a lease until it gets one from a
// Raft leader.
func (s *Sim) heal() {
	s.healed = true
	if s.tracing {
		s.trace("all faults are over")
	}
	s.cut, s.clientCut, s.answersCut = [len(nodeNames)][len(nodeNames)]Time{}, [maxClients][len(nodeNames)]Time{}, [len(nodeNames)][maxClients]Time{}
	s.leaderLease = 4 * s.heartbeat
	s.arbiter.held, s.arbiter.blind = nil, 0
	p := &s.p
	p.Lose, p.LoseAnswer, p.Late, p.Copy, p.Stray, p.LateMessage, p.SlowBatch = 0, 0, 0, 0, 0, 0, 0
	for _, c := range s.clients {
		c.pinned = false
		s.resume(&c.process)
	}
	for _, n := range s.nodes {
		s.resume(&n.process)
		n.arbiterCut, n.answersCut, n.throttled, n.slow = 0, 0, 0, 0
		if !n.up {
			n.start()
		}
		n.soon()
	}
	s.probe()
}

// probe looks whether everything is in order again: all nodes are voters of R's group,
// one of them has a window, and grants.
func (s *Sim) probe() {
	for _, n := range s.nodes {
		n.machine.Release() // where a planned hand-over has just come
	}
	c := s.clients[maxClients-1]
	a := c.now[names-1]
	switch {
	case a != nil && !a.ended && a.believes():
		if s.root.Mode == authority.Raft && a.holder.Token().Epoch() >= s.root.RaftEpoch && s.whole() {
			s.live = true
			return
		}
		a.giveBack(release)
	case a == nil || a.ended || a.holder.Why() != nil:
		c.begin(names-1, s.lease, false)
	}
	s.after(s.lease/4, nil, driver, s.probe)
}

// whole reports whether all nodes are voters of R's group, and one of them has a window.
func (s *Sim) whole() bool {
	windows := 0
	for _, n := range s.nodes {
		if left, _ := n.window(); left > 0 {
			windows++
		}
		if v := n.server; v == nil || v.g.id != s.root.Group || !v.voter() {
			return false
		}
	}
	return windows == 1
}

// bound is within how long the cluster is in service once all faults are over: a
// takeover, a grace, a re-formation, an import, some of them twice.
func (s *Sim) bound() time.Duration {
	return 2*(4*s.lease+s.reform+leases.Stretch(s.root.Ceiling())) + s.p.LateBy
}
