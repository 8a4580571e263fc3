package main

import (
	"fmt"
	"slices"
)

// goal is a ratio of two cells that coordd is held to. The cells were measured
// one after the other, so that what else the machine does weighs on both.
type goal struct {
	what   string
	cell   string
	floors []string // the greatest value of them counts
	value  func(Result) float64
	bound  float64
	least  bool // the ratio is to be at least the bound; else at most
	shown  bool // only shown: the bound is another row's to keep
}

func rate(r Result) float64 { return r.Rate }
func p50(r Result) float64  { return r.P50 }

var echoes512 = []string{"floor/stream/512", "floor/coalesced/512"}

var goals = []goal{
	{what: "pairs/s with 512 workers ÷ the faster stream echo", cell: "remote/memory/512", floors: echoes512, value: rate, bound: 0.35, least: true},
	{what: "the same without package client", cell: "remote/memory/session/512", floors: echoes512, value: rate, bound: 0.35, least: true, shown: true},
	{what: "p50 with 1 worker ÷ client + replication", cell: "remote/memory/1", floors: []string{"floor/replication/1"}, value: p50, bound: 4},
	{what: "the same without package client", cell: "remote/memory/session/1", floors: []string{"floor/replication/1"}, value: p50, bound: 4, shown: true},
}

// Verdict is what a goal came to.
type Verdict struct {
	What   string    `json:"what"`
	Cell   string    `json:"cell"`
	Floors []string  `json:"floors"`
	Bound  float64   `json:"bound"`
	Least  bool      `json:"at_least"` // else at most
	Goal   bool      `json:"goal"`     // else only to compare
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"` // the ratio within each round
	Met    bool      `json:"met"`
}

// judge compares round by round; false: there is no round with all of the cells.
func (g goal) judge(cells map[string]*Cell, rounds int) (Verdict, bool) {
	v := Verdict{What: g.what, Cell: g.cell, Floors: g.floors, Bound: g.bound, Least: g.least, Goal: !g.shown}
	for n := range rounds {
		if ratio, ok := g.ratio(cells, n); ok {
			v.Rounds = append(v.Rounds, ratio)
		}
	}
	v.Median = median(v.Rounds)
	v.Met = v.Median <= g.bound
	if g.least {
		v.Met = v.Median >= g.bound
	}
	return v, len(v.Rounds) > 0
}

func (g goal) ratio(cells map[string]*Cell, round int) (float64, bool) {
	value := func(name string) (float64, bool) {
		c := cells[name]
		if c == nil {
			return 0, false
		}
		r, ok := c.byRound[round]
		return g.value(r), ok
	}
	measured, ok := value(g.cell)
	if !ok {
		return 0, false
	}
	var floors []float64
	for _, name := range g.floors {
		floor, ok := value(name)
		if !ok || floor == 0 {
			return 0, false
		}
		floors = append(floors, floor)
	}
	return measured / slices.Max(floors), true
}

func (v Verdict) String() string {
	sign, word := "≤", "met"
	if v.Least {
		sign = "≥"
	}
	switch {
	case !v.Goal:
		word = "for comparison"
	case !v.Met:
		word = "MISSED"
	}
	return fmt.Sprintf("%s: %s: %.2f (from %.2f to %.2f; goal %s %.2f): %s",
		v.Cell, v.What, v.Median, slices.Min(v.Rounds), slices.Max(v.Rounds), sign, v.Bound, word)
}
