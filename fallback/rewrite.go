package fallback

import (
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// Rewrite changes one shard register once: load, change, swap, and again until it is
// done. It is a pure state machine like Shard. Whatever fails is tried again, for as
// long as its driver likes. After a write of unknown outcome it loads and looks: what
// it does shows in the register, and a copy of the write that comes late finds
// another version.
type Rewrite struct {
	index, epoch uint32
	nonce        func() arbiter.Nonce
	// change returns what the register is to hold in the place of found, whether that
	// is another thing, and the result. stamp is the version that the write makes.
	change func(found leases.Shard, stamp uint64) (after leases.Shard, write bool, result []*leases.Lease)

	under  bool // an action is under way
	loaded bool // version and found are those to change
	// newest was ever seen.
	version, newest arbiter.Version
	found           leases.Shard
	fails           int // in a row
	rest            clock.Instant
	last            error // the newest failure
	done            bool
	result          []*leases.Lease // of the newest change
	err             error
}

// Done reports whether there is nothing left to do.
func (r *Rewrite) Done() bool { return r.done }

// Result is what a rewrite that is done has come to. Errors: a *SupersededError,
// leases.ErrExhausted, and that the register cannot be read or was set back, which
// matches leases.ErrUnavailable.
func (r *Rewrite) Result() ([]*leases.Lease, error) { return r.result, r.err }

// Last is the newest failure of a request to the arbiter, nil if there was none.
func (r *Rewrite) Last() error { return r.last }

// Next returns what to do now, or nil, and when to call again at the latest.
func (r *Rewrite) Next(now clock.Instant) (Action, clock.Instant) {
	switch {
	case r.done || r.under:
		return nil, never
	case now.Before(r.rest):
		return nil, r.rest
	case !r.loaded:
		r.under = true
		return Load{}, never
	}
	after, write, result := r.change(r.found, uint64(r.version)+1)
	r.result = result
	if !write {
		r.end(nil)
		return nil, never
	}
	data := leases.EncodeShard(after)
	if len(data) > arbiter.MaxData {
		r.end(&leases.ExhaustedError{What: fmt.Sprintf("bytes of the leases of shard %d, encoded", r.index), Bound: arbiter.MaxData})
		return nil, never
	}
	r.under = true
	return Swap{From: r.version, Write: arbiter.Write{Nonce: r.nonce(), Data: data}}, never
}

func (r *Rewrite) end(err error) {
	r.done, r.err = true, err
	if err != nil {
		r.result = nil
	}
}

// Loaded takes the answer to a Load.
func (r *Rewrite) Loaded(now clock.Instant, reg arbiter.Register, err error) {
	r.under = false
	if err != nil {
		r.fail(now, err)
		return
	}
	r.learn(reg)
}

// Swapped takes the answer to a Swap.
func (r *Rewrite) Swapped(now clock.Instant, err error) {
	r.under = false
	var conflict *arbiter.ConflictError
	switch {
	case err == nil:
		r.end(nil)
	case errors.As(err, &conflict):
		if r.fails++; r.fails > 1 {
			r.rest = now.Add(random(r.nonce(), conflictBackoff(r.fails-1)))
		}
		r.learn(conflict.Found)
	default:
		r.loaded = false
		r.fail(now, err)
	}
}

func (r *Rewrite) fail(now clock.Instant, err error) {
	r.last = err
	r.fails++
	d := failureBackoff(r.fails)
	r.rest = now.Add(d/2 + random(r.nonce(), d/2))
}

// learn takes what the register holds.
func (r *Rewrite) learn(reg arbiter.Register) {
	if reg.Version < r.newest {
		r.end(unavailable(r.index, setBack(r.index, r.newest, reg)))
		return
	}
	found, err := leases.DecodeShard(reg.Data)
	switch {
	case err != nil:
		r.end(unavailable(r.index, unreadable(reg.Version, err)))
	case found.Epoch > r.epoch:
		r.end(&SupersededError{Shard: r.index, Epoch: r.epoch, Found: found.Epoch})
	default:
		r.loaded, r.version, r.newest, r.found = true, reg.Version, reg.Version, found
	}
}

// Pauses between tries: after a conflict there is another writer, after a failure
// perhaps no arbiter.
func conflictBackoff(n int) time.Duration {
	return backoff(n, 10*time.Millisecond, 320*time.Millisecond)
}
func failureBackoff(n int) time.Duration { return backoff(n, 100*time.Millisecond, 2*time.Second) }

// backoff doubles with each of n tries, from first up to most.
func backoff(n int, first, most time.Duration) time.Duration {
	return min(first<<min(n-1, 16), most)
}

// setBack tells of a register whose tokens and stamps may come again: it is not served.
func setBack(shard uint32, seen arbiter.Version, reg arbiter.Register) error {
	return arbiter.SetBack(fmt.Sprintf("of shard %d", shard), seen, reg.Version)
}

func unreadable(v arbiter.Version, err error) error {
	return fmt.Errorf("the register, as its version %d has it, cannot be read: %w", v, err)
}
