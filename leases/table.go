package leases

import (
	"bytes"
	"iter"
	"strings"
	"time"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/tokens"
)

// Table is the deterministic state machine of all leases: the same ops, in the
// same order, make the same table with the same results everywhere. It reads no
// clock, draws nothing at random, does no I/O and has no lock: its owner lets
// nothing else touch it while Apply or Snapshot runs.
//
// Who a lease's name is free for is decided here alone; when a lease's time is
// over is decided by others, and comes in as an op.
//
// It is either the table of a Raft group or, out of OpenShard, that of one shard.
type Table struct {
	rules    rules.Set
	cluster  ID // zero until Birth, and in a shard
	founders uint32
	epoch    uint32 // 0 until Birth
	counter  uint32 // of the last token granted in this epoch
	revision uint64
	held     holding
	staged   staging
	ended    memory
	shard    *openShard // nil: the table of a Raft group
}

// NewTable returns the table of a Raft group before its Birth.
func NewTable() *Table { return newTable(EndedKept) }

// NewTableUnder is NewTable for this module's own tests, which switch rules off.
func NewTableUnder(set rules.Set) *Table {
	t := NewTable()
	t.rules = set
	return t
}

func newTable(endedKept int) *Table { return &Table{held: newHolding(), ended: newMemory(endedKept)} }

// Apply carries out op, or leaves the table as it is and says why. It keeps
// nothing of op's memory that its owner could change later.
func (t *Table) Apply(op Op) Result {
	r := t.apply(&op)
	switch r.Outcome {
	case Granted, Freed, Marked, Transferred, Born, Bumped, Imported, Adopted, Renewed, Reclaimed:
		t.revision++
	}
	return r
}

func (t *Table) apply(op *Op) Result {
	if op.invalid() != nil || !t.takes(op.Kind) {
		return Result{Outcome: Ignored}
	}
	switch op.Kind {
	case KindBirth:
		return t.birth(op)
	case KindBump, KindImportPart, KindImport:
		return t.begin(op)
	}
	switch {
	case t.epoch == 0:
		return Result{Outcome: Unborn}
	case op.Epoch != t.epoch && (op.Kind != KindReclaim || t.rules.On(rules.ReclaimEpoch)):
		return Result{Outcome: StaleEpoch}
	case op.Kind == KindAdopt:
		return t.adopt(op)
	case op.Name[0] == '@' || t.shard != nil && t.held.shards.Of(op.Name) != t.shard.index:
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
	case KindRenew:
		return t.renew(op)
	case KindReclaim:
		return t.reclaim(op)
	default:
		return t.expire(op)
	}
}

// takes reports whether ops of kind k are for such a table.
func (t *Table) takes(k Kind) bool {
	switch k {
	case KindBirth, KindBump, KindImportPart, KindImport, KindAdopt:
		return t.shard == nil
	case KindRenew, KindReclaim:
		return t.shard != nil
	default:
		return true
	}
}

func (t *Table) birth(op *Op) Result {
	switch {
	case t.epoch != 0 || op.Epoch == 0:
		return Result{Outcome: StaleEpoch}
	case op.Epoch > tokens.MaxEpoch:
		return Result{Outcome: UsedUp}
	}
	t.cluster, t.founders, t.epoch = op.Cluster, op.Founders, op.Epoch
	t.held.share(op.Shards)
	return Result{Outcome: Born}
}

// begin is of the ops that begin a greater epoch, at once or with another op.
func (t *Table) begin(op *Op) Result {
	rule := rules.ImportGreater
	if op.Kind == KindBump {
		rule = rules.BumpGreater
	}
	switch {
	case t.epoch == 0:
		return Result{Outcome: Unborn}
	case op.Epoch <= t.epoch && (t.rules.On(rule) || op.Epoch == 0):
		return Result{Outcome: StaleEpoch}
	case op.Epoch > tokens.MaxEpoch:
		return Result{Outcome: UsedUp}
	}
	switch op.Kind {
	case KindImportPart:
		return t.importPart(op)
	case KindImport:
		return t.importAll(op)
	default:
		t.advance(op.Epoch)
		return Result{Outcome: Bumped}
	}
}

// advance begins an epoch, for which no import of an earlier one comes in time.
func (t *Table) advance(epoch uint32) {
	t.epoch, t.counter = epoch, 0
	if t.staged.epoch <= epoch {
		t.staged = staging{}
	}
}

func (t *Table) acquire(op *Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case ok:
		return again(l, op)
	case t.usedUp():
		return Result{Outcome: UsedUp}
	case !t.held.fits(op, nil):
		return Result{Outcome: NoRoom}
	}
	return Result{Outcome: Granted, Lease: t.grant(op, op.Session)}
}

// usedUp reports whether no token is left in this epoch.
func (t *Table) usedUp() bool {
	return t.number(uint64(t.counter)+1) > uint64(tokens.MaxCounter)
}

// grant makes the lease that op asks for, for session. The name must be free,
// and a token left.
func (t *Table) grant(op *Op, session ID) *Lease {
	t.counter++
	l := leaseOf(op, session)
	l.Token, l.Stamp = t.Newest(), t.stamp(nil)
	t.held.put(l)
	t.ended.granted(l.Name, l.Token)
	if t.shard != nil {
		t.shard.granted(t.rules)
	}
	return l
}

// again answers an acquire of the held lease l.
func again(l *Lease, op *Op) Result {
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

func (t *Table) withdraw(op *Op) Result {
	l, ok := t.Get(op.Name)
	if !ok || l.Session != op.Session || l.Attempt != op.Attempt {
		return Result{Outcome: Absent, Ending: Ending{Name: op.Name}}
	}
	return t.end(l, WhyWithdrawn)
}

func (t *Table) release(op *Op) Result {
	l, ok := t.Get(op.Name)
	if !ok || l.Session != op.Session || l.Token != op.Token {
		return t.absent(op)
	}
	return t.end(l, WhyReleased)
}

// expire ends a lease that was not renewed; a broken one could not be.
func (t *Table) expire(op *Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case !ok || l.Token != op.Token:
		return t.absent(op)
	case op.Stamp != 0 && l.Stamp != op.Stamp:
		return Result{Outcome: Refused, Lease: l}
	case l.Broken:
		return t.end(l, WhyBroken)
	}
	return t.end(l, WhyExpired)
}

// breakLease marks a copy: whoever was handed the lease may still read it.
func (t *Table) breakLease(op *Op) Result {
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
	t.held.replace(&marked)
	return Result{Outcome: Marked, Lease: &marked}
}

// transfer ends the giver's lease, and grants the name to the heir unless no
// token is left for it, or no room: then it is a plain release (W8).
func (t *Table) transfer(op *Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case !ok || l.Session != op.Session || l.Token != op.Token:
		return t.absent(op)
	case t.usedUp() || !t.held.fits(op, l):
		return t.end(l, WhyReleased)
	}
	r := t.end(l, WhyTransferred)
	r.Outcome, r.Lease = Transferred, t.grant(op, op.Heir)
	r.Ending.Next = r.Lease.Token
	return r
}

func (t *Table) end(l *Lease, why Why) Result {
	t.held.remove(l)
	e := Ending{Name: l.Name, Token: l.Token, Why: why}
	t.ended.add(e)
	return Result{Outcome: Freed, Lease: l, Ending: e}
}

func (t *Table) absent(op *Op) Result {
	e, ok := t.ended.find(op.Name, op.Token)
	if !ok {
		e = Ending{Name: op.Name, Token: op.Token}
	}
	return Result{Outcome: Absent, Ending: e}
}

// Get returns the lease that holds the name.
func (t *Table) Get(name string) (*Lease, bool) {
	return t.held.get(name)
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
		t.held.leases.AscendGreaterOrEqual(entry{name: max(prefix, after)}, func(e entry) bool {
			return e.name == after || strings.HasPrefix(e.name, prefix) && yield(e.lease)
		})
	}
}

// Len is how many leases are held.
func (t *Table) Len() int { return t.held.leases.Len() }

// MaxTTL is the longest TTL of a held lease; 0 if there is none.
func (t *Table) MaxTTL() time.Duration { return t.held.maxTTL() }

// Epoch is the epoch of the tokens granted now; 0 before Birth.
func (t *Table) Epoch() uint32 { return t.epoch }

// Counter is the counter of the last token granted in this epoch; 0 if none was. In
// a shard it counts the shard's own grants.
func (t *Table) Counter() uint32 { return t.counter }

// Newest is the last token that the table has granted in this epoch; of the epoch
// alone if none was.
func (t *Table) Newest() tokens.Token {
	n := min(t.number(uint64(t.counter)), uint64(tokens.MaxCounter))
	return tokens.New(t.epoch, uint32(n))
}

// Revision is how many ops have changed the table; a shard's since it was opened.
func (t *Table) Revision() uint64 { return t.revision }

// Cluster is the cluster that the table belongs to; zero before Birth, and in a shard.
func (t *Table) Cluster() ID { return t.cluster }

// Founders is how many members the cluster's founder was given, itself included.
func (t *Table) Founders() uint32 { return t.founders }

// Shards says how this table's leases are shared out; the zero value: it belongs to a
// cluster without an arbiter.
func (t *Table) Shards() Shards { return t.held.shards }

// Fill is how many bytes the leases of each shard take up at most, encoded; nil
// without an arbiter; in a shard only its own. It changes with the table, and is not to
// be written to.
func (t *Table) Fill() []uint32 { return t.held.fill }
