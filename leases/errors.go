package leases

import (
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/tokens"
)

// Every error of this module that a caller may want to tell apart matches one
// of these by errors.Is, the same out of a client as out of an embedded node.
var (
	// ErrHeld: somebody else holds the lease. See *HeldError.
	ErrHeld = errors.New("lease is held")
	// ErrNotHeld: the lease is certainly not held under that token or attempt. See *NotHeldError.
	ErrNotHeld = errors.New("lease is not held")
	// ErrLost: the lease ended while its holder still relied on it.
	ErrLost = errors.New("lease lost")
	// ErrExpired: the lease's deadline passed, by its holder's own clock.
	ErrExpired = errors.New("lease expired")
	// ErrReleased: the lease was given back by its holder.
	ErrReleased = errors.New("lease released")
	// ErrNotLeader: the node does not serve; another does. See *NotLeaderError.
	ErrNotLeader = errors.New("not the leader")
	// ErrNoQuorum: no majority of the voters can be reached.
	ErrNoQuorum = errors.New("no quorum")
	// ErrUnavailable: certainly nothing was changed, and nothing is known; try again.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnknownOutcome: the request may have been carried out, or still be.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrWrongCluster: the node belongs to another cluster. See *WrongClusterError.
	ErrWrongCluster = errors.New("wrong cluster")
	// ErrInvalid: a value is outside of its bounds. See *InvalidError.
	ErrInvalid = errors.New("invalid")
	// ErrExhausted: a bound is reached. See *ExhaustedError.
	ErrExhausted = errors.New("exhausted")
	// ErrGrace: after a takeover nothing is granted anew for a while, so that holders
	// can reclaim their leases. See *GraceError.
	ErrGrace = errors.New("grace after a takeover")
	// ErrMissed: changes were asked for that are no longer remembered. See *MissedError.
	ErrMissed = errors.New("changes were missed")
	// ErrClosed: the client or node was closed.
	ErrClosed = errors.New("closed")
)

// Why says how a lease ended.
type Why uint8

// The ends of a lease. Their numbers are part of the snapshot format.
const (
	WhyUnknown     Why = iota // too long ago to be remembered, or never granted
	WhyReleased               // its holder gave it back
	WhyExpired                // its deadline passed without a renewal
	WhyWithdrawn              // its holder withdrew the attempt
	WhyBroken                 // an operator ended it
	WhyTransferred            // its holder passed it on
)

// String is one word for people.
func (w Why) String() string {
	switch w {
	case WhyReleased:
		return "released"
	case WhyExpired:
		return "expired"
	case WhyWithdrawn:
		return "withdrawn"
	case WhyBroken:
		return "broken"
	case WhyTransferred:
		return "transferred"
	default:
		return "unknown"
	}
}

// MarshalText is String.
func (w Why) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// HeldError tells who holds a lease. It matches ErrHeld.
type HeldError struct {
	Name    string
	By      Owner
	Since   time.Time     // by the granting node's clock, for people; zero if not known
	AtMost  time.Duration // the lease ends at the latest so long after this answer, unless it is renewed
	Waiters int           // who queue for it
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("lease %q is held by %v", e.Name, e.By)
	if !e.Since.IsZero() {
		s += " since " + e.Since.UTC().Format(time.RFC3339)
	}
	if e.AtMost > 0 {
		s += fmt.Sprintf(", for at most %v more unless renewed", e.AtMost.Round(time.Millisecond))
	}
	if e.Waiters > 0 {
		s += fmt.Sprintf("; %d waiting", e.Waiters)
	}
	return s
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// NotHeldError tells how a lease ended. It matches ErrNotHeld.
type NotHeldError struct {
	Name  string
	Token tokens.Token // zero where an attempt, not a token, was asked for
	Why   Why
	Next  tokens.Token // the token that the name was granted under next; zero: none yet, or not known
}

func (e *NotHeldError) Error() string {
	s := fmt.Sprintf("lease %q is not held", e.Name)
	if e.Token != 0 {
		s += fmt.Sprintf(" under token %v", e.Token)
	}
	switch e.Why {
	case WhyUnknown:
	case WhyExpired:
		s += ": it has expired"
	case WhyBroken:
		s += ": an operator has broken it"
	default:
		s += ": it was " + e.Why.String()
	}
	if e.Next != 0 {
		s += fmt.Sprintf("; token %v came next", e.Next)
	}
	return s
}

// Is matches ErrNotHeld.
func (e *NotHeldError) Is(target error) bool { return target == ErrNotHeld }

// NotLeaderError tells where the leader is. It matches ErrNotLeader.
type NotLeaderError struct {
	Node   string // who answered
	Leader string // the leader's address; empty if not known
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return fmt.Sprintf("node %s is not the leader and knows of none yet", e.Node)
	}
	return fmt.Sprintf("node %s is not the leader; ask %s", e.Node, e.Leader)
}

// Is matches ErrNotLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// UnavailableError says why nothing can be answered now. It matches ErrUnavailable.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string { return "unavailable: " + e.Reason }

// Is matches ErrUnavailable.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// WrongClusterError matches ErrWrongCluster.
type WrongClusterError struct{ Want, Got ID }

func (e *WrongClusterError) Error() string {
	if e.Got.IsZero() {
		return fmt.Sprintf("wrong cluster: the node belongs to none, not to %v", e.Want)
	}
	return fmt.Sprintf("wrong cluster: the node belongs to %v, not to %v", e.Got, e.Want)
}

// Is matches ErrWrongCluster.
func (e *WrongClusterError) Is(target error) bool { return target == ErrWrongCluster }

// InvalidError names a value that is outside of its bounds. It matches ErrInvalid.
type InvalidError struct{ Field, Value, Bounds string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid %s %q: want %s", e.Field, e.Value, e.Bounds)
}

// Is matches ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// ExhaustedError names a bound that is reached, and the flag that moves it. It
// matches ErrExhausted.
type ExhaustedError struct {
	What  string
	Bound uint64
	Flag  string // empty: the bound is fixed
}

func (e *ExhaustedError) Error() string {
	s := fmt.Sprintf("exhausted: %s: the bound is %d", e.What, e.Bound)
	if e.Flag != "" {
		s += " (" + e.Flag + ")"
	}
	return s
}

// Is matches ErrExhausted.
func (e *ExhaustedError) Is(target error) bool { return target == ErrExhausted }

// MissedError says why a node cannot tell the changes after a place: it does
// not remember them any more, or its history never came through that place. It
// matches ErrMissed. What helps is to list the leases anew, and to watch from there.
type MissedError struct {
	From   Position // what was asked for
	Oldest Position // the oldest place that this node can tell all changes after
	Newest Position
}

func (e *MissedError) Error() string {
	why := fmt.Sprintf("this node remembers those since %v", e.Oldest)
	if e.From.Revision >= e.Oldest.Revision {
		why = "this node's history never came through there"
	}
	return fmt.Sprintf("the changes since %v cannot be told: %s, it is at %v; list the leases anew, and watch from there", e.From, why, e.Newest)
}

// Is matches ErrMissed.
func (e *MissedError) Is(target error) bool { return target == ErrMissed }

// GraceError says that the arbiter has taken over, and that holders are to reclaim
// their leases in Epoch before anything is granted anew. It matches ErrGrace. As
// the answer to a renewal it says: reclaim that lease, nobody else has it.
type GraceError struct {
	Epoch   uint32
	FreshIn time.Duration // how long until fresh grants begin, at most, as the answering node counts
}

func (e *GraceError) Error() string {
	return fmt.Sprintf("the arbiter has taken over in epoch %d: holders reclaim their leases, fresh grants begin within %v", e.Epoch, e.FreshIn.Round(time.Millisecond))
}

// Is matches ErrGrace.
func (e *GraceError) Is(target error) bool { return target == ErrGrace }
