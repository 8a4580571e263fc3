package authority

import (
	"testing"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

func TestPledge(t *testing.T) {
	good := Pledge{Cluster: someCluster, Group: someGroup, Epoch: 3, Term: 2, Seq: 8}
	for _, tt := range []struct {
		name    string
		rule    rules.Rule // that refuses
		spoil   func(*node, *Pledge)
		follows bool
		want    bool
	}{
		{"all is well", 0, func(*node, *Pledge) {}, true, true},
		{"another leader", rules.PledgeTerm, func(*node, *Pledge) {}, false, false},
		{"another mode", rules.PledgeAware, func(n *node, _ *Pledge) { n.put(func(r *Root) { r.Mode = Importing }); n.look() }, true, false},
		{"another group", rules.PledgeAware, func(n *node, _ *Pledge) { n.put(func(r *Root) { r.Group = otherGroup }); n.look() }, true, false},
		{"a higher epoch", rules.PledgeAware, func(n *node, _ *Pledge) { n.put(func(r *Root) { r.Epoch = 4 }); n.look() }, true, false},
		{"an epoch that it has not heard of", 0, func(_ *node, p *Pledge) { p.Epoch = 4 }, true, true},
		{"as old as its first read", rules.PledgeFirstRead, func(_ *node, p *Pledge) { p.Seq = 7 }, true, false},
		{"own takeover under way", rules.PledgeDoubt, func(n *node, _ *Pledge) { n.takesOver(hang) }, true, false},
		{"own takeover given up", rules.PledgeDoubt, func(n *node, _ *Pledge) {
			n.takesOver(func(*Swap, func() error) error { return lost(nil, func() error { return nil }) })
		}, true, false},
		{"own takeover given up, and another one that certainly was none", rules.PledgeDoubt, func(n *node, _ *Pledge) {
			n.takesOver(func(*Swap, func() error) error { return lost(nil, func() error { return nil }) })
			n.swap = func(*Swap, func() error) error { return errCut }
			n.look()
			if len(n.swaps) < 2 {
				n.t.Fatal("it has not tried again")
			}
		}, true, false},
		{"own takeover that certainly was none", 0, func(n *node, _ *Pledge) {
			n.takesOver(func(*Swap, func() error) error { return errCut })
		}, true, true},
		{"own takeover void since R was written", 0, func(n *node, p *Pledge) {
			n.takesOver(hang)
			n.put(func(*Root) {})
			p.Seq = n.reg.Version
		}, true, true},
		{"the same, as the node has seen", 0, func(n *node, p *Pledge) {
			n.takesOver(func(*Swap, func() error) error { return lost(nil, func() error { return nil }) })
			n.put(func(*Root) {})
			n.look()
			p.Seq = n.reg.Version
		}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			try := func(off ...rules.Rule) bool {
				w := newWorld(t)
				w.raftRoot()
				n := w.node("b", off...).member()
				n.do()
				w.put(func(r *Root) { r.Owner = Owner{"a", 2} }) // the leader's write of its term
				p := good
				tt.spoil(n, &p)
				return n.Pledge(w.now, p, tt.follows)
			}
			if got := try(); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if !tt.want && !try(tt.rule) {
				t.Error("got no without the rule too: something else refuses")
			}
		})
	}
}

// look lets n read R again.
func (n *node) look() {
	n.pass(lease / 10)
	n.do()
}

// takesOver lets n see R rest, and send a T3.
func (n *node) takesOver(swap func(*Swap, func() error) error) {
	n.t.Helper()
	n.look()
	n.pass(rest)
	n.swap = swap
	n.do()
	if len(n.swaps) == 0 {
		n.t.Fatal("it takes nothing over")
	}
}

func TestPledgeOfStrangers(t *testing.T) {
	w := newWorld(t)
	w.raftRoot()
	n := w.node("b").member()
	p := Pledge{Cluster: someCluster, Group: someGroup, Epoch: 3, Term: 2, Seq: 8}
	if n.Pledge(w.now, p, true) {
		t.Error("it pledged before it had read R")
	}
	n.do()
	p.Cluster = leases.ID{1}
	if n.Pledge(w.now, p, true) {
		t.Error("it pledged to another cluster's leader")
	}
}

// T1: no takeover before the pledge has run out, to the nanosecond.
func TestPledgeKeepsFromTakingOver(t *testing.T) {
	for _, off := range [][]rules.Rule{nil, {rules.TakeoverPledge}} {
		w := newWorld(t)
		w.raftRoot()
		b := w.node("b", off...).member()
		b.do()
		w.put(func(r *Root) { r.Owner = Owner{"a", 2} })
		b.look()
		seen := w.now
		w.pass(rest / 2)
		if !b.Pledge(w.now, Pledge{Cluster: someCluster, Group: someGroup, Epoch: 3, Term: 2, Seq: 8}, true) {
			t.Fatal("no pledge")
		}
		pledged := w.now
		w.now = seen.Add(rest)
		b.do()
		if took := w.root().Mode == Fallback; took != (off != nil) {
			t.Errorf("without rules %v: got taken over %v in spite of the pledge", off, took)
		}
		w.now = pledged.Add(rest - 1)
		b.do()
		if took := w.root().Mode == Fallback; took != (off != nil) {
			t.Errorf("without rules %v: got taken over %v just before its end", off, took)
		}
		w.pass(1)
		b.do()
		w.wantMode(Fallback, 4)
	}
}
