package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// places are the places in line that a session was told, for one attempt.
func (h *heard) places(attempt leases.ID) (places []int) {
	for _, e := range h.take() {
		if q, ok := e.(leases.Queued); ok && q.Attempt == attempt {
			places = append(places, q.Position)
		}
	}
	return places
}

// Whoever waits is told its place when it comes in, and when it has changed:
// the newest one alone, and not more often than each placesEvery.
func TestPlacesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 4)
		told := func(want ...[]int) {
			t.Helper()
			for i, want := range want {
				if got := q.told[i].places(q.claims[i].Attempt); !slices.Equal(got, want) {
					t.Errorf("waiter %d was told the places %v, want %v", i, got, want)
				}
			}
		}
		told([]int{1}, []int{2}, []int{3}, []int{4})
		time.Sleep(time.Minute / 2)
		told(nil, nil, nil, nil)
		q.leave[1]()
		told(nil, nil, nil, nil) // not yet
		time.Sleep(placesEvery)
		told(nil, nil, []int{2}, []int{3})
		q.leave[0]()
		time.Sleep(placesEvery)
		told(nil, nil, []int{1}, []int{2})
		_, transfer := q.give(2)
		time.Sleep(placesEvery)
		told(nil, nil, nil, []int{1})
		transfer.fail(raft.ErrEnqueueTimeout) // the heir has its turn again
		time.Sleep(placesEvery)
		told(nil, nil, nil, []int{2})
		repeat := ask(t.Context(), q.waiter[3], q.claims[3])
		told(nil, nil, nil, []int{2}) // the copy is told as it comes in
		q.refused(3, leases.ErrUnavailable)
		q.got[3] = repeat
		release(q.giver, q.grant.Token)
		q.log.next().land()
		landing := q.log.next()
		time.Sleep(placesEvery)
		told(nil, nil, nil, []int{1})
		landing.land()
		q.granted(2)
	})
}

// A claim that was proposed at once and found the name taken all the same is
// told that it waits.
func TestPlaceOfAnOvertakenClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s, h := listening(t, tn)
		other, first := opened(t, tn), wanted(0)
		g := granted(t, log, other, first)
		release(other, g.Token)
		released := log.next()
		stray(tn, other, first)
		released.land()
		c := wanted(leases.Forever)
		ask(t.Context(), s, c)
		log.settle()
		if got := h.places(c.Attempt); !slices.Equal(got, []int{1}) {
			t.Errorf("told the places %v, want 1", got)
		}
	})
}

// A withdrawn claim that was proposed and finds the name taken does not wait on:
// its Withdraw lies before its next proposal, and nobody would have the lease.
func TestWithdrawnClaimIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s, c := opened(t, tn), wanted(leases.Forever)
		got, holder, landing := overtaken(t.Context(), t, tn, log, s, c)
		go s.Withdraw(context.Background(), c.Name, c.Attempt)
		synctest.Wait()
		landing.land()
		log.settle()
		if a := now(t, got); why(a.err) != leases.WhyWithdrawn {
			t.Errorf("got %+v, %v, want that it was withdrawn", a.grant, a.err)
		}
		nobodyWaits(t, tn)
		release(holder, tn.find("x").Token)
		log.settle()
		if l := tn.find("x"); l != nil {
			t.Errorf("token %v is held under an attempt that was withdrawn", l.Token)
		}
	})
}

// Raft refuses entries for moments. That does not empty the line: the first is
// proposed again, and nobody loses its turn.
func TestLineRestsWhenRaftRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 2)
		q.join(wanted(time.Second))
		q.join(wanted(leases.Forever))
		release(q.giver, q.grant.Token)
		q.log.next().land()
		for range 3 {
			q.log.within(t, 2*retry).fail(raft.ErrLeadershipTransferInProgress)
			q.waiting(0, 1, 2, 3)
		}
		late := q.log.within(t, 2*retry)
		q.leave[0]() // while it is proposed
		late.fail(raft.ErrEnqueueTimeout)
		q.refused(0, leases.ErrUnknownOutcome)
		q.waiting(1, 2, 3)
		withdrawn := q.log.within(t, 2*retry)
		go q.waiter[1].Withdraw(context.Background(), "x", q.claims[1].Attempt)
		synctest.Wait()
		withdrawn.fail(raft.ErrEnqueueTimeout)
		q.refused(1, leases.ErrNotHeld)
		q.log.next().land() // the Withdraw
		q.waiting(2, 3)
		time.Sleep(time.Second) // the wait of one is over while it is proposed
		q.log.next().fail(raft.ErrEnqueueTimeout)
		q.refused(2, leases.ErrUnavailable)
		q.waiting(3)
		newcomer := ask(t.Context(), opened(t, q.tenure), wanted(leases.Forever))
		q.log.within(t, 2*retry).land()
		token := q.granted(3)
		release(q.waiter[3], token)
		q.log.next().land()
		q.log.next().fail(raft.ErrNotLeader)
		synctest.Wait()
		q.end() // the line ends with the term
		if a := now(t, newcomer); !errors.Is(a.err, leases.ErrUnavailable) {
			t.Errorf("when the term has ended: got %v, want %v", a.err, leases.ErrUnavailable)
		}
		time.Sleep(time.Second)
		nobodyWaits(t, q.tenure)
	})
}

// In a line of a thousand each release calls one claim, and what is told of
// places is bounded.
func TestLongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = DefaultMaxWaitersPerName
		tn, log, _ := begun(t)
		tn.limits = limits{claims: 10, waiters: long, waitersPerName: long}
		holder := opened(t, tn)
		token := granted(t, log, holder, wanted(0)).Token
		type waiter struct {
			claim leases.Claim
			s     *session
			heard *heard
			got   <-chan answered
		}
		var line []waiter
		for range long {
			s, h := listening(t, tn)
			c := wanted(leases.Forever)
			line = append(line, waiter{c, s, h, ask(context.Background(), s, c)})
		}
		for _, c := range []leases.Claim{wanted(leases.Forever), wanted(time.Second)} {
			if a := now(t, ask(t.Context(), opened(t, tn), c)); !errors.Is(a.err, leases.ErrExhausted) {
				t.Errorf("one more: got %v, want %v", a.err, leases.ErrExhausted)
			}
		}
		for _, w := range line {
			w.heard.take()
		}
		time.Sleep(time.Second)
		began, told := time.Now(), 0
		for i, w := range line[:100] {
			release(holder, token)
			log.next().land()
			entry := log.next()
			if ops := entry.ops(); len(ops) != 1 || ops[0].Attempt != w.claim.Attempt {
				t.Fatalf("release %d: proposed %d claims, the first under attempt %v, want that of waiter %d", i, len(ops), ops[0].Attempt, i)
			}
			entry.land()
			a := now(t, w.got)
			if a.err != nil {
				t.Fatal(a.err)
			}
			holder, token = w.s, a.grant.Token
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(placesEvery)
		for i, w := range line[100:] {
			places := w.heard.places(w.claim.Attempt)
			told += len(places)
			if len(places) == 0 || places[len(places)-1] != i+1 {
				t.Errorf("the one at place %d was told %v", i+1, places)
			}
		}
		if most := int(time.Since(began)/placesEvery) * long; told > most {
			t.Errorf("places told in %v: got %d, want at most %d", time.Since(began), told, most)
		}
		for _, w := range line[100:] { // all of them leave
			w.s.Close()
		}
		log.settle()
		nobodyWaits(t, tn)
	})
}

// Many lines that have moved are told in turn, not all at once.
func TestPlacesOfManyLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lines, each = 60, 100
		tn, log, _ := begun(t)
		tn.limits = limits{claims: lines, waiters: lines * each, waitersPerName: each}
		s := opened(t, tn)
		var first []context.CancelFunc
		var last []*heard
		for i := range lines {
			c := wanted(0)
			c.Name = fmt.Sprint("job-", i)
			granted(t, log, s, c)
			for j := range each {
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				waiter, h := listening(t, tn)
				c := wanted(leases.Forever)
				c.Name = fmt.Sprint("job-", i)
				ask(ctx, waiter, c)
				h.take()
				if j == 0 {
					first = append(first, leave)
				}
				if j == each-1 {
					last = append(last, h)
				}
			}
		}
		time.Sleep(time.Second)
		for _, leave := range first {
			leave()
		}
		synctest.Wait()
		count := func() (told int) {
			for _, h := range last {
				told += len(h.take())
			}
			return told
		}
		const atOnce = placesAtOnce/(each-1) + 1
		time.Sleep(placesEvery)
		if got := count(); got != atOnce {
			t.Errorf("lines told at once: got %d, want %d", got, atOnce)
		}
		time.Sleep(placesEvery)
		if got := count(); got != lines-atOnce {
			t.Errorf("lines told next: got %d, want %d", got, lines-atOnce)
		}
	})
}

// crowd does to a tenure whatever clients, operators, Raft and time can do, at
// random, and checks after each step what must always hold.
type crowd struct {
	t      *testing.T
	rand   *rand.Rand
	tenure *tenure
	log    *ledger

	sessions []*session
	claims   []*member // in the order in which they came in
}

// member is one attempt.
type member struct {
	claim   leases.Claim
	session *session
	leave   context.CancelFunc
	got     <-chan answered
	answer  *answered
	gone    bool // withdrawn
}

func (c *crowd) some() *member {
	if len(c.claims) == 0 {
		return nil
	}
	return c.claims[c.rand.IntN(len(c.claims))]
}

func (c *crowd) join(m *member) {
	ctx, leave := context.WithCancel(context.Background())
	m.leave, m.answer = leave, nil
	if got := make(chan answered, 1); c.rand.IntN(2) == 0 && m.session.StartAcquire(m.claim, func(g leases.Grant, err error) { got <- answered{g, err} }) {
		m.got = got // whoever asks like this can leave with its session alone
		return
	}
	m.got = ask(ctx, m.session, m.claim)
}

func (c *crowd) step() {
	m := c.some()
	switch n := c.rand.IntN(20); {
	case n < 6 || m == nil:
		wait := []time.Duration{0, time.Second, 5 * time.Second, leases.Forever, leases.Forever}[c.rand.IntN(5)]
		m = &member{claim: wanted(wait), session: c.sessions[c.rand.IntN(len(c.sessions))]}
		m.claim.TTL = []time.Duration{time.Second, time.Minute}[c.rand.IntN(2)]
		c.join(m)
		c.claims = append(c.claims, m)
	case n < 7: // repeated, maybe over another conversation, or after its answer
		if again, err := c.tenure.open(m.session.id, leases.Info{}, func(leases.Event) {}); err == nil && !m.gone {
			before := m.leave
			c.t.Cleanup(before)
			m.session = again
			c.join(m)
		}
	case n < 8:
		m.leave()
	case n < 9:
		m.gone = true
		go m.session.Withdraw(context.Background(), "x", m.claim.Attempt)
	case n < 10:
		m.session.Close()
		for i, s := range c.sessions {
			if s == m.session {
				c.sessions[i] = opened(c.t, c.tenure)
			}
		}
	case n < 14:
		if l := c.tenure.find("x"); l != nil {
			holder, err := c.tenure.open(l.Session, leases.Info{}, func(leases.Event) {})
			if err != nil {
				c.t.Fatal(err)
			}
			h := l.Held()
			switch c.rand.IntN(5) {
			case 0, 1:
				go holder.Release(context.Background(), h)
			case 2, 3:
				go holder.Transfer(context.Background(), h, m.claim.Attempt)
			case 4:
				go c.tenure.breakLease(context.Background(), h, c.rand.IntN(2) == 0)
			}
		}
	case n < 15:
		time.Sleep(time.Duration(c.rand.Int64N(int64(3 * time.Second))))
	default:
		c.land()
	}
}

// land lets the entry that is proposed get into the log, or not.
func (c *crowd) land() {
	synctest.Wait()
	select {
	case w := <-c.log.entries:
		if c.rand.IntN(8) == 0 {
			w.fail(raft.ErrEnqueueTimeout)
		} else {
			w.land()
		}
	default:
	}
}

// check checks what holds at any time at which nothing is under way.
func (c *crowd) check() {
	synctest.Wait()
	c.t.Helper()
	for _, m := range c.claims {
		if m.answer == nil {
			select {
			case a := <-m.got:
				m.answer = &a
			default:
			}
		}
	}
	tn := c.tenure
	tn.mu.Lock()
	defer tn.mu.Unlock()
	waiters := 0
	for name, q := range tn.lines {
		waiters += len(q.waiting)
		if q.proposed == nil && len(q.waiting) == 0 {
			c.t.Errorf("the line of %s is empty, and kept", name)
		}
		if q.proposed == nil && !q.resting && tn.find(name) == nil && len(c.log.entries) == 0 {
			c.t.Errorf("%d wait for %s, nobody holds it and nobody is proposed", len(q.waiting), name)
		}
		if !slices.IsSortedFunc(q.waiting, func(a, b *claim) int { return int(a.turn) - int(b.turn) }) {
			c.t.Errorf("the line of %s is out of order", name)
		}
		for _, w := range q.waiting {
			if tn.gone.has(drawn{w.session.id, w.Attempt}, tn.clock) {
				c.t.Errorf("attempt %v waits and was withdrawn", w.Attempt)
			}
		}
	}
	if tn.waiters != waiters {
		c.t.Errorf("count of waiters: got %d, want %d", tn.waiters, waiters)
	}
	if len(c.log.entries) == 0 && tn.claims != 0 {
		c.t.Errorf("count of claims: got %d, want none with nothing in the log", tn.claims)
	}
	for name, w := range raftOf(tn).leases {
		if l := tn.find(name); len(c.log.entries) == 0 && (l == nil || l.Token != w.token) {
			c.t.Errorf("token %v of %s is watched; held is %+v", w.token, name, l)
		}
	}
}

// Counts never drift, nobody is forgotten, the line is in order, and goes on.
func TestLineUnderACrowd(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			c := &crowd{t: t, rand: rand.New(rand.NewPCG(seed, 1))}
			c.tenure, c.log, _ = begun(t)
			for range 5 {
				c.sessions = append(c.sessions, opened(t, c.tenure))
			}
			for i := range 300 {
				if c.step(); t.Failed() {
					t.Fatalf("seed %d, step %d", seed, i)
				}
				c.check()
			}
			// Everybody has it in turn, or leaves; then nothing is left.
			for range 3 * len(c.claims) {
				time.Sleep(retry) // a line may rest
				c.log.settle()
				c.check()
				l := c.tenure.find("x")
				if l == nil {
					break
				}
				holder, err := c.tenure.open(l.Session, leases.Info{}, func(leases.Event) {})
				if err != nil {
					t.Fatal(err)
				}
				release(holder, l.Token)
			}
			time.Sleep(time.Minute)
			c.log.settle()
			nobodyWaits(t, c.tenure)
			held := map[tokens.Token]bool{}
			for _, m := range c.claims {
				m.leave()
				m.session.Close()
				if m.answer == nil {
					a := now(t, m.got)
					m.answer = &a
				}
				if n := len(m.session.unanswered); n != 0 {
					t.Errorf("seed %d: %d requests of a session that has ended are unanswered", seed, n)
				}
				if m.answer.err == nil {
					if held[m.answer.grant.Token] {
						t.Errorf("token %v was granted twice", m.answer.grant.Token)
					}
					held[m.answer.grant.Token] = true
				}
			}
			if len(held) < 10 {
				t.Errorf("seed %d: only %d of %d attempts were granted", seed, len(held), len(c.claims))
			}
		})
	}
}
