package drill

import (
	"context"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/client"
)

// ledger is the name of the lease that is followed in the drills about fencing.
const ledger = "ledger"

var zombieWorker = scenario{
	Scenario: Scenario{
		Name:  "zombie-worker",
		What:  "A worker is stopped between a look at its lease and a write, goes on long after the lease has passed to another, and writes.",
		Shows: "No lease can prevent that write. The register refuses it, since it has been written to under a greater token.",
		Bound: noneText,
	},
	play: func(ctx context.Context, s *stage) error {
		zombie, err := s.actor("zombie")
		if err != nil {
			return err
		}
		heir, err := s.actor("heir")
		if err != nil {
			return err
		}
		held, err := zombie.ledger(ctx)
		if err != nil {
			return err
		}
		held.write()
		s.journal.phase(noInterruption, "a worker is stopped")
		if err := held.Err(); err != nil { // the worker looks whether it still has the lease, and it has
			return err
		}
		mended := s.journal.fault("zombie is stopped, just before it writes")
		zombie.stop()
		next, err := heir.ledger(ctx)
		if err != nil {
			return err
		}
		next.write()
		s.rest(ctx, time.Second)
		s.journal.phase(noInterruption, "it goes on, and writes")
		accepted := held.write() // it does not know that it was stopped
		zombie.goOn()
		mended("zombie goes on and writes under token %v: %s", held.Token(), verb(accepted))
		if accepted {
			return &stuckError{"the register refuses a late write", 0, nil}
		}
		err = s.ends(ctx, held)
		next.write()
		next.part()
		return err
	},
}

func verb(accepted bool) string {
	if accepted {
		return "the register takes it"
	}
	return "the register refuses it"
}

// ledger waits for the lease of that name.
func (a *actor) ledger(ctx context.Context) (*hold, error) {
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	h, err := a.acquire(ctx, ledger, client.TTL(WorkerTTL))
	if err == nil {
		a.stage.journal.note(LeaseEvent, "%s has the lease of %s, under token %v", a.name, ledger, h.Token())
	}
	return h, err
}

// ends waits until the client knows that its lease has ended.
func (s *stage) ends(ctx context.Context, h *hold) error {
	return s.until(ctx, recoverWithin, h.by.name+" notices that its lease has ended", func(view) bool { return h.Err() != nil })
}

// tooFast is how many times as fast as it should the clock of the drill about clocks runs.
const tooFast = 3

var clockDrift = scenario{
	Scenario: Scenario{
		Name:  "clock-drift",
		What:  "A node's clock runs three times as fast as it should. That node is cut off from the others, and it alone reaches the arbiter.",
		Shows: "It takes over too soon, while the leader still has a window, and grants a lease that somebody holds. Tokens depend on no clock: the register refuses the earlier holder's writes.",
		Bound: "none is given",
		NotPromised: map[Invariant]string{
			Authority:  "clocks are assumed to run at the same rate but for 1 %",
			Exclusion:  "clocks are assumed to run at the same rate but for 1 %",
			Continuity: "clocks are assumed to run at the same rate but for 1 %",
		},
	},
	keeps: CeilingFloor, // a short grace shows more
	play: func(ctx context.Context, s *stage) error {
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		fast := s.follower(leader)
		earlier, err := s.actor("earlier")
		if err != nil {
			return err
		}
		later, err := s.actor("later")
		if err != nil {
			return err
		}
		held, err := earlier.ledger(ctx)
		if err != nil {
			return err
		}
		writing, stop := context.WithCancel(ctx)
		defer stop()
		s.running.Go(func() { held.keepWriting(writing) })
		s.journal.phase(nil, "one node, whose clock is too fast, alone reaches the arbiter")
		mended := s.journal.fault("the clock of %s runs %d times as fast, and it alone reaches the arbiter", fast, tooFast)
		s.member(fast).clock.setRate(tooFast)
		s.minority(fast)
		s.partition([]string{earlier.name}, []string{fast})
		s.partition([]string{later.name}, s.names(fast))
		next, err := later.ledger(ctx)
		if err != nil {
			return err
		}
		next.write()
		err = steps(func() error { return s.ends(ctx, held) }, func() error { return s.mode(ctx, authority.Fallback) })
		if err != nil {
			return err
		}
		next.part()
		s.journal.phase(handOver, "clock and partition are mended")
		s.member(fast).clock.setRate(1)
		s.mend()
		mended("the clock of %s runs as it should, and all reach each other and the arbiter", fast)
		return steps(func() error { return s.mode(ctx, authority.Raft) }, func() error { return s.whole(ctx) })
	},
}

// keepWriting writes under the lease as long as its holder relies on it.
func (h *hold) keepWriting(ctx context.Context) {
	for ctx.Err() == nil && h.Err() == nil {
		h.write()
		h.by.stage.rest(ctx, writeEvery)
	}
}
