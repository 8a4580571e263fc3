package arbitertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/coordd/coordd/arbiter"
)

const (
	writers = 6
	readers = 3
	rounds  = 25
)

// each runs f n times at once and joins the errors.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// In each round all writers begin at the version that the one before has left.
func race(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	for from := range arbiter.Version(rounds) {
		writes, results := make([]arbiter.Write, writers), make([]error, writers)
		for i := range writes {
			writes[i] = text(fmt.Sprintf("writer %d", i))
		}
		_ = each(writers, func(i int) error {
			results[i] = s.CompareAndSwap(ctx, key, from, writes[i])
			return nil
		})
		winner := -1
		for i, err := range results {
			switch {
			case err == nil && winner >= 0:
				return fmt.Errorf("round %d: writers %d and %d have won", from, winner, i)
			case err == nil:
				winner = i
			}
		}
		if winner < 0 {
			return fmt.Errorf("round %d: nobody has won: %w", from, errors.Join(results...))
		}
		for i, err := range results {
			if err == nil {
				continue
			}
			c, err := lost(err)
			if err != nil {
				return fmt.Errorf("round %d, writer %d: %w", from, i, err)
			}
			if err := same("conflict", c.Found, from+1, writes[winner]); err != nil {
				return fmt.Errorf("round %d, writer %d: %w", from, i, err)
			}
		}
		if err := holds(ctx, s, key, from+1, writes[winner]); err != nil {
			return err
		}
	}
	return nil
}

// Writers and readers share a register. A call that begins after an answer was read
// must not show a version below it, whoever made the calls.
func linearizable(ctx context.Context, s arbiter.Store) error {
	o := &onlookers{store: s, key: freshKey()}
	var turns atomic.Int32
	turns.Store(writers * rounds)
	return each(writers+readers, func(i int) error {
		for turns.Load() > 0 {
			r, err := o.look(ctx)
			if err == nil && i < writers && turns.Add(-1) >= 0 {
				err = o.write(ctx, r.Version)
			}
			if err != nil {
				turns.Store(0)
				return err
			}
		}
		return nil
	})
}

// onlookers are all who use one register and compare what they see.
type onlookers struct {
	store arbiter.Store
	key   string
	shown atomic.Uint64 // the greatest version that an answer has shown
	by    sync.Map      // the nonces of answered writes, by version
}

func (o *onlookers) see(v arbiter.Version) {
	for old := o.shown.Load(); old < uint64(v) && !o.shown.CompareAndSwap(old, uint64(v)); old = o.shown.Load() {
	}
}

// look loads the register.
func (o *onlookers) look(ctx context.Context) (arbiter.Register, error) {
	floor := arbiter.Version(o.shown.Load())
	r, err := o.store.Load(ctx, o.key)
	if err != nil {
		return r, err
	}
	if r.Version < floor {
		return r, fmt.Errorf("a load begun after version %d was shown got version %d", floor, r.Version)
	}
	if nonce, ok := o.by.Load(r.Version); ok && nonce != r.Nonce {
		return r, fmt.Errorf("version %d: loaded nonce %v, but the write of nonce %v was answered", r.Version, r.Nonce, nonce)
	}
	o.see(r.Version)
	return r, nil
}

// write tries to write the register from a version that was seen.
func (o *onlookers) write(ctx context.Context, from arbiter.Version) error {
	w := text(fmt.Sprintf("version %d", from+1))
	err := o.store.CompareAndSwap(ctx, o.key, from, w)
	if err == nil {
		if other, twice := o.by.LoadOrStore(from+1, w.Nonce); twice {
			return fmt.Errorf("version %d: the writes of nonces %v and %v have both won", from+1, w.Nonce, other)
		}
		o.see(from + 1)
		return nil
	}
	c, err := lost(err)
	if err != nil {
		return err
	}
	if c.Found.Version <= from {
		return fmt.Errorf("conflict from version %d: found version %d", from, c.Found.Version)
	}
	o.see(c.Found.Version)
	return nil
}
