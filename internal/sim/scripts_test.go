package sim

import (
	"bytes"
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
)

// The schedules that chance does not find in reasonable time, each of a rule: by that
// schedule an invariant breaks where the rule alone is off.

// Of the cast, always: two clients and a name.
const (
	a, b, c = 0, 1, 2
	x       = 0
)

// tries lets a client try for a name, with ever new attempts, for as long as d.
func (s *Sim) tries(client, name int, ttl, d time.Duration) stage {
	var until Time
	get := s.again(client, name, ttl)
	return stage{what: get.what + ", if it can", when: func() bool {
		if until == 0 {
			until = s.now + d
		}
		return get.when() || s.now >= until
	}}
}

// gets lets a client ask a node for a name until it holds it.
func (s *Sim) gets(client, name, node int, ttl time.Duration) []stage {
	return []stage{
		do("", func() { s.only(client, node) }),
		s.again(client, name, ttl),
	}
}

func stages(parts ...any) (all []stage) {
	for _, p := range parts {
		switch p := p.(type) {
		case stage:
			all = append(all, p)
		case []stage:
			all = append(all, p...)
		}
	}
	return all
}

// node is the one of that name; the first where there is none.
func (s *Sim) node(name string) *node { return s.nodes[max(slices.Index(nodeNames[:], name), 0)] }

func (s *Sim) mode(m authority.Mode) func() bool { return func() bool { return s.root.Mode == m } }

// S41: n0 decides to expire x in term 1 and is not scheduled; n1 renews it in term 2; n0
// proposes in term 3 what it has decided.
func decidedTerm(s *Sim) {
	n0 := s.nodes[0]
	s.leaderLease = forever
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 3*time.Second),
		do("n0 is alone, its ops do not get on; n1 is to lead, and a asks it", func() {
			s.part(0)
			n0.until[batch] = forever
			s.lead(1)
			s.only(a, 1)
		}),
		when("n1 serves", func() bool { return s.serving(1) }),
		when("n0 has decided to expire x", func() bool { return n0.tenure != nil && n0.tenure.watched[x].expiring }),
		do("all hear each other", s.unite),
		when("n0 leads again, and serves", func() bool {
			if !n0.server.leads {
				s.lead(0)
			}
			return n0.server.term > 2 && s.serving(0)
		}),
		do("n0's ops get on; b asks it", func() {
			s.resume(&n0.process, batch)
			s.only(b, 0)
		}),
		s.tries(b, x, 3*time.Second, 2*time.Second),
	)...)
}

// Pledges of whoever follows another leader by now: n0, whose Raft stands still, gets a
// window for ever, and renews a's lease; n1 expires it.
func pledgeTerm(s *Sim) {
	s.leaderLease = forever
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 2*time.Second),
		do("n0's Raft stands still, and n1 leads", func() {
			s.nodes[0].until[raftLoop] = forever
			s.lead(1)
			s.only(b, 1)
		}),
		when("n1 serves", func() bool { return s.serving(1) }),
		s.tries(b, x, 2*time.Second, 3*s.lease),
	)...)
}

// S2: n2 is cut off, and its takeover hangs; it hears n0 again, and pledges.
func pledgeDoubt(s *Sim) {
	var free func()
	s.script(stages(
		s.settled(0),
		do("n2 hears nobody, n0 reaches no arbiter, and n2's writes hang", func() {
			s.part(2)
			s.nodes[0].arbiterCut, s.nodes[1].arbiterCut = forever, forever
			free = s.hold(2, rootKey, func([]byte) bool { return true })
		}),
		when("n2 has sent a takeover", func() bool { return s.kept > 0 }),
		do("all hear each other", s.unite),
		s.wait(s.lease*4/5),
		do("the takeover takes effect", func() { free() }),
		s.wait(s.lease/10),
	)...)
}

// S3: the same, but n2 crashes and has forgotten what it sent.
func pledgeFirstRead(s *Sim) {
	var free func()
	n2 := s.nodes[2]
	s.script(stages(
		s.settled(0),
		do("n2 hears nobody, n0 reaches no arbiter, and n2's writes hang", func() {
			s.part(2)
			s.nodes[0].arbiterCut, s.nodes[1].arbiterCut = forever, forever
			free = s.hold(2, rootKey, func([]byte) bool { return true })
		}),
		when("n2 has sent a takeover", func() bool { return s.kept > 0 }),
		do("n2 crashes and starts, and all hear each other", func() {
			n2.crash(false)
			n2.start()
			s.unite()
		}),
		s.wait(s.lease*4/5),
		do("the takeover takes effect", func() { free() }),
		s.wait(s.lease/10),
	)...)
}

// S4: n0's write that adds n3 to the takers hangs. n1, which reaches no arbiter any more,
// has only read R in its term.
func takersWritten(s *Sim) {
	var free func()
	s.script(stages(
		s.settled(0),
		do("n3 comes, and n0's writes that make it a taker hang", func() {
			free = s.hold(0, rootKey, func(data []byte) bool { return bytes.Contains(data, []byte(nodeNames[3])) })
			s.nodes[3].start()
		}),
		when("n0 has tried", func() bool { return s.kept > 0 }),
		do("n3 hears nobody, n1 reaches no arbiter, and is to lead", func() {
			s.part(3)
			s.nodes[1].arbiterCut, s.nodes[2].arbiterCut = forever, forever
			s.lead(1)
		}),
		s.wait(s.lease/2),
		do("n0's write takes effect", func() {
			free()
			s.nodes[0].arbiterCut = forever
		}),
		s.wait(3*s.lease/2),
	)...)
}

// W6: who has brought the cluster forth goes on alone, with its own pledge, since R has
// no other takers.
func takersVoters(s *Sim) {
	s.leaderLease = forever
	var from *node
	s.script(stages(
		when("the first leader has others as voters", func() bool {
			from = s.node(s.root.Owner.Node)
			v := from.server
			return s.serving(from.id) && v.last().voters == 0b111 && v.commit == len(v.log)
		}),
		s.wait(s.lease/2),
		do("a asks it", func() {
			s.only(a, from.id)
			s.take(a, x, 2*time.Second, false)
		}),
		when("a has x", func() bool { return s.holds(a, x) }),
		do("it hears nobody, and another one is to lead", func() {
			s.part(from.id)
			s.lead((from.id + 1) % 3)
			s.only(b, (from.id+1)%3)
		}),
		s.tries(b, x, 2*time.Second, 4*s.lease),
	)...)
}

// S6: n1 has been elected, and has not yet applied what was granted before.
func windowBarrier(s *Sim) {
	s.leaderLease = forever
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 2*time.Second),
		do("n0 is alone; n1 is elected, and hears nobody from then on", func() {
			s.part(0)
			s.lead(1)
			s.part(1)
			s.only(b, 1)
		}),
		s.wait(s.lease/10),
		do("n1 and n2 hear each other", func() { s.link(1, 2) }),
		s.tries(b, x, 2*time.Second, s.lease/2),
	)...)
}

// S7: n0 does not notice that n1 has led in between, and has the deadlines of its term 1.
func windowTerm(s *Sim) {
	n0 := s.nodes[0]
	s.leaderLease = forever
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 2*time.Second),
		do("all of n0 but its Raft stands still, and n1 leads; a asks it", func() {
			n0.until[driver] = forever
			s.lead(1)
			s.only(a, 1)
		}),
		when("n1 serves", func() bool { return s.serving(1) }),
		s.wait(s.lease/8),
		do("n1 is alone, and n0 leads again", func() {
			s.part(1)
			s.lead(0)
			s.only(b, 0)
			s.resume(&n0.process)
		}),
		s.tries(b, x, 2*time.Second, s.lease/2),
	)...)
}

// W4: n0 renews a's lease up to the end of its window; n1 has led for long.
func windowDeadlines(s *Sim) {
	s.leaderLease = forever
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 2*time.Second),
		do("n0 hears nobody, and n1 leads", func() {
			s.part(0)
			s.lead(1)
			s.only(b, 1)
		}),
		when("n1 serves", func() bool { return s.serving(1) }),
		s.tries(b, x, 2*time.Second, s.lease),
	)...)
}

// S39: n0, which has no window any more, but its voters, expires a's lease and proposes
// what has waited. That b waited is not told, or it would confirm.
func windowPropose(s *Sim) {
	n0, ttl := s.nodes[0], 5*s.lease
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, ttl),
		do("a is cut off", func() { s.only(a) }),
		s.wait(s.lease*16/5),
		do("n0 and n1 reach no arbiter, n2 hears nobody; b waits at n0", func() {
			n0.arbiterCut, s.nodes[1].arbiterCut = forever, forever
			s.part(2)
			s.only(b, 0)
			s.take(b, x, ttl, true)
		}),
		when("n2 has taken over", s.mode(authority.Fallback)),
		s.wait(s.lease/10),
		do("a reaches n2", func() {
			s.only(a, 2)
			s.clients[a].now[x].renew()
		}),
		s.wait(4*s.lease),
	)...)
}

// S8: n1 hands over while n0, which it has followed upon, has a window still.
func handOverWait(s *Sim) {
	s.leaderLease = forever
	s.script(stages(
		s.settled(0),
		do("n0 hears nobody, and n1 leads", func() {
			s.part(0)
			s.lead(1)
		}),
		when("n1 serves", func() bool { return s.serving(1) }),
		do("n1 is to hand over", func() { s.handOver(1) }),
		s.wait(s.lease/5),
	)...)
}

func (s *Sim) handOver(i int) {
	n := s.nodes[i]
	n.machine.HandOver(n.clock(), func(error) {})
	n.drive()
}

// S9: b's grant is proposed, and n0's Raft stands still while n0 hands over.
func handOverDrain(s *Sim) {
	n0, ttl := s.nodes[0], 5*s.lease
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, ttl), // the ceiling is raised
		do("a gives x back", func() { s.clients[a].now[x].giveBack(release) }),
		s.wait(s.lease*11/10),
		do("n0's Raft stands still; b asks n0", func() {
			n0.until[raftLoop] = forever
			s.only(b, 0)
			s.take(b, x, ttl, false)
		}),
		s.wait(s.lease/50),
		do("n0 hands over", func() { s.handOver(0) }),
		s.wait(s.lease/5),
		do("c asks n1", func() { s.only(c, 1) }),
		s.tries(c, x, ttl, s.lease/10),
		do("n0's Raft goes on", func() { s.resume(&n0.process, raftLoop) }),
		s.wait(s.lease/10),
	)...)
}

// S10: n0 is paused between the write of R and those of the shards.
func handOverReclaims(s *Sim) {
	n0 := s.nodes[0]
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, s.lease),
		s.wait(s.lease*11/10),
		do("n0 hands over", func() { s.handOver(0) }),
		when("R is written, and n0 knows", func() bool { return n0.root.Mode == authority.Fallback }),
		do("n0 is paused, and a cut off", func() {
			n0.until = [classes]Time{forever, forever, forever, forever}
			s.only(a)
		}),
		when("the grace is over", func() bool { return s.root.GraceDone }),
		s.gets(b, x, 1, s.lease),
		do("n0 goes on", func() { s.resume(&n0.process) }),
		s.wait(s.lease/4),
	)...)
}

// takeover lets n1 and n2 serve by the registers, without a leader: n0 is down.
func (s *Sim) takeover() []stage {
	return stages(
		do("n0 crashes, and all are alone", func() {
			s.nodes[0].crash(false)
			s.part(1)
			s.part(2)
		}),
		when("somebody has taken over", s.mode(authority.Fallback)),
	)
}

// reclaims lets a client that holds a name reclaim it at a node.
func (s *Sim) reclaims(client, name, node int) []stage {
	at := func() *attempt { return s.clients[client].now[name] }
	return stages(
		do("", func() {
			s.only(client, node)
			at().renew()
		}),
		when(s.clients[client].name+" has reclaimed "+leaseNames[name], func() bool { return s.counts.Reclaimed > 0 && at().believes() }),
	)
}

// late is a copy of a reclaim that hangs.
func (s *Sim) late(client, name int, epoch uint32) *request {
	at := s.clients[client].now[name]
	return &request{
		kind: reclaim, a: at, name: name, session: at.c.session, attempt: at.id, token: at.holder.Token(), ttl: at.ttl, epoch: epoch, sent: at.c.clock(),
	}
}

func (s *Sim) arrives(r **request, node int) stage {
	return do("the late reclaim arrives", func() { s.nodes[node].handle(*r) })
}

// S14: a reclaims x in the grace; a copy hangs. Then a gives it back, and b gets it.
func shardCloses(s *Sim) {
	var copied *request
	ttl := 5 * s.lease
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, ttl),
		s.takeover(),
		s.reclaims(a, x, 1),
		do("a's reclaim is copied; a gives x back", func() {
			copied = s.late(a, x, s.root.Epoch)
			s.clients[a].now[x].giveBack(release)
		}),
		when("the grace is over", func() bool { return s.root.GraceDone }),
		s.gets(b, x, 1, s.lease),
		do("b gives x back", func() { s.clients[b].now[x].giveBack(release) }),
		s.wait(s.lease/10),
		s.arrives(&copied, 1),
		s.wait(s.lease/4),
	)...)
}

// S13: the reclaim is of an epoch before the last one, and x was granted by Raft since.
func reclaimEpoch(s *Sim) {
	var copied *request
	ttl := 5 * s.lease
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, ttl),
		s.takeover(),
		s.reclaims(a, x, 1),
		do("a's reclaim is copied; a gives x back; all hear each other", func() {
			copied = s.late(a, x, s.root.Epoch)
			s.clients[a].now[x].giveBack(release)
			s.unite()
			s.nodes[0].start()
		}),
		when("Raft is back", s.mode(authority.Raft)),
		stage{what: "n0 leads", when: func() bool { s.lead(0); return s.serving(0) }},
		s.gets(b, x, 0, s.lease),
		do("b gives x back", func() { s.clients[b].now[x].giveBack(release) }),
		s.wait(s.lease/10),
		s.takeover(),
		when("n1 serves the registers", func() bool { return s.nodes[1].registers.regime.Epoch == s.root.Epoch }),
		s.arrives(&copied, 1),
		s.wait(s.lease/4),
	)...)
}

// S13 too, seen from the client: a's reclaim names an epoch before the last one, which the
// shard does not look at, hangs until a's lease has lapsed and b has x, and is answered.
func lateAnswer(s *Sim) {
	var copied *request
	var grant Time
	ttl := 5 * s.lease
	at := func() *attempt { return s.clients[a].now[x] }
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, ttl),
		s.takeover(),
		s.reclaims(a, x, 1),
		do("all hear each other", func() {
			s.unite()
			s.nodes[0].start()
		}),
		when("Raft is back", s.mode(authority.Raft)),
		stage{what: "n0 leads", when: func() bool { s.lead(0); return s.serving(0) }},
		s.wait(s.lease*6/5), // the deadlines of a new leader are longer
		do("a asks n0", func() {
			s.only(a, 0)
			at().renew()
			grant = s.now
		}),
		s.wait(s.lease/20),
		do("a is cut off, but for a late answer from the takeover", func() { s.only(a) }),
		stage{what: "a's lease is about to lapse", when: func() bool { return s.now-grant > ttl*98/100 }},
		do("a reclaims", func() {
			h := &at().holder
			if h.Reclaim(2, s.clients[a].clock()) != holder.SendReclaim {
				s.violate("script", "a does not reclaim")
			}
			copied = s.late(a, x, 2)
			s.only(b, 0)
			for _, n := range s.nodes {
				n.arbiterCut = forever // n0's window is short
			}
		}),
		s.tries(b, x, ttl, s.lease/2),
		do("n0 crashes, and the others are alone", func() {
			for _, n := range s.nodes {
				n.arbiterCut = 0
			}
			s.only(b)
		}),
		s.takeover(),
		when("n1 serves the registers", func() bool { return s.nodes[1].registers.regime.Epoch == s.root.Epoch }),
		do("a reaches n1", func() { s.only(a, 1) }),
		s.arrives(&copied, 1),
		s.wait(s.lease/4),
	)...)
}

// S14: the shard is moved with its leases, and a names an epoch that nobody has told it.
// n2 has missed all since the first takeover: through it a gives x back and b gets it.
func keptShardCloses(s *Sim) {
	var copied *request
	ttl := 5 * s.lease
	n2 := s.nodes[2]
	var other *node
	seals := func([]byte) bool { return true }
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, ttl),
		s.takeover(),
		s.reclaims(a, x, 2),
		when("the grace is over", func() bool { return s.root.GraceDone }),
		when("n2 knows", func() bool { return n2.registers.regime.Fresh }),
		do("n0 comes back and cannot seal the shards; n2 does not hear of R", func() {
			s.arbiter.blind = 2
			for k := range s.params.Shards.Count {
				s.hold(0, 1+int(k), seals)
				s.hold(1, 1+int(k), seals)
			}
			s.nodes[0].start()
			s.link(0, 1)
		}),
		when("one of the others imports", s.mode(authority.Importing)),
		do("it crashes", func() { s.node(s.root.Owner.Node).crash(false) }),
		when("it is taken over", func() bool { return s.root.Mode == authority.Fallback && s.root.Epoch == 4 }),
		do("a names epoch 4, and gives x back", func() {
			copied = s.late(a, x, 4)
			s.clients[a].now[x].giveBack(release)
		}),
		s.wait(s.lease/10),
		s.gets(b, x, 2, s.lease),
		do("b gives x back; the others can write", func() {
			s.clients[b].now[x].giveBack(release)
		}),
		s.wait(s.lease/10),
		do("", func() { s.arbiter.held = nil }),
		when("another node serves the registers", func() bool {
			other = s.node(s.root.Owner.Node)
			return other.registers.regime.Epoch == 4
		}),
		do("the late reclaim arrives", func() { other.handle(copied) }),
		s.wait(s.lease/4),
	)...)
}

// S15: a's lease is broken at once, and a, which has not heard of that, reclaims it again:
// its count begins anew, and n2, which has looked twice, sees what it saw before.
func stampUnique(s *Sim) {
	const y = 1
	ttl := 2 * s.lease
	n1, n2 := s.nodes[1], s.nodes[2]
	k := s.shardOf(leaseNames[x])
	at := func() *attempt { return s.clients[a].now[x] }
	var seen Time
	s.script(stages(
		s.settled(0),
		s.gets(c, y, 0, 3*s.lease), // the grace is as long as that
		s.gets(a, x, 0, ttl),
		s.takeover(),
		when("n2 serves the registers", func() bool { return n2.registers.regime.Epoch != 0 }),
		s.reclaims(a, x, 1),
		do("n2 looks", func() {
			n2.registers.shards[k].machine.Read(func(error) { seen = s.now })
			n2.registers.shards[k].drive()
		}),
		when("n2 has looked", func() bool { return seen != 0 }),
		stage{what: "a has renewed, and n2 is about to look again", when: func() bool { return s.now > seen+ttl*9/10 }},
		do("x is broken at once", func() {
			n1.registers.ask(leases.Op{Kind: leases.KindBreak, Name: leaseNames[x], Token: at().holder.Token(), Now: true}, func(leases.Result, error) {})
		}),
		s.wait(s.lease/20),
		do("a renews, and reclaims", func() { at().renew() }),
		s.wait(s.lease/20),
		do("a is cut off", func() { s.only(a) }),
		when("the grace is over", func() bool { return s.root.GraceDone }),
		do("b asks n2", func() { s.only(b, 2) }),
		s.tries(b, x, s.lease, s.lease/2),
	)...)
}

// S46: b's grant waited and is not confirmed; its first deadline passes, and a has x.
func reclaimBelieved(s *Sim) {
	ttl := 5 * s.lease
	s.script(stages(
		s.settled(0),
		s.gets(c, x, 0, ttl),
		do("b waits for x, and sleeps; c gives it back", func() {
			s.only(b, 0)
			s.take(b, x, ttl, true)
		}),
		s.wait(s.lease/10),
		do("", func() {
			s.clients[b].until[driver] = forever
			s.clients[c].now[x].giveBack(release)
		}),
		when("b has x, and knows it not", func() bool { l := s.nodes[0].tenure.find(x); return l != nil && l.Session == s.clients[b].session }),
		when("it has expired", func() bool { return s.nodes[0].tenure.find(x) == nil }),
		s.gets(a, x, 0, ttl),
		do("a is cut off", func() { s.only(a) }),
		s.takeover(),
		when("n1 serves the registers", func() bool { return s.nodes[1].registers.regime.Epoch == s.root.Epoch }),
		do("b wakes up, at n1", func() {
			s.only(b, 1)
			s.resume(&s.clients[b].process)
		}),
		s.wait(s.lease/2),
	)...)
}

// S17: a Bump whose answer was lost is proposed again, and comes after fresh grants.
func bumpGreater(s *Sim) {
	n0 := s.nodes[0]
	s.p.Bump = 2
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, s.lease),
		do("a gives x back", func() { s.clients[a].now[x].giveBack(release) }),
		s.wait(s.lease/10),
		s.gets(a, x, 0, s.lease),
		when("R has the next epoch", func() bool { return s.root.Epoch == 2 }),
		do("n0 proposes the bump again, and the copy does not get on", func() {
			n0.server.propose(&leases.Op{Kind: leases.KindBump, Epoch: 2}, n0.server.term, internal, nil, func(leases.Result, error) {})
		}),
		when("the table has it too", func() bool { return n0.server.table.Epoch() == 2 }),
		do("", func() {
			n0.until[internal] = forever
			n0.server.propose(&leases.Op{Kind: leases.KindBump, Epoch: 2}, n0.server.term, internal, nil, func(leases.Result, error) {})
			s.clients[a].now[x].giveBack(release)
		}),
		s.wait(s.lease/10),
		s.gets(b, x, 0, s.lease),
		do("b gives x back; the copy gets on", func() {
			s.clients[b].now[x].giveBack(release)
			s.resume(&n0.process, internal)
		}),
		s.wait(s.lease/10),
		s.gets(c, x, 0, s.lease),
		s.wait(s.lease/10),
	)...)
}

// S16: the same of an Import.
func importGreater(s *Sim) {
	n0 := s.nodes[0]
	s.script(stages(
		s.settled(0),
		s.takeover(),
		do("all hear each other", func() {
			s.unite()
			s.nodes[0].start()
		}),
		stage{what: "n0 imports", when: func() bool { s.lead(0); return s.root.Mode == authority.Raft && s.serving(0) }},
		do("n0's import comes again, late", func() {
			n0.until[internal] = forever
			n0.server.propose(&leases.Op{Kind: leases.KindImport, Epoch: s.root.Epoch}, n0.server.term, internal, nil, func(leases.Result, error) {})
		}),
		s.gets(a, x, 0, s.lease),
		do("it gets on", func() { s.resume(&n0.process, internal) }),
		s.wait(s.lease/20),
		do("", func() { s.only(b, 0) }),
		s.tries(b, x, s.lease, s.lease/4),
	)...)
}

// W5: a's TTL is beyond the ceiling, so the grace of a takeover is too short for it.
func ceilingRaised(s *Sim) {
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 6*s.lease),
		do("a is cut off", func() { s.only(a) }),
		s.takeover(),
		when("the grace is over", func() bool { return s.root.GraceDone }),
		do("", func() { s.only(b, 1) }),
		s.tries(b, x, s.lease, s.lease),
	)...)
}

// W5: the ceiling is lowered while a holds a lease with a longer TTL.
func ceilingLowered(s *Sim) {
	s.script(stages(
		s.settled(0),
		s.gets(a, x, 0, 6*s.lease),
		s.wait(2*s.lease),
		do("a is cut off", func() { s.only(a) }),
		s.takeover(),
		when("the grace is over", func() bool { return s.root.GraceDone }),
		do("", func() { s.only(b, 1) }),
		s.tries(b, x, s.lease, s.lease),
	)...)
}

// V2: n0 leads and reaches no arbiter, n2 is down: n1 hears n0, and reaches the arbiter.
func cede(s *Sim) {
	s.script(stages(
		s.settled(0),
		do("n0 reaches no arbiter, and n2 is down", func() {
			s.nodes[0].arbiterCut = forever
			s.nodes[2].crash(false)
		}),
		s.wait(s.lease),
		stage{what: "another serves", when: func() bool { return s.serving(1) }, in: 3 * s.lease, wants: "live"},
	)...)
}

// V3: the winner of the birth dies for good.
func importingTakeover(s *Sim) {
	s.script(stages(
		when("the cluster is about to be born", s.mode(authority.Importing)),
		do("who has done it dies", func() {
			s.node(s.root.Owner.Node).crash(true)
		}),
		stage{what: "the others serve", when: func() bool { return s.serving(0) || s.serving(1) || s.serving(2) }, in: 8 * s.lease, wants: "live"},
	)...)
}

// F2: an import that takes longer than L is not taken over again and again.
func importingBeat(s *Sim) {
	s.script(stages(
		s.settled(0),
		do("writes of the shards take long", func() {
			s.arbiter.held = func(_ *node, key int, _ arbiter.Write, effect func()) bool {
				if key != rootKey {
					s.after(s.lease*3/2, nil, driver, effect)
				}
				return key != rootKey
			}
		}),
		s.takeover(),
		do("all hear each other", func() {
			s.unite()
			s.nodes[0].start()
		}),
		stage{what: "Raft serves", when: s.mode(authority.Raft), in: 9 * s.lease, wants: "live"},
	)...)
}

// V7: the owner of an import dies; the next leader goes on at once.
func resume(s *Sim) {
	s.script(stages(
		s.settled(0),
		s.takeover(),
		do("all hear each other", func() {
			s.unite()
			s.nodes[0].start()
		}),
		when("one imports", s.mode(authority.Importing)),
		do("it dies", func() {
			s.node(s.root.Owner.Node).crash(false)
		}),
		when("another one leads", func() bool {
			for _, n := range s.nodes {
				if n.up && n.server.leads && n.server.caughtUp() {
					return true
				}
				s.lead(n.id)
			}
			return false
		}),
		stage{what: "Raft serves", when: s.mode(authority.Raft), in: s.lease / 2, wants: "live"},
	)...)
}

// A leader that hands over does not hear that R is written, reads it, and goes on: else
// a grace begins.
func recognise(s *Sim) {
	n0 := s.nodes[0]
	s.script(stages(
		s.settled(0),
		s.wait(s.lease*11/10),
		do("n0 hands over, and gets no answers from the arbiter", func() {
			n0.answersCut = s.now + s.lease/10
			s.handOver(0)
		}),
		when("R is written", s.mode(authority.Fallback)),
		stage{what: "leases are granted anew", when: func() bool { return s.root.GraceDone }, in: s.lease, wants: "live"},
	)...)
}
