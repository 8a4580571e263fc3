package leases

import (
	"time"

	"github.com/coordd/coordd/tokens"
)

// State is what a cluster tells about a name. What follows Held is that
// lease's; of a free name it is zero.
type State struct {
	Name       string
	Held       bool
	Token      tokens.Token
	Owner      Owner
	Attributes []byte
	TTL        time.Duration
	AcquiredAt time.Time     // by the granting node's clock, for people only
	AtMost     time.Duration // it ends at the latest so long after this answer, unless it is renewed
	Broken     bool          // an operator has ended it: it is renewed no more
	Waiters    int           // who queue for the name
	Last       Ending        // of the newest lease of the name that has ended; Token zero: none is remembered
}

// MaxPage is how many leases a Page has at most.
const MaxPage = 1000

// Page is a part of a list of held leases, in the order of their names. Each
// page is of its own moment, At. To follow all changes from a list on, watch
// from the first page's At: what is told twice then is told in order.
type Page struct {
	At     Position
	Leases []State // Waiters and Last are left out
	Next   string  // what to list after for the next page; empty: this is the last
}

// Waiter is one who queues for a name.
type Waiter struct {
	Position int // 1 is the next in turn
	Attempt  ID  // names it in a Transfer
	Owner    Owner
	Waiting  time.Duration // for how long it has been in this leader's queue
}

// Broken answers a Break.
type Broken struct {
	Free   bool          // the name is free
	AtMost time.Duration // else: it is so long after this answer at the latest
}
