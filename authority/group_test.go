package authority

import (
	"errors"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/leases"
)

// One of several nodes brings the cluster forth; the others join it.
func TestBirth(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.swap, b.swap = hang, hang
	a.do()
	b.do()
	if len(a.swaps) != 1 || len(b.swaps) != 1 {
		t.Fatal("one has not tried")
	}
	a.swap, b.swap = nil, nil
	b.Swapped(b.swaps[0], w.now, w.cas(b.swaps[0]))
	a.Swapped(a.swaps[0], w.now, w.cas(a.swaps[0]))
	r := w.wantMode(Importing, 1)
	if r.Owner != (Owner{Node: "b"}) || r.RaftEpoch != 0 || !r.GraceDone || r.Ceiling() != ceiling || r.Params != params {
		t.Errorf("got %+v", r)
	}
	form, join := find[Form](t, b.do()), find[Join](t, a.do())
	if form.Group != r.Group || form.Cluster != r.Cluster || join != (Join{r.Cluster, r.Group}) {
		t.Errorf("got %+v and %+v, want those of %+v", form, join, r)
	}
	b.facts = Facts{Alive: []string{"b"}, Group: r.Group, Leading: true, Term: 2, Ready: true, Epoch: 1, Takers: []string{"b"}}
	b.Moved(w.now, form, nil)
	b.do()
	w.wantMode(Raft, 1)
	if b.left() != window {
		t.Errorf("got a window of %v, want %v", b.left(), window)
	}
	a.Moved(w.now, join, errors.New("nobody there"))
	w.pass(lease)
	find[Join](t, a.do())
}

func TestBirthRecognised(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	a.swap = lost
	find[Form](t, a.do())
	w.wantMode(Importing, 1)
}

// A node that belongs to a cluster brings no other forth where R is gone.
func TestNoSecondBirth(t *testing.T) {
	w := newWorld(t)
	for _, set := range []func(*node){
		func(n *node) { n.facts.Group = someGroup },
		func(n *node) { n.cfg.Cluster = someCluster },
	} {
		a := w.node("a")
		set(a)
		a.do()
		if len(a.swaps) != 0 {
			t.Error("it has written R")
		}
	}
}

// The winner of the birth dies for good: anybody may take over, and form another group (V3).
func TestBirthDies(t *testing.T) {
	w := newWorld(t)
	w.node("a").do()
	b := w.node("b")
	b.facts.Alive = []string{"b", "c"}
	for w.now < start.Add(2*lease) {
		for _, a := range b.do() {
			b.Moved(w.now, a, errCut)
		}
		w.now = b.wake
	}
	w.wantMode(Fallback, 2)
	for w.now < start.Add(2*lease+2*reform) {
		for _, a := range b.do() {
			if f, ok := a.(Form); ok && f.Group != w.root().Group {
				return
			}
			b.Moved(w.now, a, errCut)
		}
		w.now = b.wake
	}
	t.Error("no new group is formed")
}

// A new group is formed only when R's has had no leader for long, by the smallest of
// those who see each other.
func TestReform(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*world, *node)
		want  bool
	}{
		{"all is well", func(*world, *node) {}, true},
		{"a leader is heard", func(_ *world, n *node) { n.facts.Heard = true }, false},
		{"a smaller one is there", func(_ *world, n *node) { n.facts.Alive = []string{"a", "b", "c"} }, false},
		{"nobody is there", func(_ *world, n *node) { n.facts.Alive = []string{"b"} }, false},
		{"nobody is there, the only taker", func(w *world, n *node) {
			n.facts.Alive = []string{"b"}
			w.put(func(r *Root) { r.Takers = []string{"b"} })
		}, true},
		{"the grace lasts", func(w *world, _ *node) { w.put(func(r *Root) { r.GraceDone, r.CeilingMs = false, 300_000 }) }, false},
		{"an operator keeps it", func(w *world, _ *node) { w.put(func(r *Root) { r.Held = true }) }, false},
		{"mode raft", func(w *world, _ *node) { w.put(func(r *Root) { r.Mode, r.Takers = Raft, []string{"x"} }) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.fallbackRoot()
			b := w.node("b").member()
			b.facts.Alive = []string{"b", "c"}
			tt.spoil(w, b)
			got := time.Duration(0)
			for w.now < start.Add(3*reform) && got == 0 {
				for _, a := range b.do() {
					if f, ok := a.(Form); ok && f.Group != someGroup {
						got = w.now.Sub(start)
					}
				}
				w.now = b.wake
			}
			if (got != 0) != tt.want || got != 0 && (got < reform || got > reform+lease) {
				t.Errorf("got it formed after %v, want %v", got, tt.want)
			}
		})
	}
}

// A leader that comes back in between starts the time anew.
func TestReformPatience(t *testing.T) {
	w := newWorld(t)
	w.fallbackRoot()
	b := w.node("b").member()
	b.facts.Alive = []string{"b", "c"}
	heard := start.Add(reform - lease)
	for w.now < heard.Add(reform) {
		b.facts.Heard = w.now >= heard && w.now < heard.Add(lease/5)
		none[Form](t, b.do())
		w.now = b.wake
	}
}

// A formed group gets R by F1; whoever formed another one in vain joins it.
func TestReformed(t *testing.T) {
	w := newWorld(t)
	w.fallbackRoot()
	b, c := w.node("b").member(), w.node("c").member()
	forms := map[*node]Form{}
	for _, n := range []*node{b, c} {
		n.facts.Alive = []string{"b", "c"}
		if n == c {
			n.facts.Alive = []string{"c", "d"} // they do not see each other
		}
	}
	for w.now < start.Add(2*reform) {
		for _, n := range []*node{b, c} {
			if forms[n].Group.IsZero() {
				for _, a := range n.do() {
					forms[n] = a.(Form)
				}
			}
		}
		w.pass(lease / 10)
	}
	for _, n := range []*node{b, c} {
		n.facts.Group, n.facts.Leading, n.facts.Term, n.facts.Ready, n.facts.Epoch = forms[n].Group, true, 1, true, 4
		n.facts.Takers = []string{n.cfg.Name}
		n.Moved(w.now, forms[n], nil)
	}
	w.pass(lease)
	find[Import](t, c.do())
	if r := w.wantMode(Importing, 5); r.Group != forms[c].Group || r.Group == someGroup {
		t.Errorf("got group %v", r.Group)
	}
	w.pass(lease / 10)
	if join := find[Join](t, b.do()); join.Group != forms[c].Group {
		t.Errorf("got %+v, want it to join c's group", join)
	}
}

// What another program, another cluster or a later release has written is never written over.
func TestForeign(t *testing.T) {
	r := Root{
		Cluster: leases.ID{9}, Params: params, Epoch: 3, RaftEpoch: 3, Mode: Raft, Group: someGroup, Takers: []string{"a"},
		CeilingMs: ceiling.Milliseconds(), GraceDone: true,
	}
	for _, tt := range []struct {
		name string
		data []byte
		want error
	}{
		{"another program", []byte("hello"), ErrForeign},
		{"another JSON", []byte(`{"format":1,"x":2}`), ErrForeign},
		{"nothing", []byte(`{}`), ErrForeign},
		{"another cluster", r.Encode(), ErrForeign},
		{"a later release", []byte(`{"format":2,"x":2}`), leases.ErrUnreadable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.reg = arbiter.Register{Version: 1, Data: tt.data}
			a := w.node("a")
			a.cfg.Cluster = someCluster
			for range 50 {
				a.do()
				w.now = a.wake
			}
			if len(a.swaps) != 0 || !errors.Is(a.Err(), tt.want) {
				t.Errorf("got %d writes and %v, want none and %v", len(a.swaps), a.Err(), tt.want)
			}
			if a.Pledge(w.now, Pledge{}, true) {
				t.Error("it pledged")
			}
		})
	}
}
