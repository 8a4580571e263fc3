package authority

import (
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/rules"
)

// T2: R has to rest for L(1+ρ), from the end of the first read to the beginning of the last.
func TestTakeover(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	b := w.node("b").member()
	b.do()
	for w.now < start.Add(rest) {
		w.wantMode(Raft, 3)
		w.now = min(b.wake, start.Add(rest))
		if w.now < start.Add(rest) {
			b.do()
		}
	}
	if b.wake != start.Add(rest) {
		t.Errorf("got wake %v, want %v, when R has rested", b.wake, start.Add(rest))
	}
	b.do()
	r := w.wantMode(Fallback, 4)
	if r.GraceDone || r.RaftEpoch != 3 || r.Owner != (Owner{Node: "b"}) || r.Group != someGroup {
		t.Errorf("got %+v", r)
	}
	if h := r.History[len(r.History)-1]; h.Why != Takeover || h.Epoch != 4 || h.Node != "b" {
		t.Errorf("got %+v in the history", h)
	}
	if epoch, ok := b.Serves(); !ok || epoch != 4 {
		t.Errorf("got epoch %d, %v, want 4", epoch, ok)
	}
}

// A write of anybody's, and a slow read, put the takeover off.
func TestTakeoverWaits(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	b := w.node("b").member()
	b.do()
	w.pass(rest - time.Second)
	w.put(func(*Root) {})
	b.do() // sees it now
	w.pass(rest - 1)
	b.do()
	w.wantMode(Raft, 3)
	b.cut = true
	w.pass(time.Second)
	b.do()
	w.wantMode(Raft, 3)
	b.cut = false
	w.pass(lease / 10)
	b.do()
	w.wantMode(Fallback, 4)
}

// A read that was begun too early shows too little, however late its answer.
func TestTakeoverSlowRead(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	b := w.node("b").member()
	b.do()
	w.pass(rest - 1)
	sent := w.now
	find[Load](t, b.next())
	w.pass(time.Second)
	b.Loaded(sent, w.now, w.reg, nil)
	none[*Swap](t, b.next())
	b.Loaded(w.now, w.now, w.reg, nil)
	find[*Swap](t, b.next())
}

// next asks what to do, and does nothing.
func (n *node) next() []Action {
	todo, _ := n.Next(n.now, n.facts)
	return todo
}

func TestTakeoverBy(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*world, *node)
		want bool
	}{
		{"taker", func(*world, *node) {}, true},
		{"no taker", func(w *world, _ *node) { w.put(func(r *Root) { r.Takers = []string{"a", "c"} }) }, false},
		{"one that hears a leader", func(_ *world, n *node) { n.facts.Heard = true }, false},
		{"no taker, forced", func(w *world, n *node) { w.put(func(r *Root) { r.Takers = []string{"a", "c"} }); n.Force(n.now, true) }, true},
		{"one that hears a leader, forced", func(_ *world, n *node) { n.facts.Heard = true; n.Force(n.now, true) }, true},
		{"no taker, importing", func(w *world, _ *node) {
			w.put(func(r *Root) { r.Takers, r.Mode, r.Epoch, r.Owner.Term = []string{"a", "c"}, Importing, 3, 9 })
		}, true},
		{"one in fallback", func(w *world, _ *node) { w.put(func(r *Root) { r.Mode = Fallback; r.Held = true }) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.raftRoot()
			b := w.node("b").member()
			tt.set(w, b)
			b.do()
			w.pass(rest)
			b.do()
			if got := w.root().Epoch == 4; got != tt.want {
				t.Errorf("got taken over %v, want %v", got, tt.want)
			}
		})
	}
}

// From importing nothing was granted since the last grace: another is not needed (V6).
func TestTakeoverFromImporting(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	w.put(func(r *Root) { r.Mode, r.Epoch = Importing, 5 })
	b := w.node("b")
	b.facts.Group = someGroup
	b.do()
	w.pass(rest)
	b.do()
	if r := w.wantMode(Fallback, 6); !r.GraceDone || r.RaftEpoch != 3 {
		t.Errorf("got %+v, want no grace and raft epoch 3", r)
	}
	if b.GraceLeft(w.now) != 0 {
		t.Errorf("got a grace of %v left", b.GraceLeft(w.now))
	}
}

// The grace is as long as the ceiling, on the clock of whoever ends it, from when it has
// seen the epoch.
func TestGrace(t *testing.T) {
	for _, off := range [][]rules.Rule{nil, {rules.GraceWait}} {
		w := newWorld(t)
		w.raftRoot()
		w.put(func(r *Root) { r.Mode, r.Epoch, r.GraceDone = Fallback, 4, false })
		c := w.node("c", off...).member()
		c.facts.Heard = true
		c.do()
		if off != nil {
			if !w.root().GraceDone {
				t.Error("without the rule: got a grace")
			}
			continue
		}
		if left := c.GraceLeft(w.now); left != grace {
			t.Errorf("got %v left, want %v", left, grace)
		}
		w.pass(time.Second)
		d := w.node("d").member() // comes later, and waits longer
		d.facts.Heard = true
		d.do()
		w.pass(grace - time.Second - 1)
		c.do()
		d.do()
		if w.root().GraceDone {
			t.Fatal("it is over too early")
		}
		w.pass(1)
		d.do()
		if w.root().GraceDone {
			t.Fatal("the later one ended it")
		}
		c.do()
		if !w.root().GraceDone {
			t.Fatal("it is not over")
		}
		if w.pass(lease / 10); d.GraceLeft(w.now) == 0 {
			t.Error("d does not know that it is over")
		}
		d.do()
		if d.GraceLeft(w.now) != 0 || w.root().Epoch != 4 {
			t.Error("d does not know that it is over, or the epoch has changed")
		}
	}
}

// A T3 that took effect though its answer was lost is no reason for another.
func TestTakeoverRecognised(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	b := w.node("b").member()
	b.do()
	w.pass(rest)
	b.swap = lost
	b.do()
	w.wantMode(Fallback, 4)
	for range 50 {
		w.now = b.wake
		b.do()
	}
	w.wantMode(Fallback, 4)
}

func TestRootRoundTrip(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	r := w.root()
	for range 2 * historyKept {
		r.changed("a", Bump, time.Unix(1, 1))
	}
	r.Members = []Member{{"a", "a.1", "10.0.0.1:7000"}}
	got, err := DecodeRoot(r.Encode())
	if err != nil || len(got.History) != historyKept || !slices.Equal(got.Members, r.Members) || got.Epoch != 3 || got.Group != someGroup {
		t.Errorf("got %+v, %v", got, err)
	}
}
