package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// begin starts a claim, which must not be refused. There is room for more answers
// than there may be.
func begin(t *testing.T, s *session, c leases.Claim) <-chan answered {
	t.Helper()
	got := make(chan answered, 2)
	if !s.StartAcquire(c, func(g leases.Grant, err error) { got <- answered{g, err} }) {
		t.Fatal("StartAcquire: got false, want true")
	}
	return got
}

func beginRelease(t *testing.T, s *session, token tokens.Token) <-chan error {
	t.Helper()
	got := make(chan error, 2)
	if !s.StartRelease(leases.Held{Name: "x", Token: token}, func(err error) { got <- err }) {
		t.Fatal("StartRelease: got false, want true")
	}
	return got
}

// fails checks that a started claim has been answered with want.
func fails(t *testing.T, got <-chan answered, want error) {
	t.Helper()
	if a := now(t, got); !errors.Is(a.err, want) {
		t.Errorf("got %+v, %v, want %v", a.grant, a.err, want)
	}
}

// allAnswered checks that nothing is unanswered, and nothing was answered twice,
// once everything that was proposed is in the log.
func allAnswered[T any](t *testing.T, log *ledger, s *session, got ...<-chan T) {
	t.Helper()
	log.settle()
	for _, c := range got {
		if len(c) != 0 {
			t.Errorf("answered again: %+v", <-c)
		}
	}
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	if n := len(s.unanswered); n != 0 {
		t.Errorf("got %d unanswered, want none", n)
	}
}

func TestStartedCallsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s := opened(t, tn)
		c := wanted(leases.Forever)
		first, second := begin(t, s, c), begin(t, s, wanted(leases.Forever))
		log.next().land()
		a := now(t, first)
		if a.err != nil || a.grant.Token == 0 || a.grant.Waited || len(second) != 0 {
			t.Fatalf("got %+v, %v and %d answers to the one behind it", a.grant, a.err, len(second))
		}
		repeat := begin(t, s, c)
		log.settle()
		if again := now(t, repeat); again.err != nil || again.grant.Token != a.grant.Token {
			t.Errorf("a repeat: got %+v, %v, want the same token %v", again.grant, again.err, a.grant.Token)
		}
		released := beginRelease(t, s, a.grant.Token)
		log.next().land()
		if err := now(t, released); err != nil {
			t.Errorf("release: %v", err)
		}
		log.next().land()
		if b := now(t, second); b.err != nil || b.grant.Token <= a.grant.Token || !b.grant.Waited {
			t.Errorf("the next in line: got %+v, %v", b.grant, b.err)
		}
		late := beginRelease(t, s, a.grant.Token)
		log.settle()
		if err := now(t, late); !errors.Is(err, leases.ErrNotHeld) {
			t.Errorf("a late release: got %v, want %v", err, leases.ErrNotHeld)
		}
		allAnswered(t, log, s, first, second, repeat)
		allAnswered(t, log, s, released, late)
		nobodyWaits(t, tn)
	})
}

// What cannot be begun is left to the calls that wait.
func TestStartRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, end := begun(t)
		tn.limits = limits{claims: 1, waiters: 0, waitersPerName: 0}
		s, closed := opened(t, tn), opened(t, tn)
		closed.Close()
		never := func(leases.Grant, error) { t.Error("it was answered") }
		refused := func(why string, s *session, c leases.Claim, want error) {
			t.Helper()
			if s.StartAcquire(c, never) {
				t.Errorf("%s: StartAcquire: got true, want false", why)
			}
			got := ask(t.Context(), s, c)
			log.settle()
			if a := now(t, got); !errors.Is(a.err, want) {
				t.Errorf("%s: Acquire: got %v, want %v", why, a.err, want)
			}
		}
		releaseRefused := func(why string, s *session, h leases.Held) {
			t.Helper()
			if s.StartRelease(h, func(err error) { never(leases.Grant{}, err) }) {
				t.Errorf("%s: StartRelease: got true, want false", why)
			}
		}
		refused("no name", s, leases.Claim{}, leases.ErrInvalid)
		releaseRefused("no token", s, leases.Held{Name: "x"})
		refused("a conversation that is over", closed, wanted(leases.Forever), leases.ErrClosed)
		releaseRefused("a conversation that is over", closed, leases.Held{Name: "x", Token: 1})

		other := wanted(leases.Forever)
		other.Name = "y"
		first := begin(t, s, other)
		if s.StartAcquire(wanted(leases.Forever), never) {
			t.Error("more claims than the limit: got true, want false")
		}
		log.settle()
		if a := now(t, first); a.err != nil {
			t.Fatal(a.err)
		}
		free := begin(t, s, wanted(0))
		log.settle()
		if a := now(t, free); a.err != nil {
			t.Errorf("a free name, without a wait: %v", a.err)
		}
		refused("a taken name, without a wait", s, wanted(0), leases.ErrHeld)
		refused("no room in the line", s, wanted(leases.Forever), leases.ErrExhausted)
		if err := s.Withdraw(t.Context(), "", leases.NewID()); !errors.Is(err, leases.ErrInvalid) {
			t.Errorf("got %v, want %v", err, leases.ErrInvalid)
		}
		allAnswered(t, log, s, first, free)
		end()
		synctest.Wait()
		refused("a term that is over", s, other, context.Canceled) // as end says
		releaseRefused("a term that is over", s, leases.Held{Name: "x", Token: 1})
	})
}

// busy has a session with an entry of its own in the log, an acquire and a release
// behind it, and an acquire that waits in line.
type busy struct {
	session                 *session
	held                    leases.Grant
	logged, behind, waiting <-chan answered
	release                 <-chan error
}

func begunBusy(t *testing.T, tn *tenure, log *ledger) busy {
	t.Helper()
	b := busy{session: opened(t, tn)}
	claims := make([]leases.Claim, 3)
	for i, name := range []string{"logged", "behind", "taken"} {
		claims[i] = wanted(leases.Forever)
		claims[i].Name = name
	}
	other := claims[2]
	other.Attempt = leases.NewID()
	granted(t, log, opened(t, tn), other)
	b.held = granted(t, log, b.session, wanted(0))
	b.waiting = begin(t, b.session, claims[2])
	b.logged = begin(t, b.session, claims[0])
	synctest.Wait()
	b.behind = begin(t, b.session, claims[1])
	b.release = beginRelease(t, b.session, b.held.Token)
	synctest.Wait()
	return b
}

// All that a conversation has not been answered is answered when it ends, once.
func TestStartedCallsEndWithTheConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		b := begunBusy(t, tn, log)
		b.session.Close()
		fails(t, b.logged, leases.ErrUnknownOutcome)
		fails(t, b.behind, leases.ErrUnknownOutcome)
		fails(t, b.waiting, leases.ErrUnknownOutcome)
		if err := now(t, b.release); !errors.Is(err, leases.ErrUnknownOutcome) {
			t.Errorf("release: got %v, want %v", err, leases.ErrUnknownOutcome)
		}
		allAnswered(t, log, b.session, b.logged, b.behind, b.waiting)
		allAnswered(t, log, b.session, b.release)
		nobodyWaits(t, tn)
		if tn.find("logged") == nil || tn.find("x") != nil {
			t.Error("what was proposed was not carried out")
		}
	})
}

// At the end of the term the answers tell apart what may have got into the log.
func TestStartedCallsEndWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, end := begun(t)
		b := begunBusy(t, tn, log)
		end()
		fails(t, b.logged, leases.ErrUnknownOutcome)
		fails(t, b.behind, leases.ErrUnavailable)
		fails(t, b.waiting, leases.ErrUnavailable)
		if err := now(t, b.release); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("release: got %v, want %v", err, leases.ErrUnavailable)
		}
		b.session.Close()
		synctest.Wait()
		allAnswered(t, log, b.session, b.logged, b.behind, b.waiting)
		allAnswered(t, log, b.session, b.release)
		nobodyWaits(t, tn)
	})
}

// An overtaken claim that is started goes with its conversation, too.
func TestStartedClaimGoesWithItsConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s, other, first := opened(t, tn), opened(t, tn), wanted(0)
		g := granted(t, log, other, first)
		release(other, g.Token)
		released := log.next()
		stray(tn, other, first)
		released.land()
		late := log.next()
		got := begin(t, s, wanted(leases.Forever))
		late.land()
		landing := log.next()
		s.Close()
		fails(t, got, leases.ErrUnknownOutcome)
		landing.land()
		allAnswered(t, log, s, got)
		nobodyWaits(t, tn)
	})
}

func TestStartedClaimsAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s := opened(t, tn)
		proposed, behind := wanted(leases.Forever), wanted(leases.Forever)
		first := begin(t, s, proposed)
		synctest.Wait()
		second := begin(t, s, behind)
		for _, c := range []leases.Claim{behind, proposed} {
			go s.Withdraw(context.Background(), "x", c.Attempt)
			synctest.Wait()
		}
		fails(t, second, leases.ErrNotHeld)
		log.settle()
		if a := now(t, first); a.err != nil { // it was granted, and then withdrawn
			t.Errorf("got %v, want a grant", a.err)
		}
		if l := tn.find("x"); l != nil {
			t.Errorf("held: %+v, want nothing", l)
		}
		if s.StartAcquire(proposed, func(leases.Grant, error) {}) {
			t.Error("a late copy: got true, want false")
		}
		allAnswered(t, log, s, first, second)
		nobodyWaits(t, tn)
	})
}

// A repeat over another conversation takes its attempt's place over, be it
// started or not; the end of the old conversation is nothing to it.
func TestStartedClaimIsRepeatedElsewhere(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			tn, log, _ := begun(t)
			s := opened(t, tn)
			again, err := tn.open(s.id, leases.Info{}, func(leases.Event) {})
			if err != nil {
				t.Fatal(err)
			}
			var g leases.Grant
			if waits {
				g = granted(t, log, s, wanted(0))
			}
			c := wanted(leases.Forever)
			old := begin(t, s, c)
			repeat := begin(t, again, c)
			fails(t, old, leases.ErrUnavailable)
			s.Close()
			synctest.Wait()
			if waits {
				release(again, g.Token)
			}
			log.settle()
			if a := now(t, repeat); a.err != nil || a.grant.Waited != waits {
				t.Errorf("waits %v: got %+v, %v, want a grant", waits, a.grant, a.err)
			}
			allAnswered(t, log, s, old)
			allAnswered(t, log, again, repeat)
			nobodyWaits(t, tn)
		})
	}
}

// The wait of a started claim ends in time, and not where its conversation has
// ended before, or it has been answered.
func TestStartedClaimWaitsNoLonger(t *testing.T) {
	for _, c := range []struct {
		name string
		meet func(s, holder *session, g leases.Grant, log *ledger)
		want error
	}{
		{"taken", func(*session, *session, leases.Grant, *ledger) {}, leases.ErrHeld},
		{"closed", func(s, _ *session, _ leases.Grant, _ *ledger) { s.Close() }, leases.ErrUnknownOutcome},
		{"granted", func(_, holder *session, g leases.Grant, log *ledger) { release(holder, g.Token); log.settle() }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn, log, _ := begun(t)
				s, holder := opened(t, tn), opened(t, tn)
				g := granted(t, log, holder, wanted(0))
				got := begin(t, s, wanted(3*time.Second))
				time.Sleep(3*time.Second - 1)
				if synctest.Wait(); len(got) != 0 {
					t.Fatalf("answered too early: %+v", <-got)
				}
				c.meet(s, holder, g, log)
				time.Sleep(time.Second)
				fails(t, got, c.want)
				allAnswered(t, log, s, got)
				nobodyWaits(t, tn)
			})
		})
	}
}

// So does the wait of a repeat that has taken another's place.
func TestStartedRepeatWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s := opened(t, tn)
		granted(t, log, opened(t, tn), wanted(0))
		c := wanted(leases.Forever)
		old := begin(t, s, c)
		c.Wait = 3 * time.Second
		repeat := begin(t, s, c)
		fails(t, old, leases.ErrUnavailable)
		time.Sleep(4 * time.Second)
		fails(t, repeat, leases.ErrHeld)
		allAnswered(t, log, s, old, repeat)
		nobodyWaits(t, tn)
	})
}
