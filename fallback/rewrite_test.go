package fallback

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func (w *world) installs(epoch uint32, held ...*leases.Lease) *Rewrite {
	return NewInstall(w.index, w.shards, w.set, w.nonce, epoch, epoch-1, held)
}

func (w *world) install(epoch uint32, held ...*leases.Lease) {
	w.t.Helper()
	if _, err := w.rewrite(w.installs(epoch, held...)); err != nil {
		w.t.Fatal(err)
	}
}

func named(name string, l *leases.Lease) *leases.Lease {
	copied := *l
	copied.Name = name
	return &copied
}

func TestInstall(t *testing.T) {
	w := newWorld(t, rules.Set{})
	w.put(leases.Shard{Epoch: 1, Leases: []*leases.Lease{named("stale", raftLease(carol, try3, 1))}})
	broken := named("broken", raftLease(bob, try2, 6))
	broken.Broken = true
	full := raftLease(alice, try1, 5)
	full.Owner, full.Attributes, full.AcquiredAt = leases.Owner{Label: "a", Host: "h", PID: 3}, []byte("x"), time.UnixMilli(1e12).UTC()
	w.install(2, broken, full)

	s := w.shard()
	if s.Epoch != 2 || s.Closed || s.Counter != 0 || len(s.Leases) != 2 || w.reg.Version != 2 {
		t.Fatalf("got %+v in version %d", s, w.reg.Version)
	}
	b, l := s.Leases[0], s.Leases[1]
	if b.Name != "broken" || !b.Broken || b.Attempt != try2 || b.Stamp != 2 {
		t.Errorf("the broken lease: got %+v", b)
	}
	if l.Token != full.Token || l.Session != alice || l.Attempt != try1 || l.Stamp != 2 || l.Owner != full.Owner ||
		string(l.Attributes) != "x" || !l.AcquiredAt.Equal(full.AcquiredAt) {
		t.Errorf("got %+v", l)
	}

	w.install(2, broken, full) // again: nothing is left to do
	if w.reg.Version != 2 {
		t.Errorf("a repeat has written version %d", w.reg.Version)
	}
	m := w.serve(w.graceful(2, 1))
	again := acquire(alice, try1)
	again.Owner, again.Attributes = full.Owner, full.Attributes
	if got := m.do(again).want(t, leases.Repeated); got.Token != full.Token {
		t.Errorf("a repeat of the attempt got %v", got.Token)
	}
	m.do(renew(alice, full.Token)).want(t, leases.Renewed)
	gone := renew(bob, broken.Token)
	gone.Name = "broken"
	if r := m.do(gone); r.result.Outcome != leases.Absent || r.result.Ending.Why != leases.WhyBroken || r.err != nil {
		t.Errorf("a renewal of the broken lease: got %+v, %v", r.result, r.err)
	}
}

// Holders reclaim before the leader that hands over gets to their shard.
func TestInstallAfterReclaims(t *testing.T) {
	w := newWorld(t, rules.Set{})
	m := w.serve(w.graceful(2, 1))
	m.do(reclaim(2, alice, raftToken(5))).want(t, leases.Reclaimed)
	higher := reclaim(2, bob, raftToken(9))
	higher.Name = "other"
	m.do(higher).want(t, leases.Reclaimed)
	before := w.reg.Version
	w.install(2, raftLease(alice, try1, 5), named("other", raftLease(carol, try2, 8)))
	if w.reg.Version != before {
		t.Errorf("it has written over what is there: %+v", w.shard())
	}
	marked := raftLease(alice, try1, 5)
	marked.Broken = true
	w.install(2, marked)
	for _, l := range w.shard().Leases {
		if l.Broken != (l.Name == job) || !l.Attempt.IsZero() || l.Name == job && l.Stamp != 1 {
			t.Errorf("got %+v", l)
		}
	}
	w.install(2, named("other", raftLease(alice, try1, 10))) // the greater token has the name
	if l := w.shard().Leases[1]; l.Session != alice || l.Token != raftToken(10) {
		t.Errorf("got %+v", l)
	}
}

func TestInstallIntoAClosedShard(t *testing.T) {
	w := newWorld(t, rules.Set{})
	w.put(leases.Shard{Epoch: 2, Closed: true, Counter: 1})
	w.install(2, raftLease(alice, try1, 5))
	if w.reg.Version != 1 {
		t.Errorf("it has written %+v", w.shard())
	}
}

func TestSeal(t *testing.T) {
	w := newWorld(t, rules.Set{})
	if found := w.seal(3, 1); len(found) != 0 || w.shard().Epoch != 3 || w.reg.Version != 1 {
		t.Fatalf("an absent shard: got %v, %+v", found, w.shard())
	}
	w.put(leases.Shard{Epoch: 4, Leases: []*leases.Lease{{Name: job, Session: alice, Attempt: try1, Token: tokens.New(4, 1), TTL: ttl, Stamp: 2, Broken: true}}})
	for range 3 { // the answer was lost
		found := w.seal(5, 1)
		if len(found) != 1 || found[0].Attempt != try1 || !found[0].Broken || found[0].Stamp != 2 {
			t.Fatalf("got %+v", found)
		}
	}
	if s := w.shard(); s.Epoch != 5 || !s.Closed || len(s.Leases) != 1 || w.reg.Version != 3 {
		t.Errorf("got %+v in version %d", s, w.reg.Version)
	}
	if found := w.seal(7, 5); len(found) != 0 || len(w.shard().Leases) != 0 || w.shard().Closed {
		t.Errorf("served by Raft since: got %v, %+v", found, w.shard())
	}
	_, err := w.rewrite(NewSeal(0, w.shards, w.set, w.nonce, 6, 1))
	var passed *SupersededError
	if !errors.As(err, &passed) || passed.Found != 7 || passed.Epoch != 6 || !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// Whatever becomes of its requests, a rewrite comes to the same.
func TestRewriteGoesOn(t *testing.T) {
	unreachable := fmt.Errorf("%w", arbiter.ErrUnreachable)
	for _, c := range []struct {
		name    string
		arrives bool
		err     error
		meddle  bool // somebody else writes in between
	}{
		{"the answer is lost", true, lost(), false},
		{"the request is lost", false, lost(), false},
		{"unreachable", false, unreachable, false},
		{"conflict", false, nil, true},
		{"lost, and a conflict", false, lost(), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, rules.Set{})
			r, faults := w.installs(2, raftLease(alice, try1, 5)), 0
			var late []Swap
			for !r.Done() {
				act, at := r.Next(w.now)
				switch act := act.(type) {
				case nil:
					if r.Done() {
						break
					}
					if d := at.Sub(w.now); d <= 0 || d > 2*time.Second {
						t.Fatalf("it waits %v", d)
					}
					w.now = at
				case Load:
					if faults == 2 {
						r.Loaded(w.now, arbiter.Register{}, unreachable)
						faults++
						continue
					}
					r.Loaded(w.now, w.load(), nil)
				case Swap:
					if faults >= 3 {
						r.Swapped(w.now, w.swap(act))
						continue
					}
					faults++
					if c.meddle {
						w.put(leases.Shard{Epoch: 2, Counter: uint32(faults)})
					}
					err := c.err
					if c.arrives || err == nil {
						if got := w.swap(act); err == nil {
							err = got
						}
					} else {
						late = append(late, act)
					}
					r.Swapped(w.now, err)
				}
				if w.now.Sub(0) > 2*time.Hour {
					t.Fatal("it does not come to an end")
				}
			}
			if _, err := r.Result(); err != nil {
				t.Fatal(err)
			}
			for _, s := range late {
				if err := w.swap(s); !errors.Is(err, arbiter.ErrConflict) {
					t.Errorf("a late copy: got %v, want a conflict", err)
				}
			}
			if l := w.lease(); l == nil || l.Session != alice || l.Attempt != try1 {
				t.Errorf("got %+v", l)
			}
		})
	}
}

func TestRewriteGivesUp(t *testing.T) {
	for name, end := range map[string]func(*world){
		"rubbish":  func(w *world) { w.reg = arbiter.Register{Version: 1, Data: []byte("rubbish")} },
		"set back": func(w *world) { w.reg = arbiter.Register{} },
	} {
		w := newWorld(t, rules.Set{})
		w.put(leases.Shard{Epoch: 1})
		r := w.installs(2, raftLease(alice, try1, 5))
		r.Next(w.now)
		r.Loaded(w.now, w.load(), nil)
		r.Next(w.now)
		r.Swapped(w.now, lost())
		end(w)
		version := w.reg.Version
		if _, err := w.rewrite(r); !errors.Is(err, leases.ErrUnavailable) || !errors.Is(err, leases.ErrCorrupt) && !errors.Is(err, arbiter.ErrSetBack) {
			t.Errorf("%s: got %v", name, err)
		}
		if w.reg.Version != version {
			t.Errorf("%s: it was overwritten", name)
		}
	}
	w := newWorld(t, rules.Set{})
	var held []*leases.Lease
	for i := range 600 {
		l := named(fmt.Sprintf("job%03d", i), raftLease(alice, try1, uint32(i+1)))
		l.Attributes = make([]byte, leases.MaxAttributes)
		held = append(held, l)
	}
	if _, err := w.rewrite(w.installs(2, held...)); !errors.Is(err, leases.ErrExhausted) {
		t.Errorf("too many: got %v", err)
	}
}
