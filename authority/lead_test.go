package authority

import (
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
)

// A window is counted from before the write, and goes with its time and its term.
func TestWindowByArbiter(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	var sent clock.Instant
	a.swap = func(s *Swap, write func() error) error {
		sent = w.now
		err := write()
		w.pass(time.Second)
		return err
	}
	a.do()
	if left, by := a.Window(w.now, 2); left != window-time.Second || by != ByArbiter {
		t.Errorf("got a window of %v %v, want %v by the arbiter", left, by, window-time.Second)
	}
	if r := w.root(); r.Owner != (Owner{"a", 2}) {
		t.Errorf("got owner %v, want a in term 2", r.Owner)
	}
	if got, want := a.Opened(2), sent.Add(time.Second); got != want {
		t.Errorf("got it opened at %v, want %v", got, want)
	}
	for _, term := range []uint64{1, 3} {
		if left, _ := a.Window(w.now, term); left != 0 || a.Opened(term) != 0 {
			t.Errorf("term %d: got a window of %v, want none", term, left)
		}
	}
	w.now = sent.Add(window)
	if left, _ := a.Window(w.now, 2); left != 0 {
		t.Errorf("at its end: got %v, want 0", left)
	}
}

func TestWindowNeeds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*world, *node)
	}{
		{"a table that has caught up", func(_ *world, n *node) { n.facts.Ready = false }},
		{"no later owner", func(w *world, _ *node) { w.put(func(r *Root) { r.Owner.Term = 3 }) }},
		{"its group in R", func(w *world, n *node) { n.facts.Group = otherGroup }},
		{"mode raft", func(w *world, _ *node) { w.put(func(r *Root) { r.Mode, r.Epoch = Fallback, 4 }) }},
		{"a table of R's epoch", func(w *world, _ *node) { w.put(func(r *Root) { r.Epoch, r.RaftEpoch = 4, 4 }) }},
		{"to lead", func(_ *world, n *node) { n.facts.Leading = false }},
		{"the arbiter", func(_ *world, n *node) { n.cut = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.raftRoot()
			a := w.node("a").leads(2)
			tt.spoil(w, a)
			a.do()
			if left := a.left(); left != 0 {
				t.Errorf("got a window of %v, want none", left)
			}
		})
	}
}

// It is extended each L/4, also when the facts do not change.
func TestWindowGoesOn(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	for end := w.now.Add(time.Minute); w.now < end; w.now = a.wake {
		a.do()
		if left := a.left(); left < window-lease/4-lease/10 {
			t.Fatalf("after %v: got a window of %v", w.now.Sub(start), left)
		}
	}
	if n := len(a.swaps); n < 22 || n > 25 {
		t.Errorf("got %d writes in a minute, want one each L/4", n)
	}
	opened := a.Opened(2)
	if opened != start {
		t.Errorf("got opened %v, want the first time", opened)
	}
	if got, want := a.Deadline(opened, 4*time.Second), opened.Add(rest+4040*time.Millisecond); got != want {
		t.Errorf("got deadline %v, want %v", got, want)
	}
}

// A write that took effect though its answer was lost counts, from its sending.
func TestWindowRecognised(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.swap = lost
	a.do()
	if a.left() != window {
		t.Errorf("got a window of %v, want %v by the nonce", a.left(), window)
	}
	if len(a.swaps) != 1 {
		t.Errorf("got %d writes, want one", len(a.swaps))
	}
}

// Another write of the same version makes one that was given up void.
func TestWindowAfterUnknown(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.swap = func(s *Swap, write func() error) error {
		a.swap = nil
		return lost(s, func() error { return nil }) // it has no effect yet
	}
	a.do()
	if a.left() != 0 {
		t.Fatalf("got a window of %v from a write that nobody knows of", a.left())
	}
	w.now = a.wake
	a.do()
	if a.left() != window || len(a.swaps) != 2 {
		t.Errorf("got a window of %v after %d writes, want %v after 2", a.left(), len(a.swaps), window)
	}
	if err := w.cas(a.swaps[0]); err == nil {
		t.Error("the first write took effect late")
	}
}

// A deposed leader's window is gone for it when it notices, and comes not back with its
// next term.
func TestWindowBelongsToTerm(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.do()
	a.cut = true
	a.facts.Term = 4 // no notice came in between
	a.do()
	if a.left() != 0 || a.Opened(4) != 0 {
		t.Errorf("got a window of %v in term 4", a.left())
	}
}

func TestUnanimity(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.cut = true
	none[Ask](t, a.do()) // it has not read R
	a.cut = false
	todo := a.do()
	if len(todo) == 0 {
		w.pass(lease / 10)
		todo = a.do()
	}
	ask := find[Ask](t, todo)
	if want := []string{"a", "b", "c"}; !slices.Equal(ask.Names, want) || ask.Pledge.Seq != 8 || ask.Pledge.Epoch != 3 || ask.Pledge.Term != 2 {
		t.Errorf("got %+v, want it of %q with seq 8, epoch 3, term 2", ask, want)
	}
	a.cut = true
	w.pass(lease / 4)
	ask = find[Ask](t, a.do())
	asked := w.now
	w.pass(time.Second)
	before := a.left()
	a.answer(ask, "a", "b")
	if a.left() != before {
		t.Error("two of three pledges extended the window")
	}
	a.answer(ask, "c")
	left, by := a.Window(w.now, 2)
	if want := asked.Add(window).Sub(w.now); left != want || by != ByUnanimity {
		t.Errorf("got a window of %v %s, want %v by unanimity", left, by, want)
	}
	w.pass(lease / 4)
	next := find[Ask](t, a.do())
	before = a.left()
	a.answer(ask, "a", "b", "c") // of the round before
	a.answer(next, "a", "b")
	if a.left() != before {
		t.Error("answers of two rounds were counted together")
	}
}

// Without a write in the term there is no unanimity (S4).
func TestUnanimityNeedsWrite(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.swap = func(*Swap, func() error) error { return errCut }
	for range 30 {
		none[Ask](t, a.do())
		w.now = a.wake
	}
}

// A taker counts from the moment at which the write that adds it is sent (S5).
func TestUnanimityNeedsTakersSent(t *testing.T) {
	for _, off := range [][]rules.Rule{nil, {rules.TakersSent}} {
		w := newWorld(t)
		w.raftRoot()
		a := w.node("a", off...).leads(2)
		a.do()
		a.facts.Takers = []string{"a", "b", "c", "d"}
		a.swap = func(*Swap, func() error) error { return lost(nil, func() error { return nil }) }
		w.pass(lease / 4)
		ask := find[Ask](t, a.do())
		if a.Taker("d") {
			t.Error("d is a taker, though nobody knows")
		}
		before := a.left()
		a.answer(ask, "a", "b", "c")
		if extended := a.left() != before; extended != (off != nil) {
			t.Errorf("without rules %v: got extended %v without d's pledge", off, extended)
		}
		if asked := slices.Contains(ask.Names, "d"); asked != (off == nil) {
			t.Errorf("without rules %v: got d asked %v", off, asked)
		}
		a.swap = nil
		w.pass(lease / 10)
		a.do()
		if !a.Taker("d") || a.Taker("e") {
			t.Error("d is no taker, or e is one")
		}
	}
}

// One that is to be a taker no more is asked until R is known to be without it.
func TestTakersShrink(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.do()
	a.facts.Takers = []string{"a", "b"}
	w.pass(lease / 4)
	todo := a.do()
	if r := w.root(); !slices.Equal(r.Takers, []string{"a", "b"}) {
		t.Fatalf("got takers %q", r.Takers)
	}
	if ask := find[Ask](t, todo); !slices.Equal(ask.Names, []string{"a", "b"}) && !slices.Equal(ask.Names, []string{"a", "b", "c"}) {
		t.Errorf("got %q asked", ask.Names)
	}
	w.pass(lease / 4)
	if ask := find[Ask](t, a.do()); !slices.Equal(ask.Names, []string{"a", "b"}) {
		t.Errorf("got %q asked, want a and b", ask.Names)
	}
}

func TestCede(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.do()
	a.cut = true
	w.pass(lease / 4)
	a.Pledged(w.now, find[Ask](t, a.do()).Pledge, "b", false, true)
	var ceded []time.Duration
	var reaching []string
	for end := w.now.Add(25 * time.Second); w.now < end; w.now = a.wake {
		for _, action := range a.do() {
			switch action := action.(type) {
			case Ask:
				a.Pledged(w.now, action.Pledge, "b", false, true)
				a.Pledged(w.now, action.Pledge, "c", true, false)
			case Cede:
				ceded, reaching = append(ceded, w.now.Sub(start)), action.Reaching
			}
		}
	}
	if len(ceded) < 2 || ceded[0] < window+lease/2 || ceded[0] > window+lease {
		t.Fatalf("got it ceded after %v, want L/2 after the window, and again", ceded)
	}
	if !slices.Equal(reaching, []string{"b"}) {
		t.Errorf("got %q, want b, which reaches the arbiter", reaching)
	}
}

// A bump is a write of R, and then an op; no other write comes in between.
func TestBump(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.do()
	a.facts.Bump = true
	w.pass(time.Second)
	raise := find[RaiseEpoch](t, a.do())
	if raise.Epoch != 4 {
		t.Errorf("got epoch %d, want 4", raise.Epoch)
	}
	if r := w.wantMode(Raft, 4); r.RaftEpoch != 4 {
		t.Errorf("got raft epoch %d, want 4", r.RaftEpoch)
	}
	writes := len(a.swaps)
	w.pass(lease / 4)
	none[RaiseEpoch](t, a.do())
	if len(a.swaps) != writes {
		t.Error("R was written before the table had the epoch")
	}
	a.Done(w.now, raise, errCut)
	w.pass(time.Second)
	raise = find[RaiseEpoch](t, a.do())
	a.facts.Epoch, a.facts.Bump = 4, false
	a.Done(w.now, raise, nil)
	a.do()
	if len(a.swaps) == writes || a.left() == 0 {
		t.Error("it does not go on")
	}
	// The next leader finishes a bump that was only begun.
	w.put(func(r *Root) { r.Epoch, r.RaftEpoch = 5, 5 })
	b := w.node("b").leads(3)
	b.facts.Epoch = 4
	if raise := find[RaiseEpoch](t, b.do()); raise.Epoch != 5 {
		t.Errorf("got epoch %d, want 5", raise.Epoch)
	}
	if b.left() != 0 {
		t.Error("it has a window before its table has the epoch")
	}
}

func TestCeiling(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.do()
	a.facts.Ceiling = time.Minute
	w.pass(time.Second)
	a.do() // at once
	if r := w.root(); r.Ceiling() != time.Minute {
		t.Errorf("got ceiling %v, want 1m0s", r.Ceiling())
	}
	a.facts.Ceiling = ceiling
	w.pass(lease / 4)
	a.do()
	if r := w.root(); r.Ceiling() != ceiling {
		t.Errorf("got ceiling %v, want %v", r.Ceiling(), ceiling)
	}
}
