package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// given answers a transfer.
type given struct {
	passedOn bool
	err      error
}

// give transfers x; by the time it returns the tenure has taken it in.
func give(s *session, token tokens.Token, to leases.ID) <-chan given {
	got := make(chan given, 1)
	go func() {
		passedOn, err := s.Transfer(context.Background(), leases.Held{Name: "x", Token: token}, to)
		got <- given{passedOn, err}
	}()
	synctest.Wait()
	return got
}

// queue is a holder of x and those who wait for it, the first in turn first.
type queue struct {
	t      *testing.T
	tenure *tenure
	log    *ledger
	end    context.CancelFunc
	giver  *session
	grant  leases.Grant
	heard  *heard // by the giver
	claims []leases.Claim
	waiter []*session
	told   []*heard
	got    []<-chan answered
	leave  []context.CancelFunc
}

func newQueue(t *testing.T, waiters int) *queue {
	t.Helper()
	q := &queue{t: t}
	q.tenure, q.log, q.end = begun(t)
	q.giver, q.heard = listening(t, q.tenure)
	q.grant = granted(t, q.log, q.giver, wanted(0))
	for range waiters {
		q.join(wanted(leases.Forever))
	}
	return q
}

// join lets one more wait.
func (q *queue) join(c leases.Claim) {
	q.t.Helper()
	s, h := listening(q.t, q.tenure)
	ctx, leave := context.WithCancel(context.Background())
	q.t.Cleanup(leave)
	q.claims, q.waiter, q.told, q.leave = append(q.claims, c), append(q.waiter, s), append(q.told, h), append(q.leave, leave)
	q.got = append(q.got, ask(ctx, s, c))
}

// give transfers the lease to waiter i and returns the answer to come and the
// entry that holds the transfer.
func (q *queue) give(i int) (<-chan given, *written) {
	q.t.Helper()
	got := give(q.giver, q.grant.Token, q.claims[i].Attempt)
	w := q.log.next()
	if ops := w.ops(); len(ops) != 1 || ops[0].Kind != leases.KindTransfer || ops[0].Attempt != q.claims[i].Attempt {
		q.t.Fatalf("got entry %v, want the transfer to waiter %d", ops, i)
	}
	return got, w
}

// waiting checks who waits, in which order.
func (q *queue) waiting(want ...int) {
	q.t.Helper()
	synctest.Wait()
	waiters, err := q.tenure.queue(context.Background(), "x")
	if err != nil {
		q.t.Fatal(err)
	}
	var got []int
	for i, w := range waiters {
		if w.Position != i+1 {
			q.t.Errorf("waiter %d has position %d", i, w.Position)
		}
		got = append(got, slices.IndexFunc(q.claims, func(c leases.Claim) bool { return c.Attempt == w.Attempt }))
	}
	if !slices.Equal(got, want) {
		q.t.Errorf("waiting: got %v, want %v", got, want)
	}
	q.tenure.mu.Lock()
	defer q.tenure.mu.Unlock()
	if q.tenure.waiters != len(want) {
		q.t.Errorf("count of waiters: got %d, want %d", q.tenure.waiters, len(want))
	}
}

// granted checks that waiter i has the lease, and returns its token.
func (q *queue) granted(i int) tokens.Token {
	q.t.Helper()
	synctest.Wait()
	select {
	case a := <-q.got[i]:
		if a.err != nil || !a.grant.Waited {
			q.t.Fatalf("waiter %d: got %+v, %v, want a grant that waited", i, a.grant, a.err)
		}
		return a.grant.Token
	default:
		q.t.Fatalf("waiter %d has no answer", i)
		return 0
	}
}

// refused checks how waiter i was answered.
func (q *queue) refused(i int, want error) {
	q.t.Helper()
	synctest.Wait()
	select {
	case a := <-q.got[i]:
		if !errors.Is(a.err, want) {
			q.t.Errorf("waiter %d: got %+v, %v, want %v", i, a.grant, a.err, want)
		}
	default:
		q.t.Errorf("waiter %d has no answer, want %v", i, want)
	}
}

// drained lets each of these get the lease in turn and give it back, and checks
// that then nothing is left.
func (q *queue) drained(order ...int) {
	q.t.Helper()
	for _, i := range order {
		q.log.next().land()
		release(q.waiter[i], q.granted(i))
		q.log.next().land()
	}
	nobodyWaits(q.t, q.tenure)
	if l := q.tenure.find("x"); l != nil {
		q.t.Errorf("x is held under %v", l.Token)
	}
}

// check checks the answer to a transfer.
func (q *queue) check(got <-chan given, passedOn bool, want error) {
	q.t.Helper()
	synctest.Wait()
	select {
	case g := <-got:
		if g.passedOn != passedOn || !errors.Is(g.err, want) {
			q.t.Errorf("the giver: got %v, %v, want %v, %v", g.passedOn, g.err, passedOn, want)
		}
	default:
		q.t.Errorf("the giver has no answer")
	}
}

func why(err error) leases.Why {
	var e *leases.NotHeldError
	if !errors.As(err, &e) {
		return leases.WhyUnknown
	}
	return e.Why
}

// An heir gets the lease out of its turn, under a greater token, with the short
// first deadline of one who waited. The others keep their turns.
func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 3)
		got, w := q.give(1)
		q.waiting(0, 2)
		w.land()
		q.check(got, true, nil)
		token := q.granted(1)
		if token <= q.grant.Token {
			t.Errorf("the heir's token: got %v, want more than %v", token, q.grant.Token)
		}
		s, err := q.tenure.get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if s.Token != token || s.AtMost != leases.Stretch(leases.FirstDeadline) || s.Last.Why != leases.WhyTransferred || s.Last.Token != q.grant.Token || s.Last.Next != token {
			t.Errorf("got %+v, want token %v, for %v, after one that was transferred", s, token, leases.Stretch(leases.FirstDeadline))
		}
		if errs, err := q.giver.Renew(t.Context(), []leases.Held{{Name: "x", Token: q.grant.Token}}); err != nil || why(errs[0]) != leases.WhyTransferred {
			t.Errorf("a renewal by the giver: got %v, %v, want that it was transferred", errs, err)
		}
		if errs, err := q.waiter[1].Renew(t.Context(), []leases.Held{{Name: "x", Token: token}}); err != nil || errs[0] != nil {
			t.Errorf("the heir's confirmation: got %v, %v", errs, err)
		}
		release(q.waiter[1], token)
		q.log.next().land()
		q.drained(0, 2)
	})
}

// Where nobody waits under that attempt a transfer is a plain release.
func TestTransferToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 2)
		got := give(q.giver, q.grant.Token, leases.NewID())
		q.log.next().land()
		q.check(got, false, nil)
		q.drained(0, 1)
	})
}

func TestInvalidTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		for _, c := range []struct {
			h  leases.Held
			to leases.ID
		}{
			{leases.Held{Name: "x", Token: q.grant.Token}, leases.ID{}},
			{leases.Held{Name: "@x", Token: q.grant.Token}, q.claims[0].Attempt},
			{leases.Held{Name: "x"}, q.claims[0].Attempt},
		} {
			if _, err := q.giver.Transfer(t.Context(), c.h, c.to); !errors.Is(err, leases.ErrInvalid) {
				t.Errorf("transfer %v to %v: got %v, want %v", c.h, c.to, err, leases.ErrInvalid)
			}
		}
		if len(q.log.entries) != 0 {
			t.Error("what is invalid was proposed")
		}
	})
}

// Only who holds the lease can give it, and nobody who waits is disturbed by
// who does not: not by a copy that comes late, either.
func TestTransferOfAnothersLease(t *testing.T) {
	for _, c := range []struct {
		what string
		from func(q *queue) (*session, tokens.Token)
		want leases.Why
	}{
		{"another session", func(q *queue) (*session, tokens.Token) { return q.waiter[1], q.grant.Token }, leases.WhyUnknown},
		{"another token", func(q *queue) (*session, tokens.Token) { return q.giver, q.grant.Token + 7 }, leases.WhyUnknown},
		{"a late copy", func(q *queue) (*session, tokens.Token) {
			old := q.grant.Token
			release(q.giver, old)
			q.log.next().land()
			q.log.next().land()
			q.granted(0)
			return q.giver, old
		}, leases.WhyReleased},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t, 3)
				s, token := c.from(q)
				time.Sleep(time.Second) // every place is told
				for _, h := range q.told {
					h.take()
				}
				before, _ := q.tenure.queue(t.Context(), "x")
				holder := q.tenure.find("x").Token
				got := give(s, token, q.claims[2].Attempt)
				w := q.log.next()
				if op := w.ops()[0]; op.Kind != leases.KindRelease {
					t.Errorf("proposed a %v, want a plain release", op.Kind)
				}
				w.land()
				g := now(t, got)
				if g.passedOn || !errors.Is(g.err, leases.ErrNotHeld) || why(g.err) != c.want {
					t.Errorf("got %v, %v, want %v", g.passedOn, g.err, c.want)
				}
				time.Sleep(time.Second)
				for i, h := range q.told {
					if e := h.take(); len(e) != 0 {
						t.Errorf("waiter %d was told %v", i, e)
					}
				}
				if after, _ := q.tenure.queue(t.Context(), "x"); len(after) != len(before) {
					t.Errorf("waiting: got %v, want %v", after, before)
				}
				if now := q.tenure.find("x"); now == nil || now.Token != holder {
					t.Errorf("the holder: got %v, want %v", now, holder)
				}
			})
		})
	}
}

// Of two copies of a transfer the second finds the lease gone, and the heir is
// not harmed.
func TestTransferIsCopied(t *testing.T) {
	for _, landed := range []bool{false, true} {
		t.Run(fmt.Sprintf("after the first has landed %v", landed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t, 2)
				got, w := q.give(1)
				if landed {
					w.land()
					synctest.Wait()
				}
				again := give(q.giver, q.grant.Token, q.claims[1].Attempt)
				if !landed {
					w.land()
				}
				q.log.next().land()
				q.check(got, true, nil)
				if g := now(t, again); g.passedOn || why(g.err) != leases.WhyTransferred {
					t.Errorf("the second copy: got %v, %v, want that it was transferred", g.passedOn, g.err)
				}
				token := q.granted(1)
				release(q.waiter[1], token)
				q.log.next().land()
				q.drained(0)
			})
		})
	}
}

// Whatever an heir does while its transfer is in the log, and whatever becomes
// of that: it has the lease, or a place in line, or is gone for good.
func TestHeirMeanwhile(t *testing.T) {
	type outcome struct {
		heir  error // as it is answered
		stays bool  // in line
	}
	noReply := outcome{heir: leases.ErrUnknownOutcome}
	for _, c := range []struct {
		what             string
		meanwhile        func(q *queue)
		transferred, not outcome // by what became of the transfer
	}{
		{"waits", func(*queue) {}, outcome{}, outcome{stays: true}},
		{"leaves", func(q *queue) { q.leave[1]() }, noReply, noReply},
		{"its conversation ends", func(q *queue) { q.waiter[1].Close() }, noReply, noReply},
		{
			"its wait is over", func(*queue) { time.Sleep(11 * time.Second) },
			outcome{},
			outcome{heir: leases.ErrUnavailable},
		},
		{
			"is withdrawn", func(q *queue) { go q.waiter[1].Withdraw(context.Background(), "x", q.claims[1].Attempt) },
			outcome{},
			outcome{heir: leases.ErrNotHeld}, // its Withdraw comes after the grant
		},
	} {
		for _, lost := range []error{nil, raft.ErrLeadershipTransferInProgress} {
			t.Run(fmt.Sprintf("%s, %v", c.what, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := newQueue(t, 1)
					q.join(wanted(10 * time.Second))
					q.join(wanted(leases.Forever))
					got, w := q.give(1)
					c.meanwhile(q)
					synctest.Wait()
					want := c.transferred
					if lost == nil {
						w.land()
						q.check(got, true, nil)
					} else {
						want = c.not
						w.fail(lost)
						q.check(got, false, leases.ErrUnavailable)
					}
					synctest.Wait()
					switch {
					case want.stays:
						q.waiting(0, 1, 2)
					case want.heir != nil:
						q.waiting(0, 2)
						q.refused(1, want.heir)
					default:
						q.waiting(0, 2)
						q.granted(1)
					}
					if lost != nil { // the giver repeats it, as a release
						release(q.giver, q.grant.Token)
						q.log.settle()
						q.granted(0)
						return
					}
					// Whoever does not confirm has it no longer than the first deadline.
					q.log.within(t, leases.Stretch(leases.FirstDeadline)+time.Second).land()
					q.log.next().land()
					q.granted(0)
					q.waiting(2)
				})
			})
		}
	}
}

// An heir that is repeated while its transfer is in the log gets the answer on
// its newest conversation, and the copy before is told so.
func TestHeirIsRepeated(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %v", lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t, 2)
				got, w := q.give(1)
				second, err := q.tenure.open(q.waiter[1].id, leases.Info{}, func(leases.Event) {})
				if err != nil {
					t.Fatal(err)
				}
				repeat := ask(t.Context(), second, q.claims[1])
				q.refused(1, leases.ErrUnavailable)
				q.waiter[1].Close() // takes nothing with it
				if lost {
					w.fail(raft.ErrEnqueueTimeout)
					q.check(got, false, leases.ErrUnavailable)
					q.waiting(0, 1)
					got, w = q.give(1)
				}
				w.land()
				q.check(got, true, nil)
				if a := now(t, repeat); a.err != nil || !a.grant.Waited {
					t.Errorf("the heir: got %+v, %v, want a grant that waited", a.grant, a.err)
				}
				q.waiting(0)
			})
		})
	}
}

// An heir that got nothing has its turn again, whoever has left meanwhile.
func TestHeirKeepsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 4)
		got, w := q.give(2)
		q.leave[0]()
		q.leave[1]()
		q.waiting(3)
		w.fail(raft.ErrEnqueueTimeout)
		q.check(got, false, leases.ErrUnavailable)
		q.waiting(2, 3)
		release(q.giver, q.grant.Token)
		q.log.next().land()
		q.drained(2, 3)
	})
}

// The giver's deadline passes, or its lease is broken, before the transfer gets
// into the log or while it is there: it is one or the other, and the line goes on.
func TestTransferAndOtherEnds(t *testing.T) {
	brk := func(now bool) func(*queue) {
		return func(q *queue) {
			go q.tenure.breakLease(context.Background(), leases.Held{Name: "x", Token: q.grant.Token}, now)
		}
	}
	expires := func(*queue) { time.Sleep(leases.Stretch(time.Minute)) }
	gives := func(q *queue) { go q.giver.Transfer(context.Background(), q.held(), q.claims[1].Attempt) }
	for _, c := range []struct {
		what          string
		first, second func(*queue)
		passedOn      bool
	}{
		{"expired before", expires, gives, false},
		{"expired after", gives, expires, true},
		{"marked before", brk(false), gives, true},
		{"marked after", gives, brk(false), true},
		{"broken before", brk(true), gives, false},
		{"broken after", gives, brk(true), true},
		{"released before", func(q *queue) { go q.giver.Release(context.Background(), q.held()) }, gives, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t, 3)
				c.first(q)
				first := q.log.next()
				c.second(q)
				synctest.Wait()
				first.land()
				q.log.next().land()
				if c.passedOn {
					token := q.granted(1)
					if l := q.tenure.find("x"); l == nil || l.Token != token || l.Broken {
						t.Fatalf("got %+v, want the heir's lease", l)
					}
					q.waiting(0, 2)
					release(q.waiter[1], token)
					q.log.next().land()
					q.drained(0, 2)
					return
				}
				q.drained(0, 1, 2)
			})
		})
	}
}

func (q *queue) held() leases.Held { return leases.Held{Name: "x", Token: q.grant.Token} }

// When the term ends nobody is told more than is known.
func TestTermEndsDuringATransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 2)
		got, w := q.give(1)
		q.end()
		q.check(got, false, leases.ErrUnknownOutcome)
		q.refused(1, leases.ErrUnknownOutcome)
		q.refused(0, leases.ErrUnavailable)
		if g := now(t, give(q.giver, q.grant.Token, q.claims[1].Attempt)); !errors.Is(g.err, leases.ErrUnavailable) && !errors.Is(g.err, leases.ErrUnknownOutcome) {
			t.Errorf("after the end: got %v, want that nothing is known", g.err)
		}
		w.land()
		nobodyWaits(t, q.tenure)
	})
}

// A transfer that finds a new epoch is proposed anew, or as a release if its
// heir has been withdrawn: the Withdraw may lie before it in the log.
func TestTransferWhileAnEpochBegins(t *testing.T) {
	for _, withdrawn := range []bool{false, true} {
		t.Run(fmt.Sprintf("withdrawn %v", withdrawn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t, 2)
				if err := raftOf(q.tenure).proposer.Propose(leases.Op{Kind: leases.KindBump, Epoch: 2}, func(leases.Result, error) {}); err != nil {
					t.Fatal(err)
				}
				bump := q.log.next()
				got := give(q.giver, q.grant.Token, q.claims[1].Attempt)
				bump.land()
				stale := q.log.next()
				// The table has the new epoch, and this transfer is not answered yet.
				stale.apply()
				if withdrawn {
					go q.waiter[1].Withdraw(context.Background(), "x", q.claims[1].Attempt)
					synctest.Wait()
				}
				stale.close()
				q.log.settle()
				if withdrawn {
					q.check(got, false, nil)
					q.refused(1, leases.ErrNotHeld)
					q.granted(0)
					return
				}
				q.check(got, true, nil)
				if token := q.granted(1); token.Epoch() != 2 {
					t.Errorf("the heir's token: got %v, want one of epoch 2", token)
				}
				q.waiting(0)
			})
		})
	}
}

// With no token left a transfer is a plain release; nobody gets the name.
func TestTransferWithoutATokenLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		if err := log.fsm.Restore(numbered(1, tokens.MaxCounter-1)); err != nil {
			t.Fatal(err)
		}
		giver, heir, c := opened(t, tn), opened(t, tn), wanted(leases.Forever)
		g := granted(t, log, giver, wanted(0))
		log.next().fail(raft.ErrEnqueueTimeout) // the bump
		waits := ask(t.Context(), heir, c)
		got := give(giver, g.Token, c.Attempt)
		log.next().land()
		log.next().land()
		if g := now(t, got); g.passedOn || g.err != nil {
			t.Errorf("the giver: got %v, %v, want a release", g.passedOn, g.err)
		}
		if a := now(t, waits); !errors.Is(a.err, leases.ErrExhausted) {
			t.Errorf("the heir: got %v, want %v", a.err, leases.ErrExhausted)
		}
		nobodyWaits(t, tn)
	})
}
