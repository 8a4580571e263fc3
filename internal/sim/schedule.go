package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// StepKind is what a Step does.
type StepKind uint8

// The kinds of steps. A and B are nodes, C is a client, X a name, For how long it lasts.
const (
	Crash         StepKind = iota // A, and starts again after For
	Forget                        // A crashes and starts again after For, without its memory
	ForgetAll                     // all nodes do
	Pause                         // A stands still
	StallRaft                     // only A's Raft does
	StallDriver                   // only A's Raft does not
	CutNodes                      // messages from A to B are lost
	PartNodes                     // messages between A and B are lost
	Isolate                       // A is cut off from all other nodes
	CutArbiter                    // A is cut off from the arbiter
	CutArbiterAll                 // all nodes are
	CutAnswers                    // the arbiter's answers to A are lost
	Throttle                      // the arbiter refuses A
	Slow                          // A's writes reach the arbiter late
	CutClient                     // C is cut off from A
	IsolateClient                 // C is cut off from all nodes
	PauseClient                   // C stands still
	Die                           // C comes back as another client
	Acquire                       // C asks for X, for TTL, and waits for it if Wait is set; or repeats what it has asked
	Give                          // C gives X back
	Withdraw                      // C withdraws what it has asked for X
	Transfer                      // C hands X on
	Move                          // A's leadership, if it has any, is handed to B
	HandOver                      // the leader hands over to the registers
	Release                       // a Raft group may take over again
	Hold                          // authority stays with the registers, which have it
	Force                         // all takers are lost for good, and A, which is none, is made to take over
	stepKinds
)

// Step is one event of a schedule.
type Step struct {
	At      Time
	Kind    StepKind
	A, B    int
	C, X    int
	For     time.Duration
	TTL     time.Duration
	Waiting bool
}

// String says in words what the step does.
func (s Step) String() string {
	a, b := nodeNames[s.A], nodeNames[s.B]
	c, x := fmt.Sprintf("c%d", s.C), leaseNames[s.X]
	lasts := " for " + seconds(s.For)
	var what string
	switch s.Kind {
	case Crash:
		what = a + " crashes, and is down" + lasts
	case Forget:
		what = a + " crashes and forgets all, and is down" + lasts
	case ForgetAll:
		what = "all nodes crash and forget all, and are down" + lasts
	case Pause:
		what = a + " is paused" + lasts
	case StallRaft:
		what = a + "'s Raft stands still" + lasts
	case StallDriver:
		what = a + " but its Raft stands still" + lasts
	case CutNodes:
		what = a + " is not heard by " + b + lasts
	case PartNodes:
		what = a + " and " + b + " do not hear each other" + lasts
	case Isolate:
		what = a + " is cut off from the other nodes" + lasts
	case CutArbiter:
		what = a + " is cut off from the arbiter" + lasts
	case CutArbiterAll:
		what = "the arbiter is cut off" + lasts
	case CutAnswers:
		what = a + " gets no answers from the arbiter" + lasts
	case Throttle:
		what = a + " is refused by the arbiter" + lasts
	case Slow:
		what = a + "'s writes reach the arbiter late" + lasts
	case CutClient:
		what = c + " and " + a + " do not hear each other" + lasts
	case IsolateClient:
		what = c + " is cut off" + lasts
	case PauseClient:
		what = c + " is paused" + lasts
	case Die:
		what = c + " dies, and another begins"
	case Acquire:
		what = c + " asks for " + x + " with a TTL of " + seconds(s.TTL)
		if s.Waiting {
			what += ", and waits"
		}
	case Give:
		what = c + " gives " + x + " back"
	case Withdraw:
		what = c + " withdraws its attempt at " + x
	case Transfer:
		what = c + " hands " + x + " on"
	case Move:
		what = a + " hands leadership to " + b
	case HandOver:
		what = "the leader hands over to the registers"
	case Release:
		what = "a Raft group may take over again"
	case Hold:
		what = "authority is to stay with the registers"
	case Force:
		what = "all takers are lost for good, and " + a + ", if it is none, is made to take over; they come back as others in " + seconds(s.For)
	}
	return fmt.Sprintf("%9.3f  %s", s.At.Seconds(), what)
}

// draw makes the schedule of a seed.
func (s *Sim) draw(seed uint64) []Step {
	rng := rand.New(rand.NewPCG(seed, 2))
	p := &s.p
	total := 0
	for _, w := range p.Weights {
		total += w
	}
	steps := make([]Step, p.Steps)
	t := 2 * s.lease // the cluster is born by then
	if p.Early {
		t = 0
	}
	for i := range steps {
		t += time.Duration(rng.ExpFloat64() * p.Gap * float64(s.lease))
		step := Step{At: t, A: rng.IntN(len(s.nodes)), B: rng.IntN(len(s.nodes)), C: rng.IntN(maxClients - 1), X: rng.IntN(names - 1)}
		for w := rng.IntN(total); ; step.Kind++ {
			if w -= p.Weights[step.Kind]; w < 0 {
				break
			}
		}
		if step.A == step.B {
			step.B = (step.A + 1) % len(s.nodes)
		}
		if p.Names > 0 {
			step.X %= p.Names
		}
		step.For = time.Duration((0.05 + rng.ExpFloat64()*p.Lasts) * float64(s.lease))
		ttl := pick(rng, p.TTLs) * float64(s.lease)
		step.TTL = max(time.Duration(ttl).Truncate(time.Millisecond), time.Second)
		step.Waiting = rng.IntN(2) == 0
		steps[i] = step
	}
	return steps
}
