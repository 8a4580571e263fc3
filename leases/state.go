package leases

import (
	"fmt"
	"time"

	"github.com/coordd/coordd/tokens"
)

// State is what a cluster tells about a name. What follows Held is that
// lease's; of a free name it is zero.
//
// AtMost, here and in other answers, is as this leader counts: after a change of
// leader a lease has its whole TTL again, and without one it is not ended.
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

// ValidateList checks what a List is asked. It returns nil or an *InvalidError.
func ValidateList(prefix, after string, limit int) error {
	if err := ValidatePart("prefix", prefix); err != nil {
		return err
	}
	if err := ValidatePart("after", after); err != nil {
		return err
	}
	if limit < 1 || limit > MaxPage {
		return &InvalidError{Field: "limit", Value: fmt.Sprint(limit), Bounds: fmt.Sprintf("from 1 to %d", MaxPage)}
	}
	return nil
}

// Page is a part of a list of held leases, in the order of their names. Each
// page is of its own moment, At. To follow all changes from a list on, watch
// from the first page's At: what is told twice then is told in order. Where so
// much happens that the first page's At is forgotten before the last page is
// there, begin the watch first, and keep what it tells until the list is done.
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
	Ended  bool          // the lease has ended
	AtMost time.Duration // else: it ends so long after this answer at the latest
}
