package main

import (
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 3}, 2.5},
	} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v): got %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestQuietRoundsCount(t *testing.T) {
	noisy := func(rate float64) Result { return Result{Rate: rate, Others: quietBound + 1} }
	for _, tt := range []struct {
		rounds []Result
		want   float64
		quiet  bool
	}{
		{[]Result{noisy(1), noisy(2), noisy(9)}, 2, false},
		{[]Result{noisy(1), {Rate: 7, Others: quietBound}, noisy(9)}, 7, true},
		{[]Result{{Rate: 7, Others: -2}, {Rate: 9}, noisy(1)}, 8, true},
	} {
		if m, quiet := summary(tt.rounds); m.Rate != tt.want || quiet != tt.quiet {
			t.Errorf("%v: got %v, quiet %v, want %v, quiet %v", tt.rounds, m.Rate, quiet, tt.want, tt.quiet)
		}
	}
}

func TestGoals(t *testing.T) {
	g := goal{what: "pairs/s", cell: "a", floors: []string{"f", "g"}, value: rate, bound: .5, least: true}
	most := g
	most.least = false
	cells := func(a, f, g []float64) map[string]*Cell {
		m := map[string]*Cell{}
		for name, rates := range map[string][]float64{"a": a, "f": f, "g": g} {
			m[name] = &Cell{}
			for round, rate := range rates {
				if rate > 0 { // else the round failed
					m[name].add(round, Result{Rate: rate})
				}
			}
		}
		return m
	}
	for _, tt := range []struct {
		name    string
		goal    goal
		cells   map[string]*Cell
		want    float64
		met, ok bool
	}{
		{"the greater floor counts", g, cells([]float64{5}, []float64{5}, []float64{10}), .5, true, true},
		{"missed", g, cells([]float64{4}, []float64{5}, []float64{10}), .4, false, true},
		{"at most", most, cells([]float64{6}, []float64{5}, []float64{10}), .6, false, true},
		{"within each round", g, cells([]float64{5, 90, 1}, []float64{10, 100, 10}, []float64{1, 1, 1}), .5, true, true},
		{"failed rounds do not count", g, cells([]float64{9, 4, 4}, []float64{10, 10, 10}, []float64{0, 1, 1}), .4, false, true},
		{"nothing to compare", g, cells([]float64{5}, nil, []float64{10}), 0, false, false},
	} {
		v, ok := tt.goal.judge(tt.cells, 3)
		if ok != tt.ok || ok && (v.Median != tt.want || v.Met != tt.met) {
			t.Errorf("%s: got %v, met %v, %v; want %v, met %v, %v", tt.name, v.Median, v.Met, ok, tt.want, tt.met, tt.ok)
		}
		if ok && strings.Contains(v.String(), "MISSED") == tt.met {
			t.Errorf("%s: got %q", tt.name, v)
		}
	}
}

// What is compared has to be measured.
func TestGoalsNameCells(t *testing.T) {
	for _, args := range [][]string{nil, {"-quick"}} {
		s, err := parse(args, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, c := range s.cells() {
			if names[c.String()] {
				t.Errorf("%q: cell %s is there twice", args, c)
			}
			names[c.String()] = true
			if rigs[c.rig] == nil {
				t.Errorf("cell %s: there is no rig %q", c, c.rig)
			}
		}
		for _, g := range goals {
			for _, name := range append(g.floors, g.cell) {
				if !names[name] {
					t.Errorf("%q: goal %q names the cell %s, which is not measured", args, g.what, name)
				}
			}
		}
	}
}
