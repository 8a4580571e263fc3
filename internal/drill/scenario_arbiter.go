package drill

import (
	"context"

	"github.com/coordd/coordd/authority"
)

var arbiterMajority = scenario{
	Scenario: Scenario{
		Name:  "partition-arbiter-majority",
		What:  "The leader, with half of the workers, is cut off from three nodes that reach the arbiter.",
		Shows: "The three choose another leader, which the arbiter confirms. The old one's window runs out: its workers stop at their own deadlines.",
		Bound: leaderText,
	},
	play: func(ctx context.Context, s *stage) error {
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		alone, crowd := s.halves()
		alone, crowd = append(alone, leader), append(crowd, s.names(leader)...)
		s.journal.phase(leaderChange, "the leader is cut off")
		mended := s.journal.fault("%s are cut off from the others and from the arbiter", list(alone))
		s.partition(alone, crowd)
		s.cutArbiter(leader)
		err = steps(
			func() error {
				return s.until(ctx, recoverWithin, "another node leads and has a window", func(v view) bool {
					next := v.leader()
					return next != "" && next != leader
				})
			},
			func() error { return s.granted(ctx, recoverWithin) },
			func() error { s.rest(ctx, severalLeases/2); return ctx.Err() },
		)
		if err != nil {
			return err
		}
		s.journal.phase(noInterruption, "the partition is mended")
		s.mend()
		mended("all reach each other again")
		return s.whole(ctx)
	},
}

var arbiterMinority = scenario{
	Scenario: Scenario{
		Name:  "partition-arbiter-minority",
		What:  "One node, with half of the workers, is cut off from the other three, and it alone reaches the arbiter.",
		Shows: "The three have a leader but neither the arbiter nor all pledges: its window runs out. The one takes over and grants by the registers, to whoever reaches it.",
		Bound: takeoverText,
	},
	play: func(ctx context.Context, s *stage) error {
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		one := s.follower(leader)
		s.journal.phase(takeover, "one node alone reaches the arbiter")
		mended := s.journal.fault("%s alone, with half of the workers, reaches the arbiter, and nobody else", one)
		s.minority(one)
		err = steps(func() error { return s.mode(ctx, authority.Fallback) }, func() error { s.rest(ctx, AuthorityLease); return ctx.Err() })
		if err != nil {
			return err
		}
		s.journal.phase(handOver, "the partition is mended")
		s.mend()
		mended("all reach each other and the arbiter again")
		return steps(func() error { return s.mode(ctx, authority.Raft) }, func() error { return s.whole(ctx) })
	},
}

// minority leaves the arbiter to one node, with half of the workers, and cuts it off
// from the others.
func (s *stage) minority(one string) {
	with, against := s.halves()
	others := s.names(one)
	s.partition(append(with, one), append(against, others...))
	s.cutArbiter(others...)
}

var arbiterNeither = scenario{
	Scenario: Scenario{
		Name:  "partition-arbiter-neither",
		What:  "The two sites are cut off from each other, and neither reaches the arbiter.",
		Shows: "Nobody may grant or renew: holders stop at their own deadlines. Once all reach each other and the arbiter again, whichever is first goes on: the Raft group, or a node that takes over, after a grace.",
		Bound: "the partition, and then " + takeoverText,
		NotPromised: map[Invariant]string{
			Continuity: "nobody serves for longer than a lease lasts",
		},
	},
	play: func(ctx context.Context, s *stage) error {
		one, other := s.halves()
		s.journal.phase(nil, "nobody has authority")
		mended := s.journal.fault("sites %s and %s are cut off from each other and from the arbiter", sites[0], sites[1])
		s.partition(append(one, s.at(sites[0])...), append(other, s.at(sites[1])...))
		s.cutArbiter(s.names()...)
		s.rest(ctx, severalLeases)
		s.journal.phase(takeover, "the partition is mended")
		s.mend()
		mended("all reach each other and the arbiter again")
		return steps(func() error { return s.granted(ctx, recoverWithin) }, func() error { return s.whole(ctx) })
	},
}

var arbiterOut = scenario{
	Scenario: Scenario{
		Name:  "arbiter-out",
		What:  "No node reaches the arbiter for three authority leases.",
		Shows: "Nothing: the leader's window rests on the pledges of all nodes instead.",
		Bound: noneText,
	},
	play: func(ctx context.Context, s *stage) error {
		s.journal.phase(noInterruption, "the arbiter is out")
		mended := s.journal.fault("no node reaches the arbiter")
		s.cutArbiter(s.names()...)
		s.rest(ctx, severalLeases)
		s.journal.phase(noInterruption, "the arbiter is back")
		s.mend()
		mended("all nodes reach the arbiter again")
		return s.whole(ctx)
	},
}

var arbiterThrottled = scenario{
	Scenario: Scenario{
		Name:  "arbiter-throttled",
		What:  "The arbiter refuses nine of ten calls for three authority leases, and is slow with the others.",
		Shows: "Nothing: the leader's window rests on the pledges of all nodes, and on what comes through.",
		Bound: noneText,
	},
	play: func(ctx context.Context, s *stage) error {
		s.journal.phase(noInterruption, "the arbiter throttles")
		mended := s.journal.fault("the arbiter refuses nine of ten calls")
		for _, m := range s.members {
			m.arbiter(m.throttled)
		}
		s.rest(ctx, severalLeases)
		s.journal.phase(noInterruption, "the arbiter throttles no more")
		s.mend()
		mended("the arbiter takes all calls again")
		return s.whole(ctx)
	},
}
