// Package rules lets this module's own tests switch a rule of the protocol off,
// to show that the rule is needed: with it off, the test that guards it fails.
// Nothing outside of the module can name a Set other than the zero one.
package rules

// Rule is one rule of docs/protocol.md.
type Rule uint

const (
	// Identity: a Raft connection is refused by anyone but its addressee (section 7, S18).
	Identity Rule = iota
	// DecidedTerm: an entry applies only in the term in which it was decided (section 2, S41).
	DecidedTerm
	// RoundFreshness: a request is served only by a round begun after it came in (N4, S19).
	RoundFreshness
	// RoundVoters: only the answers of voters count in a round (N4, S43).
	RoundVoters
	// Round: a renewal needs a round of the voters at all (W3).
	Round
	// NewTermDeadlines: a new leader gives every lease a full TTL from its barrier on (W4, N3).
	NewTermDeadlines
	// FirstSending: a grant counts from the first sending of its attempt (section 3, S40).
	FirstSending
	// Confirm: a grant that waited is confirmed before it is believed (section 3, S45).
	Confirm
	// WaitedRepeats: every answer before the first renewal says that the request waited (S45).
	WaitedRepeats
	// AttemptOver: what was withdrawn or released is over once that was sent (section 3, S47).
	AttemptOver
	// AttemptRandom: an attempt id is drawn at random for one Acquire (section 2, S52).
	AttemptRandom
	// Founding: a node founds only where no member belongs to a cluster (N1, S42).
	Founding
	// ClusterPin: a client refuses the answers of another cluster than its first (N1).
	ClusterPin
	// Turns: whoever asks while others wait stands behind them (W2, S55).
	Turns
	// FirstDeadline: the first deadline of a grant that waited is short (section 3, S45).
	FirstDeadline
	// BreakToken: a break names the token of the lease that is meant (W7, S51).
	BreakToken
)

// Set says which rules are in force. Its zero value is all of them.
type Set struct{ off uint64 }

// Without returns the set of all rules but those given.
func Without(rules ...Rule) Set {
	var s Set
	for _, r := range rules {
		s.off |= 1 << r
	}
	return s
}

// On reports whether r is in force.
func (s Set) On(r Rule) bool { return s.off&(1<<r) == 0 }
