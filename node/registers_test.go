package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fallback"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// fallbacks are nodes that serve a fallback epoch over one arbiter. They know of each
// other by its registers alone.
type fallbacks struct {
	t      *testing.T
	memory *arbiter.Memory
	down   atomic.Bool // the arbiter does not answer
	calls  atomic.Int64
	config fallback.Config
	nodes  []*tenure
	drives []*fallback.Replicator
	ends   []context.CancelFunc
}

// Load implements arbiter.Store.
func (f *fallbacks) Load(ctx context.Context, key string) (arbiter.Register, error) {
	f.calls.Add(1)
	if f.down.Load() {
		return arbiter.Register{}, arbiter.Unreachable(key, errors.New("it is down"))
	}
	return f.memory.Load(ctx, key)
}

// CompareAndSwap implements arbiter.Store.
func (f *fallbacks) CompareAndSwap(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
	f.calls.Add(1)
	if f.down.Load() {
		return arbiter.Unreachable(key, errors.New("it is down"))
	}
	return f.memory.CompareAndSwap(ctx, key, from, w)
}

const takenOver = 3 // the epoch that they serve

func regime(fresh bool) fallback.Regime {
	return fallback.Regime{Epoch: takenOver, RaftEpoch: takenOver - 1, Fresh: fresh, Ceiling: time.Minute}
}

func newFallbacks(t *testing.T, nodes int, fresh bool) *fallbacks {
	t.Helper()
	f := &fallbacks{t: t, memory: arbiter.NewMemory()}
	machine := clock.NewRuntime()
	f.config = fallback.Config{
		Store: f, Clock: machine, Shards: leases.Shards{Count: 4, Bytes: leases.MinShardBytes},
		Key: func(shard uint32) string { return fmt.Sprint("shard/", shard) },
	}
	r := regime(fresh)
	r.FreshAt = machine.Now().Add(time.Minute)
	for i := range nodes {
		c := testConfig(machine)
		c.node = fmt.Sprint("n", i+1)
		tn, drive := newRegistersTenure(c, f.config, r)
		ctx, end := context.WithCancel(context.Background())
		tn.begin(ctx)
		var running sync.WaitGroup
		tn.run(ctx, &running)
		t.Cleanup(func() { end(); running.Wait(); drive.Close() })
		f.nodes, f.drives, f.ends = append(f.nodes, tn), append(f.drives, drive), append(f.ends, end)
	}
	return f
}

// begun ends the grace on every node.
func (f *fallbacks) begun() {
	for i, tn := range f.nodes {
		f.drives[i].Serve(regime(true))
		tn.begun()
	}
}

// within is what a channel has to say within a time.
func within[T any](t *testing.T, d time.Duration, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("no answer within %v", d)
		panic("unreachable")
	}
}

const (
	soon   = 100 * time.Millisecond // an op that nothing is in the way of
	passed = 3 * time.Second        // until another node's doing is noticed
)

// takes is a claim that is granted at once.
func takes(t *testing.T, s *session, c leases.Claim) leases.Held {
	t.Helper()
	a := within(t, soon, ask(t.Context(), s, c))
	if a.err != nil {
		t.Fatal(a.err)
	}
	return leases.Held{Name: c.Name, Token: a.grant.Token}
}

func lasting(ttl, wait time.Duration) leases.Claim {
	c := wanted(wait)
	c.TTL = ttl
	return c
}

// Whoever waits at one node gets, in its turn, what a client of another gives back.
func TestWaiterAtAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 2, true)
		holder := opened(t, f.nodes[0])
		held := takes(t, holder, wanted(0))
		var got []<-chan answered
		var waiters []*session
		for range 2 {
			s, h := listening(t, f.nodes[1])
			c := wanted(leases.Forever)
			waiters, got = append(waiters, s), append(got, ask(t.Context(), s, c))
			time.Sleep(soon)
			if places := h.places(c.Attempt); !slices.Equal(places, []int{len(got)}) {
				t.Errorf("waiter %d was told the places %v", len(got), places)
			}
		}
		if err := holder.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		first := within(t, passed, got[0])
		if first.err != nil || !first.grant.Waited || first.grant.Token <= held.Token {
			t.Fatalf("got %+v, %v, want a greater token than %v, for one that waited", first.grant, first.err, held.Token)
		}
		time.Sleep(passed)
		if len(got[1]) != 0 {
			t.Fatal("two hold it")
		}
		if err := waiters[0].Release(t.Context(), leases.Held{Name: "x", Token: first.grant.Token}); err != nil {
			t.Fatal(err)
		}
		if second := within(t, soon, got[1]); second.err != nil || second.grant.Token <= first.grant.Token {
			t.Errorf("the second: got %+v, %v", second.grant, second.err)
		}
		for _, tn := range f.nodes {
			nobodyWaits(t, tn)
		}
	})
}

// A lease that is renewed at one node is kept; others wait. From its holder's silence
// on it expires, its holder is told, and the next in line has it, wherever that waits.
func TestExpiryByObservation(t *testing.T) {
	for _, where := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			const ttl = 10 * time.Second
			f := newFallbacks(t, where+1, true)
			holder, told := listening(t, f.nodes[0])
			held := takes(t, holder, lasting(ttl, 0))
			got := ask(t.Context(), opened(t, f.nodes[where]), wanted(leases.Forever))
			for range 10 {
				time.Sleep(ttl / 3)
				if errs, err := holder.Renew(t.Context(), []leases.Held{held}); err != nil || errs[0] != nil {
					t.Fatalf("renew: got %v, %v", errs, err)
				}
			}
			if len(got) != 0 {
				t.Fatal("granted while it is held")
			}
			silent := time.Now()
			if a := within(t, 2*ttl, got); a.err != nil || a.grant.Token <= held.Token {
				t.Fatalf("got %+v, %v, want the next token", a.grant, a.err)
			}
			if waited := time.Since(silent); waited < ttl {
				t.Errorf("it has expired after %v, its TTL is %v", waited, ttl)
			}
			if errs, err := holder.Renew(t.Context(), []leases.Held{held}); err != nil || !errors.Is(errs[0], leases.ErrNotHeld) {
				t.Errorf("renew: got %v, %v, want that it is not held", errs, err)
			}
			events := told.take()
			if where == 1 {
				return // it may be the other node that has ended it
			}
			if len(events) != 1 {
				t.Fatalf("the holder was told %v, want one thing", events)
			}
			if e, ok := events[0].(leases.Ended); !ok || e.Held != held || why(e.Err) != leases.WhyExpired {
				t.Errorf("the holder was told %+v, want that it has expired", events[0])
			}
		})
	}
}

// In a grace nothing is granted anew: who waits stays in line, who does not is told so.
// Holders reclaim; what they give back is done. Then the lines go on.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 2, false)
		old := leases.Held{Name: "x", Token: tokens.New(takenOver-1, 7)}
		named := func(name string, wait time.Duration) leases.Claim {
			c := wanted(wait)
			c.Name = name
			return c
		}
		s, told := listening(t, f.nodes[0])
		grace := func(what string, err error) {
			t.Helper()
			var g *leases.GraceError
			if !errors.As(err, &g) || g.Epoch != takenOver || g.FreshIn <= 0 || g.FreshIn > time.Minute {
				t.Errorf("%s: got %v, want that there is a grace", what, err)
			}
		}
		grace("acquire", within(t, soon, ask(t.Context(), s, named("x", 0))).err)
		kept := ask(t.Context(), opened(t, f.nodes[1]), named("x", leases.Forever))
		free := ask(t.Context(), opened(t, f.nodes[0]), named("y", leases.Forever))
		grace("acquire, while another waits", within(t, soon, ask(t.Context(), s, named("y", 0))).err)
		if events := told.take(); len(events) != 0 {
			t.Errorf("who does not wait was told %v", events)
		}
		grace("acquire, after its wait", within(t, passed, ask(t.Context(), s, named("z", time.Second))).err)
		errs, err := s.Renew(t.Context(), []leases.Held{old})
		if err != nil {
			t.Fatal(err)
		}
		grace("renew", errs[0])
		if err := s.Release(t.Context(), leases.Held{Name: "given back", Token: old.Token}); err != nil {
			t.Errorf("release: %v", err)
		}
		if passedOn, err := s.Transfer(t.Context(), leases.Held{Name: "given back", Token: old.Token}, leases.NewID()); passedOn || err != nil {
			t.Errorf("transfer: got %v, %v", passedOn, err)
		}
		if err := s.Withdraw(t.Context(), "given back", leases.NewID()); err != nil {
			t.Errorf("withdraw: %v", err)
		}
		for _, c := range []struct {
			what string
			call func() error
		}{
			{"get", func() error { _, err := f.nodes[0].get(t.Context(), "x"); return err }},
			{"list", func() error { _, err := f.nodes[0].list(t.Context(), "", "", 10); return err }},
			{"break", func() error { _, err := f.nodes[0].breakLease(t.Context(), old, true); return err }},
		} {
			if err := c.call(); !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("%s of what may be held: got %v, want %v", c.what, err, leases.ErrUnavailable)
			}
		}
		claimed := []leases.Claimed{
			{Held: old, TTL: time.Minute, Owner: leases.Owner{Label: "holder"}},
			{Held: leases.Held{Name: "too long", Token: old.Token}, TTL: 2 * time.Minute},
			{Held: leases.Held{Name: "too new", Token: tokens.New(takenOver, 1)}, TTL: time.Minute},
		}
		errs, err = s.Reclaim(t.Context(), takenOver, claimed)
		if err != nil || errs[0] != nil || !errors.Is(errs[1], leases.ErrInvalid) || !errors.Is(errs[2], leases.ErrNotHeld) {
			t.Fatalf("reclaim: got %v, %v, want the first reclaimed, the others refused", errs, err)
		}
		errs, err = opened(t, f.nodes[1]).Reclaim(t.Context(), takenOver, claimed[:1])
		if err != nil || !errors.Is(errs[0], leases.ErrNotHeld) {
			t.Errorf("reclaimed by another: got %v, %v", errs, err)
		}
		errs, err = s.Reclaim(t.Context(), takenOver-1, claimed[:1])
		if err != nil {
			t.Fatal(err)
		}
		grace("reclaim of another epoch", errs[0])
		if a := within(t, soon, ask(t.Context(), opened(t, f.nodes[1]), named("x", 0))); !errors.Is(a.err, leases.ErrHeld) {
			t.Errorf("of what was reclaimed: got %v, want %v", a.err, leases.ErrHeld)
		}
		if st, err := f.nodes[1].get(t.Context(), "x"); err != nil || st.Token != old.Token || st.Owner.Label != "holder" {
			t.Errorf("get: got %+v, %v, want what was reclaimed", st, err)
		}
		before := f.calls.Load()
		time.Sleep(30 * time.Second)
		if len(kept)+len(free) != 0 {
			t.Fatal("granted anew in the grace")
		}
		if calls := f.calls.Load() - before; calls > 80 { // each shard is read every 2 s, by two nodes
			t.Errorf("the arbiter was called %d times while nothing could be granted", calls)
		}
		if errs, err := s.Renew(t.Context(), []leases.Held{old}); err != nil || errs[0] != nil {
			t.Fatalf("renew: got %v, %v", errs, err)
		}
		f.begun()
		if a := within(t, soon, free); a.err != nil || a.grant.Token.Epoch() != takenOver || !a.grant.Waited {
			t.Errorf("the free one: got %+v, %v", a.grant, a.err)
		}
		time.Sleep(passed)
		if len(kept) != 0 {
			t.Error("what was reclaimed is granted")
		}
		if err := s.Release(t.Context(), old); err != nil {
			t.Error(err)
		}
		if a := within(t, passed, kept); a.err != nil || a.grant.Token.Epoch() != takenOver {
			t.Errorf("who waited for what was reclaimed: got %+v, %v", a.grant, a.err)
		}
		errs, err = s.Reclaim(t.Context(), takenOver, claimed[:1])
		if err != nil || !errors.Is(errs[0], leases.ErrNotHeld) {
			t.Errorf("reclaimed after fresh grants: got %v, %v", errs, err)
		}
		for _, tn := range f.nodes {
			nobodyWaits(t, tn)
		}
	})
}

// A claim that comes in when the grace is over here, but not yet for the shards, waits
// for that moment.
func TestGraceEndsByDegrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 1, false)
		f.nodes[0].begun()
		s := opened(t, f.nodes[0])
		if a := within(t, soon, ask(t.Context(), s, wanted(0))); !errors.Is(a.err, leases.ErrGrace) {
			t.Errorf("without a wait: got %v, want %v", a.err, leases.ErrGrace)
		}
		got := ask(t.Context(), s, wanted(leases.Forever))
		time.Sleep(passed)
		if len(got) != 0 {
			t.Fatal("it does not wait")
		}
		f.drives[0].Serve(regime(true))
		if a := within(t, 2*retry, got); a.err != nil {
			t.Error(a.err)
		}
	})
}

// A lease is passed on to one who waits at the same node. At another it is given back,
// and then has its turn; in a grace it is given back too.
func TestTransferInRegisters(t *testing.T) {
	for _, c := range []struct {
		what     string
		heir     int
		grace    bool
		passedOn bool
	}{
		{"at the same node", 0, false, true},
		{"at another node", 1, false, false},
		{"in a grace", 0, true, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFallbacks(t, 2, !c.grace)
				giver := opened(t, f.nodes[0])
				var held leases.Held
				if c.grace {
					held = leases.Held{Name: "x", Token: tokens.New(takenOver-1, 7)}
					if errs, err := giver.Reclaim(t.Context(), takenOver, []leases.Claimed{{Held: held, TTL: time.Minute}}); err != nil || errs[0] != nil {
						t.Fatal(errs, err)
					}
				} else {
					held = takes(t, giver, wanted(0))
				}
				first := ask(t.Context(), opened(t, f.nodes[0]), wanted(leases.Forever))
				claim := wanted(leases.Forever)
				heir := ask(t.Context(), opened(t, f.nodes[c.heir]), claim)
				time.Sleep(soon)
				if passedOn, err := giver.Transfer(t.Context(), held, claim.Attempt); passedOn != c.passedOn || err != nil {
					t.Errorf("got %v, %v, want passed on %v", passedOn, err, c.passedOn)
				}
				switch {
				case c.passedOn:
					if a := within(t, soon, heir); a.err != nil || a.grant.Token <= held.Token || !a.grant.Waited {
						t.Errorf("the heir: got %+v, %v", a.grant, a.err)
					}
				case c.grace:
					before := f.calls.Load()
					time.Sleep(passed)
					if len(first)+len(heir) != 0 {
						t.Error("granted in a grace")
					}
					if calls := f.calls.Load() - before; calls > 20 {
						t.Errorf("the arbiter was called %d times while nothing could be granted", calls)
					}
					f.begun()
					fallthrough
				default:
					if a := within(t, passed, first); a.err != nil || a.grant.Token <= held.Token {
						t.Errorf("the first in line: got %+v, %v", a.grant, a.err)
					}
				}
			})
		})
	}
}

// What an operator breaks at one node is renewed at none, and its holder is told.
func TestBreakAtAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 2, true)
		holder, told := listening(t, f.nodes[0])
		held := takes(t, holder, wanted(0))
		b, err := f.nodes[1].breakLease(t.Context(), held, false)
		if err != nil || b.Ended || b.AtMost != leases.Stretch(time.Minute) {
			t.Errorf("break: got %+v, %v", b, err)
		}
		time.Sleep(2 * passed)
		if events := told.take(); len(events) != 1 || events[0] != (leases.Breaking{Held: held}) {
			t.Errorf("the holder was told %v, want that it is broken", events)
		}
		if errs, err := holder.Renew(t.Context(), []leases.Held{held}); err != nil || why(errs[0]) != leases.WhyBroken {
			t.Errorf("renew: got %v, %v, want that it was broken", errs, err)
		}
		got := ask(t.Context(), opened(t, f.nodes[1]), wanted(leases.Forever))
		if b, err := f.nodes[0].breakLease(t.Context(), held, true); err != nil || !b.Ended {
			t.Errorf("break now: got %+v, %v", b, err)
		}
		if a := within(t, passed, got); a.err != nil {
			t.Error(a.err)
		}
		if _, err := f.nodes[0].breakLease(t.Context(), held, true); !errors.Is(err, leases.ErrNotHeld) {
			t.Errorf("once more: got %v, want %v", err, leases.ErrNotHeld)
		}
	})
}

// What one node tells holds for what the others have done before.
func TestRegistersTellWhatIsCertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 2, true)
		s, other := opened(t, f.nodes[0]), f.nodes[1]
		if st, err := other.get(t.Context(), "x"); err != nil || st.Held {
			t.Errorf("a free one: got %+v, %v", st, err)
		}
		c := wanted(0)
		held := takes(t, s, c)
		if st, err := other.get(t.Context(), "x"); err != nil || st.Token != held.Token || st.AtMost != leases.Stretch(time.Minute) {
			t.Errorf("get: got %+v, %v", st, err)
		}
		if a := within(t, soon, ask(t.Context(), opened(t, other), wanted(0))); !errors.Is(a.err, leases.ErrHeld) {
			t.Errorf("acquire: got %v, want %v", a.err, leases.ErrHeld)
		}
		again, err := other.open(s.id, leases.Info{}, func(leases.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		if a := within(t, soon, ask(t.Context(), again, c)); a.err != nil || a.grant.Token != held.Token {
			t.Errorf("a repeat: got %+v, %v, want %v again", a.grant, a.err, held.Token)
		}
		var all []string
		for i := range 9 {
			c := wanted(0)
			c.Name = fmt.Sprint("job-", i)
			takes(t, s, c)
			all = append(all, c.Name)
		}
		for _, c := range []struct {
			prefix, after string
			limit         int
			want          []string
			next          string
		}{
			{"", "", 100, append(slices.Clone(all), "x"), ""},
			{"job-", "", 9, all, ""},
			{"job-", "", 4, all[:4], "job-3"},
			{"job-", "job-3", 4, all[4:8], "job-7"},
			{"job-", "job-7", 4, all[8:], ""},
			{"y", "", 4, nil, ""},
		} {
			p, err := other.list(t.Context(), c.prefix, c.after, c.limit)
			var names []string
			for _, l := range p.Leases {
				names = append(names, l.Name)
			}
			if err != nil || !slices.Equal(names, c.want) || p.Next != c.next || p.At != (leases.Position{Epoch: takenOver}) {
				t.Errorf("list %+v: got %v, next %q, at %v, %v", c, names, p.Next, p.At, err)
			}
		}
		f.down.Store(true)
		for what, call := range map[string]func() error{
			"get":     func() error { _, err := other.get(t.Context(), "x"); return err },
			"list":    func() error { _, err := other.list(t.Context(), "", "", 10); return err },
			"queue":   func() error { _, err := other.queue(t.Context(), "x"); return err },
			"acquire": func() error { _, err := s.Acquire(t.Context(), wanted(0)); return err },
			"release": func() error { return s.Release(t.Context(), held) },
			"renew":   func() error { errs, _ := s.Renew(t.Context(), []leases.Held{held}); return errs[0] },
		} {
			if err := call(); !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("%s without the arbiter: got %v, want %v", what, err, leases.ErrUnavailable)
			}
		}
	})
}

// The line outlasts a time in which the arbiter does not answer.
func TestLineOutlastsTheArbiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 1, true)
		s := opened(t, f.nodes[0])
		held := takes(t, s, lasting(5*time.Second, 0))
		first := ask(t.Context(), opened(t, f.nodes[0]), wanted(leases.Forever))
		second := ask(t.Context(), opened(t, f.nodes[0]), wanted(leases.Forever))
		f.down.Store(true)
		time.Sleep(time.Minute)
		if len(first)+len(second) != 0 {
			t.Fatal("the line is empty")
		}
		f.down.Store(false)
		a := within(t, 10*time.Second, first)
		if a.err != nil || a.grant.Token <= held.Token {
			t.Errorf("got %+v, %v", a.grant, a.err)
		}
		time.Sleep(time.Second)
		if len(second) != 0 {
			t.Error("two hold it")
		}
	})
}

// A claim for which a shard has no room is told which one that is, and its bound.
func TestShardIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 1, true)
		s := opened(t, f.nodes[0])
		var full error
		for i := 0; full == nil && i < 1000; i++ {
			c := wanted(0)
			c.Name = fmt.Sprint("job-", i)
			full = within(t, soon, ask(t.Context(), s, c)).err
		}
		var e *leases.ExhaustedError
		if !errors.As(full, &e) || e.Bound != leases.MinShardBytes || !strings.Contains(e.What, "shard ") {
			t.Errorf("got %v, want that a shard is full, of %d bytes", full, leases.MinShardBytes)
		}
	})
}

// When the epoch has passed on nothing is served, whatever this node has heard of it.
func TestEpochPassesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFallbacks(t, 1, true)
		s := opened(t, f.nodes[0])
		held := takes(t, s, wanted(0))
		waits := ask(t.Context(), opened(t, f.nodes[0]), wanted(leases.Forever))
		if _, err := fallback.SealAll(t.Context(), f.config, takenOver+1, takenOver-1, nil); err != nil {
			t.Fatal(err)
		}
		if errs, err := s.Renew(t.Context(), []leases.Held{held}); err != nil || !errors.Is(errs[0], leases.ErrUnavailable) {
			t.Errorf("renew: got %v, %v, want %v", errs, err, leases.ErrUnavailable)
		}
		if err := s.Release(t.Context(), held); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("release: got %v, want %v", err, leases.ErrUnavailable)
		}
		if len(waits) != 0 {
			t.Error("the line was emptied")
		}
		f.ends[0]()
		if a := now(t, waits); !errors.Is(a.err, leases.ErrUnavailable) {
			t.Errorf("who waits: got %v, want %v", a.err, leases.ErrUnavailable)
		}
		if _, err := f.nodes[0].open(leases.NewID(), leases.Info{}, func(leases.Event) {}); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("open: got %v, want %v", err, leases.ErrUnavailable)
		}
		nobodyWaits(t, f.nodes[0])
	})
}

// Many clients at several nodes have one lease in turn: never two at once, each token
// greater than the one before, and nobody is forgotten.
func TestTurnsAtManyNodes(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			f := newFallbacks(t, 3, true)
			var mu sync.Mutex // guards random and what follows
			var newest tokens.Token
			holding, had := false, 0
			draw := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.Int64N(int64(d)))
			}
			var clients sync.WaitGroup
			for i := range 12 {
				clients.Go(func() {
					s, c := opened(t, f.nodes[i%3]), wanted(leases.Forever)
					time.Sleep(draw(5 * time.Second))
					g, err := s.Acquire(context.Background(), c)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if holding || g.Token <= newest {
						t.Errorf("seed %d: token %v after %v, held by another %v", seed, g.Token, newest, holding)
					}
					holding, newest, had = true, g.Token, had+1
					mu.Unlock()
					time.Sleep(draw(5 * time.Second))
					mu.Lock()
					holding = false
					mu.Unlock()
					if err := s.Release(context.Background(), leases.Held{Name: "x", Token: g.Token}); err != nil {
						t.Error(err)
					}
				})
			}
			clients.Wait()
			if had != 12 {
				t.Errorf("%d of 12 had it", had)
			}
			for _, tn := range f.nodes {
				nobodyWaits(t, tn)
			}
		})
	}
}
