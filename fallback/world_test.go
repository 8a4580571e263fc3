package fallback

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// ttl is that of every lease in the scripts, and the ceiling.
const ttl = 10 * time.Second

// world is one shard register that a script moves by hand, and the time.
type world struct {
	t      testing.TB
	set    rules.Set
	shards leases.Shards
	index  uint32
	now    clock.Instant
	reg    arbiter.Register
	nonces uint64
	loads  int
	swaps  int // that were sent
}

func newWorld(t testing.TB, set rules.Set) *world {
	return &world{t: t, set: set, shards: leases.Shards{Count: 1, Bytes: leases.DefaultShardBytes}, now: clock.Instant(time.Hour)}
}

func (w *world) nonce() (n arbiter.Nonce) {
	w.nonces++
	binary.BigEndian.PutUint64(n[:], w.nonces*0x9e3779b97f4a7c15)
	return n
}

// shard is what the register holds.
func (w *world) shard() leases.Shard {
	w.t.Helper()
	s, err := leases.DecodeShard(w.reg.Data)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// lease returns the only lease of the register, nil if there is none.
func (w *world) lease() *leases.Lease {
	w.t.Helper()
	switch s := w.shard(); len(s.Leases) {
	case 0:
		return nil
	case 1:
		return s.Leases[0]
	default:
		w.t.Fatalf("got %d leases, want at most one", len(s.Leases))
		return nil
	}
}

// put writes the register as another node, which needs no machine.
func (w *world) put(s leases.Shard) {
	w.reg = arbiter.Register{Version: w.reg.Version + 1, Nonce: w.nonce(), Data: leases.EncodeShard(s)}
}

// load and swap are the arbiter's.
func (w *world) load() arbiter.Register {
	w.loads++
	return w.reg
}

func (w *world) swap(s Swap) error {
	w.swaps++
	if w.reg.Version != s.From {
		return &arbiter.ConflictError{Key: "k", From: s.From, Found: w.reg}
	}
	w.reg = arbiter.Register{Version: s.From + 1, Nonce: s.Write.Nonce, Data: s.Write.Data}
	return nil
}

// serving is a machine, and the action that it has under way.
type serving struct {
	*Shard
	w      *world
	act    Action
	began  clock.Instant
	reg    arbiter.Register
	err    error
	events []Event
}

// serve returns a node's machine.
func (w *world) serve(r Regime) *serving {
	if r.Ceiling == 0 {
		r.Ceiling = ttl
	}
	m := &serving{Shard: NewShard(w.index, w.shards, w.set, w.nonce), w: w}
	m.Serve(r)
	return m
}

// fresh is the regime of fallback epoch e after its grace, graceful the one before.
func fresh(e, raftEpoch uint32) Regime {
	return Regime{Epoch: e, RaftEpoch: raftEpoch, Fresh: true, Ceiling: ttl}
}

func (w *world) graceful(e, raftEpoch uint32) Regime {
	return Regime{Epoch: e, RaftEpoch: raftEpoch, FreshAt: w.now.Add(leases.Stretch(ttl)), Ceiling: ttl}
}

// start begins the next action, if there is one by now.
func (m *serving) start() bool {
	if m.act == nil {
		m.act, _ = m.Next(m.w.now)
		m.began = m.w.now
	}
	return m.act != nil
}

// arrive has the action that is under way reach the arbiter.
func (m *serving) arrive() {
	switch act := m.act.(type) {
	case Load:
		m.reg, m.err = m.w.load(), nil
	case Swap:
		m.err = m.w.swap(act)
	}
}

// back gives the machine the answer that has come, or err instead.
func (m *serving) back(err error) {
	if err != nil {
		m.reg, m.err = arbiter.Register{}, err
	}
	act := m.act
	m.act = nil
	var events []Event
	if _, ok := act.(Load); ok {
		events = m.Loaded(m.began, m.w.now, m.reg, m.err)
	} else {
		events = m.Swapped(m.began, m.w.now, m.err)
	}
	m.events = append(m.events, events...)
}

// settle does all that the machine wants to do, without letting more time pass than
// ops wait for each other and conflicts for their next try.
func (m *serving) settle() {
	m.w.t.Helper()
	for range 1000 {
		if m.start() {
			m.arrive()
			m.back(nil)
			continue
		}
		_, at := m.Next(m.w.now)
		if at.Sub(m.w.now) > 500*time.Millisecond {
			return
		}
		m.w.now = max(m.w.now, at)
	}
	m.w.t.Fatal("the machine does not come to rest")
}

// sending lets the machine go on until it has a Swap under way.
func (m *serving) sending() Swap {
	m.w.t.Helper()
	for range 100 {
		if m.start() {
			if swap, ok := m.act.(Swap); ok {
				return swap
			}
			m.arrive()
			m.back(nil)
			continue
		}
		_, at := m.Next(m.w.now)
		if at.Sub(m.w.now) > time.Second {
			break
		}
		m.w.now = max(m.w.now, at)
	}
	m.w.t.Fatal("the machine does not write")
	return Swap{}
}

// reply is what an op was answered.
type reply struct {
	times  int
	result leases.Result
	err    error
}

func (m *serving) send(op leases.Op) *reply {
	r := &reply{}
	m.Ask(op, func(result leases.Result, err error) {
		r.times++
		r.result, r.err = result, err
	})
	return r
}

// do carries an op out.
func (m *serving) do(op leases.Op) *reply {
	m.w.t.Helper()
	r := m.send(op)
	m.settle()
	if r.times != 1 {
		m.w.t.Fatalf("%v was answered %d times", op.Kind, r.times)
	}
	return r
}

// want fails unless an op came to an outcome.
func (r *reply) want(t testing.TB, o leases.Outcome) *leases.Lease {
	t.Helper()
	if r.times != 1 || r.err != nil || r.result.Outcome != o {
		t.Fatalf("answered %d times with %v, %v; want once with %v", r.times, r.result.Outcome, r.err, o)
	}
	return r.result.Lease
}

// pass lets time go by, in which the machines do what they want, at their time.
func (w *world) pass(d time.Duration, ms ...*serving) {
	w.t.Helper()
	until := w.now.Add(d)
	for range 10_000 {
		wake, busy := until, false
		for _, m := range ms {
			if m.start() {
				m.arrive()
				m.back(nil)
				busy = true
				continue
			}
			if _, at := m.Next(w.now); at < wake {
				wake = at
			}
		}
		switch {
		case busy:
		case w.now >= until:
			return
		default:
			w.now = max(w.now, wake)
		}
	}
	w.t.Fatal("the machines do not come to rest")
}

// Clients, and ops of theirs on the name "job".
var (
	alice, bob, carol = leases.ID{0xa}, leases.ID{0xb}, leases.ID{0xc}
	try1, try2, try3  = leases.ID{1}, leases.ID{2}, leases.ID{3}
)

const job = "job"

func acquire(by, attempt leases.ID) leases.Op {
	return leases.Op{Kind: leases.KindAcquire, Name: job, Session: by, Attempt: attempt, TTL: ttl}
}

func renew(by leases.ID, token tokens.Token) leases.Op {
	return leases.Op{Kind: leases.KindRenew, Name: job, Session: by, Token: token}
}

func release(by leases.ID, token tokens.Token) leases.Op {
	return leases.Op{Kind: leases.KindRelease, Name: job, Session: by, Token: token}
}

func reclaim(epoch uint32, by leases.ID, token tokens.Token) leases.Op {
	return leases.Op{Kind: leases.KindReclaim, Epoch: epoch, Name: job, Session: by, Token: token, TTL: ttl}
}

func transfer(by leases.ID, token tokens.Token, heir, attempt leases.ID) leases.Op {
	return leases.Op{Kind: leases.KindTransfer, Name: job, Session: by, Token: token, Heir: heir, Attempt: attempt, TTL: ttl}
}

func withdraw(by, attempt leases.ID) leases.Op {
	return leases.Op{Kind: leases.KindWithdraw, Name: job, Session: by, Attempt: attempt}
}

func breaks(token tokens.Token, now bool) leases.Op {
	return leases.Op{Kind: leases.KindBreak, Name: job, Token: token, Now: now}
}

// raftToken is one that a Raft group has granted in epoch 1.
func raftToken(n uint32) tokens.Token { return tokens.New(1, n) }

// raftLease is a lease that a Raft group has granted in epoch 1.
func raftLease(by, attempt leases.ID, n uint32) *leases.Lease {
	return &leases.Lease{Name: job, Session: by, Attempt: attempt, Token: raftToken(n), TTL: ttl, Stamp: 1}
}
