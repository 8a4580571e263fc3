package authority

import (
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// lead is what this node knows as the leader of one term. It goes with the term (S7).
type lead struct {
	group leases.ID
	term  uint64
	since clock.Instant // when its table had caught up; 0: it has not
	ceded clock.Instant // when leadership was to be handed on last

	// Of its window. They go when the mode is no longer raft.
	wrote  arbiter.Version     // R's after its last write by W1; 0: none in this term
	takers map[string]struct{} // that unanimity needs: in R as written, or on their way into it (S5)
	opened clock.Instant       // when the first window was obtained; 0: there was none
	until  clock.Instant       // of the window
	by     By                  // what until rests on
	shut   bool                // for a hand-over

	nextWrite, nextRound clock.Instant
	lacking              clock.Instant // since when there is no window
	rounds               uint64
	round                *round

	import_  *task         // F2
	nextBeat clock.Instant // of R, while it imports
	raising  *task
	reaching map[string]uint64 // by name: the newest round in which it said that it reaches the arbiter
}

// By is what a window rests on.
type By string

// The two ways to a window (W1).
const (
	ByArbiter   By = "arbiter"
	ByUnanimity By = "unanimity"
)

// round is one question for pledges to all takers.
type round struct {
	nonce uint64
	sent  clock.Instant // of the earliest request
	yes   map[string]bool
}

// task is something for an epoch that the driver does, and answers.
type task struct {
	epoch uint32
	busy  bool
	again clock.Instant // not before, once it is answered
}

// due reports whether the task for epoch is to be begun. t may be nil.
func (t *task) due(epoch uint32, now clock.Instant) bool {
	return t == nil || t.epoch != epoch || !t.busy && !now.Before(t.again)
}

// answered notes that the task for epoch is. t may be nil.
func (t *task) answered(epoch uint32, again clock.Instant) {
	if t != nil && t.epoch == epoch {
		t.busy, t.again = false, again
	}
}

// follow notes whether and what this node leads.
func (m *Machine) follow(now clock.Instant) {
	f := m.facts
	if l := m.lead; l != nil && (!f.Leading || l.group != f.Group || l.term != f.Term && m.cfg.Rules.On(rules.WindowTerm)) {
		m.lead = nil
		m.endHand(&leases.UnavailableError{Reason: "this node no longer leads"})
	}
	if !f.Leading {
		return
	}
	if m.lead == nil {
		m.lead = &lead{group: f.Group, reaching: map[string]uint64{}}
	}
	l := m.lead
	l.term = f.Term
	if f.Ready && l.since == 0 {
		l.since = now
	}
	switch {
	case m.r.root.Mode != Raft || m.r.root.Group != l.group || now.Before(l.until):
		l.lacking = 0
	case l.lacking == 0:
		l.lacking = now
	}
}

// ready reports whether this node leads the group that the root names, and its table has
// applied an entry of its term (S6).
func (m *Machine) ready() bool {
	l := m.lead
	return l != nil && l.group == m.r.root.Group && (l.since != 0 || !m.cfg.Rules.On(rules.WindowBarrier))
}

// heed drops the window when R shows that the mode is no longer raft, or another
// group's.
func (m *Machine) heed() {
	l := m.lead
	if l == nil || m.r.root.Mode == Raft && m.r.root.Group == l.group {
		return
	}
	l.wrote, l.takers, l.opened, l.until, l.by, l.shut, l.round, l.raising = 0, nil, 0, 0, "", false, nil, nil
	l.nextWrite, l.nextRound = 0, 0
}

// Window is how long this node, as the leader of term, may still grant and renew, and
// what that rests on; 0: not at all.
func (m *Machine) Window(now clock.Instant, term uint64) (left time.Duration, by By) {
	l := m.lead
	if l == nil || l.term != term && m.cfg.Rules.On(rules.WindowTerm) || l.shut || l.opened == 0 || !now.Before(l.until) {
		return 0, ""
	}
	return l.until.Sub(now), l.by
}

// WindowSince is how long the window lasts that goes back to the one which was opened
// then; 0: it is closed, or goes back to another.
func (m *Machine) WindowSince(now clock.Instant, term uint64, opened clock.Instant) time.Duration {
	if m.Opened(term) != opened {
		return 0
	}
	left, _ := m.Window(now, term)
	return left
}

// Opened is when the first window of that term was obtained in this raft epoch, or
// those that bumps have made of it; 0: none was.
func (m *Machine) Opened(term uint64) clock.Instant {
	if l := m.lead; l != nil && l.term == term {
		return l.opened
	}
	return 0
}

// Deadline is when a lease that a leader finds in its table at its first window may be
// expired: the leader before may have renewed it for L more (W4).
func (m *Machine) Deadline(opened clock.Instant, ttl time.Duration) clock.Instant {
	if !m.cfg.Rules.On(rules.WindowDeadlines) {
		return opened.Add(leases.Stretch(ttl))
	}
	return opened.Add(leases.Stretch(m.lease()) + leases.Stretch(ttl))
}

// extend opens or extends the window.
func (m *Machine) extend(until, now clock.Instant, by By) {
	l := m.lead
	if until <= l.until || until <= now {
		return
	}
	l.until, l.by = until, by
	if l.opened == 0 {
		l.opened = now
	}
}

// serve keeps the window of a leader open, in both ways (W1).
func (m *Machine) serve(now clock.Instant) Action {
	switch {
	case m.r.root.Mode != Raft || !m.ready():
		return nil
	case m.hand != nil && m.hand.stage != waits: // where it cannot be done, another leader goes on
		return m.cede(now)
	}
	for _, part := range []func(clock.Instant) Action{m.raise, m.writeWindow, m.ask, m.cede} {
		if a := part(now); a != nil {
			return a
		}
	}
	return nil
}

// raise finishes a bump that R shows and the table does not.
func (m *Machine) raise(now clock.Instant) Action {
	l, epoch := m.lead, m.r.root.Epoch
	if m.facts.Epoch < m.lastImport() {
		return nil // no bump is missing but an import: this table is not the group's
	}
	if m.facts.Epoch >= epoch || !l.raising.due(epoch, now) {
		return nil
	}
	l.raising = &task{epoch: epoch, busy: true}
	return RaiseEpoch{Epoch: epoch}
}

// lastImport is the epoch of the newest import that R remembers.
func (m *Machine) lastImport() uint32 {
	h := m.r.root.History
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].Why == Imported {
			return h[i].Epoch
		}
	}
	return 0
}

// writeWindow writes R as its owner.
func (m *Machine) writeWindow(now clock.Instant) Action {
	l, root := m.lead, &m.r.root
	if root.Owner.Term > l.term || m.facts.Epoch < root.Epoch || m.flight != nil || now.Before(m.nextTry) {
		return nil
	}
	next := root.clone()
	next.Owner = Owner{Node: m.cfg.Name, Term: l.term}
	urgent := l.wrote == 0
	if m.cfg.Rules.On(rules.TakersVoters) && !slices.Equal(next.Takers, m.facts.Takers) && len(m.facts.Takers) > 0 {
		next.Takers, urgent = m.facts.Takers, true
	}
	if len(m.facts.Members) > 0 {
		next.Members = m.facts.Members
	}
	if c := m.facts.Ceiling; c > 0 && c != root.Ceiling() {
		next.CeilingMs, urgent = c.Milliseconds(), urgent || c > root.Ceiling()
	}
	switch {
	case m.facts.Epoch > root.Epoch: // a log that was recovered began a greater one
		next.Epoch, next.RaftEpoch, urgent = m.facts.Epoch, m.facts.Epoch, true
		next.changed(m.cfg.Name, Bump, m.facts.Now)
	case m.facts.Bump && root.Epoch < tokens.MaxEpoch:
		next.Epoch, next.RaftEpoch, urgent = root.Epoch+1, root.Epoch+1, true
		next.changed(m.cfg.Name, Bump, m.facts.Now)
	}
	if !urgent && now.Before(l.nextWrite) {
		return nil
	}
	s := m.write(now, forWindow, next)
	if s == nil {
		return nil
	}
	l.nextWrite = now.Add(m.lease() / 4)
	m.need(next.Takers)
	return s
}

// need adds names to those that unanimity needs (S5).
func (m *Machine) need(names []string) {
	l := m.lead
	if l.takers == nil || !m.cfg.Rules.On(rules.TakersSent) {
		return // there is no unanimity before the first write is done
	}
	for _, n := range names {
		l.takers[n] = struct{}{}
	}
}

// wrote takes the success of a write by W1 or F3.
func (m *Machine) wrote(s *Swap, now clock.Instant) {
	l := m.lead
	if l == nil || l.term != s.term || l.group != s.root.Group || m.r.root.Mode != Raft || m.r.root.Group != l.group {
		return
	}
	l.wrote = s.From + 1
	l.takers = map[string]struct{}{}
	for _, n := range s.root.Takers {
		l.takers[n] = struct{}{}
	}
	if f := m.flight; f != nil && f.why == forWindow {
		m.need(f.root.Takers)
	}
	m.extend(s.sent.Add(leases.Shrink(m.lease())), now, ByArbiter)
}

// Taker reports whether R has that node among its takers, as this leader has written
// it in its term.
func (m *Machine) Taker(name string) bool {
	l := m.lead
	return l != nil && l.wrote != 0 && m.r.root.Owner == (Owner{Node: m.cfg.Name, Term: l.term}) && slices.Contains(m.r.root.Takers, name)
}

// ask begins a round of pledges.
func (m *Machine) ask(now clock.Instant) Action {
	l := m.lead
	if l.wrote == 0 && m.cfg.Rules.On(rules.TakersWritten) || now.Before(l.nextRound) {
		return nil
	}
	if l.takers == nil {
		l.takers = map[string]struct{}{}
		for _, n := range m.r.root.Takers {
			l.takers[n] = struct{}{}
		}
	}
	l.nextRound = now.Add(m.lease() / 4)
	l.rounds++
	l.round = &round{nonce: l.rounds, sent: now, yes: map[string]bool{}}
	seq := l.wrote
	if seq == 0 {
		seq = m.r.version // only where the rule is off
	}
	a := Ask{Pledge: Pledge{
		Cluster: m.r.root.Cluster, Group: l.group, Epoch: m.r.root.Epoch, Term: l.term, Seq: seq, Nonce: l.rounds,
	}}
	for n := range l.takers {
		a.Names = append(a.Names, n)
	}
	slices.Sort(a.Names)
	return a
}

// Pledged takes one node's answer to an Ask. reaches says that it reaches the arbiter.
func (m *Machine) Pledged(now clock.Instant, p Pledge, name string, yes, reaches bool) {
	l := m.lead
	if l == nil || l.term != p.Term || l.group != p.Group || l.round == nil || l.round.nonce != p.Nonce || m.r.root.Mode != Raft {
		return
	}
	if reaches && name != m.cfg.Name {
		l.reaching[name] = p.Nonce
	}
	if !yes {
		return
	}
	l.round.yes[name] = true
	for n := range l.takers {
		if !l.round.yes[n] {
			return
		}
	}
	m.extend(l.round.sent.Add(leases.Shrink(m.lease())), now, ByUnanimity)
}

// cede hands leadership on where there has been no window for L/2 (V2).
func (m *Machine) cede(now clock.Instant) Action {
	l := m.lead
	patience := m.lease() / 2
	if l.lacking == 0 || now.Before(l.lacking.Add(patience)) || now.Before(l.ceded.Add(patience)) || now < l.since.Add(patience) || !m.cfg.Rules.On(rules.Cede) {
		return nil
	}
	l.ceded = now
	var reaching []string
	for n, nonce := range l.reaching {
		if nonce+1 >= l.rounds { // this round may have begun just now
			reaching = append(reaching, n)
		}
	}
	slices.Sort(reaching)
	return Cede{Reaching: reaching}
}

// leadWake is when a leader's next duties come.
func (m *Machine) leadWake() []clock.Instant {
	l := m.lead
	if l == nil {
		return nil
	}
	return []clock.Instant{l.nextWrite, l.nextRound, l.nextBeat, l.until}
}

// Done takes the answer to an Import, a RaiseEpoch, a Drain or an Install. A nil err is its
// success; after another one it is tried again, or given up where that is said.
func (m *Machine) Done(now clock.Instant, a Action, err error) {
	again := now.Add(m.lease() / 10) // whatever the answer: facts will show its success
	switch a := a.(type) {
	case Import:
		if m.lead != nil {
			m.lead.import_.answered(a.Epoch, again)
		}
	case RaiseEpoch:
		if m.lead != nil {
			m.lead.raising.answered(a.Epoch, again)
		}
	case Drain:
		m.drained(err)
	case Install:
		m.installed(a, err)
	}
}
