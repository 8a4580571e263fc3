package main

import "slices"

// quietBound is the CPU, in percent of the machine, that others may use in a
// quiet round.
const quietBound = 10

// Cell is all that was measured of one cell.
type Cell struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Workers int      `json:"workers"`
	Quiet   bool     `json:"quiet"` // at least one round was; then only quiet rounds are in Median
	Median  Result   `json:"median"`
	Rounds  []Result `json:"rounds"`
	Failed  []string `json:"failed,omitempty"` // rounds that were not measured, and why

	cell    cell
	byRound map[int]Result
}

func (c *Cell) add(round int, r Result) {
	if c.byRound == nil {
		c.byRound = map[int]Result{}
	}
	c.byRound[round] = r
	c.Rounds = append(c.Rounds, r)
	c.Median, c.Quiet = summary(c.Rounds)
}

// summary is the median of each value, of the quiet rounds if there are any.
func summary(rounds []Result) (m Result, quiet bool) {
	calm := slices.DeleteFunc(slices.Clone(rounds), func(r Result) bool { return r.Others > quietBound })
	if quiet = len(calm) > 0; quiet {
		rounds = calm
	}
	of := func(value func(Result) float64) float64 {
		var values []float64
		for _, r := range rounds {
			values = append(values, value(r))
		}
		return median(values)
	}
	return Result{
		P50:          of(func(r Result) float64 { return r.P50 }),
		P99:          of(func(r Result) float64 { return r.P99 }),
		P999:         of(func(r Result) float64 { return r.P999 }),
		Rate:         of(func(r Result) float64 { return r.Rate }),
		ServerCPU:    of(func(r Result) float64 { return r.ServerCPU }),
		ClientCPU:    of(func(r Result) float64 { return r.ClientCPU }),
		ServerAllocs: of(func(r Result) float64 { return r.ServerAllocs }),
		ClientAllocs: of(func(r Result) float64 { return r.ClientAllocs }),
		Others:       of(func(r Result) float64 { return r.Others }),
	}, quiet
}

// median is the middle value, or the mean of the two in the middle; 0 of none.
func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	switch n := len(values); {
	case n == 0:
		return 0
	case n%2 == 1:
		return values[n/2]
	default:
		return (values[n/2-1] + values[n/2]) / 2
	}
}
