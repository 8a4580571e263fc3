package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// ledger is a Raft log of one server, whose entries the test lets go one by one.
type ledger struct {
	fsm     *fsm.FSM
	entries chan *written

	mu  sync.Mutex // guards all
	all []*written
}

// written is one entry; it is applied when it lands.
type written struct {
	ledger *ledger
	data   []byte
	done   chan struct{}
	once   sync.Once // closes done
	err    error
	result any
}

func (l *ledger) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	w := &written{ledger: l, data: data, done: make(chan struct{})}
	l.mu.Lock()
	l.all = append(l.all, w)
	l.mu.Unlock()
	l.entries <- w
	return w
}

func (w *written) land() {
	w.apply()
	w.close()
}

// apply lets the entry land; that is not known to the tenure before close.
func (w *written) apply() {
	w.result = w.ledger.fsm.Apply(&raft.Log{Term: 1, Data: w.data})
}

func (w *written) fail(err error) {
	w.err = err
	w.close()
}

func (w *written) close() { w.once.Do(func() { close(w.done) }) }

// abandon ends what the test has not.
func (l *ledger) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.all {
		w.close()
	}
}

// ops is what the entry proposes.
func (w *written) ops() []leases.Op {
	e, err := fsm.DecodeEntry(w.data)
	if err != nil {
		panic(err)
	}
	return e.Ops
}

func (w *written) Error() error  { <-w.done; return w.err }
func (w *written) Response() any { return w.result }
func (w *written) Index() uint64 { return 0 }

// next is the entry that is proposed next. What the answers to the one before
// have called for is proposed by then.
func (l *ledger) next() *written {
	synctest.Wait()
	select {
	case w := <-l.entries:
		return w
	default:
		panic("nothing is proposed")
	}
}

// settle lets everything land, until nothing more is proposed.
func (l *ledger) settle() {
	for synctest.Wait(); len(l.entries) > 0; synctest.Wait() {
		(<-l.entries).land()
	}
}

// within is the entry that is proposed within a time.
func (l *ledger) within(t *testing.T, d time.Duration) *written {
	t.Helper()
	select {
	case w := <-l.entries:
		return w
	case <-time.After(d):
		t.Fatalf("nothing was proposed within %v", d)
		return nil
	}
}

// begun returns a tenure over a table that has been born, and its end.
func begun(t *testing.T) (*tenure, *ledger, context.CancelFunc) {
	t.Helper()
	return begunUnder(t, func(*tenureConfig, *raftConfig) {})
}

// begunUnder is begun, after change has changed what the tenure is made of.
func begunUnder(t *testing.T, change func(*tenureConfig, *raftConfig)) (*tenure, *ledger, context.CancelFunc) {
	t.Helper()
	f := fsm.New(rules.Set{}, func(err error) { t.Errorf("the state machine has stopped: %v", err) })
	log := &ledger{fsm: f, entries: make(chan *written, 100)}
	birth := fsm.Entry{Term: 1, Ops: []leases.Op{{Kind: leases.KindBirth, Epoch: 1, Cluster: leases.NewID(), Founders: 1}}}
	f.Apply(&raft.Log{Term: 1, Data: birth.Encode()})
	c := testConfig(clock.NewRuntime())
	c.term = 1
	r := raftConfig{
		fsm:      f,
		proposer: fsm.NewProposer(log, 1, time.Second, func() (uint32, string) { return leases.OpVersion, "" }),
		rounds:   newRounds(c.clock, rules.Set{}, time.Second, func(context.Context) error { return nil }),
	}
	change(&c, &r)
	tn := newRaftTenure(c, r)
	ctx, end := context.WithCancel(context.Background())
	tn.begin(ctx)
	var running sync.WaitGroup
	tn.run(ctx, &running)
	t.Cleanup(func() { end(); running.Wait(); log.abandon() })
	return tn, log, end
}

func testConfig(c clock.Clock) tenureConfig {
	return tenureConfig{
		node: "n1", clock: c, log: slog.New(slog.DiscardHandler), metrics: newMetrics(c, func() Status { return Status{} }),
		limits: limits{claims: 100, waiters: 100, waitersPerName: 100},
	}
}

// raftOf is the part of a tenure that belongs to Raft.
func raftOf(tn *tenure) *raftReplicator { return tn.replicator.(*raftReplicator) }

func opened(t *testing.T, tn *tenure) *session {
	t.Helper()
	s, _ := listening(t, tn)
	return s
}

// heard is what a session was told without having asked.
type heard struct {
	mu     sync.Mutex // guards events
	events []leases.Event
}

// take returns what has been told since the last take.
func (h *heard) take() []leases.Event {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	told := h.events
	h.events = nil
	return told
}

// listening opens a session and keeps what it is told.
func listening(t *testing.T, tn *tenure) (*session, *heard) {
	t.Helper()
	h := &heard{}
	s, err := tn.open(leases.NewID(), leases.Info{}, func(e leases.Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, e)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, h
}

func wanted(wait time.Duration) leases.Claim {
	return leases.Claim{Name: "x", Attempt: leases.NewID(), TTL: time.Minute, Wait: wait}
}

// ask sends a claim; by the time it returns the tenure has taken it in.
func ask(ctx context.Context, s *session, c leases.Claim) <-chan answered {
	got := make(chan answered, 1)
	go func() {
		g, err := s.Acquire(ctx, c)
		got <- answered{g, err}
	}()
	synctest.Wait()
	return got
}

// now is what a channel has to say at once.
func now[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	synctest.Wait()
	select {
	case v := <-c:
		return v
	default:
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func release(s *session, token tokens.Token) {
	go s.Release(context.Background(), leases.Held{Name: "x", Token: token})
	synctest.Wait()
}

// granted is the grant of a claim that nobody competes for.
func granted(t *testing.T, log *ledger, s *session, c leases.Claim) leases.Grant {
	t.Helper()
	got := ask(context.Background(), s, c)
	log.next().land()
	a := now(t, got)
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.grant
}

// stray brings an acquire into the log that no line knows of.
func stray(tn *tenure, s *session, c leases.Claim) {
	op := s.claim(c, nil).op(leases.KindAcquire)
	raftOf(tn).fsm.View(func(table *leases.Table) { op.Epoch = table.Epoch() })
	if err := raftOf(tn).proposer.Propose(op, func(leases.Result, error) {}); err != nil {
		panic(err)
	}
}

// overtaken brings a claim that waits for x to where it has been proposed and
// will find x taken: a stray acquire of the holder's lies before it in the log.
// landing is the entry that holds both.
func overtaken(ctx context.Context, t *testing.T, tn *tenure, log *ledger, waiter *session, c leases.Claim) (got <-chan answered, holder *session, landing *written) {
	t.Helper()
	holder = opened(t, tn)
	first := wanted(0)
	g := granted(t, log, holder, first)
	got = ask(ctx, waiter, c)
	release(holder, g.Token)
	released := log.next()
	stray(tn, holder, first)
	released.land()
	return got, holder, log.next()
}

// nobodyWaits checks that the tenure knows of no claim.
func nobodyWaits(t *testing.T, tn *tenure) {
	t.Helper()
	synctest.Wait()
	tn.mu.Lock()
	defer tn.mu.Unlock()
	if len(tn.lines) != 0 || tn.waiters != 0 || tn.claims != 0 {
		t.Errorf("got %d lines with %d waiters and %d claims, want none", len(tn.lines), tn.waiters, tn.claims)
	}
}

// A claim that is proposed when its conversation ends goes with it, also where
// the name turns out to be taken.
func TestClaimGoesWithItsConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		gone := opened(t, tn)
		got, _, landing := overtaken(t.Context(), t, tn, log, gone, wanted(leases.Forever))
		gone.Close()
		if a := now(t, got); !errors.Is(a.err, leases.ErrUnknownOutcome) {
			t.Errorf("got %v, want %v", a.err, leases.ErrUnknownOutcome)
		}
		landing.land()
		nobodyWaits(t, tn)
	})
}

// The repeat of a claim takes its place over for good: it waits on where the
// name turns out to be taken, is granted in its turn, and ends with the term.
func TestRepeatOfAProposedClaim(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("term ended %v", ended), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn, log, end := begun(t)
				s, c := opened(t, tn), wanted(leases.Forever)
				displaced, holder, landing := overtaken(t.Context(), t, tn, log, s, c)
				repeat := ask(t.Context(), s, c)
				if a := now(t, displaced); !errors.Is(a.err, leases.ErrUnavailable) {
					t.Errorf("the copy before: got %v, want %v", a.err, leases.ErrUnavailable)
				}
				landing.land()
				synctest.Wait()
				if ended {
					end()
					if a := now(t, repeat); !errors.Is(a.err, leases.ErrUnavailable) {
						t.Errorf("got %v, want %v", a.err, leases.ErrUnavailable)
					}
					nobodyWaits(t, tn)
					return
				}
				release(holder, tn.find("x").Token)
				log.next().land()
				log.next().land()
				if a := now(t, repeat); a.err != nil || !a.grant.Waited {
					t.Errorf("got %+v, %v, want a grant that waited", a.grant, a.err)
				}
				nobodyWaits(t, tn)
			})
		})
	}
}

// A claim waits no longer than it said, also where it was the first in line and
// found the name taken only when it was proposed.
func TestOvertakenClaimWaitsNoLonger(t *testing.T) {
	for _, landed := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken before its wait is over %v", landed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn, log, _ := begun(t)
				s, other, first := opened(t, tn), opened(t, tn), wanted(0)
				g := granted(t, log, other, first)
				release(other, g.Token)
				released := log.next()
				stray(tn, other, first)
				released.land()
				late := log.next()
				got := ask(t.Context(), s, wanted(10*time.Second))
				late.land()
				landing := log.next()
				if landed {
					landing.land()
				}
				time.Sleep(11 * time.Second)
				if !landed {
					landing.land()
				}
				synctest.Wait()
				select {
				case a := <-got:
					if !errors.Is(a.err, leases.ErrHeld) {
						t.Errorf("got %v, want %v", a.err, leases.ErrHeld)
					}
				default:
					t.Error("no answer after its wait")
				}
				nobodyWaits(t, tn)
			})
		})
	}
}

// Raft refuses entries for moments, as while a transfer of the leadership that
// fails is tried: an expiry is proposed until it gets into the log.
func TestExpiryIsProposedUntilItIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		granted(t, log, opened(t, tn), wanted(0))
		waits := ask(t.Context(), opened(t, tn), wanted(leases.Forever))
		log.within(t, 2*time.Minute).fail(raft.ErrLeadershipTransferInProgress)
		log.within(t, time.Second).fail(raft.ErrEnqueueTimeout)
		log.within(t, time.Second).land()
		log.next().land()
		if a := now(t, waits); a.err != nil {
			t.Error(a.err)
		}
	})
}

// numbered is the encoding of an empty table that has granted so many tokens.
func numbered(epoch, counter uint32) io.ReadCloser {
	b := leases.AppendHeader(nil, 'T', leases.TableVersion, leases.FirstRelease)
	cluster := leases.NewID()
	b = append(b, cluster[:]...)
	for _, n := range []uint32{1, epoch, counter, 1, 0, 0, 0, 0, 0} { // founders, …, revision, shards and their bytes, leases, endings, staging
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return io.NopCloser(bytes.NewReader(b))
}

// A leader that stays for long begins an epoch whenever half of one's tokens
// are used, and tries again where that has failed.
func TestEpochsOfALongTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s := opened(t, tn)
		for epoch := uint32(1); epoch <= 3; epoch++ {
			if err := log.fsm.Restore(numbered(epoch, tokens.MaxCounter/2)); err != nil {
				t.Fatal(err)
			}
			for _, failed := range []bool{true, false} {
				c := wanted(0)
				c.Name = fmt.Sprintf("job-%v", failed)
				granted(t, log, s, c)
				synctest.Wait()
				select {
				case bump := <-log.entries:
					if failed {
						bump.fail(raft.ErrEnqueueTimeout)
					} else {
						bump.land()
					}
				default:
					t.Fatalf("epoch %d, failed before %v: no new one is begun", epoch, !failed)
				}
				synctest.Wait()
			}
			var now uint32
			log.fsm.View(func(table *leases.Table) { now = table.Epoch() })
			if now != epoch+1 {
				t.Fatalf("got epoch %d, want %d", now, epoch+1)
			}
		}
	})
}

// A withdrawal that comes in while a new epoch begins is not overtaken by the
// claim that has to be proposed anew.
func TestWithdrawnWhileAnEpochBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s, c := opened(t, tn), wanted(0)
		if err := raftOf(tn).proposer.Propose(leases.Op{Kind: leases.KindBump, Epoch: 2}, func(leases.Result, error) {}); err != nil {
			t.Fatal(err)
		}
		bump := log.next()
		got := ask(t.Context(), s, c)
		bump.land()
		claimed := log.next()
		// The table has the new epoch, and this claim is not answered yet.
		claimed.apply()
		withdrawn := make(chan error, 1)
		go func() { withdrawn <- s.Withdraw(context.Background(), c.Name, c.Attempt) }()
		synctest.Wait()
		claimed.close()
		synctest.Wait()
		for range len(log.entries) {
			log.next().land()
		}
		if err := now(t, withdrawn); err != nil {
			t.Errorf("withdraw: %v", err)
		}
		if a := now(t, got); !errors.Is(a.err, leases.ErrNotHeld) {
			t.Errorf("the claim: got %v, want %v", a.err, leases.ErrNotHeld)
		}
		if l := tn.find(c.Name); l != nil {
			t.Errorf("token %v is held under an attempt that was withdrawn", l.Token)
		}
	})
}

// What is kept for the expiry of leases that were released long before does not
// grow with their number.
func TestReleasedLeasesNeedNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s := opened(t, tn)
		kept := wanted(0)
		kept.Name = "kept"
		granted(t, log, s, kept)
		for range 10_000 {
			g := granted(t, log, s, wanted(0))
			release(s, g.Token)
			log.next().land()
		}
		synctest.Wait()
		tn.mu.Lock()
		due := len(raftOf(tn).expiry.due)
		tn.mu.Unlock()
		if due > 1000 {
			t.Errorf("got %d entries for one lease", due)
		}
		log.within(t, 2*time.Minute).land()
		synctest.Wait()
		if tn.find("kept") != nil {
			t.Error("the lease that was kept has not expired")
		}
	})
}
