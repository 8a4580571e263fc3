// Package history records what clients asked for, what they were answered and
// which leases they believed in, and checks the whole against what coordd
// promises. It is for tests.
package history

import (
	"fmt"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Kind is what a client asked for.
type Kind uint8

// The requests of a leases.Session, and an operator's Break.
const (
	Acquire Kind = iota + 1
	Renew
	Release
	Withdraw
	Transfer // to the checks a Release: what its heir was granted is told by the heir's Acquire
	Break
	Reclaim
)

// String is the request's name.
func (k Kind) String() string {
	return [...]string{"?", "acquire", "renew", "release", "withdraw", "transfer", "break", "reclaim"}[k]
}

// Outcome is what became of a request.
type Outcome uint8

// The outcomes.
const (
	Unknown Outcome = iota // no answer: it takes effect at some time after its sending, or never
	Done                   // granted, renewed, released, withdrawn, transferred, broken, reclaimed
	Held                   // certainly refused: held by somebody else
	NotHeld                // certainly refused: not held under that token, or the attempt is over
	Nothing                // certainly without effect, and nothing is known
)

// String is the outcome in words.
func (o Outcome) String() string {
	return [...]string{"no answer", "done", "held by another", "not held", "without effect"}[o]
}

// Event is one request and its answer.
type Event struct {
	Kind    Kind
	Client  string // for people
	Session leases.ID
	Name    string
	Attempt leases.ID     // of Acquire and Withdraw; of Transfer: the heir's
	Token   tokens.Token  // of all but Acquire and Withdraw; of a granted Acquire
	TTL     time.Duration // of Acquire
	Now     bool          // of Break: the name is free at once
	Epoch   uint32        // of Reclaim

	Invoke, Return clock.Instant // Return is that of giving up where there was no answer
	Outcome        Outcome
	Err            error // what the client got

	// The order of all invocations and returns: finer than the clock.
	invoked, returned int
}

// String tells all that a person needs to find the event.
func (e *Event) String() string {
	s := fmt.Sprintf("[%v–%v] %s: %v %q", at(e.Invoke), at(e.Return), e.Client, e.Kind, e.Name)
	if !e.Attempt.IsZero() {
		s += fmt.Sprintf(" attempt %.8s", e.Attempt)
	}
	if e.Token != 0 {
		s += fmt.Sprintf(" token %v", e.Token)
	}
	if e.Now {
		s += " now"
	}
	if e.Epoch != 0 {
		s += fmt.Sprintf(" in epoch %d", e.Epoch)
	}
	s += fmt.Sprintf(": %v", e.Outcome)
	if e.Err != nil {
		s += fmt.Sprintf(" (%v)", e.Err)
	}
	return s
}

// Belief is the time in which a client relied on a lease. It ends when the
// client gave the lease up or was told of its loss, or at the latest at the
// deadline, which is the client's own: the last one that it counted for itself.
type Belief struct {
	Client                string
	Name                  string
	Token                 tokens.Token
	From, Until, Deadline clock.Instant // by the true clock; Until is no longer part of it
}

// String tells all that a person needs to find the belief.
func (b *Belief) String() string {
	return fmt.Sprintf("[%v–%v, deadline %v] %s relied on %q under token %v", at(b.From), at(b.Until), at(b.Deadline), b.Client, b.Name, b.Token)
}

// at is how instants are printed: as the time since the clock's origin.
func at(i clock.Instant) time.Duration { return time.Duration(i).Round(time.Microsecond) }

// History is what was recorded.
type History struct {
	Epoch   uint32   // the last one that the recorder was told of
	Events  []*Event // in the order of their invocations
	Beliefs []*Belief
}

// Counts says how much a history holds, so that a test can refuse one that shows too little.
type Counts struct {
	Events     int
	Grants     int // tokens that were granted
	Refusals   int // acquires that were told who holds the lease
	Renewals   int
	Releases   int
	Transfers  int // to somebody or not
	Breaks     int
	Reclaims   int
	Unanswered int // attempts whose first copy got no answer
}

// Counts counts.
func (h History) Counts() Counts {
	c := Counts{Events: len(h.Events)}
	granted, tried := map[tokens.Token]bool{}, map[leases.ID]bool{}
	for _, e := range h.Events {
		first := e.Kind == Acquire && !tried[e.Attempt]
		switch {
		case e.Kind == Acquire && e.Outcome == Done:
			granted[e.Token] = true
		case e.Kind == Acquire && e.Outcome == Held:
			c.Refusals++
		case first && e.Outcome == Unknown:
			c.Unanswered++
		case e.Kind == Renew && e.Outcome == Done:
			c.Renewals++
		case e.Kind == Release && e.Outcome == Done:
			c.Releases++
		case e.Kind == Transfer && e.Outcome == Done:
			c.Transfers++
		case e.Kind == Break && e.Outcome == Done:
			c.Breaks++
		case e.Kind == Reclaim && e.Outcome == Done:
			c.Reclaims++
		}
		if first {
			tried[e.Attempt] = true
		}
	}
	c.Grants = len(granted)
	return c
}
