package leases

import (
	"fmt"
	"math"
	"time"

	"github.com/coordd/coordd/tokens"
)

// Kind says what an Op does. Its numbers are part of the log format.
type Kind uint8

// The kinds of ops.
const (
	KindBirth    Kind = iota + 1 // gives the table its cluster and its first epoch
	KindAcquire                  // grants a lease if its name is free
	KindWithdraw                 // undoes an attempt: ends the lease held under it
	KindRelease                  // ends a lease for its holder
	KindExpire                   // ends a lease whose deadline has passed
	KindBump                     // begins a greater epoch
	KindBreak                    // an operator's: lets a lease be renewed no more, or ends it now
	KindTransfer                 // ends a lease for its holder and grants the name to an heir
)

// OpVersion is the greatest version of ops that this release reads.
const OpVersion = 1

// String is one word for people.
func (k Kind) String() string {
	switch k {
	case KindBirth:
		return "birth"
	case KindAcquire:
		return "acquire"
	case KindWithdraw:
		return "withdraw"
	case KindRelease:
		return "release"
	case KindExpire:
		return "expire"
	case KindBump:
		return "bump"
	case KindBreak:
		return "break"
	case KindTransfer:
		return "transfer"
	default:
		return fmt.Sprintf("kind %d", uint8(k))
	}
}

// known reports whether this release reads ops of kind k.
func (k Kind) known() bool { return KindBirth <= k && k <= KindTransfer }

// Version is the version of ops that a node must read to apply one of kind k.
// Nobody proposes an op of a version that a voter does not read.
func (k Kind) Version() uint32 { return 1 }

// Op is one change of a Table. Each kind uses the fields that are said for it;
// the others are neither looked at nor encoded.
type Op struct {
	Kind Kind
	// Epoch is the one under which the op was proposed: it applies only in that
	// epoch. For Birth and Bump it is the epoch to begin.
	Epoch   uint32
	Name    string       // all but Birth and Bump
	Session ID           // Acquire, Withdraw, Release, Transfer: who asks
	Attempt ID           // Acquire, Withdraw; Transfer: the heir's
	Token   tokens.Token // Release, Expire, Break, Transfer: the lease that is meant
	Heir    ID           // Transfer: the heir's session
	Now     bool         // Break: the name is free at once

	// Acquire, Transfer: what is kept with the new lease. TTL is in whole milliseconds.
	// AcquiredAt is the proposer's time of day, for people; it decides nothing,
	// and is kept in UTC and whole milliseconds from 1970 to 9999; zero is none.
	TTL        time.Duration
	Owner      Owner
	Attributes []byte
	AcquiredAt time.Time

	Cluster  ID     // Birth: random, the same in all of the cluster's logs
	Founders uint32 // Birth: how many members the founder was given, itself included
}

// maxOpTTL is what the encoding can carry; MaxTTL is what a client may ask for.
const maxOpTTL = math.MaxUint32 * time.Millisecond

// Validate returns nil or an *InvalidError. It asks for what the encoding can
// carry and the table can keep, not for the narrower bounds of Claim.Validate,
// whose idea of printable text may differ from release to release: two nodes
// must never differ about an op in the log.
func (op Op) Validate() error {
	if err := op.invalid(); err != nil {
		return err // an interface must not hold a nil *InvalidError
	}
	return nil
}

func (op Op) invalid() *InvalidError {
	switch op.Kind {
	case KindBirth:
		return first(required("cluster", op.Cluster), positive("founders", uint64(op.Founders), math.MaxUint32))
	case KindBump:
		return nil
	case KindAcquire:
		return first(nameSize(op.Name), required("session", op.Session), required("attempt", op.Attempt), op.invalidTerms())
	case KindWithdraw:
		return first(nameSize(op.Name), required("session", op.Session), required("attempt", op.Attempt))
	case KindRelease:
		return first(nameSize(op.Name), required("session", op.Session), positiveToken(op.Token))
	case KindExpire, KindBreak:
		return first(nameSize(op.Name), positiveToken(op.Token))
	case KindTransfer:
		return first(
			nameSize(op.Name), required("session", op.Session), positiveToken(op.Token),
			required("heir", op.Heir), required("attempt", op.Attempt), op.invalidTerms())
	default:
		return &InvalidError{Field: "op", Value: op.Kind.String(), Bounds: "a kind that this release knows"}
	}
}

// invalidTerms looks at what is kept with a new lease.
func (op Op) invalidTerms() *InvalidError {
	return first(
		wholeTTL(op.TTL), size("owner label", len(op.Owner.Label), 0, MaxLabel), size("owner site", len(op.Owner.Site), 0, MaxLabel),
		size("owner host", len(op.Owner.Host), 0, MaxLabel), size("attributes", len(op.Attributes), 0, MaxAttributes))
}

// first returns the first error there is, or nil.
func first(errs ...*InvalidError) *InvalidError {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func nameSize(name string) *InvalidError { return size("name", len(name), 1, MaxName) }

func positiveToken(t tokens.Token) *InvalidError {
	return positive("token", uint64(t), uint64(tokens.Max))
}

func required(field string, id ID) *InvalidError {
	if id.IsZero() {
		return &InvalidError{Field: field, Value: "none", Bounds: "16 bytes that are not all zero"}
	}
	return nil
}

func size(field string, n, least, most int) *InvalidError {
	if n < least || n > most {
		return &InvalidError{Field: field, Value: fmt.Sprintf("%d bytes", n), Bounds: fmt.Sprintf("%d to %d bytes", least, most)}
	}
	return nil
}

func positive(field string, n, most uint64) *InvalidError {
	if n == 0 || n > most {
		return &InvalidError{Field: field, Value: fmt.Sprint(n), Bounds: fmt.Sprintf("1 to %d", most)}
	}
	return nil
}

func wholeTTL(d time.Duration) *InvalidError {
	if d <= 0 || d > maxOpTTL || d%time.Millisecond != 0 {
		return &InvalidError{Field: "ttl", Value: d.String(), Bounds: fmt.Sprintf("whole milliseconds up to %v", maxOpTTL)}
	}
	return nil
}

// Outcome says what an Op did.
type Outcome uint8

// The outcomes of ops. Granted, Freed, Marked, Transferred, Born and Bumped
// changed the table, the others did not.
const (
	// Ignored: the op is not valid, or its name is reserved.
	Ignored Outcome = iota
	// Granted: Result.Lease is new.
	Granted
	// Repeated: Result.Lease had been granted to this very attempt before, or
	// had been marked broken before.
	Repeated
	// Mismatch: like Repeated, but the repeat differs from its first copy in Result.Field.
	Mismatch
	// Refused: Result.Lease, of another attempt, holds the name.
	Refused
	// UsedUp: the range of the counter or of the epochs is exhausted.
	UsedUp
	// Freed: the op ended Result.Lease; Result.Ending tells how.
	Freed
	// Absent: nothing such is held; Result.Ending is what is remembered of it.
	Absent
	// Born: the table belongs to a cluster now.
	Born
	// Bumped: a greater epoch has begun.
	Bumped
	// StaleEpoch: the op's epoch is not the table's, or not greater than it where it has to be.
	StaleEpoch
	// Unborn: the table belongs to no cluster yet.
	Unborn
	// Marked: Result.Lease is broken from now on; it is still held.
	Marked
	// Transferred: Result.Lease is new, and followed on the one of Result.Ending.
	Transferred
)

var outcomes = [...]string{
	Ignored: "ignored", Granted: "granted", Repeated: "repeated", Mismatch: "mismatch", Refused: "refused", UsedUp: "used up",
	Freed: "freed", Absent: "absent", Born: "born", Bumped: "bumped", StaleEpoch: "stale epoch", Unborn: "unborn",
	Marked: "marked", Transferred: "transferred",
}

// String is a word or two for people.
func (o Outcome) String() string {
	if int(o) < len(outcomes) {
		return outcomes[o]
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Result answers an Op.
type Result struct {
	Outcome Outcome
	Lease   *Lease // Granted, Repeated, Mismatch, Refused, Freed, Marked, Transferred
	Ending  Ending // Freed, Absent, Transferred
	Field   string // Mismatch: ttl, owner or attributes
}
