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
	// TakeoverPledge: nobody takes over before its pledge has run out (T1).
	TakeoverPledge
	// TakeoverRest: nobody takes over before it has seen R rest for L(1+ρ) (T2).
	TakeoverRest
	// PledgeTerm: a node pledges only to the leader that it follows at exactly that term (W1 a).
	PledgeTerm
	// PledgeAware: a node that knows of another mode, group or epoch does not pledge (W1 b, S1).
	PledgeAware
	// PledgeDoubt: nor does one whose own takeover may still take effect (W1 c, S2).
	PledgeDoubt
	// PledgeFirstRead: nor one that has read R for the first time since (W1 d, S3).
	PledgeFirstRead
	// TakersWritten: unanimity counts only after a write of R in the same term (W1, S4).
	TakersWritten
	// TakersSent: a taker counts from the sending of the write that adds it (W1, S5).
	TakersSent
	// TakersVoters: a node is a taker before it is a voter (W6).
	TakersVoters
	// WindowBarrier: the first window of a term needs a table that has caught up (W1, S6).
	WindowBarrier
	// WindowTerm: a window belongs to its term (W1, S7).
	WindowTerm
	// WindowDeadlines: a new leader allows for the last window of the one before (W4).
	WindowDeadlines
	// WindowPropose: what waits when the window closes is not proposed (W2, S39).
	WindowPropose
	// HandOverWait: no hand-over within L(1+ρ) of the term's first window (section 8, S8).
	HandOverWait
	// HandOverDrain: a hand-over waits for what has been proposed (section 8, S9).
	HandOverDrain
	// FailbackGrace: failback begins only after the grace (F1).
	FailbackGrace
	// GraceWait: after a takeover nothing is granted anew for as long as the longest TTL (section 5).
	GraceWait
	// CeilingRaised: a longer TTL is granted only under a ceiling that was raised before (W5).
	CeilingRaised
	// CeilingLowered: the ceiling is lowered only when no longer lease is left (W5).
	CeilingLowered
	// Cede: a leader without a window hands leadership on (V2).
	Cede
	// ImportingTakeover: in mode importing any node may take over (V3).
	ImportingTakeover
	// ImportingBeat: the owner of a long import writes R meanwhile (F2, V2).
	ImportingBeat
	// Resume: a later leader of the group goes on with an import (section 6, V7).
	Resume
	// Recognise: an owner that lost the answer to its write recognises it by its nonce (section 6).
	Recognise
	// ReclaimBelieved: only what is believed in is reclaimed (section 3, S46).
	ReclaimBelieved
	// LateAnswer: an answer after the lease has lapsed never revives it (section 3, S13).
	LateAnswer
	// ShardCloses: the first fresh grant of an epoch closes its shard to reclaims (section 5, S14).
	ShardCloses
	// KeptShardCloses: a shard that is moved with its leases is closed to reclaims (section 2, S14).
	KeptShardCloses
	// MoveByRaftEpoch: a shard that Raft has served since is emptied when it is moved (section 2, S11, S12).
	MoveByRaftEpoch
	// StampUnique: a lease's stamp in a shard never repeats (section 5, S15).
	StampUnique
	// ImportGreater: an import applies only if it begins a greater epoch (section 2, S16).
	ImportGreater
	// BumpGreater: so does a bump (section 2, S17).
	BumpGreater
	// ReclaimEpoch: a reclaim applies only in the epoch that it names (section 5, S13).
	ReclaimEpoch
	// OpEpoch: a shard is served in its own epoch only (section 2).
	OpEpoch
	// Observation: a lease in a register expires once its stamp was seen to rest for its TTL (section 5, S15).
	Observation
	// Grace: nothing is granted anew before every holder could reclaim its lease (section 5).
	Grace
	// Sealing: failback writes every shard before it takes the leases over (F2).
	Sealing
	// ExportCurrent: failback takes over only what no Raft group has served since (F2, S12).
	ExportCurrent
	// HandOverReclaims: a hand-over writes leases by the rule of reclaim (section 8, S10).
	HandOverReclaims

	count // how many there are
)

// Set says which rules are in force. Its zero value is all of them.
type Set struct{ off [(count + 63) / 64]uint64 }

// Without returns the set of all rules but those given.
func Without(rules ...Rule) Set {
	var s Set
	for _, r := range rules {
		s.off[r/64] |= 1 << (r % 64)
	}
	return s
}

// On reports whether r is in force.
func (s Set) On(r Rule) bool { return s.off[r/64]&(1<<(r%64)) == 0 }
