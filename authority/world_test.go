package authority

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

const (
	lease   = 10 * time.Second // L
	ceiling = 20 * time.Second
	reform  = 30 * time.Second
	window  = 9900 * time.Millisecond  // L(1−ρ)
	rest    = 10100 * time.Millisecond // L(1+ρ)
	grace   = 20200 * time.Millisecond // the ceiling, stretched
	start   = clock.Instant(time.Hour)
)

var params = Params{
	LeaseMs: lease.Milliseconds(), Rho: leases.Rho, Hash: leases.ShardHash,
	Shards: leases.Shards{Count: 4, Bytes: leases.MinShardBytes}, FloorMs: ceiling.Milliseconds(),
}

// world is the root register and the machines of some nodes, all by one clock that
// stands still but for pass.
type world struct {
	t      *testing.T
	now    clock.Instant
	reg    arbiter.Register
	nonces byte
}

func newWorld(t *testing.T) *world { return &world{t: t, now: start} }

// node is a machine and what its driver would know. It answers reads and writes of R at
// once, unless it is cut off, and keeps all other actions for the test to look at.
type node struct {
	*world
	*Machine
	facts Facts
	wake  clock.Instant
	swaps []*Swap // those that were sent

	cut  bool                                    // from the arbiter
	swap func(s *Swap, write func() error) error // in the way of a write; nil: nothing is
}

func (w *world) node(name string, off ...rules.Rule) *node {
	return &node{world: w, facts: Facts{Alive: []string{name}}, Machine: New(Config{
		Name: name, Params: params, Reform: reform, Rules: rules.Without(off...),
		Nonce: func() [16]byte { w.nonces++; return [16]byte{w.nonces} },
	})}
}

// pass lets time pass for all.
func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

var errCut = fmt.Errorf("%w: cut off", arbiter.ErrUnreachable)

// do asks what to do until only others than reads and writes are left, which it returns.
func (n *node) do() (others []Action) {
	n.t.Helper()
	for range 20 {
		todo, wake := n.Next(n.now, n.facts)
		n.wake = wake
		if wake <= n.now {
			n.t.Fatalf("got wake %v, want it later than now, %v", wake, n.now)
		}
		if len(todo) == 0 {
			return others
		}
		for _, a := range todo {
			switch a := a.(type) {
			case Load:
				if n.cut {
					n.Loaded(n.now, n.now, arbiter.Register{}, errCut)
				} else {
					n.Loaded(n.now, n.now, n.reg, nil)
				}
			case *Swap:
				n.swaps = append(n.swaps, a)
				n.send(a)
			default:
				others = append(others, a)
			}
		}
	}
	n.t.Fatal("it does not come to rest")
	return nil
}

func (n *node) send(s *Swap) {
	write := func() error { return n.cas(s) }
	switch {
	case n.swap != nil:
		if err := n.swap(s, write); err != errHangs {
			n.Swapped(s, n.now, err)
		}
	case n.cut:
		n.Swapped(s, n.now, errCut)
	default:
		n.Swapped(s, n.now, write())
	}
}

// errHangs, from a node's swap: there is no answer yet.
var errHangs = errors.New("it hangs")

// hang keeps a write under way, and lost loses its answer though it took effect.
func hang(*Swap, func() error) error { return errHangs }

func lost(_ *Swap, write func() error) error {
	_ = write()
	return &arbiter.UnknownError{Err: errors.New("lost")}
}

// cas is the register's side of a CompareAndSwap.
func (w *world) cas(s *Swap) error {
	if w.reg.Version != s.From {
		return &arbiter.ConflictError{From: s.From, Found: w.reg}
	}
	w.reg = arbiter.Register{Version: s.From + 1, Nonce: s.Write.Nonce, Data: s.Write.Data}
	return nil
}

// root is what R holds.
func (w *world) root() Root {
	w.t.Helper()
	r, err := DecodeRoot(w.reg.Data)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// put makes R hold another root, as if somebody else had written it.
func (w *world) put(change func(*Root)) {
	r := w.root()
	change(&r)
	w.nonces++
	w.reg = arbiter.Register{Version: w.reg.Version + 1, Nonce: arbiter.Nonce{w.nonces}, Data: r.Encode()}
}

var (
	someCluster = leases.ID{0: 0xc1}
	someGroup   = leases.ID{0: 0x91}
	otherGroup  = leases.ID{0: 0x92}
)

// raftRoot puts R into mode raft, epoch 3, of someGroup, whose leader of term 1 is gone.
func (w *world) raftRoot() {
	r := Root{
		Cluster: someCluster, Params: params, Epoch: 3, RaftEpoch: 3, Mode: Raft, Group: someGroup, GraceDone: true,
		Owner: Owner{"gone", 1}, Takers: []string{"a", "b", "c"}, CeilingMs: ceiling.Milliseconds(),
	}
	w.reg = arbiter.Register{Version: 7, Nonce: arbiter.Nonce{0xff}, Data: r.Encode()}
}

// leads makes n the leader of someGroup in that term, whose table has caught up.
func (n *node) leads(term uint64) *node {
	n.facts.Group, n.facts.Leading, n.facts.Term, n.facts.Ready, n.facts.Heard = someGroup, true, term, true, true
	n.facts.Epoch, n.facts.Takers = 3, []string{"a", "b", "c"}
	return n
}

// member makes n a follower in someGroup.
func (n *node) member() *node {
	n.facts.Group, n.facts.Epoch = someGroup, 3
	return n
}

// left is n's window now, in the term that it leads.
func (n *node) left() time.Duration {
	d, _ := n.Window(n.now, n.facts.Term)
	return d
}

// find returns the only action of type A among those.
func find[A Action](t *testing.T, todo []Action) A {
	t.Helper()
	var found []A
	for _, a := range todo {
		if a, ok := a.(A); ok {
			found = append(found, a)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d of %T in %v, want one", len(found), *new(A), todo)
	}
	return found[0]
}

// none fails if there is an action of type A among those.
func none[A Action](t *testing.T, todo []Action) {
	t.Helper()
	if slices.ContainsFunc(todo, func(a Action) bool { _, ok := a.(A); return ok }) {
		t.Fatalf("got %v, want no %T", todo, *new(A))
	}
}

func (w *world) wantMode(mode Mode, epoch uint32) Root {
	w.t.Helper()
	r := w.root()
	if r.Mode != mode || r.Epoch != epoch {
		w.t.Fatalf("got R in mode %v, epoch %d, want %v, %d", r.Mode, r.Epoch, mode, epoch)
	}
	return r
}

// answer gives the answers to an Ask, yes by all that are named.
func (n *node) answer(a Ask, yes ...string) {
	for _, name := range a.Names {
		n.Pledged(n.now, a.Pledge, name, slices.Contains(yes, name), false)
	}
}
