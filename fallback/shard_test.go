package fallback

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func TestGrantRenewRelease(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	l := m.do(acquire(alice, try1)).want(t, leases.Granted)
	if l.Token.Epoch() != 2 || l.Stamp != 1 || w.reg.Version != 1 {
		t.Errorf("got %+v in version %d, want a token of epoch 2, stamp 1, version 1", l, w.reg.Version)
	}
	if s := w.shard(); s.Epoch != 2 || !s.Closed {
		t.Errorf("got %+v, want epoch 2, closed", s)
	}
	m.do(acquire(bob, try2)).want(t, leases.Refused)
	if got := m.do(acquire(alice, try1)).want(t, leases.Repeated); got.Token != l.Token {
		t.Errorf("the repeat got token %v, want %v", got.Token, l.Token)
	}
	if w.reg.Version != 1 {
		t.Errorf("refusals have written the register: version %d", w.reg.Version)
	}
	if got := m.do(renew(alice, l.Token)).want(t, leases.Renewed); got.Stamp != 2 || got.Token != l.Token {
		t.Errorf("renewed: got %+v, want stamp 2, token %v", got, l.Token)
	}
	m.do(renew(bob, l.Token)).want(t, leases.Absent)
	m.do(release(alice, l.Token)).want(t, leases.Freed)
	m.do(release(alice, l.Token)).want(t, leases.Absent)
	if got := m.do(acquire(bob, try2)).want(t, leases.Granted); got.Token <= l.Token {
		t.Errorf("token %v after %v", got.Token, l.Token)
	}
}

// What changes nothing is answered only by what is known of the register after the
// question, however sure this node thinks it is.
func TestNothingIsCertainWithoutAsking(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m, other := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	other.do(release(alice, token)).want(t, leases.Freed)
	loads := w.loads
	m.do(acquire(bob, try2)).want(t, leases.Granted)
	if w.loads != loads+1 {
		t.Errorf("%d loads before an acquire that the cache would have refused, want one", w.loads-loads)
	}

	// A load that was under way before the question does not answer it.
	read := 0
	m.Read(func(error) { read++ })
	m.start()
	late := m.send(renew(carol, token))
	m.Read(func(error) { read += 10 })
	m.arrive()
	m.back(nil)
	if late.times != 0 || read != 1 {
		t.Fatalf("answered %d times, read %d, by a load that began before", late.times, read)
	}
	m.settle()
	late.want(t, leases.Absent)
	if read != 11 {
		t.Errorf("the second read was not answered once: %d", read)
	}
}

func TestManyOpsOneSwap(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	var replies []*reply
	for i := range 100 {
		op := acquire(alice, leases.ID{1, byte(i)})
		op.Name = fmt.Sprintf("job%03d", i)
		replies = append(replies, m.send(op))
	}
	m.settle()
	if w.swaps != 1 || w.loads != 1 {
		t.Errorf("%d swaps, %d loads; want one of each", w.swaps, w.loads)
	}
	seen := map[tokens.Token]bool{}
	for _, r := range replies {
		token := r.want(t, leases.Granted).Token
		if seen[token] {
			t.Fatalf("token %v twice", token)
		}
		seen[token] = true
	}
	if n := len(m.Leases()); n != 100 || m.Find("job042") == nil {
		t.Errorf("it knows of %d leases", n)
	}
	if m.Fill() < uint32(len(w.reg.Data))-96 {
		t.Errorf("fill %d of %d bytes", m.Fill(), len(w.reg.Data))
	}

	// What comes together waits for each other, and no longer.
	for _, l := range m.Leases() {
		m.send(leases.Op{Kind: leases.KindRenew, Name: l.Name, Session: l.Session, Token: l.Token})
		if m.start() {
			t.Fatal("the first renewal did not wait for the others")
		}
	}
	m.settle()
	if w.swaps != 2 {
		t.Errorf("%d swaps for a wave of renewals, want one", w.swaps-1)
	}
}

func TestBatchIsBounded(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	var replies []*reply
	for i := range MaxQueue + 1 {
		op := withdraw(alice, try1)
		op.Name = fmt.Sprintf("job%05d", i)
		replies = append(replies, m.send(op))
	}
	var full *leases.ExhaustedError
	if !errors.As(replies[MaxQueue].err, &full) || full.Bound != MaxQueue {
		t.Fatalf("beyond the bound: got %v", replies[MaxQueue].err)
	}
	grant := m.send(acquire(alice, try1))
	if grant.times != 1 {
		t.Error("one more was taken beyond the bound")
	}
	m.settle()
	for i, r := range replies[:MaxQueue] {
		if r.times != 1 || r.err != nil || r.result.Outcome != leases.Absent {
			t.Fatalf("op %d: answered %d times, %v, %v", i, r.times, r.result.Outcome, r.err)
		}
	}
}

// A reclaim is never refused for room, but a register holds only so much.
func TestTooLargeForTheRegister(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(w.graceful(2, 1))
	attributes := make([]byte, leases.MaxAttributes)
	var replies []*reply
	for i := range 520 {
		op := reclaim(2, alice, raftToken(uint32(i+1)))
		op.Name, op.Attributes = fmt.Sprintf("job%03d", i), attributes
		replies = append(replies, m.send(op))
	}
	m.settle()
	taken, refused := 0, 0
	for _, r := range replies {
		switch {
		case r.err == nil && r.result.Outcome == leases.Reclaimed:
			taken++
		case errors.Is(r.err, leases.ErrExhausted):
			refused++
		default:
			t.Fatalf("got %v, %v", r.result.Outcome, r.err)
		}
	}
	if n := len(w.shard().Leases); taken != n || refused != 520-n || taken < 300 || refused == 0 || len(w.reg.Data) > arbiter.MaxData {
		t.Errorf("%d taken, %d refused, %d in the register of %d bytes", taken, refused, n, len(w.reg.Data))
	}
}

func TestConflict(t *testing.T) {
	w := newWorld(t, rules.Set{})
	a, b := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	a.settle()
	b.settle()
	ra, rb := a.send(acquire(alice, try1)), b.send(acquire(bob, try2))
	w.now = w.now.Add(time.Second)
	for a.start() && b.start() { // both load, then both swap
		a.arrive()
		b.arrive()
		a.back(nil)
		b.back(nil)
		if ra.times > 0 {
			break
		}
	}
	b.settle()
	token := ra.want(t, leases.Granted).Token
	if l := rb.want(t, leases.Refused); l.Token != token {
		t.Errorf("refused by %v, want by %v", l.Token, token)
	}
	if w.reg.Version != 1 {
		t.Errorf("version %d, want 1", w.reg.Version)
	}
}

// Where every swap meets a conflict the pauses grow, up to a bound.
func TestConflictsBackOff(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	m.settle()
	r := m.send(acquire(alice, try1))
	w.now = w.now.Add(time.Second)
	start, tries := w.now, 0
	for tries < 40 {
		if !m.start() {
			_, at := m.Next(w.now)
			if d := at.Sub(w.now); d <= 0 || d > 320*time.Millisecond {
				t.Fatalf("try %d: waits %v", tries, d)
			}
			w.now = at
			continue
		}
		if _, ok := m.act.(Swap); ok {
			tries++
			w.put(leases.Shard{Epoch: 2, Counter: uint32(tries)})
		}
		m.arrive()
		m.back(nil)
	}
	if d := w.now.Sub(start); d < time.Second {
		t.Errorf("%d tries in %v", tries, d)
	}
	m.settle()
	r.want(t, leases.Granted)
}

func lost() error { return &arbiter.UnknownError{Key: "k", Err: errors.New("no answer came")} }

func TestLostAnswer(t *testing.T) {
	for _, arrives := range []string{"before", "late"} {
		t.Run(arrives, func(t *testing.T) {
			w := newWorld(t, rules.Set{})
			m := w.serve(fresh(2, 1))
			m.settle()
			grant, nothing := m.send(acquire(alice, try1)), m.send(renew(bob, 7))
			swap := m.sending()
			if arrives == "before" {
				m.arrive()
			}
			m.back(lost())
			if grant.times != 1 || !errors.Is(grant.err, leases.ErrUnknownOutcome) {
				t.Fatalf("answered %d times, %v; want an unknown outcome", grant.times, grant.err)
			}
			if nothing.times != 0 {
				t.Fatal("an op that has changed nothing was answered by a write that was not")
			}
			m.settle()
			nothing.want(t, leases.Absent)
			want := leases.Granted
			if arrives == "before" {
				want = leases.Repeated
			}
			m.do(acquire(alice, try1)).want(t, want)
			if err := w.swap(swap); !errors.Is(err, arbiter.ErrConflict) {
				t.Errorf("the late write: got %v, want a conflict", err)
			}
			if l := w.lease(); l == nil || l.Session != alice {
				t.Errorf("the register has %+v", l)
			}
		})
	}
}

// What the store has found after a write whose answer was lost may settle it.
func TestLostAnswerSettledByTheNonce(t *testing.T) {
	for _, own := range []bool{true, false} {
		w := newWorld(t, rules.Set{})
		m := w.serve(fresh(2, 1))
		m.settle()
		r := m.send(acquire(alice, try1))
		m.sending()
		if !own {
			w.put(leases.Shard{Epoch: 2})
		}
		m.arrive()
		m.back(&arbiter.UnknownError{Key: "k", Found: w.reg, Err: errors.New("no answer came")})
		if own && r.times != 1 {
			t.Error("its own write was not recognised")
		}
		m.settle()
		r.want(t, leases.Granted)
	}
}

func TestUnreachable(t *testing.T) {
	down := fmt.Errorf("%w: no way", arbiter.ErrUnreachable)
	for _, stage := range []string{"load", "swap"} {
		w := newWorld(t, rules.Set{})
		m := w.serve(fresh(2, 1))
		r := m.send(acquire(alice, try1))
		var read error
		if stage == "load" {
			m.Read(func(err error) { read = err })
			m.start()
		} else {
			m.start() // the first load
			m.arrive()
			m.back(nil)
			m.Read(func(err error) { read = err })
			m.sending()
		}
		later := m.send(renew(bob, 7))
		m.back(down)
		if r.times != 1 || !errors.Is(r.err, leases.ErrUnavailable) || !errors.Is(r.err, arbiter.ErrUnreachable) {
			t.Fatalf("%s: answered %d times, %v", stage, r.times, r.err)
		}
		if !errors.Is(read, leases.ErrUnavailable) {
			t.Errorf("%s: the read got %v", stage, read)
		}
		if later.times != 0 {
			t.Errorf("%s: what came after was refused too", stage)
		}
		if act, at := m.Next(w.now); act != nil || at <= w.now || at.Sub(w.now) > 2*time.Second {
			t.Errorf("%s: it tries again at once: %v, %v", stage, act, at.Sub(w.now))
		}
		m.settle()
		later.want(t, leases.Absent)
		if w.reg.Version != 0 {
			t.Errorf("%s: version %d", stage, w.reg.Version)
		}
	}
}

func TestSuperseded(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	sealed := leases.MoveShard(w.shard(), 3, 1)
	w.put(sealed)
	first, second := m.send(renew(alice, token)), m.send(renew(bob, 9))
	m.settle()
	for _, r := range []*reply{first, second, m.send(renew(alice, token))} {
		var passed *SupersededError
		if r.times != 1 || !errors.As(r.err, &passed) || !errors.Is(r.err, leases.ErrUnavailable) || passed.Found != 3 {
			t.Fatalf("answered %d times, %v", r.times, r.err)
		}
	}
	if m.Superseded() != 3 || w.reg.Version != 2 {
		t.Errorf("superseded by %d, version %d", m.Superseded(), w.reg.Version)
	}
	if act, at := m.Next(w.now.Add(time.Hour)); act != nil || at != never {
		t.Errorf("it goes on: %v, %v", act, at)
	}

	m.Serve(fresh(4, 1)) // taken over from importing: the lease is kept, the shard closed
	m.do(renew(alice, token)).want(t, leases.Renewed)
	if s := w.shard(); s.Epoch != 4 || !s.Closed {
		t.Errorf("got %+v", s)
	}
	m.Serve(fresh(3, 1)) // an old copy of the root
	m.do(renew(alice, token)).want(t, leases.Renewed)
	m.Serve(Regime{})
	if r := m.send(renew(alice, token)); !errors.Is(r.err, leases.ErrUnavailable) {
		t.Errorf("not served: got %v", r.err)
	}
	if m.Find(job) != nil || len(m.Leases()) != 0 {
		t.Error("not served: it tells what it knew")
	}
}

// What waits or is being written when the regime changes is answered, once.
func TestRegimeChangesMeanwhile(t *testing.T) {
	for _, outcome := range []string{"written", "conflict", "lost"} {
		w := newWorld(t, rules.Set{})
		m := w.serve(fresh(2, 1))
		m.settle()
		flying := m.send(acquire(alice, try1))
		nothing := m.send(renew(bob, 7))
		m.sending()
		waiting := m.send(acquire(bob, try2))
		m.Serve(fresh(4, 1))
		if !errors.Is(waiting.err, leases.ErrUnavailable) {
			t.Errorf("what waited: got %v", waiting.err)
		}
		switch outcome {
		case "written":
			m.arrive()
			m.back(nil)
			flying.want(t, leases.Granted)
			nothing.want(t, leases.Absent)
		case "conflict":
			w.put(leases.Shard{Epoch: 2})
			m.arrive()
			m.back(nil)
			for _, r := range []*reply{flying, nothing} {
				if r.times != 1 || !errors.Is(r.err, leases.ErrUnavailable) {
					t.Errorf("after a conflict: got %v", r.err)
				}
			}
		case "lost":
			m.arrive()
			m.back(lost())
			if !errors.Is(flying.err, leases.ErrUnknownOutcome) || !errors.Is(nothing.err, leases.ErrUnavailable) {
				t.Errorf("lost: got %v, %v", flying.err, nothing.err)
			}
		}
		m.settle()
		op := acquire(carol, try3)
		op.Name = "another"
		m.do(op).want(t, leases.Granted)
		if s := w.shard(); s.Epoch != 4 || (len(s.Leases) == 2) == (outcome == "conflict") {
			t.Errorf("%s: got %+v", outcome, s)
		}
	}
}

func TestUnreadableRegister(t *testing.T) {
	for _, data := range []string{"rubbish", strings.Replace(string(leases.EncodeShard(leases.Shard{Epoch: 2})), `"format":1`, `"format":99`, 1)} {
		w := newWorld(t, rules.Set{})
		m := w.serve(fresh(2, 1))
		token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
		good := w.reg.Data
		w.reg = arbiter.Register{Version: 2, Data: []byte(data)}
		for range 3 {
			r := m.do(renew(alice, token))
			if !errors.Is(r.err, leases.ErrUnavailable) || !errors.Is(r.err, leases.ErrCorrupt) && !errors.Is(r.err, leases.ErrUnreadable) {
				t.Fatalf("got %v", r.err)
			}
		}
		var read error
		m.Read(func(err error) { read = err })
		m.settle()
		if read == nil || m.Unreadable() == nil {
			t.Errorf("a read got %v", read)
		}
		w.pass(8*time.Second, m)
		if w.reg.Version != 2 || string(w.reg.Data) != data {
			t.Fatal("it was overwritten")
		}
		w.reg = arbiter.Register{Version: 3, Data: good}
		m.do(renew(alice, token)).want(t, leases.Renewed)
	}
}

func TestRegisterSetBack(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	old := w.reg
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	w.reg = old
	for range 3 {
		if r := m.do(renew(alice, token)); !errors.Is(r.err, leases.ErrUnavailable) || !errors.Is(r.err, arbiter.ErrSetBack) {
			t.Fatalf("got %v", r.err)
		}
	}
	if w.reg.Version != 0 {
		t.Error("it was written")
	}
}

func TestGrace(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(w.graceful(2, 1))
	old := raftToken(5)
	inGrace := func(what string, r *reply) {
		t.Helper()
		var grace *leases.GraceError
		if r.times != 1 || !errors.As(r.err, &grace) || grace.Epoch != 2 || grace.FreshIn <= 9*time.Second || grace.FreshIn > leases.Stretch(ttl) {
			t.Errorf("%s: answered %d times, %v, %v", what, r.times, r.result.Outcome, r.err)
		}
	}
	inGrace("acquire", m.do(acquire(alice, try1)))
	inGrace("renew", m.do(renew(alice, old)))
	inGrace("release", m.do(release(alice, old)))
	inGrace("transfer", m.do(transfer(alice, old, bob, try2)))
	inGrace("withdraw", m.do(withdraw(alice, try1)))
	inGrace("break", m.do(breaks(old, false)))
	inGrace("reclaim of an earlier epoch", m.do(reclaim(1, alice, old)))
	if r := m.do(reclaim(3, alice, old)); !errors.Is(r.err, leases.ErrUnavailable) || errors.Is(r.err, leases.ErrGrace) {
		t.Errorf("a reclaim in a later epoch: got %v", r.err)
	}
	m.do(renew(alice, tokens.New(2, 9))).want(t, leases.Absent) // of this epoch: it was never there
	if w.reg.Version != 0 {
		t.Fatalf("version %d, want nothing written", w.reg.Version)
	}

	l := m.do(reclaim(2, alice, old)).want(t, leases.Reclaimed)
	if l.Token != old || !l.Attempt.IsZero() || w.shard().Closed {
		t.Errorf("got %+v, closed: %v", l, w.shard().Closed)
	}
	m.do(renew(alice, old)).want(t, leases.Renewed)
	m.do(acquire(bob, try2)).want(t, leases.Refused)
	m.do(renew(bob, raftToken(4))).want(t, leases.Absent) // a lower token cannot be reclaimed
	inGrace("renew of a higher token", m.do(renew(bob, raftToken(6))))
	if r := m.do(transfer(alice, old, bob, try2)); r.result.Outcome != leases.Freed || r.err != nil {
		t.Errorf("a transfer in a grace: got %v, %v; want a plain release", r.result.Outcome, r.err)
	}
	m.do(reclaim(2, bob, raftToken(6))).want(t, leases.Reclaimed)

	m.Serve(fresh(2, 1))
	m.do(renew(alice, old)).want(t, leases.Absent)
	m.do(release(alice, old)).want(t, leases.Absent)
	m.do(acquire(alice, try3)).want(t, leases.Refused)
	m.do(release(bob, raftToken(6))).want(t, leases.Freed)
	m.do(acquire(alice, try3)).want(t, leases.Granted)
	m.do(reclaim(2, carol, raftToken(7))).want(t, leases.Closed)
	m.Serve(w.graceful(2, 1)) // an old copy of the root: the grace does not come back
	if op := acquire(bob, try2); true {
		op.Name = "another"
		m.do(op).want(t, leases.Granted)
	}
}

// Somebody else knows of the end of the grace before this node does.
func TestClosedInGrace(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m, knows := w.serve(w.graceful(2, 1)), w.serve(fresh(2, 1))
	op := acquire(bob, try2)
	op.Name = "another"
	knows.do(op).want(t, leases.Granted)
	m.do(renew(alice, raftToken(5))).want(t, leases.Absent)
	if r := m.do(acquire(alice, try1)); !errors.Is(r.err, leases.ErrGrace) {
		t.Errorf("got %v, %v", r.result.Outcome, r.err)
	}
}

// A lease is handed over, or reclaimed, after this node has read its shard and before
// it hears that the grace is over: what it has read refuses nobody.
func TestReadBeforeTheGraceEnded(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(w.graceful(2, 1))
	r := m.send(renew(alice, raftToken(5)))
	m.start()
	m.arrive()
	if _, err := w.rewrite(NewInstall(0, w.shards, w.set, w.nonce, 2, 1, []*leases.Lease{raftLease(alice, try1, 5)})); err != nil {
		t.Fatal(err)
	}
	m.Serve(fresh(2, 1))
	m.back(nil)
	m.settle()
	r.want(t, leases.Renewed)
}

// A reclaim whose answer was lost is repeated after the shard has closed.
func TestReclaimAgainAfterClosing(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(w.graceful(2, 1))
	m.do(reclaim(2, alice, raftToken(5))).want(t, leases.Reclaimed)
	m.Serve(fresh(2, 1))
	op := acquire(bob, try2)
	op.Name = "another"
	m.do(op).want(t, leases.Granted)
	m.do(reclaim(2, alice, raftToken(5))).want(t, leases.Renewed)
	m.do(reclaim(2, bob, raftToken(5))).want(t, leases.Closed)
}

func TestCeiling(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	tooLong := func(what string, r *reply) {
		t.Helper()
		var invalid *leases.InvalidError
		if !errors.As(r.err, &invalid) || invalid.Field != "ttl" || !strings.Contains(invalid.Bounds, "10s") {
			t.Errorf("%s: got %v, %v", what, r.result.Outcome, r.err)
		}
	}
	long := acquire(alice, try1)
	long.TTL = ttl + time.Millisecond
	tooLong("acquire", m.do(long))
	back := reclaim(2, alice, raftToken(5))
	back.TTL = long.TTL
	tooLong("reclaim", m.do(back))
	if w.reg.Version != 0 {
		t.Fatal("it was written")
	}
	token := m.do(acquire(alice, try2)).want(t, leases.Granted).Token
	over := transfer(alice, token, bob, try3)
	over.TTL = long.TTL
	m.do(over).want(t, leases.Freed) // a plain release (W8)
	m.do(acquire(bob, try3)).want(t, leases.Granted)
}

func TestTransferAndBreak(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m, other := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	next := m.do(transfer(alice, token, bob, try2)).want(t, leases.Transferred)
	if next.Session != bob || next.Token <= token {
		t.Errorf("got %+v", next)
	}
	other.do(renew(bob, next.Token)).want(t, leases.Renewed)
	m.do(breaks(next.Token, false)).want(t, leases.Marked)
	m.do(breaks(next.Token, false)).want(t, leases.Repeated)
	if r := other.do(renew(bob, next.Token)); r.result.Outcome != leases.Absent || r.result.Ending.Why != leases.WhyBroken {
		t.Errorf("a broken lease: got %+v", r.result)
	}
	if !slices.ContainsFunc(other.events, func(e Event) bool { b, ok := e.(Broke); return ok && b.Lease.Token == next.Token }) {
		t.Errorf("the other node was not told of the break: %+v", other.events)
	}
	m.do(breaks(next.Token, true)).want(t, leases.Freed)
}
