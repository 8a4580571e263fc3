package fallback

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// ledger is what clients believe of the name, and what contradicts the promises.
type ledger struct {
	w       *world
	until   map[leases.ID]clock.Instant
	tokens  map[leases.ID]tokens.Token
	newest  tokens.Token // that anybody has believed in
	holder  leases.ID    // of newest
	against []string
}

func (w *world) ledger() *ledger {
	return &ledger{w: w, until: map[leases.ID]clock.Instant{}, tokens: map[leases.ID]tokens.Token{}}
}

func (l *ledger) note(format string, args ...any) {
	l.against = append(l.against, fmt.Sprintf(format, args...))
}

// believe has a client count a lease from the sending of its request.
func (l *ledger) believe(by leases.ID, token tokens.Token, sent clock.Instant) {
	l.until[by], l.tokens[by] = sent.Add(leases.Shrink(ttl)), token
	for _, other := range []leases.ID{alice, bob, carol} {
		if other != by && l.alive(other) && l.alive(by) {
			l.note("I2: %v and %v believe at once", other[0], by[0])
		}
	}
	if token < l.newest || token == l.newest && by != l.holder {
		l.note("I3: token %v after %v", token, l.newest)
	}
	l.newest, l.holder = max(l.newest, token), by
}

func (l *ledger) alive(by leases.ID) bool { return l.w.now < l.until[by] }

func (l *ledger) end(by leases.ID) { delete(l.until, by) }

// take has a client hear the answer to what it sent.
func (l *ledger) take(by leases.ID, sent clock.Instant, r *reply) {
	switch {
	case r.times != 1:
		l.w.t.Fatalf("answered %d times", r.times)
	case r.err != nil:
	case r.result.Outcome == leases.Granted, r.result.Outcome == leases.Renewed, r.result.Outcome == leases.Reclaimed:
		l.believe(by, r.result.Lease.Token, sent)
	case l.alive(by) && l.tokens[by] != 0:
		l.note("I4: %v was refused while it held the lease: %v", by[0], r.result.Outcome)
	}
}

// ask has a client send an op through a node and hear the answer.
func (l *ledger) ask(by leases.ID, m *serving, op leases.Op) *reply {
	l.w.t.Helper()
	sent := l.w.now
	r := m.do(op)
	l.take(by, sent, r)
	return r
}

// back looks for a lease that was granted anew since.
func (l *ledger) back(found *leases.Lease) {
	if found != nil && found.Token < l.newest {
		l.note("I5: token %v is back after %v", found.Token, l.newest)
	}
}

// seal brings the register to an importing epoch and returns what the group takes over.
func (w *world) seal(epoch, raftEpoch uint32) []*leases.Lease {
	w.t.Helper()
	found, err := w.rewrite(NewSeal(w.index, w.shards, w.set, w.nonce, epoch, raftEpoch))
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// rewrite drives r to its end.
func (w *world) rewrite(r *Rewrite) ([]*leases.Lease, error) {
	w.t.Helper()
	for range 100 {
		act, at := r.Next(w.now)
		switch act := act.(type) {
		case Load:
			r.Loaded(w.now, w.load(), nil)
		case Swap:
			r.Swapped(w.now, w.swap(act))
		default:
			if r.Done() {
				return r.Result()
			}
			w.now = at
		}
	}
	w.t.Fatal("it does not come to an end")
	return nil, nil
}

// schedules are those of the protocol's rationale that concern the registers, and what
// each breaks without its rule.
var schedules = []struct {
	name  string
	run   func(*world, *ledger)
	off   rules.Rule
	wants string
}{
	{"S10: a hand-over writes over what the fallback has done meanwhile", s10, rules.HandOverReclaims, "I5"},
	{"S12: what Raft has served since comes back in a shard", s12Move, rules.MoveByRaftEpoch, "I5"},
	{"S12: what Raft has served since is exported", s12Export, rules.ExportCurrent, "I5"},
	{"S13: a reclaim from before the takeover", s13, rules.ReclaimEpoch, "I2"},
	{"S14: a reclaim after a fresh grant", s14, rules.ShardCloses, "I3"},
	{"S14: a reclaim into a shard that was moved", s14Kept, rules.KeptShardCloses, "I3"},
	{"S15: renewed through another node", s15, rules.Observation, "I2"},
	{"S16: an import is applied twice", s16, rules.ImportGreater, "I3"},
	{"a fresh grant in a grace", inGrace, rules.Grace, "I2"},
	{"a node that missed the failback, the shard is sealed", staleNode, rules.OpEpoch, "I2"},
	{"a node that missed the failback, the shard is not sealed", staleNode, rules.Sealing, "I2"},
}

func TestSchedules(t *testing.T) {
	run := func(t *testing.T, do func(*world, *ledger), set rules.Set) []string {
		w := newWorld(t, set)
		l := w.ledger()
		do(w, l)
		return l.against
	}
	for _, s := range schedules {
		t.Run(s.name, func(t *testing.T) {
			if against := run(t, s.run, rules.Set{}); len(against) > 0 {
				t.Errorf("under all rules: %q", against)
			}
			against := strings.Join(run(t, s.run, rules.Without(s.off)), "; ")
			if !strings.Contains(against, s.wants) {
				t.Errorf("without the rule: got %q, want %s broken", against, s.wants)
			}
		})
	}
}

// N1 begins a hand-over of X(A) and sleeps. The grace ends, B is granted X, N1 wakes.
func s10(w *world, l *ledger) {
	n1 := NewInstall(0, w.shards, w.set, w.nonce, 2, 1, []*leases.Lease{raftLease(alice, try1, 5)})
	n2 := w.serve(w.graceful(2, 1))
	w.pass(leases.Stretch(ttl), n2)
	n2.Serve(fresh(2, 1))
	granted := l.ask(bob, n2, acquire(bob, try2)).result.Lease
	if _, err := w.rewrite(n1); err != nil {
		w.t.Fatal(err)
	}
	l.back(w.lease())
	l.ask(bob, n2, renew(bob, granted.Token))
}

// X(A) is sealed in a failback; in raft A releases it and B is granted it. Takeover.
func s12Move(w *world, l *ledger) {
	n2 := w.serve(fresh(2, 1))
	l.ask(alice, n2, acquire(alice, try1))
	w.seal(3, 1)
	l.end(alice)
	byRaft := tokens.New(3, 1)
	l.believe(bob, byRaft, w.now)
	n3 := w.serve(w.graceful(4, 3))
	other := reclaim(4, carol, tokens.New(3, 2))
	other.Name = "another"
	n3.do(other).want(w.t, leases.Reclaimed)
	l.back(n3.Find(job))
	if r := l.ask(bob, n3, renew(bob, byRaft)); !errors.Is(r.err, leases.ErrGrace) {
		l.note("I4: a renewal got %v, %v", r.result.Outcome, r.err)
	}
	l.ask(bob, n3, reclaim(4, bob, byRaft)).want(w.t, leases.Reclaimed)
}

// As before, but nobody touches the shard until the next failback.
func s12Export(w *world, l *ledger) {
	n2 := w.serve(fresh(2, 1))
	l.ask(alice, n2, acquire(alice, try1))
	w.seal(3, 1)
	l.end(alice)
	l.believe(bob, tokens.New(3, 1), w.now)
	for _, found := range w.seal(5, 3) {
		l.back(found)
	}
}

// A's reclaim from before the takeover arrives after B was granted X by Raft.
func s13(w *world, l *ledger) {
	start := w.now
	l.believe(alice, raftToken(5), start)
	w.now = start.Add(9800 * time.Millisecond)
	sent := w.now // to a leader that is gone
	w.now = start.Add(10200 * time.Millisecond)
	l.believe(bob, raftToken(6), w.now)
	n2 := w.serve(w.graceful(2, 1))
	r := n2.do(reclaim(1, alice, raftToken(5)))
	if r.err == nil && r.result.Outcome == leases.Reclaimed {
		l.until[alice] = sent.Add(leases.Shrink(ttl)) // careless: its lease had lapsed
		if l.alive(bob) && l.alive(alice) {
			l.note("I2: both believe")
		}
	}
}

// A reclaims X; a copy hangs. The grace ends, A has released, B is granted X and releases.
func s14(w *world, l *ledger) {
	n2 := w.serve(w.graceful(2, 1))
	late := reclaim(2, alice, raftToken(5))
	l.ask(alice, n2, late)
	sent := w.now
	n2.do(release(alice, raftToken(5))).want(w.t, leases.Freed)
	l.end(alice)
	n2.Serve(fresh(2, 1))
	granted := l.ask(bob, n2, acquire(bob, try2)).result.Lease
	n2.do(release(bob, granted.Token))
	l.end(bob)
	r := n2.do(late)
	if r.result.Outcome == leases.Reclaimed {
		l.believe(alice, r.result.Lease.Token, sent)
	}
	l.back(w.lease())
}

// A reclaims X for f@4; the request hangs. N4 has missed all since f@2: through it A
// releases X, B is granted it and releases. Then the shard is moved.
func s14Kept(w *world, l *ledger) {
	n4 := w.serve(w.graceful(2, 1))
	l.ask(alice, n4, reclaim(2, alice, raftToken(5)))
	n4.Serve(fresh(2, 1))
	late, sent := reclaim(4, alice, raftToken(5)), w.now
	n4.do(release(alice, raftToken(5)))
	l.end(alice)
	granted := l.ask(bob, n4, acquire(bob, try2)).result.Lease
	n4.do(release(bob, granted.Token))
	l.end(bob)
	n3 := w.serve(fresh(4, 1)) // taken over from importing, before the shard was sealed
	r := n3.do(late)
	if r.result.Outcome == leases.Reclaimed {
		l.believe(alice, r.result.Lease.Token, sent)
	}
}

// A renews through N1, N2 watches.
func s15(w *world, l *ledger) {
	n1, n2 := w.serve(w.graceful(2, 1)), w.serve(w.graceful(2, 1))
	n2.Interest(true)
	l.ask(alice, n1, reclaim(2, alice, raftToken(5)))
	for range 4 {
		w.pass(ttl/3, n2)
		if r := l.ask(alice, n1, renew(alice, raftToken(5))); r.err == nil && r.result.Outcome == leases.Renewed && !l.alive(alice) {
			w.t.Fatal("the schedule is too slow")
		}
	}
	n2.Serve(fresh(2, 1))
	l.ask(bob, n2, acquire(bob, try2))
}

// The group's log has the import twice; the second comes after fresh grants.
func s16(w *world, l *ledger) {
	l.ask(alice, w.serve(fresh(2, 1)), acquire(alice, try1))
	table := leases.NewTableUnder(w.set)
	table.Apply(leases.Op{Kind: leases.KindBirth, Epoch: 1, Cluster: leases.ID{1}, Founders: 1, Shards: w.shards})
	found := w.seal(3, 1)
	imported := []leases.Op{
		{Kind: leases.KindImportPart, Epoch: 3, Leases: found},
		{Kind: leases.KindImport, Epoch: 3, Count: uint32(len(found))},
	}
	for i, by := range []leases.ID{bob, carol} {
		for _, op := range imported {
			if r := table.Apply(op); r.Outcome != leases.Staged && r.Outcome != leases.Imported && i == 0 {
				w.t.Fatalf("got %v", r.Outcome)
			}
		}
		op := acquire(by, leases.ID{7, byte(i)})
		op.Name, op.Epoch = fmt.Sprint("new", i), 3
		r := table.Apply(op)
		if r.Outcome != leases.Granted {
			w.t.Fatalf("got %v", r.Outcome)
		}
		l.end(alice) // another name
		l.end(bob)
		l.believe(by, r.Lease.Token, w.now)
	}
}

// A holds X, granted by Raft; B asks for it at once after the takeover.
func inGrace(w *world, l *ledger) {
	l.believe(alice, raftToken(5), w.now)
	n2 := w.serve(w.graceful(2, 1))
	l.ask(bob, n2, acquire(bob, try2))
}

// Failback, Raft grants X to B. N4 has missed it, and A asks N4 for X.
func staleNode(w *world, l *ledger) {
	n4 := w.serve(fresh(2, 1))
	op := acquire(carol, try3)
	op.Name = "another"
	if w.set.On(rules.Sealing) { // it knows the shard, or not
		n4.do(op).want(w.t, leases.Granted)
	}
	w.seal(3, 1)
	l.believe(bob, tokens.New(3, 1), w.now)
	l.ask(alice, n4, acquire(alice, try1))
}

// S11: X(A) in f@2; N1 is to seal for i@3 and sleeps; N3 takes over, f@4; through N4,
// which has missed it, A goes on. N1 wakes and seals. Then B asks N3 for X. What goes
// wrong is that a sealed shard would be taken for stale: the root's raftEpoch tells.
func TestS11(t *testing.T) {
	for _, raftEpoch := range []uint32{1, 3} {
		w := newWorld(t, rules.Set{})
		l := w.ledger()
		n4, n3 := w.serve(fresh(2, 1)), w.serve(fresh(4, raftEpoch))
		token := l.ask(alice, n4, acquire(alice, try1)).result.Lease.Token
		w.pass(ttl/2, n4)
		l.ask(alice, n4, renew(alice, token))
		if found := w.seal(3, 1); len(found) != 1 {
			t.Fatalf("exported %v", found)
		}
		r := l.ask(bob, n3, acquire(bob, try2))
		l.ask(alice, n3, renew(alice, token))
		switch safe := len(l.against) == 0; {
		case safe != (raftEpoch == 1):
			t.Errorf("with raftEpoch %d: %q", raftEpoch, l.against)
		case safe:
			r.want(t, leases.Refused)
		}
	}
}
