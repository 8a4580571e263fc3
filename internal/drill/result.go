package drill

import "github.com/coordd/coordd/tokens"

// Result is what came of one drill: plain data, from which texts and reports are made.
// Times are milliseconds since the drill began.
type Result struct {
	Scenario string `json:"scenario"`
	Seed     uint64 `json:"seed"`
	TookMS   int64  `json:"took_ms"`
	// Failure says what the cluster did not do in time, or not at all; empty: the drill
	// went to its end.
	Failure  string    `json:"failure,omitempty"`
	Verdicts []Verdict `json:"verdicts"`
	// WithoutGrantsMS is the longest time in which nothing was granted anew.
	WithoutGrantsMS int64   `json:"without_grants_ms"`
	Phases          []Phase `json:"phases"`
	// LateMS is the longest time for which this machine did not let the drill run. Where
	// it is much of an election timeout, a leader may lose its term by that alone.
	LateMS   int64    `json:"late_ms"`
	Counts   Counts   `json:"counts"`
	Events   []Event  `json:"events"`
	Timeline Timeline `json:"timeline"`
}

// Bad reports whether a promise was broken or could not be judged, or the drill did not
// get to its end.
func (r *Result) Bad() bool {
	for _, v := range r.Verdicts {
		if v.Outcome == Broken || v.Outcome == NotKnown {
			return true
		}
	}
	return r.Failure != ""
}

// Late reports whether the machine was so late that it may have cost a leader its term.
func (r *Result) Late() bool { return r.LateMS >= ElectionTimeout.Milliseconds()/3 }

// Phase is a part of a drill, from one fault, or its end, to the next.
type Phase struct {
	Name   string `json:"name"`
	FromMS int64  `json:"from_ms"`
	ToMS   int64  `json:"to_ms"`
	// WithoutGrantsMS is the longest time within the phase in which nothing was granted anew.
	WithoutGrantsMS int64  `json:"without_grants_ms"`
	Bound           *Bound `json:"bound,omitempty"` // nil: the design gives none
}

// Within reports whether the phase kept to its bound; one without a bound does.
func (p *Phase) Within() bool { return p.Bound == nil || p.WithoutGrantsMS <= p.Bound.LimitMS }

// Bound is what the design says of the time without fresh grants.
type Bound struct {
	LimitMS int64  `json:"limit_ms"`
	Why     string `json:"why"` // how it is reckoned
}

// Counts says how much has happened. A drill in which little did shows little.
type Counts struct {
	Grants   int `json:"grants"` // fresh ones
	Renewals int `json:"renewals"`
	Releases int `json:"releases"`
	Accepted int `json:"writes_accepted"` // by the register that checks tokens
	Refused  int `json:"writes_refused"`
	Samples  int `json:"samples"` // looks at the status of a node
}

// Event is something that happened.
type Event struct {
	AtMS int64     `json:"at_ms"`
	Kind EventKind `json:"kind"`
	Text string    `json:"text"`
}

// EventKind says what an event is about.
type EventKind string

// The kinds of events.
const (
	PhaseEvent     EventKind = "phase"     // a part of the drill begins
	FaultEvent     EventKind = "fault"     // something is broken, or mended
	AuthorityEvent EventKind = "authority" // who may grant has changed
	GrantsEvent    EventKind = "grants"    // fresh grants have stopped, or begun again
	LeaseEvent     EventKind = "lease"     // a lease of those that are watched has changed hands
	NoteEvent      EventKind = "note"
)

// Timeline is what there is to draw.
type Timeline struct {
	Authority []Span `json:"authority"` // by the root register: its modes
	Nodes     []Lane `json:"nodes"`
	Holders   []Lane `json:"holders"` // the leases that each client relied on, and its refused writes
	Faults    []Span `json:"faults"`
	Gaps      []Span `json:"gaps"` // times without fresh grants that somebody would notice
}

// Lane is one row of a timeline.
type Lane struct {
	Name  string `json:"name"`
	Site  string `json:"site,omitempty"`
	Spans []Span `json:"spans"`
	Marks []Mark `json:"marks,omitempty"`
}

// Span is something that lasted.
type Span struct {
	FromMS int64    `json:"from_ms"`
	ToMS   int64    `json:"to_ms"`
	Kind   SpanKind `json:"kind"`
	Text   string   `json:"text"`
}

// SpanKind says what a span is about.
type SpanKind string

// The kinds of spans.
const (
	SpanRaft      SpanKind = "raft"      // of the authority: its modes
	SpanFallback  SpanKind = "fallback"  // the arbiter's registers, after the grace
	SpanGrace     SpanKind = "grace"     // the registers, while nothing is granted anew; of a node too
	SpanImporting SpanKind = "importing" // a group takes the leases over

	SpanDown      SpanKind = "down"      // of a node: there is no such process
	SpanFollows   SpanKind = "follows"   // it knows a leader
	SpanAlone     SpanKind = "alone"     // it knows none
	SpanLeads     SpanKind = "leads"     // it leads, without a window
	SpanWindow    SpanKind = "window"    // it leads, with a window
	SpanRegisters SpanKind = "registers" // it serves by the arbiter's registers

	SpanHeld  SpanKind = "held"  // of a client: it relied on a lease
	SpanFault SpanKind = "fault" // something was broken
	SpanGap   SpanKind = "gap"   // nothing was granted anew
)

// Mark is a write that the register refused.
type Mark struct {
	AtMS  int64        `json:"at_ms"`
	Name  string       `json:"name"`
	Token tokens.Token `json:"token"`
	Over  tokens.Token `json:"over"` // the greatest that had written before
}
