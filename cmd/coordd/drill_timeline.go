package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/coordd/coordd/internal/drill"
)

// timelineWidth is how many characters a timeline has for the whole drill.
const timelineWidth = 72

// symbols are the letters of a timeline.
var symbols = map[drill.SpanKind]byte{
	drill.SpanRaft: 'R', drill.SpanFallback: 'F', drill.SpanGrace: 'g', drill.SpanImporting: 'i',
	drill.SpanDown: 'x', drill.SpanAlone: '?', drill.SpanFollows: '.', drill.SpanLeads: 'l', drill.SpanWindow: 'L', drill.SpanRegisters: 'F',
	drill.SpanFault: '#', drill.SpanGap: '!', "": '+',
}

const timelineKey = `R mode raft, F fallback, g grace, i importing; # a fault; + something is granted anew, ! nothing
nodes: L leads with a window, l without one, . follows, ? knows no leader, F g serve by the registers, x down
clients: the first letter of the lease that they rely on; * a write that the register refused`

// writeTimeline draws a result with letters, a lane to a line.
func writeTimeline(w io.Writer, r drill.Result) {
	t := timeline{r: r}
	for _, l := range append(r.Timeline.Nodes, r.Timeline.Holders...) {
		t.names = max(t.names, len(laneName(l)))
	}
	t.names = max(t.names, len("fresh grants"))
	t.line(w, "", t.scale())
	t.spans(w, "faults", r.Timeline.Faults, kindSymbol)
	t.spans(w, "authority", r.Timeline.Authority, kindSymbol)
	t.spans(w, "fresh grants", append(t.measured(), r.Timeline.Gaps...), kindSymbol)
	for _, n := range r.Timeline.Nodes {
		t.spans(w, laneName(n), n.Spans, kindSymbol)
	}
	for _, h := range r.Timeline.Holders {
		cells := t.fill(h.Spans, func(s drill.Span) byte { return s.Text[0] })
		for _, m := range h.Marks {
			cells[t.cell(m.AtMS)] = '*'
		}
		t.line(w, laneName(h), string(cells))
	}
}

func laneName(l drill.Lane) string { return strings.TrimSpace(l.Name + " " + l.Site) }

func kindSymbol(s drill.Span) byte { return symbols[s.Kind] }

// timeline draws one result.
type timeline struct {
	r     drill.Result
	names int // the width of the longest name
}

func (t *timeline) line(w io.Writer, name, cells string) {
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%*s  %s", t.names, name, cells), " "))
}

func (t *timeline) spans(w io.Writer, name string, spans []drill.Span, symbol func(drill.Span) byte) {
	t.line(w, name, string(t.fill(spans, symbol)))
}

// measured is the time in which something is to be granted anew.
func (t *timeline) measured() (spans []drill.Span) {
	for _, p := range t.r.Phases {
		spans = append(spans, drill.Span{FromMS: p.FromMS, ToMS: p.ToMS})
	}
	return spans
}

// cell is where a time is.
func (t *timeline) cell(ms int64) int {
	return int(min(max(ms*timelineWidth/max(t.r.TookMS, 1), 0), timelineWidth-1))
}

// fill draws spans; each gets at least one cell.
func (t *timeline) fill(spans []drill.Span, symbol func(drill.Span) byte) []byte {
	cells := []byte(strings.Repeat(" ", timelineWidth))
	for _, s := range spans {
		for i := t.cell(s.FromMS); i <= t.cell(max(s.ToMS-1, s.FromMS)); i++ {
			cells[i] = symbol(s)
		}
	}
	return cells
}

// scale has the seconds, as many as there is room for.
func (t *timeline) scale() string {
	step := int64(1)
	for _, step = range []int64{1, 2, 5, 10, 20, 60} {
		if t.r.TookMS/1000/step <= timelineWidth/6 {
			break
		}
	}
	cells := []byte(strings.Repeat(" ", timelineWidth+8))
	for s := int64(0); s*1000 <= t.r.TookMS; s += step {
		copy(cells[t.cell(s*1000):], fmt.Sprintf("|%ds", s))
	}
	return string(cells)
}
