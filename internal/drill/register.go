package drill

import (
	"slices"
	"sync"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/tokens"
)

// register is the resource that the leases protect: a store that checks fencing tokens.
// For each name it remembers the greatest token that it was written to under, and
// refuses lower ones. It is safe for concurrent use.
type register struct {
	clock clock.Clock

	mu       sync.Mutex // guards what follows
	greatest map[string]tokens.Token
	writes   []write
}

// write is one try to write to the register.
type write struct {
	at       clock.Instant
	by, name string
	token    tokens.Token
	accepted bool
	greatest tokens.Token // that the name had been written to under before
}

func newRegister(c clock.Clock) *register {
	return &register{clock: c, greatest: map[string]tokens.Token{}}
}

// write reports whether the register took it.
func (r *register) write(by, name string, t tokens.Token) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := write{at: r.clock.Now(), by: by, name: name, token: t, greatest: r.greatest[name]}
	if w.accepted = t >= w.greatest; w.accepted {
		r.greatest[name] = t
	}
	r.writes = append(r.writes, w)
	return w.accepted
}

// all returns every write, in the order of their coming.
func (r *register) all() []write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// last is the greatest token that a name was written to under.
func (r *register) last(name string) tokens.Token {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.greatest[name]
}
