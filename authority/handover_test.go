package authority

import (
	"errors"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
)

// handing is a leader with a window that has been asked to hand over.
type handing struct {
	*node
	called int
	err    error
}

func (w *world) handing() *handing {
	h := &handing{node: w.node("a").leads(2)}
	h.do()
	h.HandOver(w.now, func(err error) { h.called, h.err = h.called+1, err })
	return h
}

// until goes on until there is an action of type A.
func until[A Action](n *node) A {
	n.t.Helper()
	for range 100 {
		todo := n.do()
		for _, a := range todo {
			if a, ok := a.(A); ok {
				return a
			}
		}
		n.now = n.wake
	}
	n.t.Fatalf("got no %T", *new(A))
	return *new(A)
}

func TestHandOver(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.handing()
	drain := until[Drain](a.node)
	if w.now < start.Add(rest) || w.now > start.Add(rest+lease/10) {
		t.Errorf("got it drained %v after the first window, want L(1+ρ)", w.now.Sub(start))
	}
	if a.left() != 0 {
		t.Error("the window is not closed")
	}
	w.pass(time.Second)
	none[Ask](t, a.do())
	w.wantMode(Raft, 3)
	a.Done(w.now, drain, nil)
	install := find[Install](t, a.do())
	if install != (Install{Epoch: 4, RaftEpoch: 3}) {
		t.Errorf("got %+v", install)
	}
	if r := w.wantMode(Fallback, 4); r.GraceDone || !r.Held || r.Owner != (Owner{"a", 2}) {
		t.Errorf("got %+v", r)
	}
	if a.called != 0 {
		t.Error("it is said to be done")
	}
	a.Done(w.now, install, nil)
	a.do()
	if r := w.wantMode(Fallback, 4); !r.GraceDone {
		t.Error("the grace goes on")
	}
	w.pass(time.Second)
	a.do()
	if a.called != 1 || a.err != nil {
		t.Errorf("got done %d times, %v, want once without error", a.called, a.err)
	}
	w.pass(time.Minute)
	a.do()
	w.wantMode(Fallback, 4) // it is kept there
}

func TestHandOverRecognised(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.handing()
	drain := until[Drain](a.node)
	a.swap = lost
	a.Done(w.now, drain, nil)
	find[Install](t, a.do())
	w.wantMode(Fallback, 4)
}

// While its write may take effect the leader pledges to nobody, itself included (S2).
func TestHandOverInDoubt(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	a := w.handing()
	drain := until[Drain](a.node)
	p := Pledge{Cluster: someCluster, Group: someGroup, Epoch: 3, Term: 2, Seq: w.reg.Version}
	if !a.Pledge(w.now, p, true) {
		t.Fatal("no pledge before it is sent")
	}
	a.swap = func(*Swap, func() error) error { return lost(nil, func() error { return nil }) }
	a.Done(w.now, drain, nil)
	a.do()
	if a.Pledge(w.now, p, true) {
		t.Error("it pledged while its write may take effect")
	}
	if a.left() != 0 {
		t.Error("it opened its window again")
	}
	if a.called != 0 {
		t.Errorf("it was given up: %v", a.err)
	}
	// Another leader's write kills it.
	w.put(func(r *Root) { r.Owner = Owner{"b", 3} })
	w.pass(lease / 10)
	a.do()
	if a.called != 1 || !errors.Is(a.err, leases.ErrUnavailable) {
		t.Errorf("got done %d times, %v, want once with ErrUnavailable", a.called, a.err)
	}
	p.Seq = w.reg.Version
	if !a.Pledge(w.now, p, true) {
		t.Error("no pledge afterwards")
	}
}

func TestHandOverFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(*handing)
		mode Mode
	}{
		{"the drain", func(h *handing) { h.Done(h.now, until[Drain](h.node), errCut) }, Raft},
		{"the term", func(h *handing) { until[Drain](h.node); h.facts.Leading = false }, Raft},
		{"the write", func(h *handing) {
			d := until[Drain](h.node)
			h.cut = true
			h.Done(h.now, d, nil)
		}, Raft},
		{"another owner", func(h *handing) { h.put(func(r *Root) { r.Owner = Owner{"b", 3} }) }, Raft},
		{"the install", func(h *handing) {
			h.Done(h.now, until[Drain](h.node), nil)
			h.Done(h.now, until[Install](h.node), errCut)
		}, Fallback},
		{"a takeover", func(h *handing) {
			h.Done(h.now, until[Drain](h.node), nil)
			install := until[Install](h.node)
			h.put(func(r *Root) { r.Mode, r.Epoch = Importing, 5 })
			h.pass(lease / 10)
			h.do()
			h.Done(h.now, install, nil)
		}, Importing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.raftRoot()
			a := w.handing()
			tt.fail(a)
			for range 10 {
				a.do()
				w.now = a.wake
			}
			if a.called != 1 || a.err == nil {
				t.Errorf("got done %d times, %v, want once with an error", a.called, a.err)
			}
			if r := w.root(); r.Mode != tt.mode || r.Mode == Fallback && r.GraceDone {
				t.Errorf("got %+v, want mode %v, and no early end of a grace", r, tt.mode)
			}
		})
	}
}

func TestHandOverNeeds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*world, *node)
	}{
		{"an open window", func(_ *world, n *node) { n.cut = true }},
		{"mode raft", func(w *world, _ *node) { w.put(func(r *Root) { r.Mode, r.Epoch = Fallback, 4; r.Held = true }) }},
		{"to lead", func(_ *world, n *node) { n.facts.Leading = false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.raftRoot()
			a := w.node("a").leads(2)
			tt.spoil(w, a)
			a.do()
			var got error
			a.HandOver(w.now, func(err error) { got = err })
			if !errors.Is(got, leases.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", got)
			}
		})
	}
	w := newWorld(t)
	w.raftRoot()
	a := w.handing()
	a.HandOver(w.now, func(err error) { a.err = err })
	if !errors.Is(a.err, leases.ErrUnavailable) {
		t.Errorf("a second one: got %v, want ErrUnavailable", a.err)
	}
}
