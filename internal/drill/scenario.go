package drill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coordd/coordd/leases"
)

// Scenario is one drill, as it is told to people.
type Scenario struct {
	Name  string `json:"name"`
	What  string `json:"what"`  // happens
	Shows string `json:"shows"` // what is to be seen
	// Bound is what the design says of the time without fresh grants.
	Bound string `json:"bound"`
	// NotPromised has the promises that are not made in this drill, and why.
	NotPromised map[Invariant]string `json:"not_promised,omitempty"`
}

// scenario is one that can be carried out.
type scenario struct {
	Scenario
	keeps time.Duration // the keeper's TTL; 0: KeeperTTL
	play  func(context.Context, *stage) error
}

func (s scenario) keeperTTL() time.Duration {
	if s.keeps != 0 {
		return s.keeps
	}
	return KeeperTTL
}

// Scenarios is all drills, in the order in which they are best read.
func Scenarios() (all []Scenario) {
	for _, s := range scenarios {
		all = append(all, s.Scenario)
	}
	return all
}

func find(name string) (scenario, bool) {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.Name == name })
	if i < 0 {
		return scenario{}, false
	}
	return scenarios[i], true
}

func names() (all []string) {
	for _, s := range scenarios {
		all = append(all, s.Name)
	}
	return all
}

// scenarios is all of them.
var scenarios = []scenario{
	leaderKilled, quorumLost, arbiterMajority, arbiterMinority, arbiterNeither, arbiterOut, arbiterThrottled,
	memoryLost, zombieWorker, planned, clockDrift,
}

// recoverWithin is how long a drill waits for what the cluster is to do: longer than any
// bound, since to be late is told apart from never to come.
const recoverWithin = 30 * time.Second

// The words of Scenario.Bound.
const (
	noneText     = "no interruption"
	leaderText   = "three election timeouts and 1 s"
	takeoverText = "(L + ceiling)(1 + ρ) + L/10 + 2 s"
)

// What the design says of the time without fresh grants.
var (
	noInterruption = within(time.Second, "fresh grants go on; a client may need 1 s to find another node")
	leaderChange   = within(3*ElectionTimeout+time.Second, leaderText)
	handOver       = within(time.Second, "1 s for a planned hand-over")
	takeover       = within(takeoverBound(KeeperTTL), fmt.Sprintf("%s, with L = %v and a ceiling of %v", takeoverText, AuthorityLease, KeeperTTL))
)

func within(limit time.Duration, why string) *Bound {
	return &Bound{LimitMS: limit.Milliseconds(), Why: why}
}

// takeoverBound is that of a takeover that nobody planned: until it is certain that no
// leader acts, then a grace of the longest TTL, and 2 s for all else.
func takeoverBound(ceiling time.Duration) time.Duration {
	return leases.Stretch(AuthorityLease+ceiling) + AuthorityLease/10 + 2*time.Second
}
