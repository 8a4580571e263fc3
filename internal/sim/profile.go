package sim

import (
	"math/rand/v2"
	"time"
)

// Profile says what kind of schedules are drawn.
type Profile struct {
	Name    string
	Steps   int
	Gap     float64 // mean time between two steps, in L
	Lasts   float64 // mean time that a fault lasts, in L
	Weights [stepKinds]int
	Nodes   []int
	Wild    bool            // the weights and chances are drawn too
	Early   bool            // faults begin before the cluster is born
	Spare   bool            // the last of four nodes comes only where it is made to take over
	Leases  []time.Duration // L
	TTLs    []float64       // in L
	Members bool            // nodes write into R where they are
	Names   int             // how many lease names are used; 0: all
	Bump    uint32          // how many grants begin a new epoch

	// Chances of single messages.
	Lose        float64 // between clients and nodes
	Copy        float64 // they come again
	Stray       float64 // they go to any node
	LateMessage float64
	Late        float64 // writes of registers
	LoseAnswer  float64 // the arbiter's
	SlowBatch   float64 // ops on their way into the log
	Lateness    float64 // how late at most, in L
	LateBy      time.Duration
}

// mixed has some of everything.
func mixed() Profile {
	p := Profile{
		Name: "mixed", Steps: 220, Gap: 1.0 / 6, Lasts: 1,
		Nodes: []int{3, 3, 4}, Leases: []time.Duration{2 * time.Second, 4 * time.Second, 10 * time.Second},
		TTLs: []float64{0.5, 1, 1.5, 2.5, 4}, Bump: 8,
		Lose: 0.01, Copy: 0.02, Stray: 0.05, LateMessage: 0.01, Late: 0.01, LoseAnswer: 0.01, SlowBatch: 0.01, Lateness: 3,
	}
	p.Weights = [stepKinds]int{
		Crash: 12, Forget: 4, ForgetAll: 1, Pause: 10, StallRaft: 8, StallDriver: 6,
		CutNodes: 10, PartNodes: 8, Isolate: 8, CutArbiter: 14, CutArbiterAll: 3, CutAnswers: 5, Throttle: 4, Slow: 6,
		CutClient: 6, IsolateClient: 4, PauseClient: 6, Die: 2,
		Acquire: 70, Give: 16, Withdraw: 6, Transfer: 6,
		Move: 6, HandOver: 3, Release: 5, Hold: 1, Force: 2,
	}
	return p
}

// leaders has many changes of leadership that not everybody notices.
func leaders() Profile {
	p := mixed()
	p.Name, p.Steps, p.Names, p.Gap = "leaders", 120, 2, 1.0/8
	p.TTLs = []float64{0.5, 1, 2.5}
	p.Stray, p.SlowBatch, p.Lateness = 0.3, 0.15, 1.5
	p.Weights = [stepKinds]int{
		Crash: 4, Forget: 2, Pause: 8, StallRaft: 20, StallDriver: 16, CutNodes: 10, PartNodes: 10, Isolate: 16, CutArbiter: 6,
		CutClient: 4, Acquire: 60, Give: 12, Withdraw: 2, Transfer: 2, Move: 30,
	}
	return p
}

// lonely has leaders that the arbiter does not answer, and takeovers that come late.
func lonely() Profile {
	p := mixed()
	p.Name, p.Steps, p.Gap, p.Names = "lonely", 120, 1.0/6, 2
	p.Late, p.LoseAnswer, p.Lateness = 0.15, 0.1, 4
	p.Weights = [stepKinds]int{
		Crash: 10, Forget: 4, Pause: 8, StallRaft: 6, StallDriver: 4, CutNodes: 10, PartNodes: 14, Isolate: 20,
		CutArbiter: 30, CutArbiterAll: 4, CutAnswers: 14, Throttle: 6, Slow: 20,
		Acquire: 40, Give: 8, Move: 6, HandOver: 2, Release: 4,
	}
	return p
}

// births begins its faults before the cluster is born.
func births() Profile {
	p := lonely()
	p.Name, p.Steps, p.Early, p.Lasts = "births", 50, true, 2
	return p
}

// fallen is mostly in fallback: nodes hear the arbiter, and each other not.
func fallen() Profile {
	p := mixed()
	p.Name, p.Steps, p.Gap, p.Names = "fallen", 140, 1.0/6, 2
	p.TTLs = []float64{1, 2.5, 4}
	p.Copy, p.Stray, p.LateMessage, p.Lateness = 0.2, 0.5, 0.1, 8
	p.Weights = [stepKinds]int{
		Crash: 6, Pause: 8, StallDriver: 4, Isolate: 40, PartNodes: 20, CutArbiter: 6, CutAnswers: 6, Slow: 8,
		CutClient: 8, IsolateClient: 4, PauseClient: 8, Acquire: 70, Give: 20, Withdraw: 4, Transfer: 8, HandOver: 3, Release: 6,
	}
	return p
}

// handed has many planned hand-overs.
func handed() Profile {
	p := mixed()
	p.Name, p.Steps, p.Gap, p.Names = "handed", 120, 1.0/5, 1
	p.TTLs = []float64{1.5, 2.5, 4}
	p.SlowBatch, p.Lasts, p.Stray = 0.05, 2, 0.3
	p.Weights = [stepKinds]int{
		Crash: 2, Pause: 12, StallRaft: 24, StallDriver: 4, Isolate: 4, CutArbiter: 16, CutAnswers: 8, Slow: 8,
		Acquire: 70, Give: 20, Transfer: 4, Move: 10, HandOver: 20, Release: 20,
	}
	return p
}

// imported has many failbacks and bumps, whose ops come late and twice.
func imported() Profile {
	p := mixed()
	p.Name, p.Steps, p.Gap, p.Bump = "imported", 140, 1.0/8, 2
	p.SlowBatch, p.Lateness, p.LoseAnswer = 0.3, 1, 0.05
	p.Weights = [stepKinds]int{
		Crash: 4, StallRaft: 10, Isolate: 10, CutArbiter: 20, CutArbiterAll: 4, CutAnswers: 8, Throttle: 8, Slow: 8,
		Acquire: 100, Give: 40, HandOver: 6, Release: 12,
	}
	return p
}

// slow has clients that sleep, and TTLs well beyond the first deadline of a waiter.
func slow() Profile {
	p := mixed()
	p.Name, p.Steps, p.Gap, p.Names, p.Lasts = "slow", 140, 1.0/6, 1, 1.5
	p.Leases, p.TTLs = []time.Duration{8 * time.Second}, []float64{1, 2, 3}
	p.Copy, p.Lose, p.LateMessage, p.Lateness = 0.1, 0.15, 0.1, 3
	p.Weights = [stepKinds]int{
		Crash: 3, Isolate: 8, PartNodes: 4, CutArbiter: 10, CutAnswers: 4, CutClient: 10, IsolateClient: 10, PauseClient: 24,
		Acquire: 70, Give: 30, Withdraw: 16, Transfer: 12, Move: 4, HandOver: 2, Release: 4,
	}
	return p
}

// forced has takeovers by a node that is no taker, when all are lost. Nodes find each
// other by R.
func forced() Profile {
	p := mixed()
	p.Name, p.Steps, p.Nodes, p.Spare, p.Members = "forced", 200, []int{4}, true, true
	p.Weights[Force] = 30
	return p
}

// wild has its faults in proportions that differ from seed to seed.
func wild() Profile {
	p := mixed()
	p.Name, p.Wild = "wild", true
	return p
}

// draw draws the weights and chances of a wild profile.
func (p *Profile) draw(rng *rand.Rand) {
	factors := []float64{0, 0.3, 1, 1, 3, 10}
	for i := range p.Weights {
		if StepKind(i) != Acquire {
			p.Weights[i] = int(float64(p.Weights[i]) * pick(rng, factors))
		}
	}
	for _, chance := range []*float64{&p.Lose, &p.Copy, &p.Stray, &p.LateMessage, &p.Late, &p.LoseAnswer, &p.SlowBatch} {
		*chance *= pick(rng, factors)
	}
	p.Gap *= pick(rng, []float64{0.3, 1, 2})
	p.Lasts *= pick(rng, []float64{0.3, 1, 3})
	p.Lateness *= pick(rng, []float64{0.3, 1, 3})
	p.Bump = pick(rng, []uint32{2, 8, 100})
	p.Names = pick(rng, []int{1, 2, 3})
	p.Early = rng.IntN(4) == 0
}

// profiles has them by their names.
var profiles = func() map[string]*Profile {
	all := map[string]*Profile{}
	for _, p := range []Profile{mixed(), leaders(), lonely(), births(), fallen(), handed(), imported(), slow(), forced(), wild()} {
		all[p.Name] = &p
	}
	return all
}()
