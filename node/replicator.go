package node

import (
	"context"
	"sync"
	"time"

	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
)

// replicator carries out a tenure's ops and knows of the leases, and of how long they
// last: through the log of a Raft group (raftReplicator) or in the registers of an
// arbiter (registers). The lines, the sessions and what these are told are the
// tenure's, and the same with both.
//
// It calls the tenure's ended for every lease that ends here, and breaking for every
// one that an operator breaks. Where it is said so a method is called with the tenure's
// mutex held, and does not block.
type replicator interface {
	// begin is called once, with mu held, before everything else.
	begin()
	// run starts what the replicator does by itself, until ctx ends. From then on it
	// answers every op that it has, as unavailable or of unknown outcome.
	run(ctx context.Context, running *sync.WaitGroup)
	// over says that the tenure has ended.
	over() error

	// propose carries out op, under the present epoch. answer is called once, later, in
	// the order in which the ops of one name were carried out, and with mu held. An
	// error says that op was not taken. It is called with mu held.
	propose(op leases.Op, answer fsm.Answer) error

	// find returns the lease of a name, as far as is known; nil: it is free.
	find(name string) *leases.Lease
	// look is find, with the newest lease of the name that is known to have ended.
	look(name string) (*leases.Lease, leases.Ending)
	// certain returns nil once what find and look tell of a name is certain: it was
	// confirmed after the call (N5).
	certain(ctx context.Context, name string) error
	// list is as leases.Directory says, and certain.
	list(ctx context.Context, prefix, after string, limit int) (page, error)
	// interest says whether anybody waits for a name: then its end is to be noticed
	// soon, whoever ends it. It is called with mu held.
	interest(name string, yes bool)

	// renew and reclaim are as leases.Session says.
	renew(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error)
	reclaim(ctx context.Context, session leases.ID, epoch uint32, held []leases.Claimed) ([]error, error)

	// granted notes that a lease was granted here, to a claim that waited or did not.
	// It is called with mu held.
	granted(l *leases.Lease, waited bool)
	// unconfirmed reports whether l may end before it has lasted for its TTL, since it
	// was granted to a claim that waited and was never renewed (S45). It is called with mu held.
	unconfirmed(l *leases.Lease) bool
	// atMost is how long l can last at most if it is not renewed. It is called with mu held.
	atMost(l *leases.Lease) time.Duration

	// longest is the longest TTL of the leases held, where the ceiling may be lowered.
	longest() time.Duration
	// shards says how leases are shared out among registers, and how many bytes those
	// of each take up; nothing in a cluster without an arbiter.
	shards() (leases.Shards, []uint32)
	// known is how many leases are held, as far as is known.
	known() int
}

// page is a part of the held leases, in the order of their names.
type page struct {
	at     leases.Position
	leases []*leases.Lease
	more   bool // there are others after these
}
