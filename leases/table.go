package leases

import (
	"bytes"
	"iter"
	"strings"

	"github.com/google/btree"

	"github.com/coordd/coordd/tokens"
)

// Table is the deterministic state machine of all leases: the same ops, in the
// same order, make the same table with the same results everywhere. It reads no
// clock, draws nothing at random, does no I/O and has no lock: its owner lets
// nothing else touch it while Apply or Snapshot runs.
//
// Who a lease's name is free for is decided here alone; when a lease's time is
// over is decided by others, and comes in as an op.
type Table struct {
	cluster  ID // zero until Birth
	founders uint32
	epoch    uint32
	counter  uint32 // of the last token granted in this epoch
	revision uint64
	leases   *btree.BTreeG[entry]
	ended    memory
}

// entry keeps the name beside the lease, so that a search needs no lease.
type entry struct {
	name  string
	lease *Lease
}

// NewTable returns the table before its Birth.
func NewTable() *Table { return newTable(EndedKept) }

func newTable(endedKept int) *Table {
	return &Table{
		leases: btree.NewG(32, func(a, b entry) bool { return a.name < b.name }),
		ended:  newMemory(endedKept),
	}
}

// Apply carries out op, or leaves the table as it is and says why. It keeps
// nothing of op's memory that its owner could change later.
func (t *Table) Apply(op Op) Result {
	r := t.apply(op)
	switch r.Outcome {
	case Granted, Freed, Marked, Transferred, Born, Bumped:
		t.revision++
	}
	return r
}

func (t *Table) apply(op Op) Result {
	if op.Validate() != nil {
		return Result{Outcome: Ignored}
	}
	switch {
	case op.Kind == KindBirth:
		return t.birth(op)
	case t.cluster.IsZero():
		return Result{Outcome: Unborn}
	case op.Kind == KindBump:
		return t.bump(op)
	case op.Epoch != t.epoch:
		return Result{Outcome: StaleEpoch}
	case op.Name[0] == '@':
		return Result{Outcome: Ignored}
	}
	switch op.Kind {
	case KindAcquire:
		return t.acquire(op)
	case KindWithdraw:
		return t.withdraw(op)
	case KindRelease:
		return t.release(op)
	case KindBreak:
		return t.breakLease(op)
	case KindTransfer:
		return t.transfer(op)
	default:
		return t.expire(op)
	}
}

func (t *Table) birth(op Op) Result {
	switch {
	case !t.cluster.IsZero() || op.Epoch == 0:
		return Result{Outcome: StaleEpoch}
	case op.Epoch > tokens.MaxEpoch:
		return Result{Outcome: UsedUp}
	}
	t.cluster, t.founders, t.epoch = op.Cluster, op.Founders, op.Epoch
	return Result{Outcome: Born}
}

func (t *Table) bump(op Op) Result {
	switch {
	case op.Epoch <= t.epoch:
		return Result{Outcome: StaleEpoch}
	case op.Epoch > tokens.MaxEpoch:
		return Result{Outcome: UsedUp}
	}
	t.epoch, t.counter = op.Epoch, 0
	return Result{Outcome: Bumped}
}

func (t *Table) acquire(op Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case ok:
		return again(l, op)
	case t.usedUp():
		return Result{Outcome: UsedUp}
	}
	return Result{Outcome: Granted, Lease: t.grant(op, op.Session)}
}

// usedUp reports whether no token is left in this epoch.
func (t *Table) usedUp() bool { return t.counter == tokens.MaxCounter }

// grant makes the lease that op asks for, for session. The name must be free,
// and a token left.
func (t *Table) grant(op Op, session ID) *Lease {
	t.counter++
	l := &Lease{
		Name:       op.Name,
		Session:    session,
		Attempt:    op.Attempt,
		Token:      t.newest(),
		TTL:        op.TTL,
		Owner:      op.Owner,
		AcquiredAt: fromMillis(toMillis(op.AcquiredAt)),
		Stamp:      t.revision + 1, // the revision that this grant makes
	}
	if len(op.Attributes) > 0 {
		l.Attributes = bytes.Clone(op.Attributes)
	}
	t.insert(l)
	t.ended.granted(l.Name, l.Token)
	return l
}

// again answers an acquire of the held lease l.
func again(l *Lease, op Op) Result {
	r := Result{Outcome: Repeated, Lease: l}
	switch {
	case l.Session != op.Session || l.Attempt != op.Attempt:
		r.Outcome = Refused
	case l.TTL != op.TTL:
		r.Outcome, r.Field = Mismatch, "ttl"
	case l.Owner != op.Owner:
		r.Outcome, r.Field = Mismatch, "owner"
	case !bytes.Equal(l.Attributes, op.Attributes):
		r.Outcome, r.Field = Mismatch, "attributes"
	}
	return r
}

func (t *Table) withdraw(op Op) Result {
	l, ok := t.Get(op.Name)
	if !ok || l.Session != op.Session || l.Attempt != op.Attempt {
		return Result{Outcome: Absent, Ending: Ending{Name: op.Name}}
	}
	return t.end(l, WhyWithdrawn)
}

func (t *Table) release(op Op) Result {
	l, ok := t.Get(op.Name)
	if !ok || l.Session != op.Session || l.Token != op.Token {
		return t.absent(op)
	}
	return t.end(l, WhyReleased)
}

// expire ends a lease that was not renewed; a broken one could not be.
func (t *Table) expire(op Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case !ok || l.Token != op.Token:
		return t.absent(op)
	case l.Broken:
		return t.end(l, WhyBroken)
	}
	return t.end(l, WhyExpired)
}

// breakLease marks a copy: whoever was handed the lease may still read it.
func (t *Table) breakLease(op Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case !ok || l.Token != op.Token:
		return t.absent(op)
	case op.Now:
		return t.end(l, WhyBroken)
	case l.Broken:
		return Result{Outcome: Repeated, Lease: l}
	}
	marked := *l
	marked.Broken = true
	t.insert(&marked)
	return Result{Outcome: Marked, Lease: &marked}
}

// transfer ends the giver's lease, and grants the name to the heir unless no
// token is left for it: then it is a plain release (W8).
func (t *Table) transfer(op Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case !ok || l.Session != op.Session || l.Token != op.Token:
		return t.absent(op)
	case t.usedUp():
		return t.end(l, WhyReleased)
	}
	r := t.end(l, WhyTransferred)
	r.Outcome, r.Lease = Transferred, t.grant(op, op.Heir)
	r.Ending.Next = r.Lease.Token
	return r
}

func (t *Table) end(l *Lease, why Why) Result {
	t.leases.Delete(entry{name: l.Name})
	e := Ending{Name: l.Name, Token: l.Token, Why: why}
	t.ended.add(e)
	return Result{Outcome: Freed, Lease: l, Ending: e}
}

func (t *Table) absent(op Op) Result {
	e, ok := t.ended.find(op.Name, op.Token)
	if !ok {
		e = Ending{Name: op.Name, Token: op.Token}
	}
	return Result{Outcome: Absent, Ending: e}
}

func (t *Table) insert(l *Lease) { t.leases.ReplaceOrInsert(entry{name: l.Name, lease: l}) }

// Get returns the lease that holds the name.
func (t *Table) Get(name string) (*Lease, bool) {
	e, ok := t.leases.Get(entry{name: name})
	return e.lease, ok
}

// Last returns the newest ended lease of the name, if it is remembered.
func (t *Table) Last(name string) (Ending, bool) { return t.ended.last(name) }

// Ended returns how the lease of that name and token ended, if it is remembered.
func (t *Table) Ended(name string, token tokens.Token) (Ending, bool) {
	return t.ended.find(name, token)
}

// All iterates over the held leases in the order of their names. The table must
// not change meanwhile.
func (t *Table) All() iter.Seq[*Lease] { return t.From("", "") }

// From iterates over the held leases whose names begin with prefix and come
// after the name after, in the order of their names. The table must not change
// meanwhile.
func (t *Table) From(prefix, after string) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		t.leases.AscendGreaterOrEqual(entry{name: max(prefix, after)}, func(e entry) bool {
			return e.name == after || strings.HasPrefix(e.name, prefix) && yield(e.lease)
		})
	}
}

// Len is how many leases are held.
func (t *Table) Len() int { return t.leases.Len() }

// Epoch is the epoch of the tokens granted now; 0 before Birth.
func (t *Table) Epoch() uint32 { return t.epoch }

// Counter is the counter of the last token granted in this epoch; 0 if none was.
func (t *Table) Counter() uint32 { return t.counter }

// Revision is how many ops have changed the table.
func (t *Table) Revision() uint64 { return t.revision }

// Cluster is the cluster that the table belongs to; zero before Birth.
func (t *Table) Cluster() ID { return t.cluster }

// Founders is how many members the cluster's founder was given, itself included.
func (t *Table) Founders() uint32 { return t.founders }
