package sim

import (
	"testing"
	"time"

	"github.com/coordd/coordd/internal/rules"
)

// need says that a rule is needed: without it, an invariant breaks.
type need struct {
	name      string
	rule      rules.Rule
	invariant string
	schedule
	with []rules.Rule // off too, with the rule and without: they cover for it
}

// schedule is where the invariant breaks: by a script, or by the first seed of a profile.
type schedule struct {
	script  func(*Sim)
	lease   time.Duration // of a script; 0: 10 s
	spare   bool          // a fourth node that is not started
	profile string
}

func by(script func(*Sim)) schedule { return schedule{script: script} }

func drawn(profile string) schedule { return schedule{profile: profile} }

var needs = []need{
	// Who may act.
	{"TakeoverPledge", rules.TakeoverPledge, "I1", drawn("mixed"), nil},
	{"TakeoverRest", rules.TakeoverRest, "I1", drawn("mixed"), nil},
	{"PledgeTerm", rules.PledgeTerm, "I2", by(pledgeTerm), nil},
	{"PledgeAware", rules.PledgeAware, "I1", drawn("lonely"), nil},
	{"PledgeDoubt", rules.PledgeDoubt, "I1", by(pledgeDoubt), nil},
	{"PledgeFirstRead", rules.PledgeFirstRead, "I1", by(pledgeFirstRead), nil},
	{"TakersWritten", rules.TakersWritten, "I1", schedule{script: takersWritten, spare: true}, nil},
	{"TakersSent", rules.TakersSent, "I1", drawn("births"), nil},
	{"TakersVoters", rules.TakersVoters, "I2", by(takersVoters), nil},
	{"WindowBarrier", rules.WindowBarrier, "I2", by(windowBarrier), nil},
	{"WindowTerm", rules.WindowTerm, "I2", by(windowTerm), nil},
	{"WindowDeadlines", rules.WindowDeadlines, "I2", by(windowDeadlines), nil},
	// A grant that waited is confirmed, which a leader without a window does not do.
	{"WindowPropose", rules.WindowPropose, "I2", by(windowPropose), []rules.Rule{rules.Confirm}},
	{"DecidedTerm", rules.DecidedTerm, "I2", by(decidedTerm), nil},
	{"NewTermDeadlines", rules.NewTermDeadlines, "I2", drawn("mixed"), nil},
	{"Round", rules.Round, "I4", drawn("leaders"), nil},
	{"HandOverWait", rules.HandOverWait, "I1", by(handOverWait), nil},
	{"HandOverDrain", rules.HandOverDrain, "I2", by(handOverDrain), nil},

	// What is handed on.
	{"HandOverReclaims", rules.HandOverReclaims, "I5", by(handOverReclaims), nil},
	{"FailbackGrace", rules.FailbackGrace, "I2", drawn("mixed"), nil},
	{"GraceWait", rules.GraceWait, "I2", drawn("mixed"), nil},
	{"Grace", rules.Grace, "I2", drawn("mixed"), nil},
	{"CeilingRaised", rules.CeilingRaised, "I2", by(ceilingRaised), nil},
	{"CeilingLowered", rules.CeilingLowered, "I2", by(ceilingLowered), nil},
	{"ShardCloses", rules.ShardCloses, "I5", by(shardCloses), nil},
	{"KeptShardCloses", rules.KeptShardCloses, "I5", by(keptShardCloses), nil},
	{"MoveByRaftEpoch", rules.MoveByRaftEpoch, "I5", drawn("mixed"), nil},
	{"StampUnique", rules.StampUnique, "I2", schedule{script: stampUnique, lease: 2 * time.Second}, nil},
	{"Observation", rules.Observation, "I2", drawn("fallen"), nil},
	{"OpEpoch", rules.OpEpoch, "I2", drawn("mixed"), nil},
	{"Sealing", rules.Sealing, "I2", drawn("imported"), nil},
	{"ExportCurrent", rules.ExportCurrent, "I5", drawn("mixed"), nil},
	{"ReclaimEpoch", rules.ReclaimEpoch, "I5", by(reclaimEpoch), nil},
	{"ImportGreater", rules.ImportGreater, "I2", by(importGreater), nil},
	{"BumpGreater", rules.BumpGreater, "I3", by(bumpGreater), nil},

	// What a client believes.
	{"FirstSending", rules.FirstSending, "I2", drawn("slow"), nil},
	{"Confirm", rules.Confirm, "I2", drawn("slow"), nil},
	{"AttemptOver", rules.AttemptOver, "I2", drawn("slow"), nil},
	{"ReclaimBelieved", rules.ReclaimBelieved, "I2", schedule{script: reclaimBelieved, lease: 2 * time.Second}, nil},
	// The shard refuses what is of another epoch, so that no answer comes.
	{"LateAnswer", rules.LateAnswer, "I2", by(lateAnswer), []rules.Rule{rules.ReclaimEpoch}},

	// How it comes back into service.
	{"Cede", rules.Cede, "live", by(cede), nil},
	{"ImportingTakeover", rules.ImportingTakeover, "live", by(importingTakeover), nil},
	{"ImportingBeat", rules.ImportingBeat, "live", by(importingBeat), nil},
	{"Resume", rules.Resume, "live", by(resume), nil},
	{"Recognise", rules.Recognise, "live", by(recognise), nil},
}

func (n *need) config(set rules.Set, seed uint64) Config {
	if n.script == nil {
		return Config{Seed: seed, Profile: profiles[n.profile], Rules: set}
	}
	lease, nodes := n.lease, 3
	if lease == 0 {
		lease = 10 * time.Second
	}
	if n.spare {
		nodes++
	}
	p := quiet(lease, nodes)
	p.Spare = n.spare
	return Config{Seed: seed, Profile: p, Rules: set, Steps: []Step{}, Script: n.script, Length: 30 * lease}
}

// Each rule is needed: where it is off its invariant breaks, in a run that is in order
// with it.
func TestRules(t *testing.T) {
	for _, n := range needs {
		t.Run(n.name, func(t *testing.T) {
			seed := n.search(t)
			cfg := n.config(rules.Without(n.with...), seed)
			if n.with != nil {
				cfg.Only = n.invariant // those that are off too may break others
			}
			if r := Run(cfg); r.Violation != nil {
				t.Errorf("with the rule: %s", Report(cfg, r))
			}
		})
	}
}

// search looks for a seed by which the invariant breaks without the rule. A script is
// the same for all seeds, but for clocks and latencies.
func (n *need) search(t *testing.T) uint64 {
	t.Helper()
	tries := uint64(500)
	if n.script != nil {
		tries = 3
	}
	for seed := range tries {
		cfg := n.config(rules.Without(append([]rules.Rule{n.rule}, n.with...)...), seed)
		cfg.Only = n.invariant
		r := Run(cfg)
		if r.Violation != nil && r.Violation.Invariant == n.invariant {
			return seed
		}
		if n.script != nil && seed == tries-1 {
			t.Logf("what happens instead: %s", Report(cfg, r))
		}
	}
	t.Fatalf("without the rule %s is violated by none of %d seeds", n.invariant, tries)
	return 0
}

// No rule of the protocol with an arbiter is without a need.
func TestNeeds(t *testing.T) {
	found := map[rules.Rule]bool{}
	for _, n := range needs {
		if found[n.rule] {
			t.Errorf("%s is there twice", n.name)
		}
		found[n.rule] = true
	}
	for r := rules.TakeoverPledge; r <= rules.HandOverReclaims; r++ {
		if !found[r] {
			t.Errorf("rule %d is not there", r)
		}
	}
}
