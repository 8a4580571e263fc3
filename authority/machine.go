package authority

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// Config is what a Machine is made with.
type Config struct {
	Name    string          // the node's
	Cluster leases.ID       // that the node belongs to; zero: to none yet, so it may bring one forth
	Params  Params          // of a cluster that this node brings forth
	Reform  time.Duration   // for how long a group has no leader before another is formed
	Rules   rules.Set       // those in force
	Nonce   func() [16]byte // draws at random what tells writes and groups apart
}

// Machine is one node's part in the authority protocol. Its driver tells it what
// happens, then asks Next what to do, and tells it what came of that. It is not
// safe for concurrent use: the lock that its driver holds over each call is the
// one under which pledging and taking over exclude each other (W1).
type Machine struct {
	cfg   Config
	facts Facts

	r       register
	known   bool // R has been read
	refused error
	first   arbiter.Version // of R when this node read it first since its start (S3)
	// R has rested since the end of the first read that showed its version, up to the
	// beginning of the newest one (T2).
	restFrom, restTo clock.Instant
	epochFrom        clock.Instant // the end of the first read that showed R's epoch
	answered         clock.Instant // the newest answer of the arbiter

	reading  bool
	asked    clock.Instant // the beginning of the newest read
	nextRead clock.Instant
	flight   *Swap         // the own write that is under way
	nextTry  clock.Instant // of a write that was not answered, or refused
	lost     []*Swap       // own writes whose answers were lost
	pledged  clock.Instant // no takeover before

	lead   *lead  // nil unless this node leads a group
	hand   *hand  // the planned hand-over that is under way
	force  *force // an operator makes this node take over; nil: nobody does
	back   bool   // an operator lets the Raft group take over again
	keep   bool   // an operator keeps authority with the registers
	lonely clock.Instant
	forms  leases.ID // the group that this node forms or has formed
	moving bool      // the driver is changing the node's group
}

// Facts are what the driver knows of its node, each time anew.
type Facts struct {
	Self    Member    // where this node is
	Group   leases.ID // that the node takes part in; zero: none
	Leading bool      // the node leads Group, by what Raft says
	Term    uint64    // of Group
	Ready   bool      // leading, and its table has applied an entry of Term
	Epoch   uint32    // of its table
	Heard   bool      // a leader of the root's group is heard, by this node or one that it hears; or this node is it
	Alive   []string  // names of the nodes that are heard, this one included
	Takers  []string  // leading: the voters, those about to be, and those that may still be; sorted
	Members []Member  // leading: all that are known, sorted by name
	// Leading: the longest TTL that is to be granted; 0: as it is. It may be lower than R's
	// only when no longer lease is held, in flight, or taken in any more (W5).
	Ceiling time.Duration
	Adopts  *Params   // leading: the log has adopted the arbiter, which knows nothing of the cluster yet
	Bump    bool      // leading: half of the epoch's tokens are used
	Now     time.Time // for people
}

// New returns the machine of a node that has just been started.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, lonely: math.MaxInt64}
}

// Action is something that the driver is to do now: a Load, *Swap, Ask, Cede,
// Import, RaiseEpoch, Drain, Install, Form or Join.
type Action interface{ action() }

// Load reads R; Loaded takes the answer.
type Load struct{}

// Swap writes R; Swapped takes the answer.
type Swap struct {
	From  arbiter.Version
	Write arbiter.Write
	root  Root
	why   writing
	sent  clock.Instant
	term  uint64 // of a leader's
}

// Ask asks each node for a pledge; Pledged takes the answers.
type Ask struct {
	Names  []string
	Pledge Pledge
}

// Cede hands leadership to a voter that reaches the arbiter; where none says so, nothing
// happens (V2).
type Cede struct{ Reaching []string }

// Import moves every shard to Epoch and takes the leases that are current into the
// log of the node's group (F2); Done takes the answer.
type Import struct{ Epoch, RaftEpoch uint32 }

// RaiseEpoch proposes a Bump to Epoch, which R has already; Done takes the answer.
type RaiseEpoch struct{ Epoch uint32 }

// Drain ends the serving of the term's window, lets what has been proposed finish
// and passes a Barrier; Done takes the answer.
type Drain struct{}

// Install writes the leases of the node's table into the shards, for fallback epoch
// Epoch, by the rule of reclaim; Done takes the answer.
type Install struct{ Epoch, RaftEpoch uint32 }

// Form leaves the node's group, if it has one, and begins another with the node as
// its only voter; Moved takes the answer.
type Form struct{ Cluster, Group leases.ID }

// Join leaves the node's group, if it has one, and takes part in another; Moved
// takes the answer.
type Join struct{ Cluster, Group leases.ID }

func (Load) action()       {}
func (*Swap) action()      {}
func (Ask) action()        {}
func (Cede) action()       {}
func (Import) action()     {}
func (RaiseEpoch) action() {}
func (Drain) action()      {}
func (Install) action()    {}
func (Form) action()       {}
func (Join) action()       {}

// Next returns what to do now, and when to ask again at the latest.
func (m *Machine) Next(now clock.Instant, f Facts) (todo []Action, wake clock.Instant) {
	m.facts = f
	m.follow(now)
	for a := m.step(now); a != nil; a = m.step(now) {
		todo = append(todo, a)
	}
	return todo, m.wake(now)
}

// step returns one action, or nil. Each notes that it is under way.
func (m *Machine) step(now clock.Instant) Action {
	if a := m.read(now); a != nil {
		return a
	}
	if !m.known || m.refused != nil {
		return nil
	}
	if m.r.version == 0 {
		return m.birth(now)
	}
	for _, part := range []func(clock.Instant) Action{m.move, m.serve, m.failback, m.handOver, m.endGrace, m.takeOver, m.enlist} {
		if a := part(now); a != nil {
			return a
		}
	}
	return nil
}

// lease is L.
func (m *Machine) lease() time.Duration {
	if m.r.version == 0 {
		return m.cfg.Params.Lease()
	}
	return m.r.root.Params.Lease()
}

// wake is when Next is to be asked again though nothing has happened.
func (m *Machine) wake(now clock.Instant) clock.Instant {
	at := now.Add(m.lease() / 10)
	for _, t := range append(m.leadWake(), m.nextRead, m.nextTry, m.restFrom.Add(leases.Stretch(m.lease())), m.graceEnd(), m.pledged) {
		if now.Before(t) && t.Before(at) {
			at = t
		}
	}
	return at
}

// read reads R every L/10, and when it has rested for long enough to take over.
func (m *Machine) read(now clock.Instant) Action {
	due := m.nextRead
	if m.known && m.mayTake() {
		if rested := m.restFrom.Add(leases.Stretch(m.lease())); m.asked.Before(rested) && rested < due {
			due = rested // once: where it fails, the next one comes in its time
		}
	}
	if m.reading || now.Before(due) {
		return nil
	}
	m.reading, m.asked = true, now
	return Load{}
}

// Loaded takes the answer to a Load that was sent at sent.
func (m *Machine) Loaded(sent, now clock.Instant, reg arbiter.Register, err error) {
	m.reading = false
	m.nextRead = now.Add(m.lease() / 10)
	if err != nil {
		return
	}
	m.learn(sent, now, reg)
}

// learn takes what R was seen to hold, by a read or a refused write that was sent at
// sent.
func (m *Machine) learn(sent, now clock.Instant, reg arbiter.Register) {
	m.answered = now
	m.force = m.force.after(sent, reg.Version)
	if m.known && reg.Version < m.r.version {
		if sent >= m.restFrom { // asked for after a later version had been seen
			m.refused = fmt.Errorf("%w: it holds version %d, and held version %d before: registers are never set back", ErrForeign, reg.Version, m.r.version)
		}
		return // else an old answer
	}
	if reg.Version == m.r.version && m.known {
		m.refused = nil // what was refused stood in a later version, which never was
		if m.restTo < sent {
			m.restTo = sent
		}
		m.resolve(reg, now)
		return
	}
	if !m.known {
		m.known, m.first = true, reg.Version
	}
	root := m.r.root
	m.refused = nil
	if reg.Version > 0 && (m.r.data == nil || !bytes.Equal(reg.Data, m.r.data)) { // most writes change nothing
		var err error
		if root, err = DecodeRoot(reg.Data); err == nil {
			err = m.belongs(root)
		}
		if err != nil {
			m.refused = err
			return
		}
	}
	m.hold(now, register{reg.Version, root, reg.Data})
	m.resolve(reg, now)
}

// belongs refuses another cluster's root.
func (m *Machine) belongs(root Root) error {
	if !m.cfg.Cluster.IsZero() && root.Cluster != m.cfg.Cluster {
		return fmt.Errorf("%w: it is of cluster %v, this node belongs to %v", ErrForeign, root.Cluster, m.cfg.Cluster)
	}
	return nil
}

// hold makes r the newest that is known.
func (m *Machine) hold(now clock.Instant, r register) {
	if r.root.Epoch != m.r.root.Epoch {
		m.epochFrom = now
	}
	m.r = r
	m.restFrom, m.restTo = now, now
	if r.version > 0 {
		m.cfg.Cluster = r.root.Cluster
	}
	m.back = m.back && r.root.Mode == Fallback && r.root.Held
	m.keep = m.keep && r.root.Mode == Fallback && !r.root.Held
	m.heed()
}

// writing is what a write of R is for.
type writing uint8

const (
	forBirth    writing = iota
	forAdoption         // by a cluster that has had no arbiter (N9)
	forWindow
	forTakeover // T3
	forHandOver // as T3, by a leader
	forGrace    // its end
	forRelease  // an operator lets the group take over again
	forHold     // an operator keeps authority with the registers
	forFailback // F1
	forBeat     // of a long import
	forImported // F3
	forMember   // where this node is, in a fallback epoch
)

// takes reports whether a write takes authority from a Raft leader.
func (w writing) takes() bool { return w == forTakeover || w == forHandOver }

// write sends a write of R, unless one is under way.
func (m *Machine) write(now clock.Instant, why writing, root Root) *Swap {
	if m.flight != nil || now.Before(m.nextTry) {
		return nil
	}
	m.flight = &Swap{
		From: m.r.version, root: root, why: why, sent: now,
		Write: arbiter.Write{Nonce: m.cfg.Nonce(), Data: root.Encode(), By: m.cfg.Name},
	}
	if m.lead != nil {
		m.flight.term = m.lead.term
	}
	return m.flight
}

// act is write as an Action: a nil *Swap must not become one.
func (m *Machine) act(now clock.Instant, why writing, root Root) Action {
	if s := m.write(now, why, root); s != nil {
		return s
	}
	return nil
}

// Swapped takes the answer to a Swap.
func (m *Machine) Swapped(s *Swap, now clock.Instant, err error) {
	if m.flight != s {
		return // another machine's: the node has begun to take part anew
	}
	var conflict *arbiter.ConflictError
	var unknown *arbiter.UnknownError
	switch {
	case err == nil:
		m.flight = nil
		m.answered = now
		m.done(s, now)
		return
	case errors.As(err, &conflict):
		m.flight = nil
		m.learn(s.sent, now, conflict.Found)
	case errors.As(err, &unknown) && unknown.Found.Version > s.From+1:
		m.flight = nil // whether it had an effect is not known, and it has none to come
		m.learn(s.sent, now, unknown.Found)
	case errors.Is(err, arbiter.ErrUnknown):
		// It stays in flight, as it were, until a read shows what became of it; a later
		// write from the same version makes it void.
		m.flight = nil
		m.lost = append(m.lost, s)
		m.nextRead, m.nextTry = now, now.Add(m.lease()/20)
	default:
		m.flight = nil
		m.nextTry = now.Add(m.lease() / 10)
	}
	if s.why == forHandOver {
		m.handFailed()
	}
}

// doubt is the version from which an own takeover was sent that may take effect yet; 0:
// there is none.
func (m *Machine) doubt() arbiter.Version {
	may := func(s *Swap) bool { return s.why.takes() && s.From == m.r.version }
	if m.flight != nil && may(m.flight) || slices.ContainsFunc(m.lost, may) {
		return m.r.version
	}
	return 0
}

// resolve looks whether R holds an own write whose answer was lost.
func (m *Machine) resolve(reg arbiter.Register, now clock.Instant) {
	for _, s := range m.lost {
		if reg.Version == s.From+1 && reg.Nonce == s.Write.Nonce && (m.cfg.Rules.On(rules.Recognise) || s.why == forBirth) {
			m.done(s, now)
		}
	}
	m.lost = slices.DeleteFunc(m.lost, func(s *Swap) bool { return reg.Version > s.From })
}

// done takes the success of a write: R holds it.
func (m *Machine) done(s *Swap, now clock.Instant) {
	if s.From+1 > m.r.version {
		m.hold(now, register{s.From + 1, s.root, s.Write.Data})
	}
	switch s.why {
	case forBirth:
		m.forms = s.root.Group
	case forWindow, forImported:
		m.wrote(s, now)
	case forTakeover:
		m.force = nil
	case forHandOver:
		m.handed()
	case forRelease:
		m.back = false
	}
}

// Root returns what is known of R; version 0: it is absent. known is false before
// the first read.
func (m *Machine) Root() (root Root, version arbiter.Version, known bool) {
	return m.r.root.clone(), m.r.version, m.known
}

// Version is that of R as it is known; 0: R is absent, or was not read yet.
func (m *Machine) Version() arbiter.Version { return m.r.version }

// Err says why this node takes no part: what R holds is not its cluster's. It matches
// ErrForeign or leases.ErrUnreadable.
func (m *Machine) Err() error { return m.refused }

// Reaches reports whether the arbiter has answered lately.
func (m *Machine) Reaches(now clock.Instant) bool {
	return m.known && now.Sub(m.answered) <= m.lease()/2
}

// Serves returns the fallback epoch in which this node may serve.
func (m *Machine) Serves() (epoch uint32, ok bool) {
	return m.r.root.Epoch, m.known && m.r.version > 0 && m.r.root.Mode == Fallback
}

// GraceLeft is how long nothing is granted anew; 0 if no grace is under way. It is
// the longest that this node can tell: another may end it before.
func (m *Machine) GraceLeft(now clock.Instant) time.Duration {
	if m.r.version == 0 || m.r.root.Mode != Fallback || m.r.root.GraceDone {
		return 0
	}
	return max(m.graceEnd().Sub(now), 1)
}

// graceEnd is when this node may end the grace.
func (m *Machine) graceEnd() clock.Instant {
	if m.r.version == 0 || m.r.root.Mode != Fallback || m.r.root.GraceDone {
		return 0
	}
	if !m.cfg.Rules.On(rules.GraceWait) {
		return m.epochFrom
	}
	return m.epochFrom.Add(m.r.root.Grace())
}

// endGrace lets fresh grants begin.
func (m *Machine) endGrace(now clock.Instant) Action {
	if end := m.graceEnd(); end == 0 || now.Before(end) {
		return nil
	}
	next := m.r.root.clone()
	next.GraceDone = true
	return m.act(now, forGrace, next)
}

// Ceiling is the longest TTL that may be granted: R's, or a lower one that an own write
// may yet make it (W5).
func (m *Machine) Ceiling() time.Duration {
	c := m.r.root.Ceiling()
	if f := m.flight; f != nil && f.From == m.r.version {
		c = min(c, f.root.Ceiling())
	}
	for _, s := range m.lost {
		if s.From == m.r.version {
			c = min(c, s.root.Ceiling())
		}
	}
	return c
}

// Reread lets R be read now: something says that it has changed.
func (m *Machine) Reread(now clock.Instant) { m.nextRead = now }
