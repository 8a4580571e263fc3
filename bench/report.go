package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// Report is everything that a run found out.
type Report struct {
	Machine  Machine       `json:"machine"`
	At       time.Time     `json:"at"`
	Time     time.Duration `json:"time_ns"` // measured per cell and round
	Warm     time.Duration `json:"warm_ns"`
	Rounds   int           `json:"rounds"`
	Conns    int           `json:"conns"`
	Disk     string        `json:"disk"` // the folder of the members' data
	Cells    []*Cell       `json:"cells"`
	Sizes    []Size        `json:"sizes"`
	Verdicts []Verdict     `json:"verdicts"`
}

// judge compares what there is to compare.
func (r *Report) judge() {
	cells := map[string]*Cell{}
	for _, c := range r.Cells {
		cells[c.Name] = c
	}
	r.Verdicts = nil
	for _, g := range goals {
		if v, ok := g.judge(cells, r.Rounds); ok {
			r.Verdicts = append(r.Verdicts, v)
		}
	}
}

// failed is how many measurements have failed.
func (r *Report) failed() (n int) {
	for _, c := range r.Cells {
		n += len(c.Failed)
	}
	return n
}

// write writes the tables for people, as Markdown.
func (r *Report) write(w io.Writer) {
	fmt.Fprintf(w, "%v\n\n", r.Machine)
	fmt.Fprintf(w, "%s; each cell %d × %v, after %v to warm up each time; medians; data in %s. ~: others used more than %d %% of the CPU each time.\n",
		r.At.UTC().Format("2 Jan 2006 15:04 MST"), r.Rounds, r.Time, r.Warm, r.Disk, quietBound)
	var pairs, floors, renewed []*Cell
	for _, c := range r.Cells {
		switch {
		case len(c.Rounds) == 0:
		case c.cell.floor():
			floors = append(floors, c)
		case c.cell.renews():
			renewed = append(renewed, c)
		default:
			pairs = append(pairs, c)
		}
	}
	if all := append(floors, pairs...); len(all) > 0 {
		fmt.Fprintf(w, "\nPairs of acquire and release; of a floor, two round trips or entries. Latency is the first one's.\n\n")
		writeCells(w, "pairs/s", "pairs", all)
		legend(w, all)
	}
	if len(renewed) > 0 {
		fmt.Fprintf(w, "\nRenewals. Latency is a request's.\n\n")
		writeCells(w, "leases/s", "renewals", renewed)
		legend(w, renewed)
	}
	if len(r.Sizes) > 0 {
		fmt.Fprintf(w, "\nMemory of a lease, and its snapshot.\n\n")
		writeSizes(w, r.Sizes)
	}
	if len(r.Verdicts) > 0 {
		fmt.Fprintf(w, "\nRatios, within each round.\n\n")
		for _, v := range r.Verdicts {
			fmt.Fprintf(w, "- %v\n", v)
		}
	}
	for _, c := range r.Cells {
		for _, why := range c.Failed {
			fmt.Fprintf(w, "\nFAILED: %s: %s\n", c.Name, why)
		}
	}
}

func writeCells(w io.Writer, per, units string, cells []*Cell) {
	t := table{{
		"what", "p50 µs", "p99 µs", "p99.9 µs", per, "server CPU s / 10k " + units, "client CPU s / 10k", "server allocs each", "client allocs each", "others' CPU %",
	}}
	for _, c := range cells {
		m, name := c.Median, c.Name
		if !c.Quiet {
			name = "~" + name
		}
		client := []string{number(m.ClientCPU), number(m.ClientAllocs)}
		if c.cell.embedded {
			client = []string{"", ""} // it is in the server's
		}
		latency := []string{number(m.P50), number(m.P99), number(m.P999)}
		if c.cell.kind == "keep" {
			latency = []string{"", "", ""} // nobody waits
		}
		t = append(t, []string{
			name, latency[0], latency[1], latency[2], number(m.Rate), number(m.ServerCPU), client[0], number(m.ServerAllocs), client[1], fmt.Sprintf("%.0f", m.Others),
		})
	}
	t.write(w)
}

// legend explains the rows of cells.
func legend(w io.Writer, cells []*Cell) {
	fmt.Fprintln(w)
	told := map[string]bool{}
	for _, c := range cells {
		if !told[c.cell.name] {
			told[c.cell.name] = true
			fmt.Fprintf(w, "- %s: %s.\n", c.cell.name, c.What)
		}
	}
}

func writeSizes(w io.Writer, sizes []Size) {
	t := table{{"leases", "table B each", "leader B each", "snapshot B each", "take µs", "write ms", "restore ms"}}
	for _, s := range sizes {
		t = append(t, []string{
			fmt.Sprint(s.Leases), number(s.TableEach), number(s.NodeEach), number(s.Encoded), number(s.TakeUS), number(s.WriteMS), number(s.RestoreMS),
		})
	}
	t.write(w)
}

// number has three digits, or more before the point.
func number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 0.0995:
		return fmt.Sprintf("%.4f", x)
	case x < 9.95:
		return fmt.Sprintf("%.2f", x)
	case x < 99.5:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// table is rows of columns, the first of which is the heading.
type table [][]string

// write writes the table as Markdown, its columns aligned.
func (t table) write(w io.Writer) {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, s := range row {
			width[i] = max(width[i], utf8.RuneCountInString(s), 3)
		}
	}
	for n, row := range t {
		for i, s := range row {
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(s))
			if i == 0 {
				fmt.Fprintf(w, "| %s%s |", s, gap)
			} else {
				fmt.Fprintf(w, " %s%s |", gap, s)
			}
		}
		fmt.Fprintln(w)
		if n == 0 {
			fmt.Fprintf(w, "|%s|", strings.Repeat("-", width[0]+2))
			for _, n := range width[1:] {
				fmt.Fprintf(w, "%s:|", strings.Repeat("-", n+1))
			}
			fmt.Fprintln(w)
		}
	}
}

// save writes the report as JSON.
func (r *Report) save(name string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o666)
}
