package leases

import (
	"time"

	"github.com/coordd/coordd/tokens"
)

// Lease is a lease as the Table holds it. Once it is in a table it is never
// changed: the table hands it out by pointer, and whoever gets one may keep it
// and read it at any time, but must not write to it, nor to its Attributes.
type Lease struct {
	Name       string
	Session    ID // who holds it
	Attempt    ID // the attempt under which it was granted; a repeat of it gets the same token
	Token      tokens.Token
	TTL        time.Duration // in whole milliseconds
	Owner      Owner
	Attributes []byte
	AcquiredAt time.Time // UTC, whole milliseconds, for people only; zero if not known
	Stamp      uint64    // the table's revision as of the grant
	Broken     bool      // an operator has ended it: it is renewed no more
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

// memory keeps the last endings, and finds each in constant time.
type memory struct {
	kept    int      // how many at most
	ring    []Ending // grows up to kept
	oldest  int      // where in ring; 0 until the ring is full
	byToken map[tokens.Token]int
	byName  map[string]int // the newest of each name
}

func newMemory(kept int) memory {
	return memory{kept: kept, byToken: make(map[tokens.Token]int), byName: make(map[string]int)}
}

// add remembers e, and forgets the oldest ending if there are too many.
func (m *memory) add(e Ending) {
	at := len(m.ring)
	if at < m.kept {
		m.ring = append(m.ring, e)
	} else {
		at = m.oldest
		m.forget(at)
		m.ring[at] = e
		m.oldest = (at + 1) % m.kept
	}
	m.byToken[e.Token] = at
	m.byName[e.Name] = at
}

func (m *memory) forget(at int) {
	e := m.ring[at]
	delete(m.byToken, e.Token)
	if m.byName[e.Name] == at {
		delete(m.byName, e.Name)
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
	return m.ring[at], true
}

func (m *memory) find(name string, t tokens.Token) (Ending, bool) {
	at, ok := m.byToken[t]
	if !ok || m.ring[at].Name != name {
		return Ending{}, false
	}
	return m.ring[at], true
}

// list copies the endings, the oldest first.
func (m *memory) list() []Ending {
	l := make([]Ending, 0, len(m.ring))
	l = append(l, m.ring[m.oldest:]...)
	return append(l, m.ring[:m.oldest]...)
}
