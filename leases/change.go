package leases

import (
	"fmt"
	"time"

	"github.com/coordd/coordd/tokens"
)

// Position is a place in the history of a cluster's leases: how many ops had
// been applied, in which epoch. Zero is no place.
type Position struct {
	Epoch    uint32 `json:"epoch"`
	Revision uint64 `json:"revision"`
}

// String is "epoch/revision".
func (p Position) String() string { return fmt.Sprintf("%d/%d", p.Epoch, p.Revision) }

// ChangeKind says what happened to a lease.
type ChangeKind uint8

// The kinds of changes.
const (
	ChangeGranted     ChangeKind = iota + 1 // the name is held from now on
	ChangeReleased                          // its holder gave it back
	ChangeExpired                           // its deadline passed without a renewal
	ChangeWithdrawn                         // its holder withdrew the attempt
	ChangeBroken                            // an operator has ended it; not Free: its holder may believe in it for a while
	ChangeTransferred                       // its holder passed it on: the name is held under Next from now on
)

var changeKinds = [...]string{
	ChangeGranted: "granted", ChangeReleased: "released", ChangeExpired: "expired", ChangeWithdrawn: "withdrawn",
	ChangeBroken: "broken", ChangeTransferred: "transferred",
}

// String is one word.
func (k ChangeKind) String() string {
	if int(k) < len(changeKinds) && changeKinds[k] != "" {
		return changeKinds[k]
	}
	return fmt.Sprintf("change %d", uint8(k))
}

// MarshalText is String.
func (k ChangeKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Change is one thing that happened to a lease.
type Change struct {
	Revision uint64 // of the table, as this change made it
	Kind     ChangeKind
	Name     string
	Token    tokens.Token // of the lease that was granted, broken or has ended
	Next     tokens.Token // Transferred: of the new lease
	Free     bool         // the name is free now

	// Of the lease of Token; Transferred: of the new one. Attributes are shared,
	// and not to be written to.
	Owner      Owner
	TTL        time.Duration
	Attributes []byte
	AcquiredAt time.Time
}

// Batch is the changes that a watch tells at once, in the order of their revisions.
type Batch struct {
	At      Position // where to go on from: everything up to here has been told
	Changes []Change // may be empty: At has moved on
}

// ChangeOf returns what an applied op did to a lease, if it did anything.
// revision is the table's after it.
func ChangeOf(r Result, revision uint64) (Change, bool) {
	l := r.Lease
	if l == nil {
		return Change{}, false
	}
	c := Change{
		Revision: revision, Name: l.Name, Token: l.Token,
		Owner: l.Owner, TTL: l.TTL, Attributes: l.Attributes, AcquiredAt: l.AcquiredAt,
	}
	switch r.Outcome {
	case Granted:
		c.Kind = ChangeGranted
	case Marked:
		c.Kind = ChangeBroken
	case Transferred:
		c.Kind, c.Token, c.Next = ChangeTransferred, r.Ending.Token, l.Token
	case Freed:
		c.Kind, c.Free = freedBy(r.Ending.Why), true
	default:
		return Change{}, false
	}
	return c, true
}

func freedBy(w Why) ChangeKind {
	switch w {
	case WhyExpired:
		return ChangeExpired
	case WhyWithdrawn:
		return ChangeWithdrawn
	case WhyBroken:
		return ChangeBroken
	default:
		return ChangeReleased
	}
}
