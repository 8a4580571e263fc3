package drill

import (
	"context"

	"github.com/coordd/coordd/authority"
)

var leaderKilled = scenario{
	Scenario: Scenario{
		Name:  "leader-killed",
		What:  "The leader's process is killed, and started again with an empty memory.",
		Shows: "Another node leads within a few election timeouts. The arbiter only confirms it.",
		Bound: leaderText,
	},
	play: func(ctx context.Context, s *stage) error {
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		s.journal.phase(leaderChange, "the leader is killed")
		mended := s.journal.fault("%s is killed", leader)
		s.member(leader).kill()
		err = steps(
			func() error {
				return s.until(ctx, recoverWithin, "another node leads and has a window", func(v view) bool {
					next := v.leader()
					return next != "" && next != leader
				})
			},
			func() error { return s.granted(ctx, recoverWithin) },
			func() error { return s.settle(ctx) },
		)
		if err != nil {
			return err
		}
		s.journal.phase(noInterruption, "it comes back")
		if err := s.startAll(ctx, leader); err != nil {
			return err
		}
		mended("%s starts again, with an empty memory", leader)
		return s.whole(ctx)
	},
}

var memoryLost = scenario{
	Scenario: Scenario{
		Name:  "memory-lost",
		What:  "All nodes are killed at once and start again with nothing: no log, no leases.",
		Shows: "The arbiter's registers remember who had authority. A node takes over, holders present their leases again, and the nodes form a new Raft group.",
		Bound: takeoverText,
	},
	play: func(ctx context.Context, s *stage) error {
		s.journal.phase(takeover, "all nodes lose their memory")
		mended := s.journal.fault("all nodes are killed")
		for _, m := range s.members {
			m.kill()
		}
		if err := s.startAll(ctx, s.names()...); err != nil {
			return err
		}
		mended("all nodes start again, with an empty memory")
		if err := s.mode(ctx, authority.Fallback); err != nil {
			return err
		}
		s.journal.phase(handOver, "they form a new Raft group")
		return steps(func() error { return s.mode(ctx, authority.Raft) }, func() error { return s.whole(ctx) })
	},
}

var quorumLost = scenario{
	Scenario: Scenario{
		Name:  "quorum-lost",
		What:  "One of two sites, half of the nodes, is cut off from everybody, and comes back later.",
		Shows: "Two of four nodes are no majority: after the authority lease and a grace the other two grant by the arbiter's registers, then form a Raft group of their own. Those that come back join it.",
		Bound: takeoverText,
	},
	play: func(ctx context.Context, s *stage) error {
		site := sites[s.cfg.chance(0).IntN(len(sites))]
		lost := s.at(site)
		s.journal.phase(takeover, "a site is lost")
		mended := s.journal.fault("site %s is cut off: %s", site, list(lost))
		s.net.Silence(lost...)
		s.cutArbiter(lost...)
		if err := s.mode(ctx, authority.Fallback); err != nil {
			return err
		}
		s.journal.phase(handOver, "the others form a Raft group")
		err := steps(func() error { return s.mode(ctx, authority.Raft) }, func() error { return s.settle(ctx) })
		if err != nil {
			return err
		}
		s.journal.phase(noInterruption, "the site comes back")
		s.mend()
		mended("site %s is back", site)
		return s.whole(ctx)
	},
}

var planned = scenario{
	Scenario: Scenario{
		Name:  "planned",
		What:  "An operator passes authority to the arbiter's registers, and back.",
		Shows: "No wait and no grace: the leader finishes what it has begun and writes the leases into the registers itself.",
		Bound: "1 s each way",
	},
	play: func(ctx context.Context, s *stage) error {
		s.journal.phase(handOver, "authority passes to the registers")
		err := steps(
			func() error { return s.pass(ctx, authority.Fallback) },
			func() error { return s.mode(ctx, authority.Fallback) },
			func() error { return s.settle(ctx) },
		)
		if err != nil {
			return err
		}
		s.journal.phase(handOver, "authority passes back")
		return steps(
			func() error { return s.pass(ctx, authority.Raft) },
			func() error { return s.mode(ctx, authority.Raft) },
			func() error { return s.whole(ctx) },
		)
	},
}
