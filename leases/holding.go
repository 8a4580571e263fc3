package leases

import (
	"bytes"
	"time"
	"unicode/utf8"

	"github.com/google/btree"
)

// holding is a set of leases by their names, with what is asked of all of them
// together, so that no answer takes a walk through a million leases.
type holding struct {
	leases *btree.BTreeG[entry]
	ttls   map[time.Duration]int // how many leases have each TTL
	shards Shards
	fill   []uint32 // how many bytes the leases of each shard take up; in a shard's own table only its own
}

// entry keeps the name beside the lease, so that a search needs no lease.
type entry struct {
	name  string
	lease *Lease
}

func newHolding() holding {
	return holding{
		leases: btree.NewG(32, func(a, b entry) bool { return a.name < b.name }),
		ttls:   map[time.Duration]int{},
	}
}

func (h *holding) get(name string) (*Lease, bool) {
	e, ok := h.leases.Get(entry{name: name})
	return e.lease, ok
}

// put adds l, in the place of a lease of the same name.
func (h *holding) put(l *Lease) {
	before, ok := h.leases.ReplaceOrInsert(entry{name: l.Name, lease: l})
	h.ttls[l.TTL]++
	if h.fill != nil {
		h.fill[h.slot(l.Name)] += cost(l.Name, l.Owner, l.Attributes)
	}
	if ok {
		h.uncount(before.lease)
	}
}

func (h *holding) remove(l *Lease) {
	h.leases.Delete(entry{name: l.Name})
	h.uncount(l)
}

func (h *holding) uncount(l *Lease) {
	if h.ttls[l.TTL]--; h.ttls[l.TTL] == 0 {
		delete(h.ttls, l.TTL)
	}
	if h.fill != nil {
		h.fill[h.slot(l.Name)] -= cost(l.Name, l.Owner, l.Attributes)
	}
}

// replace puts l, which differs from the held lease of its name neither in its
// terms nor in its owner, in that one's place.
func (h *holding) replace(l *Lease) { h.leases.ReplaceOrInsert(entry{name: l.Name, lease: l}) }

// slot is where in fill a name's shard is.
func (h *holding) slot(name string) uint32 {
	if len(h.fill) == 1 {
		return 0
	}
	return h.shards.Of(name)
}

// share begins to count what the leases of each shard take up, and reports whether
// its register can take them.
func (h *holding) share(shards Shards) bool {
	h.shards = shards
	if shards == (Shards{}) {
		return true
	}
	h.fill = make([]uint32, shards.Count)
	fits := true
	h.leases.Ascend(func(e entry) bool {
		n := &h.fill[h.slot(e.name)]
		*n += cost(e.name, e.lease.Owner, e.lease.Attributes)
		fits = fits && *n <= shards.Bytes && isText(e.name, e.lease.Owner)
		return true
	})
	return fits
}

// fits reports whether the register of its shard can take the lease that op asks for
// (W9). instead is the lease of the same name whose room it gets; nil: there is none.
func (h *holding) fits(op *Op, instead *Lease) bool {
	if h.fill == nil {
		return true
	}
	sum := uint64(h.fill[h.slot(op.Name)]) + uint64(cost(op.Name, op.Owner, op.Attributes))
	if instead != nil {
		sum -= uint64(cost(instead.Name, instead.Owner, instead.Attributes))
	}
	return sum <= uint64(h.shards.Bytes) && isText(op.Name, op.Owner)
}

// isText reports whether a register can keep a lease's texts: it keeps UTF-8 alone.
// What clients ask for always is; the encodings of ops and tables take any bytes.
func isText(name string, o Owner) bool {
	return utf8.ValidString(name) && utf8.ValidString(o.Label) && utf8.ValidString(o.Site) && utf8.ValidString(o.Host)
}

func (h *holding) maxTTL() (longest time.Duration) {
	for d := range h.ttls { //arch:any-order it looks for the greatest
		longest = max(longest, d)
	}
	return longest
}

// leaseOf makes the lease of an op's terms. It keeps nothing of the op's memory.
func leaseOf(op *Op, session ID) *Lease {
	l := &Lease{
		Name: op.Name, Session: session, Attempt: op.Attempt, TTL: op.TTL, Owner: op.Owner,
		AcquiredAt: fromMillis(toMillis(op.AcquiredAt)),
	}
	if len(op.Attributes) > 0 {
		l.Attributes = bytes.Clone(op.Attributes)
	}
	return l
}
