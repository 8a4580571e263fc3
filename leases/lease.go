package leases

import (
	"slices"
	"time"

	"github.com/coordd/coordd/tokens"
)

// Lease is a lease as the Table holds it. Once it is in a table it is never
// changed: the table hands it out by pointer, and whoever gets one may keep it
// and read it at any time, but must not write to it, nor to its Attributes.
type Lease struct {
	Name       string
	Session    ID // who holds it
	Attempt    ID // under which it was granted: a repeat of it gets the same token; zero if it was reclaimed
	Token      tokens.Token
	TTL        time.Duration // in whole milliseconds
	Owner      Owner
	Attributes []byte
	AcquiredAt time.Time // UTC, whole milliseconds, for people only; zero if not known
	// Stamp is the table's revision as of the grant or the import; in a shard the
	// version of its register with which the lease was last granted, renewed or reclaimed.
	Stamp  uint64
	Broken bool // an operator has ended it: it is renewed no more
}

// invalid looks for what the encodings cannot carry or the table cannot keep.
func (l *Lease) invalid() *InvalidError {
	if l == nil {
		return &InvalidError{Field: "lease", Value: "none", Bounds: "a lease"}
	}
	return first(nameSize(l.Name), required("session", l.Session), positiveToken(l.Token), invalidTerms(l.TTL, l.Owner, l.Attributes))
}

// Held is the lease's name and token.
func (l *Lease) Held() Held { return Held{Name: l.Name, Token: l.Token} }

// Ending is what is remembered of a lease that has ended.
type Ending struct {
	Name  string
	Token tokens.Token
	Why   Why          // WhyUnknown: no such lease is remembered
	Next  tokens.Token // what the name was granted under next; zero: not yet
}

// Err is the *NotHeldError that tells of the ending.
func (e Ending) Err() error {
	return &NotHeldError{Name: e.Name, Token: e.Token, Why: e.Why, Next: e.Next}
}

// EndedKept is how many ended leases a table remembers.
const EndedKept = 10_000

// memory keeps the last endings, and finds each by its name.
type memory struct {
	kept   int              // how many at most
	ring   []remembered     // grows up to kept
	oldest int              // where in ring; 0 until the ring is full
	byName map[string]int32 // the newest of each name
}

// remembered is an ending and where the one before it of the same name was.
type remembered struct {
	Ending
	before int32 // where in ring, if it has not been overwritten; -1: there was none
}

func newMemory(kept int) memory { return memory{kept: kept, byName: make(map[string]int32)} }

// add remembers e, and forgets the oldest ending if there are too many. The
// tokens of a name grow from ending to ending.
func (m *memory) add(e Ending) {
	at := len(m.ring)
	if at < m.kept {
		m.ring = append(m.ring, remembered{})
	} else {
		at = m.oldest
		m.forget(at)
		m.oldest = (at + 1) % m.kept
	}
	before, ok := m.byName[e.Name]
	if !ok {
		before = -1
	}
	m.ring[at] = remembered{e, before}
	m.byName[e.Name] = int32(at)
}

func (m *memory) forget(at int) {
	if name := m.ring[at].Name; m.byName[name] == int32(at) {
		delete(m.byName, name)
	}
}

// granted notes under which token the name was granted next.
func (m *memory) granted(name string, t tokens.Token) {
	if at, ok := m.byName[name]; ok {
		m.ring[at].Next = t
	}
}

func (m *memory) last(name string) (Ending, bool) {
	at, ok := m.byName[name]
	if !ok {
		return Ending{}, false
	}
	return m.ring[at].Ending, true
}

// find goes back from the newest ending of the name: most who ask mean that one.
func (m *memory) find(name string, t tokens.Token) (Ending, bool) {
	at, ok := m.byName[name]
	for ok {
		e := &m.ring[at]
		if e.Token == t {
			return e.Ending, true
		}
		if e.Token < t || e.before < 0 {
			break
		}
		at = e.before
		ok = m.ring[at].Name == name && m.ring[at].Token < e.Token // else it was overwritten
	}
	return Ending{}, false
}

// drop forgets the endings for which f says so.
func (m *memory) drop(f func(Ending) bool) {
	kept := slices.DeleteFunc(m.list(), f)
	if len(kept) == len(m.ring) {
		return
	}
	*m = newMemory(m.kept)
	for _, e := range kept {
		m.add(e)
	}
}

// list copies the endings, the oldest first.
func (m *memory) list() []Ending {
	l := make([]Ending, 0, len(m.ring))
	for i := range m.ring {
		l = append(l, m.ring[(m.oldest+i)%len(m.ring)].Ending)
	}
	return l
}
