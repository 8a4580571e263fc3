package drill

import (
	"fmt"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
)

// result makes a result of what was recorded. It is called once all is over.
func (s *stage) result(sc scenario, failure error) Result {
	h, writes := s.history.History(), s.register.all()
	events, phases, faults := s.journal.read()
	grants := freshGrants(h)
	r := Result{
		Scenario: sc.Name, Seed: s.cfg.Seed, TookMS: s.journal.ms(s.over), Events: events,
		Verdicts:        s.judge(sc, h, writes).verdicts(sc.NotPromised),
		WithoutGrantsMS: longest(gaps(grants, s.measured, s.over)).Milliseconds(),
		LateMS:          s.sampler.late.Milliseconds(),
		Counts:          s.counts(h, writes),
		Timeline:        s.timeline(h, writes, faults, grants),
	}
	if failure != nil {
		r.Failure = failure.Error()
	}
	for _, p := range phases {
		r.Phases = append(r.Phases, Phase{
			Name: p.name, FromMS: s.journal.ms(p.from), ToMS: s.journal.ms(p.to), Bound: p.bound,
			WithoutGrantsMS: longest(gaps(grants, p.from, p.to)).Milliseconds(),
		})
	}
	return r
}

// judge looks for what speaks against the promises.
func (s *stage) judge(sc scenario, h history.History, writes []write) *findings {
	f := newFindings()
	_, f.apart = sc.NotPromised[Authority]
	f.history(h)
	f.register(writes, h)
	f.nodes(s.sampler.checks.evidence, s.sampler.count)
	f.keeper(s.keeper.lease.Token(), s.lost)
	return f
}

func (s *stage) counts(h history.History, writes []write) Counts {
	c := h.Counts()
	counts := Counts{Grants: c.Grants, Renewals: c.Renewals, Releases: c.Releases, Samples: s.sampler.count}
	for _, w := range writes {
		if w.accepted {
			counts.Accepted++
		} else {
			counts.Refused++
		}
	}
	return counts
}

// timeline is what there is to draw.
func (s *stage) timeline(h history.History, writes []write, faults []fault, grants []clock.Instant) Timeline {
	t := Timeline{Authority: s.spans(s.sampler.authority)}
	for i, m := range s.members {
		t.Nodes = append(t.Nodes, Lane{Name: m.name, Site: m.site, Spans: s.spans(s.sampler.lanes[i])})
	}
	t.Holders = s.holders(h, writes)
	for _, f := range faults {
		t.Faults = append(t.Faults, s.span(f.from, f.to, SpanFault, f.text))
	}
	for _, g := range gaps(grants, s.measured, s.over) {
		if g.length() >= noticeable {
			t.Gaps = append(t.Gaps, s.span(g.from, g.to, SpanGap, fmt.Sprintf("no fresh grants for %.1f s", g.length().Seconds())))
		}
	}
	return t
}

func (s *stage) span(from, to clock.Instant, kind SpanKind, text string) Span {
	return Span{FromMS: s.journal.ms(from), ToMS: s.journal.ms(min(to, s.over)), Kind: kind, Text: text}
}

// spans turns changes into what lasted from one to the next. What came after the end of
// the drill is left out.
func (s *stage) spans(l lane) (all []Span) {
	for i, c := range l {
		to := s.over
		if i+1 < len(l) {
			to = l[i+1].at
		}
		if c.at.Before(s.over) {
			all = append(all, s.span(c.at, to, c.kind, c.text))
		}
	}
	return all
}

// holders is a lane for each client but the probe, with the leases that it relied on and
// its refused writes.
func (s *stage) holders(h history.History, writes []write) (lanes []Lane) {
	for _, name := range s.cast {
		if name == prober {
			continue
		}
		l := Lane{Name: name}
		for _, b := range h.Beliefs {
			if b.Client == name && b.From.Before(s.over) {
				l.Spans = append(l.Spans, s.span(b.From, b.Until, SpanHeld, fmt.Sprintf("%s, token %v", b.Name, b.Token)))
			}
		}
		for _, w := range writes {
			if w.by == name && !w.accepted {
				l.Marks = append(l.Marks, Mark{AtMS: s.journal.ms(w.at), Name: w.name, Token: w.token, Over: w.greatest})
			}
		}
		lanes = append(lanes, l)
	}
	return lanes
}
