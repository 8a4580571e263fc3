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
	KindBirth      Kind = iota + 1 // gives the table its cluster and its first epoch
	KindAcquire                    // grants a lease if its name is free
	KindWithdraw                   // undoes an attempt: ends the lease held under it
	KindRelease                    // ends a lease for its holder
	KindExpire                     // ends a lease whose deadline has passed
	KindBump                       // begins a greater epoch
	KindBreak                      // an operator's: lets a lease be renewed no more, or ends it now
	KindTransfer                   // ends a lease for its holder and grants the name to an heir
	KindImportPart                 // hands over a part of the leases that an Import then puts into force
	KindImport                     // replaces all leases by those handed over, and begins a greater epoch
	KindAdopt                      // lets every later leader need the arbiter
	KindRenew                      // in a shard only: gives a lease its full TTL again
	KindReclaim                    // in a shard only: a lease of an earlier epoch is presented by its holder
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
	case KindImportPart:
		return "import part"
	case KindImport:
		return "import"
	case KindAdopt:
		return "adopt"
	case KindRenew:
		return "renew"
	case KindReclaim:
		return "reclaim"
	default:
		return fmt.Sprintf("kind %d", uint8(k))
	}
}

// known reports whether this release reads ops of kind k.
func (k Kind) known() bool { return KindBirth <= k && k <= KindReclaim }

// Version is the version of ops that a node must read to apply one of kind k.
// Nobody proposes an op of a version that a voter does not read.
func (k Kind) Version() uint32 { return 1 }

// Op is one change of a Table. Each kind uses the fields that are said for it;
// the others are neither looked at nor encoded.
type Op struct {
	Kind Kind
	// Epoch is the one under which the op was proposed: it applies only in that
	// epoch. For Birth, Bump, ImportPart and Import it is the epoch to begin.
	Epoch   uint32
	Name    string       // all but Birth, Bump, ImportPart, Import and Adopt
	Session ID           // Acquire, Withdraw, Release, Transfer, Renew, Reclaim: who asks
	Attempt ID           // Acquire, Withdraw; Transfer: the heir's
	Token   tokens.Token // Release, Expire, Break, Transfer, Renew, Reclaim: the lease that is meant
	Heir    ID           // Transfer: the heir's session
	Now     bool         // Break: the name is free at once
	Stamp   uint64       // Expire in a shard: that of the lease that was seen to rest; 0 elsewhere

	// Acquire, Transfer, Reclaim: what is kept with the lease. TTL is in whole milliseconds.
	// AcquiredAt is the proposer's time of day, for people; it decides nothing,
	// and is kept in UTC and whole milliseconds from 1970 to 9999; zero is none.
	TTL        time.Duration
	Owner      Owner
	Attributes []byte
	AcquiredAt time.Time

	Cluster  ID     // Birth: random, the same in all of the cluster's logs
	Founders uint32 // Birth: how many members the founder was given, itself included

	// Birth, Adopt: how the arbiter's registers share the leases out; the zero value
	// in a Birth: there is no arbiter.
	Shards Shards
	Leases []*Lease // ImportPart: at most MaxPart
	Count  uint32   // Import: how many leases its parts have handed over
}

// MaxPart is how many leases an ImportPart hands over at most: one entry of the
// log must not outlast heartbeats.
const MaxPart = 128

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

func (op *Op) invalid() *InvalidError {
	switch op.Kind {
	case KindBirth:
		return first(required("cluster", op.Cluster), positive("founders", uint64(op.Founders), math.MaxUint32), op.invalidShards())
	case KindBump, KindImport:
		return nil
	case KindAcquire:
		return first(nameSize(op.Name), required("session", op.Session), required("attempt", op.Attempt), op.invalidTerms())
	case KindWithdraw:
		return first(nameSize(op.Name), required("session", op.Session), required("attempt", op.Attempt))
	case KindRelease, KindRenew:
		return first(nameSize(op.Name), required("session", op.Session), positiveToken(op.Token))
	case KindExpire, KindBreak:
		return first(nameSize(op.Name), positiveToken(op.Token))
	case KindTransfer:
		return first(
			nameSize(op.Name), required("session", op.Session), positiveToken(op.Token),
			required("heir", op.Heir), required("attempt", op.Attempt), op.invalidTerms())
	case KindReclaim:
		return first(nameSize(op.Name), required("session", op.Session), positiveToken(op.Token), op.invalidTerms())
	case KindImportPart:
		return op.invalidPart()
	case KindAdopt:
		return op.Shards.invalid()
	default:
		return &InvalidError{Field: "op", Value: op.Kind.String(), Bounds: "a kind that this release knows"}
	}
}

func (op *Op) invalidTerms() *InvalidError { return invalidTerms(op.TTL, op.Owner, op.Attributes) }

// invalidTerms looks at what is kept with a lease.
func invalidTerms(ttl time.Duration, o Owner, attributes []byte) *InvalidError {
	return first(
		wholeTTL(ttl), size("owner label", len(o.Label), 0, MaxLabel), size("owner site", len(o.Site), 0, MaxLabel),
		size("owner host", len(o.Host), 0, MaxLabel), size("attributes", len(attributes), 0, MaxAttributes))
}

func (op *Op) invalidShards() *InvalidError {
	if op.Shards == (Shards{}) {
		return nil
	}
	return op.Shards.invalid()
}

func (op *Op) invalidPart() *InvalidError {
	if len(op.Leases) > MaxPart {
		return &InvalidError{Field: "leases", Value: fmt.Sprint(len(op.Leases)), Bounds: fmt.Sprintf("at most %d", MaxPart)}
	}
	for _, l := range op.Leases {
		if err := l.invalid(); err != nil {
			return err
		}
	}
	return nil
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

// The outcomes of ops. Granted, Freed, Marked, Transferred, Born, Bumped, Imported,
// Adopted, Renewed and Reclaimed changed what the table shows; Staged changed what
// an import will bring; the others changed nothing.
const (
	// Ignored: the op is not valid, not for such a table or shard, or its name is reserved.
	Ignored Outcome = iota
	// Granted: Result.Lease is new.
	Granted
	// Repeated: Result.Lease had been granted to this very attempt before, or had been
	// marked broken before; or the table had adopted the same arbiter before.
	Repeated
	// Mismatch: like Repeated, but the repeat differs from its first copy in
	// Result.Field. Of an Import: not as many leases are staged as it counts.
	Mismatch
	// Refused: Result.Lease holds the name: it is of another attempt, has another token
	// than the one that is reclaimed, or has been renewed since it was seen to rest.
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
	// StaleEpoch: the op's epoch is not the table's, or where it has to be greater than
	// that it is not, or a greater one is staged.
	StaleEpoch
	// Unborn: the table belongs to no cluster yet.
	Unborn
	// Marked: Result.Lease is broken from now on; it is still held.
	Marked
	// Transferred: Result.Lease is new, and followed on the one of Result.Ending.
	Transferred
	// Staged: a part of an import has been taken; nothing that anybody sees has changed.
	Staged
	// Imported: the leases of an import are in force.
	Imported
	// Adopted: every later leader needs the arbiter.
	Adopted
	// Renewed: Result.Lease, in a shard, has its full TTL again.
	Renewed
	// Reclaimed: Result.Lease, in a shard, is held as in the epoch before, with its full TTL.
	Reclaimed
	// NoRoom: the leases of the shard that the name belongs to, or of any shard of an
	// arbiter that is adopted, would exceed its register.
	NoRoom
	// Closed: a lease is reclaimed too late: the shard has granted anew.
	Closed
)

var outcomes = [...]string{
	Ignored: "ignored", Granted: "granted", Repeated: "repeated", Mismatch: "mismatch", Refused: "refused", UsedUp: "used up",
	Freed: "freed", Absent: "absent", Born: "born", Bumped: "bumped", StaleEpoch: "stale epoch", Unborn: "unborn",
	Marked: "marked", Transferred: "transferred", Staged: "staged", Imported: "imported", Adopted: "adopted",
	Renewed: "renewed", Reclaimed: "reclaimed", NoRoom: "no room", Closed: "closed",
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
	Lease   *Lease // of all outcomes that name one above
	Ending  Ending // Freed, Absent, Transferred
	Field   string // Mismatch: ttl, owner or attributes; of an Import count, of an Adopt shards
}
