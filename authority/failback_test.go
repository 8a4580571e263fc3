package authority

import (
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
)

// fallbackRoot puts R into fallback epoch 4, after its grace.
func (w *world) fallbackRoot() {
	w.raftRoot()
	w.put(func(r *Root) { r.Mode, r.Epoch, r.GraceDone, r.Owner = Fallback, 4, true, Owner{Node: "c"} })
}

// F1, F2 and F3; the last one opens the window.
func TestFailback(t *testing.T) {
	w := newWorld(t)
	w.fallbackRoot()
	a := w.node("a").leads(2)
	a.facts.Alive = []string{"a", "d"}
	imp := find[Import](t, a.do())
	if imp != (Import{Epoch: 5, RaftEpoch: 3}) {
		t.Errorf("got %+v, want it for epoch 5 after 3", imp)
	}
	r := w.wantMode(Importing, 5)
	if !r.GraceDone || r.RaftEpoch != 3 || r.Owner != (Owner{"a", 2}) || !slices.Equal(r.Takers, []string{"a", "b", "c", "d"}) {
		t.Errorf("got %+v", r)
	}
	var beats []clock.Instant
	for version := w.reg.Version; w.now < start.Add(2*lease); w.now = a.wake {
		none[Import](t, a.do())
		if w.reg.Version != version {
			version, beats = w.reg.Version, append(beats, w.now)
		}
	}
	if len(beats) != 7 || beats[0] != start.Add(lease/4) {
		t.Errorf("got R written %d times in 2L, first after %v, want each L/4", len(beats), beats[0].Sub(start))
	}
	w.wantMode(Importing, 5)
	if a.left() != 0 {
		t.Error("it has a window while it imports")
	}
	a.facts.Epoch = 5 // the import is in the table
	a.Done(w.now, imp, nil)
	a.do()
	if r := w.wantMode(Raft, 5); r.RaftEpoch != 5 || r.Owner != (Owner{"a", 2}) || !slices.Equal(r.Takers, []string{"a", "b", "c"}) {
		t.Errorf("got %+v", r)
	}
	if a.left() != window || a.Opened(2) != w.now {
		t.Errorf("got a window of %v, want %v", a.left(), window)
	}
}

func TestFailbackNeeds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*world, *node)
	}{
		{"the end of the grace", func(w *world, n *node) { w.put(func(r *Root) { r.GraceDone = false }) }},
		{"no operator that keeps it", func(w *world, n *node) { w.put(func(r *Root) { r.Held = true }) }},
		{"a table that has caught up", func(_ *world, n *node) { n.facts.Ready = false }},
		{"a table that is born", func(_ *world, n *node) { n.facts.Epoch = 0 }},
		{"R's group", func(_ *world, n *node) { n.facts.Group = otherGroup }},
		{"to lead", func(_ *world, n *node) { n.facts.Leading = false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.fallbackRoot()
			a := w.node("a").leads(2)
			tt.spoil(w, a)
			a.do()
			w.wantMode(Fallback, 4)
		})
	}
}

func TestRelease(t *testing.T) {
	w := newWorld(t)
	w.fallbackRoot()
	w.put(func(r *Root) { r.Held = true })
	b := w.node("b").member()
	b.facts.Heard = true
	b.do()
	b.Release()
	w.pass(time.Second)
	b.do()
	w.wantMode(Fallback, 4)
	if w.root().Held {
		t.Fatal("it is still kept")
	}
	a := w.node("a").leads(2)
	a.do()
	w.wantMode(Importing, 5)
}

// An owner that lost the answer to F1 goes on; so does one that lost that to F3.
func TestFailbackRecognised(t *testing.T) {
	w := newWorld(t)
	w.fallbackRoot()
	a := w.node("a").leads(2)
	a.swap = lost
	imp := find[Import](t, a.do())
	a.facts.Epoch = 5
	a.Done(w.now, imp, nil)
	w.pass(lease / 20)
	a.do()
	w.wantMode(Raft, 5)
	if a.left() != window {
		t.Errorf("got a window of %v, want %v", a.left(), window)
	}
}

// An import that failed is tried again, but not at once.
func TestImportAgain(t *testing.T) {
	w := newWorld(t)
	w.fallbackRoot()
	a := w.node("a").leads(2)
	a.Done(w.now, find[Import](t, a.do()), errCut)
	none[Import](t, a.do())
	w.pass(lease / 10)
	find[Import](t, a.do())
}

// A later leader of the group goes on at once (V7): to F3 if its table has the import,
// else with another epoch. An earlier one does not.
func TestResume(t *testing.T) {
	for _, tt := range []struct {
		name  string
		term  uint64
		epoch uint32 // of its table
		off   []rules.Rule
		mode  Mode
		want  uint32
	}{
		{"with the import", 3, 5, nil, Raft, 5},
		{"without it", 3, 3, nil, Importing, 6},
		{"an earlier one", 1, 5, nil, Importing, 5},
		{"without the rule", 3, 5, []rules.Rule{rules.Resume}, Importing, 5},
		{"a table that is not born", 3, 0, nil, Importing, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.fallbackRoot()
			w.put(func(r *Root) { r.Mode, r.Epoch, r.Owner = Importing, 5, Owner{"a", 2} })
			b := w.node("b", tt.off...).leads(tt.term)
			b.facts.Epoch = tt.epoch
			b.do()
			w.wantMode(tt.mode, tt.want)
		})
	}
}

// A log that was recovered has a greater epoch than R: R follows it.
func TestRecoveredEpoch(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.node("a").leads(2)
	a.facts.Epoch = 1027
	a.do()
	if r := w.wantMode(Raft, 1027); r.RaftEpoch != 1027 {
		t.Errorf("got raft epoch %d", r.RaftEpoch)
	}
	w = newWorld(t)
	w.fallbackRoot()
	a = w.node("a").leads(2)
	a.facts.Epoch = 1027
	a.do()
	w.wantMode(Importing, 1028)
}

// While one imports another node takes over only where R rests.
func TestBeatKeepsImport(t *testing.T) {
	for _, off := range [][]rules.Rule{nil, {rules.ImportingBeat}} {
		w := newWorld(t)
		w.fallbackRoot()
		a, b := w.node("a", off...).leads(2), w.node("b").member()
		for w.now < start.Add(3*lease) {
			a.do()
			b.do()
			w.now = min(a.wake, b.wake)
		}
		if took := w.root().Mode == Fallback || w.root().Epoch > 5; took != (off != nil) {
			t.Errorf("without rules %v: got taken over %v", off, took)
		}
	}
}
