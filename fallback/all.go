package fallback

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// atOnce is how many shards are dealt with at a time.
const atOnce = 16

// SealAll brings every shard to epoch, that of an import into a Raft group, and returns
// the leases that the group takes over, in the order of their names; see NewSeal. It
// tries until ctx ends. progress is called as often as a shard is done, from several
// goroutines; nil: nobody is told.
//
// Errors are those of Rewrite.Result; when ctx ends first, one that matches
// leases.ErrUnavailable. It can be repeated.
func SealAll(ctx context.Context, cfg Config, epoch, raftEpoch uint32, progress func(done, of int)) ([]*leases.Lease, error) {
	cfg = cfg.withDefaults()
	var sealed atomic.Int64
	found := make([][]*leases.Lease, cfg.Shards.Count)
	err := each(ctx, len(found), func(ctx context.Context, i int) (err error) {
		found[i], err = cfg.rewrite(ctx, NewSeal(uint32(i), cfg.Shards, cfg.Rules, arbiter.NewNonce, epoch, raftEpoch))
		if err == nil && progress != nil {
			progress(int(sealed.Add(1)), len(found))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return sorted(found), nil
}

// InstallAll writes the leases of a Raft group's table into their shards, for fallback
// epoch epoch; see NewInstall. It tries until ctx ends; its errors are like SealAll's.
// Shards without leases in the table are left to whoever serves them.
func InstallAll(ctx context.Context, cfg Config, epoch, raftEpoch uint32, held []*leases.Lease) error {
	cfg = cfg.withDefaults()
	byShard := map[uint32][]*leases.Lease{}
	var shards []uint32
	for _, l := range held {
		k := cfg.Shards.Of(l.Name)
		if byShard[k] == nil {
			shards = append(shards, k)
		}
		byShard[k] = append(byShard[k], l)
	}
	return each(ctx, len(shards), func(ctx context.Context, i int) error {
		k := shards[i]
		_, err := cfg.rewrite(ctx, NewInstall(k, cfg.Shards, cfg.Rules, arbiter.NewNonce, epoch, raftEpoch, byShard[k]))
		return err
	})
}

// rewrite drives r to its end.
func (c *Config) rewrite(ctx context.Context, r *Rewrite) ([]*leases.Lease, error) {
	for {
		act, at := r.Next(c.Clock.Now())
		switch act := act.(type) {
		case Load:
			reg, err := c.load(ctx, r.index)
			r.Loaded(c.Clock.Now(), reg, err)
		case Swap:
			err := c.swap(ctx, r.index, act)
			r.Swapped(c.Clock.Now(), err)
		}
		if r.Done() {
			return r.Result()
		}
		if act != nil && ctx.Err() == nil {
			continue
		}
		if err := clock.Wait(ctx, c.Clock, at); err != nil {
			if r.Last() != nil {
				err = fmt.Errorf("%w; the newest failure: %w", err, r.Last())
			}
			return nil, unavailable(r.index, err)
		}
	}
}

// each calls do for 0 to n-1, for atOnce at a time. The first error ends all.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	errs := make(chan error, atOnce)
	for range min(n, atOnce) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				err := do(ctx, i)
				if err != nil {
					errs <- err
					cancel(err)
					return
				}
			}
		})
	}
	running.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func sorted(parts [][]*leases.Lease) []*leases.Lease {
	all := slices.Concat(parts...)
	slices.SortFunc(all, func(a, b *leases.Lease) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
