package fallback

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// A lease expires when its stamp has rested for TTL(1+ρ), counted from the end of the
// reading that showed it first, and not before.
func TestExpiry(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	l := m.do(acquire(alice, try1)).want(t, leases.Granted)
	due := w.now.Add(leases.Stretch(ttl))
	w.pass(due.Sub(w.now)-1, m)
	if w.lease() == nil {
		t.Fatal("it expired too early")
	}
	w.pass(1, m)
	if w.lease() != nil {
		t.Fatal("it has not expired")
	}
	if len(m.events) != 1 || m.events[0] != (Gone{Lease: m.events[0].(Gone).Lease, Why: leases.WhyExpired}) || m.events[0].(Gone).Lease.Token != l.Token {
		t.Errorf("got events %+v", m.events)
	}
}

// The first reading counts from its end, the last from its beginning.
func TestExpiryCountsBetweenReadings(t *testing.T) {
	w := newWorld(t, rules.Set{})
	w.serve(fresh(2, 1)).do(acquire(alice, try1))
	m := w.serve(fresh(2, 1))
	m.Interest(true)
	for !m.start() {
		_, w.now = m.Next(w.now)
	}
	m.arrive()
	w.now = w.now.Add(3 * time.Second) // the answer takes its time
	m.back(nil)
	seen := w.now
	w.pass(leases.Stretch(ttl)-time.Second, m)

	// One that began before and ends after the instant is not the last.
	m.Read(func(error) {})
	m.start()
	m.arrive()
	w.now = seen.Add(leases.Stretch(ttl) + time.Second)
	m.back(nil)
	m.start()
	if _, ok := m.act.(Load); !ok {
		t.Fatalf("after a reading that began too early it does %#v, want another load", m.act)
	}
	m.arrive()
	m.back(nil)
	m.settle()
	if w.lease() != nil {
		t.Error("it has not expired")
	}
}

// Whoever renews through another node is seen by the stamp.
func TestRenewedElsewhere(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m, other := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	for range 20 {
		w.pass(leases.Stretch(ttl)-100*time.Millisecond, m, other)
		other.do(renew(alice, token)).want(t, leases.Renewed)
	}
	if len(m.events)+len(other.events) != 0 {
		t.Errorf("got events %+v, %+v", m.events, other.events)
	}
	w.pass(leases.Stretch(ttl), other)
	if w.lease() != nil {
		t.Fatal("it has not expired")
	}
	w.pass(pollHeld, m)
	if len(m.events) != 1 || m.events[0].(Gone).Why != leases.WhyUnknown {
		t.Errorf("of an expiry by another node it tells %+v", m.events)
	}
}

// In one write the expiry comes before the requests that came with it: a renewal that
// is too late is refused, and somebody else can have the name at once.
func TestExpiryComesFirst(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	old := m.do(acquire(alice, try1)).want(t, leases.Granted)
	w.now = w.now.Add(leases.Stretch(ttl))
	late, next := m.send(renew(alice, old.Token)), m.send(acquire(bob, try2))
	swaps := w.swaps
	m.settle()
	late.want(t, leases.Absent)
	if late.result.Ending.Why != leases.WhyExpired {
		t.Errorf("got %+v", late.result)
	}
	l := next.want(t, leases.Granted)
	if w.swaps != swaps+1 {
		t.Errorf("%d writes, want one", w.swaps-swaps)
	}
	if len(m.events) != 1 || m.events[0].(Gone).Why != leases.WhyExpired || m.events[0].(Gone).Next.Token != l.Token {
		t.Errorf("got events %+v", m.events)
	}
}

// An expiry in flight does not end a lease that is renewed before it arrives.
func TestExpiryMeetsRenewal(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m, other := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	w.now = w.now.Add(leases.Stretch(ttl))
	m.sending()
	other.do(renew(alice, token)).want(t, leases.Renewed) // it has seen the lease just now
	m.arrive()
	m.back(nil)
	m.settle()
	if l := w.lease(); l == nil || l.Token != token {
		t.Errorf("the register has %+v", l)
	}
	if len(m.events) != 0 {
		t.Errorf("got events %+v", m.events)
	}
}

// It goes on to expire while the arbiter fails now and then.
func TestExpiryIsTriedAgain(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	m.do(acquire(alice, try1)).want(t, leases.Granted)
	w.now = w.now.Add(leases.Stretch(ttl))
	for i := range 6 {
		for !m.start() {
			_, w.now = m.Next(w.now)
		}
		if _, swaps := m.act.(Swap); swaps && i%2 == 0 {
			m.back(lost())
		} else {
			m.back(fmt.Errorf("%w", arbiter.ErrUnreachable))
		}
	}
	w.pass(5*time.Second, m)
	if w.lease() != nil {
		t.Error("it has not expired")
	}
}

func TestPolling(t *testing.T) {
	loads := func(w *world, d time.Duration, m *serving) int {
		before := w.loads
		w.pass(d, m)
		return w.loads - before
	}
	w := newWorld(t, rules.Set{})
	m := w.serve(fresh(2, 1))
	if n := loads(w, pollHeld, m); n != 1 {
		t.Errorf("a new regime: %d loads, want one", n)
	}
	if n := loads(w, time.Hour, m); n != 0 {
		t.Errorf("without leases and waiters: %d loads", n)
	}
	m.Interest(true)
	if n := loads(w, time.Minute, m); n < 29 || n > 31 {
		t.Errorf("with a waiter: %d loads a minute", n)
	}
	m.Interest(false)
	if n := loads(w, time.Hour, m); n != 0 {
		t.Errorf("when the waiter has gone: %d loads", n)
	}
	w.put(leases.Shard{Epoch: 2, Closed: true, Leases: []*leases.Lease{{Name: job, Session: alice, Token: raftToken(1), TTL: time.Hour, Stamp: 1}}})
	m.Read(func(error) {})
	if n := loads(w, time.Minute, m); n < 12 || n > 14 {
		t.Errorf("with a lease: %d loads a minute", n)
	}
	if w.swaps != 0 {
		t.Error("it has written")
	}
}

// The first readings after a takeover are spread out.
func TestFirstReadingsAreSpread(t *testing.T) {
	w := newWorld(t, rules.Set{})
	early := 0
	for range 200 {
		m := w.serve(fresh(2, 1))
		if _, at := m.Next(w.now); at.Sub(w.now) < pollHeld/2 {
			early++
		}
	}
	if early < 60 || early > 140 {
		t.Errorf("%d of 200 in the first half", early)
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m, other := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	token := m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	m.do(release(alice, token)).want(t, leases.Freed)
	if len(m.events) != 1 || m.events[0].(Gone).Why != leases.WhyReleased || m.events[0].(Gone).Next != nil {
		t.Errorf("released here: got %+v", m.events)
	}
	m.events = nil
	token = m.do(acquire(alice, try1)).want(t, leases.Granted).Token
	other.do(release(alice, token)).want(t, leases.Freed)
	next := other.do(acquire(bob, try2)).want(t, leases.Granted)
	var read error = errors.New("not called")
	m.Read(func(err error) { read = err })
	m.settle()
	if read != nil || m.Find(job).Token != next.Token {
		t.Fatalf("read: %v; it knows of %+v", read, m.Find(job))
	}
	if g := m.events[0].(Gone); len(m.events) != 1 || g.Why != leases.WhyUnknown || g.Lease.Token != token || g.Next.Token != next.Token {
		t.Errorf("replaced elsewhere: got %+v", m.events)
	}
	m.events = nil
	m.Serve(fresh(4, 3)) // a Raft group has served meanwhile: nobody knows what became of the lease
	m.settle()
	if len(m.events) != 0 {
		t.Errorf("of an earlier regime: got %+v", m.events)
	}
}

// A lease that does not belong into the shard was put there by nobody that keeps the
// rules. It is left alone, and costs no more than any other.
func TestForeignLease(t *testing.T) {
	w := newWorld(t, rules.Set{})
	w.shards.Count = 2
	w.index = 1 - w.shards.Of(job)
	w.put(leases.Shard{Epoch: 2, Closed: true, Leases: []*leases.Lease{raftLease(alice, try1, 1)}})
	m := w.serve(fresh(2, 1))
	w.pass(time.Minute, m)
	if w.swaps != 0 || w.loads > 30 || w.lease() == nil {
		t.Errorf("%d writes, %d loads in a minute", w.swaps, w.loads)
	}
}
