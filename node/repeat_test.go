package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
)

// The repeat of an attempt that holds the lease is answered with the same token
// and without an op: behind the release of the lease an op would be granted
// anew, with a whole TTL and before all that wait.
func TestRepeatOfAHeldAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s, c := opened(t, tn), wanted(0)
		g := granted(t, log, s, c)
		waits := ask(t.Context(), opened(t, tn), wanted(leases.Forever))
		if a := now(t, ask(t.Context(), s, c)); a.err != nil || a.grant != g {
			t.Errorf("got %+v, %v, want the grant again, %+v", a.grant, a.err, g)
		}
		other := c
		other.TTL += time.Second
		if a := now(t, ask(t.Context(), s, other)); !errors.Is(a.err, leases.ErrInvalid) {
			t.Errorf("with another TTL: got %v, want %v", a.err, leases.ErrInvalid)
		}
		if len(log.entries) != 0 {
			t.Errorf("the repeats have proposed %d entries, want none", len(log.entries))
		}
		release(s, g.Token)
		released := log.next()
		late := ask(t.Context(), s, c)
		synctest.Wait()
		released.land()
		log.settle()
		if a := now(t, waits); a.err != nil || a.grant.Token != g.Token+1 || !a.grant.Waited {
			t.Errorf("who waited: got %+v, %v, want the next token", a.grant, a.err)
		}
		if a := now(t, late); a.err == nil && a.grant != g {
			t.Errorf("the late copy: got %+v, want what it had, or nothing", a.grant)
		}
		if a := now(t, ask(t.Context(), s, c)); a.err == nil || !errors.Is(a.err, leases.ErrHeld) {
			t.Errorf("a copy that is later still: got %+v, %v, want that it is held", a.grant, a.err)
		}
	})
}

// Attempts are told to everybody who asks for the queue. Only its own session
// withdraws one.
func TestStrangersWithdrawNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		holder := opened(t, tn)
		g := granted(t, log, holder, wanted(0))
		s, c := opened(t, tn), wanted(leases.Forever)
		first := ask(t.Context(), s, c)
		synctest.Wait()
		go opened(t, tn).Withdraw(context.Background(), "x", c.Attempt)
		log.next().land()
		repeat := ask(t.Context(), s, c)
		synctest.Wait()
		if a := now(t, first); !errors.Is(a.err, leases.ErrUnavailable) {
			t.Errorf("the copy before: got %v, want that it was displaced", a.err)
		}
		release(holder, g.Token)
		log.settle()
		if a := now(t, repeat); a.err != nil {
			t.Errorf("got %v, want the lease", a.err)
		}
	})
}

// Very many that expire or leave at once are dealt with piece by piece, and all.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		const many = 2*atOnce + 100
		tn.limits = limits{claims: 2 * many, waiters: 2 * many, waitersPerName: 2 * many}
		s, crowd := opened(t, tn), opened(t, tn)
		for i := range many {
			c := wanted(0)
			c.Name = "x" + leases.NewID().String()
			if !s.StartAcquire(c, func(leases.Grant, error) {}) {
				t.Fatalf("claim %d was not taken in", i)
			}
		}
		log.settle()
		granted(t, log, s, wanted(0))
		answers := make(chan error, many)
		for range many {
			if !crowd.StartAcquire(wanted(leases.Forever), func(_ leases.Grant, err error) { answers <- err }) {
				t.Fatal("a claim was not taken in")
			}
		}
		crowd.Close()
		for range many {
			if err := now(t, answers); !errors.Is(err, leases.ErrUnknownOutcome) {
				t.Fatalf("got %v, want %v", err, leases.ErrUnknownOutcome)
			}
		}
		time.Sleep(2 * leases.MaxTTL)
		log.settle()
		if n := len(raftOf(tn).leases); n != 0 {
			t.Errorf("%d leases have not expired", n)
		}
		nobodyWaits(t, tn)
	})
}
