package leases

import (
	"context"
	"time"
)

// Backend is whatever a client talks to: a connection to a cluster, or a node
// in the same process. It is safe for concurrent use.
type Backend interface {
	Directory
	// Open begins a conversation with the node that serves leases now, for the
	// client that session names. It makes one try, bounded by ctx, and prefers
	// another node than the one that the last conversation broke with; the
	// caller repeats it with a backoff. on is called for each event, one at a
	// time, from a goroutine of the session's; it must not block.
	//
	// Errors: ErrNotLeader, ErrNoQuorum or ErrUnavailable (try again, nothing
	// is known of any lease), ErrWrongCluster, ErrClosed.
	Open(ctx context.Context, session ID, on func(Event)) (Session, error)
}

// Directory tells about leases. It is safe for concurrent use. Every error is
// typed; ErrNotLeader, ErrNoQuorum, ErrUnavailable and ErrUnknownOutcome all
// mean that nothing is known: ask again.
type Directory interface {
	// Get tells about a name as of a moment after the call.
	Get(ctx context.Context, name string) (State, error)
	// List tells which names are held that begin with prefix and come after
	// after; at most limit of them, from 1 to MaxPage.
	List(ctx context.Context, prefix, after string, limit int) (Page, error)
	// Queue tells who waits for a name, the next in turn first.
	Queue(ctx context.Context, name string) ([]Waiter, error)
	// Watch calls on for every change to a name that begins with prefix, after
	// from (the zero Position: from now on), in order, until ctx ends, on
	// returns an error, or the changes can no longer be told: it never returns
	// nil. The first call comes at once, without changes, to tell where the
	// watch begins. A slow on slows nobody else down: who falls too far behind
	// gets ErrMissed. ErrUnavailable, or ErrNoQuorum from a node that has been cut
	// off from the others for long: go on with another, from the last batch's At.
	Watch(ctx context.Context, prefix string, from Position, on func(Batch) error) error
}

// Session is one client's conversation with the serving node. It is safe for
// concurrent use. Each call's error is typed (see the sentinels) and, unless
// said otherwise, ErrUnavailable means that the call certainly changed
// nothing, ErrUnknownOutcome that it may have been carried out, or still be.
// When ctx ends first a call returns ErrUnknownOutcome joined with ctx's cause.
type Session interface {
	// Info is what the node told when the conversation began.
	Info() Info
	// Acquire asks for a lease and, if the claim says so, queues for it. A
	// repeat under the same attempt gets the same token. It does not withdraw
	// the attempt when ctx ends: the caller does.
	// Errors: ErrHeld, ErrNotHeld (the attempt was withdrawn), ErrInvalid,
	// ErrExhausted, ErrUnavailable, ErrUnknownOutcome.
	Acquire(ctx context.Context, c Claim) (Grant, error)
	// Withdraw undoes an attempt whose answer is not known: its waiter goes, or
	// the lease held under it is released. nil: nothing is held under it.
	Withdraw(ctx context.Context, name string, attempt ID) error
	// Renew gives each lease its full TTL again, counted by its holder from
	// before this call. The first result has one error per lease: nil, ErrNotHeld,
	// or ErrGrace, which says that the lease is to be reclaimed, or another one that
	// says that nothing is known of it. The second says that of all of them.
	Renew(ctx context.Context, held []Held) ([]error, error)
	// Reclaim presents leases that their holder believes in, after a renewal was
	// answered with a *GraceError of that epoch. What it answers is like Renew's,
	// and counts like that.
	Reclaim(ctx context.Context, epoch uint32, held []Claimed) ([]error, error)
	// Release gives a lease back. ErrNotHeld: it had ended before.
	Release(ctx context.Context, h Held) error
	// Transfer gives a lease back and passes it on to the waiter of that attempt.
	// Where that is not possible, or nobody waits under it, it is a plain Release,
	// and the first result is false. Once it was sent the giver must not go on,
	// whatever the answer. ErrNotHeld: the lease had ended before.
	Transfer(ctx context.Context, h Held, to ID) (bool, error)
	// Done is closed when the conversation has broken; Err then tells why.
	Done() <-chan struct{}
	Err() error
	// Close ends the conversation: its waiters go, its leases stay until they
	// are released or their deadlines pass.
	Close() error
}

// Info is what a serving node tells at the beginning of a conversation.
type Info struct {
	Cluster         ID
	Node            string // the serving node's name
	Rho             float64
	MaxTTL          time.Duration
	ElectionTimeout time.Duration
}

// Event is something that a client is told without having asked.
type Event interface{ event() }

// Queued tells how many are before a waiting attempt; 1 is the next in turn.
type Queued struct {
	Name     string
	Attempt  ID
	Position int
}

// Ended tells a holder that its lease has ended without its doing.
type Ended struct {
	Held Held
	Err  error // a *NotHeldError
}

// Breaking tells a holder that an operator has broken its lease: it is renewed
// no more, and the holder should stop its work and release it.
type Breaking struct{ Held Held }

func (Queued) event()   {}
func (Ended) event()    {}
func (Breaking) event() {}
