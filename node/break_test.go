package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/leases"
)

// broke answers a break.
type broke struct {
	leases.Broken
	err error
}

// breaks breaks a lease; by the time it returns the tenure has taken it in.
func breaks(ctx context.Context, tn *tenure, h leases.Held, at bool) <-chan broke {
	got := make(chan broke, 1)
	go func() {
		b, err := tn.breakLease(ctx, h, at)
		got <- broke{b, err}
	}()
	synctest.Wait()
	return got
}

// marked lets an operator break the lease, and checks that it is marked.
func (q *queue) marked(atMost time.Duration) {
	q.t.Helper()
	got := breaks(q.t.Context(), q.tenure, q.held(), false)
	q.log.next().land()
	if b := now(q.t, got); b.err != nil || b.Ended || b.AtMost != atMost {
		q.t.Errorf("break: got %+v, %v, want at most %v", b.Broken, b.err, atMost)
	}
}

// told checks what the giver was told: one thing of a kind, with why for an end.
func (q *queue) wasTold(ended bool, reason leases.Why) {
	q.t.Helper()
	told := q.heard.take()
	if len(told) != 1 {
		q.t.Errorf("the holder was told %v, want one thing", told)
		return
	}
	switch e := told[0].(type) {
	case leases.Breaking:
		if ended || e.Held != q.held() {
			q.t.Errorf("the holder was told %+v", e)
		}
	case leases.Ended:
		if !ended || e.Held != q.held() || why(e.Err) != reason {
			q.t.Errorf("the holder was told %+v", e)
		}
	default:
		q.t.Errorf("the holder was told %+v", e)
	}
}

// renewed is what a renewal by the giver is answered.
func (q *queue) renewed() error {
	q.t.Helper()
	errs, err := q.giver.Renew(q.t.Context(), []leases.Held{q.held()})
	if err != nil {
		q.t.Fatal(err)
	}
	return errs[0]
}

// A broken lease is renewed no more, its holder is told, and the name is the
// next one's once it has been released.
func TestBreakAndRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		time.Sleep(10 * time.Second)
		if err := q.renewed(); err != nil {
			t.Fatal(err)
		}
		q.marked(leases.Stretch(time.Minute))
		q.wasTold(false, 0)
		time.Sleep(time.Second)
		if err := q.renewed(); why(err) != leases.WhyBroken {
			t.Errorf("a renewal: got %v, want that it is broken", err)
		}
		// A copy moves nothing, and tells the holder again.
		q.marked(leases.Stretch(time.Minute) - time.Second)
		q.wasTold(false, 0)
		s, err := q.tenure.get(t.Context(), "x")
		if err != nil || !s.Held || !s.Broken || s.Token != q.grant.Token {
			t.Errorf("got %+v, %v, want a broken lease", s, err)
		}
		release(q.giver, q.grant.Token)
		q.log.next().land()
		q.drained(0)
		if told := q.heard.take(); len(told) != 0 {
			t.Errorf("the holder was told %v of its own release", told)
		}
	})
}

// A broken lease that is not released ends at its deadline, as a broken one.
func TestBreakAndLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		q.marked(leases.Stretch(time.Minute))
		q.wasTold(false, 0)
		q.log.within(t, leases.Stretch(time.Minute)+time.Second).land()
		q.wasTold(true, leases.WhyBroken)
		if err := q.renewed(); why(err) != leases.WhyBroken {
			t.Errorf("a renewal: got %v, want that it was broken", err)
		}
		got := breaks(t.Context(), q.tenure, q.held(), false) // a copy that comes late
		q.log.next().land()                                   // the next in line
		q.log.next().land()
		if b := now(t, got); why(b.err) != leases.WhyBroken || b.Ended {
			t.Errorf("a late copy: got %+v, %v, want that it was broken", b.Broken, b.err)
		}
		token := q.granted(0)
		if l := q.tenure.find("x"); l == nil || l.Token != token || l.Broken {
			t.Errorf("got %+v, want the next one's lease, and not broken", l)
		}
	})
}

func TestBreakNow(t *testing.T) {
	for _, mark := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(t, 1)
			if mark {
				q.marked(leases.Stretch(time.Minute))
				q.wasTold(false, 0)
			}
			got := breaks(t.Context(), q.tenure, q.held(), true)
			again := breaks(t.Context(), q.tenure, q.held(), true)
			q.log.next().land()
			q.log.next().land()
			if b := now(t, got); b.err != nil || !b.Ended {
				t.Errorf("got %+v, %v, want a free name", b.Broken, b.err)
			}
			if b := now(t, again); why(b.err) != leases.WhyBroken {
				t.Errorf("a copy: got %+v, %v, want that it was broken", b.Broken, b.err)
			}
			q.wasTold(true, leases.WhyBroken)
			token := q.granted(0)
			if l := q.tenure.find("x"); l == nil || l.Token != token {
				t.Errorf("got %+v, want the next one's lease", l)
			}
		})
	}
}

func TestBreakOfNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 0)
		for _, c := range []struct {
			what string
			h    leases.Held
			want error
		}{
			{"a free name", leases.Held{Name: "y", Token: q.grant.Token}, leases.ErrNotHeld},
			{"another token", leases.Held{Name: "x", Token: q.grant.Token + 1}, leases.ErrNotHeld},
			{"no token", leases.Held{Name: "x"}, leases.ErrInvalid},
			{"a name that cannot be", leases.Held{Name: "@x", Token: 1}, leases.ErrInvalid},
		} {
			for _, at := range []bool{false, true} {
				got := breaks(t.Context(), q.tenure, c.h, at)
				q.log.settle()
				if b := now(t, got); !errors.Is(b.err, c.want) || b.Broken != (leases.Broken{}) {
					t.Errorf("%s, now %v: got %+v, %v, want %v", c.what, at, b.Broken, b.err, c.want)
				}
			}
		}
		if err := q.renewed(); err != nil {
			t.Errorf("the lease that was not meant: %v", err)
		}
		if told := q.heard.take(); len(told) != 0 {
			t.Errorf("its holder was told %v", told)
		}
	})
}

// A renewal whose round is under way when the lease is marked is refused; so
// what the operator was told for how long it lasts stays true.
func TestBreakDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 0)
		round := make(chan struct{})
		raftOf(q.tenure).rounds.ask = func(context.Context) error { <-round; return nil }
		time.Sleep(20 * time.Second)
		got := make(chan error, 1)
		go func() { got <- q.renewed() }()
		synctest.Wait()
		q.marked(leases.Stretch(time.Minute) - 20*time.Second)
		close(round)
		if err := now(t, got); why(err) != leases.WhyBroken {
			t.Errorf("the renewal: got %v, want that it is broken", err)
		}
		q.log.within(t, leases.Stretch(time.Minute)-19*time.Second).land()
	})
}

// The holder is told also where the operator does not wait for the answer; and
// a break that did not get into the log changes nothing.
func TestBreakIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 0)
		ctx, leave := context.WithCancel(t.Context())
		got := breaks(ctx, q.tenure, q.held(), false)
		leave()
		if b := now(t, got); !errors.Is(b.err, leases.ErrUnknownOutcome) {
			t.Errorf("got %+v, %v, want %v", b.Broken, b.err, leases.ErrUnknownOutcome)
		}
		q.log.next().fail(raft.ErrEnqueueTimeout)
		if told := q.heard.take(); len(told) != 0 {
			t.Errorf("the holder was told %v", told)
		}
		if err := q.renewed(); err != nil {
			t.Error(err)
		}
		ctx, leave = context.WithCancel(t.Context())
		breaks(ctx, q.tenure, q.held(), false)
		leave()
		q.log.next().land()
		q.wasTold(false, 0)
	})
}

// A new term knows of the mark: the lease has its full time once more, and is
// not renewed.
func TestBreakAndTheNextTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 0)
		q.marked(leases.Stretch(time.Minute))
		time.Sleep(30 * time.Second)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		q.tenure.begin(ctx)
		if errs, err := q.tenure.renew(t.Context(), q.giver.id, []leases.Held{q.held()}); err != nil || why(errs[0]) != leases.WhyBroken {
			t.Errorf("a renewal: got %v, %v, want that it is broken", errs, err)
		}
		if s, err := q.tenure.get(t.Context(), "x"); err != nil || !s.Broken || s.AtMost != leases.Stretch(time.Minute) {
			t.Errorf("got %+v, %v, want a broken lease with its full time", s, err)
		}
	})
}
