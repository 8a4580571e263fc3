package fallback

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

const (
	// MaxQueue is how many ops wait for one shard at most.
	MaxQueue = 16384
	// maxBatch is how many ops one swap carries out at most.
	maxBatch = 1024
	// gather is how long an op that finds nothing under way waits for others, so
	// that those which come together are one write.
	gather = 2 * time.Millisecond
	// How often a shard is read in which somebody waits for a name, and one in which
	// leases are held: other nodes write it too.
	pollWaited = 2 * time.Second
	pollHeld   = 5 * time.Second
)

// never is when a machine is to be asked again that waits for an answer or an op.
const never = clock.Instant(math.MaxInt64)

// Shard serves one shard register on one node, as other nodes may at the same time.
// It is a pure state machine: after each call of another method its driver calls
// Next, and does what that says. It is not safe for concurrent use.
//
// Every answer is certain (N5): either a swap that carries it has succeeded, or a
// load begun after the op was asked has shown the very version that it is true of.
// A swap proves as much as a load: had the register changed since the version that
// it was sent from, it would not have succeeded.
type Shard struct {
	index  uint32
	shards leases.Shards
	rules  rules.Set
	nonce  func() arbiter.Nonce

	regime Regime
	passed uint32 // a greater epoch than the regime's, which the register was seen at; 0: none
	fresh  uint64 // the last action begun before the end of the grace was known

	// What the register holds, as far as this node knows.
	usable    bool // a write may go from version
	lost      bool // the outcome of the last write is unknown
	version   arbiter.Version
	newest    arbiter.Version // that was ever seen
	found     leases.Shard
	bad       error         // why version cannot be read; found is of no use then
	confirmed uint64        // the last action that has shown version
	began     clock.Instant // when that began

	view  leases.Shard // found, as it is when moved to the regime's epoch
	known map[string]sighting
	due   clock.Instant // when the first lease of view has been seen to rest for long enough

	queue    []*ask
	reads    []read
	interest bool
	flight   *flight // nil: nothing is under way
	begun    uint64  // how many actions were

	gathering bool
	gathered  clock.Instant // when the queue need wait no longer
	started   bool          // looked counts
	looked    clock.Instant // when version was shown last
	rest      clock.Instant // nothing is begun before
	conflicts int           // in a row
	failures  int           // in a row
}

// ask is an op that waits, or is in a write that is under way.
type ask struct {
	op    leases.Op
	done  func(leases.Result, error)
	after uint64 // the actions begun before it came do not serve it

	// As of the newest try.
	result  leases.Result
	err     error
	changes bool
}

func (a *ask) answer() { a.done(a.result, a.err) }

func (a *ask) refuse(err error) { a.done(leases.Result{}, err) }

type read struct {
	done  func(error)
	after uint64
}

// flight is the action that is under way.
type flight struct {
	number uint64
	epoch  uint32

	// Of a swap.
	from  arbiter.Version
	nonce arbiter.Nonce
	asks  []*ask
	table *leases.Table // as written
}

// NewShard returns the machine of one shard of shards. nonce draws at random what
// tells writes apart, and how long to wait before another try.
func NewShard(index uint32, shards leases.Shards, set rules.Set, nonce func() arbiter.Nonce) *Shard {
	return &Shard{index: index, shards: shards, rules: set, nonce: nonce, due: never}
}

// Serve tells under what the shard is served from now on; the zero Regime: it is not
// served. Of a regime earlier than the present one nothing is taken. With another
// epoch all that was known is forgotten, and what waits is answered as unavailable.
func (s *Shard) Serve(r Regime) {
	switch {
	case r.Epoch == s.regime.Epoch:
		if r.Fresh && !s.regime.Fresh {
			s.fresh = s.begun
		}
		r.Fresh = r.Fresh || s.regime.Fresh
		s.regime = r
		return
	case r.Epoch != 0 && r.Epoch < s.regime.Epoch:
		return
	}
	old := s.regime.Epoch
	s.regime, s.fresh = r, s.begun
	if s.passed <= r.Epoch {
		s.passed = 0
	}
	s.forget()
	s.refuseAll(s.over(old))
}

// over is what is said of an op that was asked for under a regime of epoch old.
func (s *Shard) over(old uint32) error {
	if s.regime.Epoch == 0 {
		return errNotServed
	}
	return &SupersededError{Shard: s.index, Epoch: old, Found: s.regime.Epoch}
}

var errNotServed = &leases.UnavailableError{Reason: "the arbiter's registers are not served here"}

// Superseded returns the epoch to which somebody has moved the register beyond the
// regime's, or 0.
func (s *Shard) Superseded() uint32 { return s.passed }

func (s *Shard) forget() {
	s.usable, s.lost, s.started = false, false, false
	s.view, s.known, s.due = leases.Shard{}, nil, never
	s.rest, s.conflicts, s.failures = 0, 0, 0
}

// Ask puts op behind those that wait. done is called once, from within this or a later
// call of the machine; those of one write in the order of their asks. The op's epoch
// is the regime's; that of a Reclaim is what its holder named. Expire is the machine's own.
//
// In a grace an op whose lease is not there is answered with a *leases.GraceError
// beside its Absent: its holder may yet reclaim it. To an Acquire that says "not
// yet", to a Renew or a Break "reclaim it first", and to a Release, Withdraw or
// Transfer "done". So is a Reclaim that names an earlier epoch: present it in this one.
//
// Other errors: leases.ErrUnavailable, leases.ErrUnknownOutcome, leases.ErrExhausted,
// and leases.ErrInvalid for a TTL beyond the regime's ceiling.
func (s *Shard) Ask(op leases.Op, done func(leases.Result, error)) {
	a := &ask{op: op, done: done, after: s.begun}
	if err := s.closed(); err != nil {
		a.refuse(err)
		return
	}
	if s.Queued() >= MaxQueue {
		a.refuse(&leases.ExhaustedError{What: "ops that wait for one shard of the arbiter", Bound: MaxQueue})
		return
	}
	s.queue = append(s.queue, a)
}

// Read calls done once a load or swap that began after this call has confirmed what
// Find and Leases tell, or has failed.
func (s *Shard) Read(done func(error)) {
	if err := s.closed(); err != nil {
		done(err)
		return
	}
	s.reads = append(s.reads, read{done, s.begun})
}

// closed says why nothing is taken.
func (s *Shard) closed() error {
	switch {
	case s.regime.Epoch == 0:
		return errNotServed
	case s.passed != 0:
		return s.superseded()
	}
	return nil
}

func (s *Shard) superseded() error {
	return &SupersededError{Shard: s.index, Epoch: s.regime.Epoch, Found: s.passed}
}

func (s *Shard) underWay() int {
	if s.flight == nil {
		return 0
	}
	return len(s.flight.asks)
}

// Interest says whether anybody waits for a name of the shard: then it is read more often.
func (s *Shard) Interest(waits bool) { s.interest = waits }

// Unreadable says why the register cannot be read, or is nil.
func (s *Shard) Unreadable() error { return s.bad }

// Queued is how many ops wait.
func (s *Shard) Queued() int { return len(s.queue) + s.underWay() }

// Find returns the lease of a name as far as this node knows, or nil.
func (s *Shard) Find(name string) *leases.Lease { return s.known[name].lease }

// Leases returns the leases that this node knows of, in the order of their names. The
// slice is not to be written to.
func (s *Shard) Leases() []*leases.Lease { return s.view.Leases }

// refuseAll answers all that is not under way.
func (s *Shard) refuseAll(err error) {
	queue, reads := s.queue, s.reads
	s.queue, s.reads = nil, nil
	for _, a := range queue {
		a.refuse(err)
	}
	for _, r := range reads {
		r.done(err)
	}
}

// random draws a part of d.
func random(nonce arbiter.Nonce, d time.Duration) time.Duration {
	return time.Duration(float64(d) * float64(binary.BigEndian.Uint32(nonce[:4])) / (1 << 32))
}
