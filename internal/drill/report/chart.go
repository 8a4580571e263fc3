package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/coordd/coordd/internal/drill"
)

// The shape of a chart, in the units of its picture: at a width of 1000 one unit is a
// pixel.
const (
	width     = 1000
	left      = 96 // of the plot: lanes have their names there
	right     = 8
	top       = 44 // the phases and the scale
	rowHeight = 22
	barHeight = 16
	blockGap  = 10  // between groups of lanes
	letter    = 6.1 // about how wide one is
)

// chart is a timeline that is ready to be drawn.
type chart struct {
	ID            string // of the chart, unlike all others of the page
	Title, About  string
	Width, Height int
	Plot          box // the part with the bars
	Ticks         []tick
	Phases        []tick
	Shades        []bar // faults, behind all lanes
	Lanes         []lane
	Names         []legend // of the leases
}

type box struct{ X, Y, W, H float64 }

// Right is the plot's right edge, Bottom its lower one.
func (b box) Right() float64  { return b.X + b.W }
func (b box) Bottom() float64 { return b.Y + b.H }

// tick is a line across all lanes.
type tick struct {
	X    float64
	Text string
}

// lane is one row.
type lane struct {
	Name  string
	Y     float64 // of the text's base line
	Bars  []bar
	Marks []mark
}

// bar lasted from X on.
type bar struct {
	X, Y, W, H float64
	Class      string
	Title      string // is told when it is pointed at
	Text       string // what fits into it
}

// TextX and TextY are where its text begins.
func (b bar) TextX() float64 { return b.X + 4 }
func (b bar) TextY() float64 { return b.Y + b.H - 4.5 }

// mark is a cross.
type mark struct {
	X, Y  float64
	Title string
}

type legend struct{ Class, Name string }

// builder draws one result.
type builder struct {
	chart
	r     drill.Result
	y     float64           // of the next lane
	names map[string]string // the class of each lease
}

// newChart draws the timeline of the round-th round of the drill-th drill.
func newChart(drillNo, round int, title string, r drill.Result) chart {
	b := &builder{r: r, y: top, names: map[string]string{}}
	b.ID, b.Title, b.Width = fmt.Sprintf("d%dr%d", drillNo, round), title, width
	b.About = about(r)
	b.addLane("faults", "", r.Timeline.Faults)
	b.addLane("authority", "", r.Timeline.Authority)
	b.addLane("fresh grants", "", granting(r))
	b.y += blockGap
	for _, n := range r.Timeline.Nodes {
		b.addLane(n.Name, n.Site, n.Spans)
	}
	b.y += blockGap
	for _, h := range r.Timeline.Holders {
		b.addHolder(h)
	}
	b.Plot = box{left, top, width - left - right, b.y - top}
	b.Height = int(b.y) + 6
	b.scale()
	for _, f := range r.Timeline.Faults {
		x, w := b.extent(f)
		b.Shades = append(b.Shades, bar{X: x, Y: top, W: w, H: b.Plot.H, Class: "shade", Title: f.Text})
	}
	return b.chart
}

// about says in words what a picture shows.
func about(r drill.Result) string {
	var parts []string
	for _, e := range r.Events {
		if e.Kind == drill.FaultEvent || e.Kind == drill.AuthorityEvent || e.Kind == drill.GrantsEvent {
			parts = append(parts, fmt.Sprintf("after %s: %s", seconds(e.AtMS), e.Text))
		}
	}
	return "Lanes of faults, authority, fresh grants, nodes and clients over time. " + strings.Join(parts, "; ") + "."
}

// granting is when something was granted anew, and when nothing was.
func granting(r drill.Result) (spans []drill.Span) {
	last := int64(0)
	if len(r.Phases) > 0 {
		last = r.Phases[0].FromMS
	}
	for _, g := range r.Timeline.Gaps {
		if g.FromMS > last {
			spans = append(spans, drill.Span{FromMS: last, ToMS: g.FromMS, Kind: granted, Text: "granted"})
		}
		spans = append(spans, g)
		last = g.ToMS
	}
	return append(spans, drill.Span{FromMS: last, ToMS: r.TookMS, Kind: granted, Text: "granted"})
}

// granted is the kind of the time in which there were fresh grants.
const granted drill.SpanKind = "granted"

// x is where a time is.
func (b *builder) x(ms int64) float64 {
	return left + (width-left-right)*float64(ms)/float64(max(b.r.TookMS, 1))
}

func (b *builder) extent(s drill.Span) (x, w float64) {
	x = b.x(s.FromMS)
	return x, max(b.x(s.ToMS)-x, 1)
}

// addLane adds a lane of spans, which say for themselves what they are.
func (b *builder) addLane(name, site string, spans []drill.Span) {
	l := b.lane(strings.TrimSpace(name + " " + site))
	for _, s := range spans {
		l.Bars = append(l.Bars, b.bar(s, string(s.Kind), words(s)))
	}
	b.Lanes = append(b.Lanes, l)
}

// addHolder adds a lane of a client: the leases that it relied on, and its refused writes.
func (b *builder) addHolder(h drill.Lane) {
	l := b.lane(h.Name)
	for _, s := range h.Spans {
		name, _, _ := strings.Cut(s.Text, ",")
		held := b.bar(s, "held "+b.colour(name), s.Text)
		if held.Text != s.Text { // rather the name alone
			held.Text = fit(name, held.W)
		}
		l.Bars = append(l.Bars, held)
	}
	for _, m := range h.Marks {
		l.Marks = append(l.Marks, mark{
			X: b.x(m.AtMS), Y: b.y - rowHeight/2 - float64(rowHeight-barHeight)/4,
			Title: fmt.Sprintf("after %s: the register refused a write to %s under token %v, since %v had written", seconds(m.AtMS), m.Name, m.Token, m.Over),
		})
	}
	b.Lanes = append(b.Lanes, l)
}

// lane begins a lane below the others.
func (b *builder) lane(name string) lane {
	l := lane{Name: name, Y: b.y + barHeight - 3}
	b.y += rowHeight
	return l
}

func (b *builder) bar(s drill.Span, class, text string) bar {
	x, w := b.extent(s)
	return bar{
		X: x, Y: b.y - rowHeight, W: w, H: barHeight, Class: class, Text: fit(text, w),
		Title: fmt.Sprintf("%s, from %s to %s", text, seconds(s.FromMS), seconds(s.ToMS)),
	}
}

// words is what a span says of itself.
func words(s drill.Span) string {
	kind := map[drill.SpanKind]string{
		drill.SpanRaft: "raft", drill.SpanFallback: "fallback", drill.SpanGrace: "grace", drill.SpanImporting: "importing",
		drill.SpanDown: "down", drill.SpanAlone: "no leader", drill.SpanFollows: "follows", drill.SpanLeads: "leads, no window", drill.SpanWindow: "leads",
		drill.SpanRegisters: "by the registers",
	}[s.Kind]
	switch {
	case kind == "":
		return s.Text
	case s.Text == "":
		return kind
	default:
		return kind + ", " + s.Text
	}
}

// fit is as much of a text as a bar of that width has room for; nothing where that
// would say nothing.
func fit(text string, w float64) string {
	room := int((w - 8) / letter)
	all := []rune(text)
	switch {
	case len(all) <= room:
		return text
	case room < 3:
		return ""
	}
	return string(all[:room-1]) + "…"
}

// colours is how many classes the style sheet has for leases.
const colours = 6

// colour is the class of a lease's bars, and notes it for the legend.
func (b *builder) colour(name string) string {
	if c, ok := b.names[name]; ok {
		return c
	}
	c := fmt.Sprintf("c%d", len(b.names)%colours)
	b.names[name] = c
	b.Names = append(b.Names, legend{c, name})
	slices.SortFunc(b.Names, func(x, y legend) int { return cmp.Compare(x.Name, y.Name) })
	return c
}

// scale puts marks at round seconds, at most a dozen, and at the beginnings of phases.
func (b *builder) scale() {
	step := int64(1000)
	for _, s := range []int64{1000, 2000, 5000, 10_000, 20_000, 60_000} {
		if step = s; b.r.TookMS/s <= 12 {
			break
		}
	}
	for ms := int64(0); ms <= b.r.TookMS; ms += step {
		b.Ticks = append(b.Ticks, tick{b.x(ms), fmt.Sprintf("%d s", ms/1000)})
	}
	for _, p := range b.r.Phases {
		b.Phases = append(b.Phases, tick{b.x(p.FromMS), fit(p.Name, b.x(p.ToMS)-b.x(p.FromMS))})
	}
}
