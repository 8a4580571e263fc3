// Package fallback is the register replicator: it applies the ops of package leases
// to tables that are cut into shards, each in one linearizable register of an
// arbiter. An op is a load, a change and a compare-and-swap; many ops share one swap.
//
// Shard, Seal and Install are pure state machines: a driver tells them the time and
// the arbiter's answers, and does what their Next says. Replicator, SealAll and
// InstallAll drive them.
package fallback

import (
	"fmt"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// Regime is what a node knows of the root register while the registers have authority:
// under what the shards are served.
type Regime struct {
	Epoch     uint32 // of this fallback; 0: the registers are not served
	RaftEpoch uint32 // the last epoch in which the mode was raft
	Fresh     bool   // the grace is over: leases are granted anew
	// FreshAt is when the grace is over at the latest, by the node's own clock. It is
	// for people: only Fresh decides.
	FreshAt clock.Instant
	// Ceiling is the longest TTL that is granted or reclaimed: how long the grace is.
	Ceiling time.Duration
}

// Action is something that the driver of a machine is to do now: a Load or a Swap.
// Its answer goes to Loaded or Swapped. One is under way at a time.
type Action interface{ action() }

// Load reads the register.
type Load struct{}

// Swap writes the register. The driver adds who writes.
type Swap struct {
	From  arbiter.Version
	Write arbiter.Write
}

func (Load) action() {}
func (Swap) action() {}

// Event is a change in what a node knows of the leases of a shard: a Gone or a Broke.
type Event interface{ event() }

// Gone tells that a lease that was there is there no more.
type Gone struct {
	Lease *leases.Lease
	Why   leases.Why    // WhyUnknown: another node ended it
	Next  *leases.Lease // that holds the name now; nil: it is free
}

// Broke tells that an operator has broken a lease: it is held, but renewed no more.
type Broke struct{ Lease *leases.Lease }

func (Gone) event()  {}
func (Broke) event() {}

// SupersededError says that a shard register has been moved to a later epoch: the
// authority has passed on. It matches leases.ErrUnavailable.
type SupersededError struct {
	Shard, Epoch uint32 // the epoch that was served or is to be written
	Found        uint32
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("unavailable: the authority has passed on from epoch %d: shard %d is at epoch %d", e.Epoch, e.Shard, e.Found)
}

// Is matches leases.ErrUnavailable.
func (e *SupersededError) Is(target error) bool { return target == leases.ErrUnavailable }

// unavailable tells of a failure of the arbiter, or of a register: nothing was changed.
func unavailable(shard uint32, err error) error {
	return fmt.Errorf("%w: shard %d: %w", leases.ErrUnavailable, shard, err)
}
