package fallback

import (
	"context"
	"log/slog"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// Config says where the registers are, and who writes them.
type Config struct {
	Store   arbiter.Store
	Key     func(shard uint32) string
	Shards  leases.Shards
	Clock   clock.Clock
	By      string        // who writes, for people
	Timeout time.Duration // of one request to the store; 0: DefaultTimeout
	Rules   rules.Set
	Log     *slog.Logger // nil: nothing is logged
	// Changed is told what happened to leases that this node knew of; nil: nobody is.
	// It is called from a goroutine of the Replicator's, with none of its locks held,
	// in order for each shard, and must not block.
	Changed func([]Event)
}

// DefaultTimeout is long enough for a busy arbiter in another region.
const DefaultTimeout = 3 * time.Second

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c *Config) load(ctx context.Context, shard uint32) (arbiter.Register, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return c.Store.Load(ctx, c.Key(shard))
}

func (c *Config) swap(ctx context.Context, shard uint32, s Swap) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	s.Write.By = c.By
	return c.Store.CompareAndSwap(ctx, c.Key(shard), s.From, s.Write)
}
