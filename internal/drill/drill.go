// Package drill runs failover drills: named scenarios in which a cluster with an
// arbiter loses its leader, its quorum, its memory or its network, while workers go on
// taking leases, and a record is kept of all that they were told. The record then says
// whether the promises of the protocol were kept, and for how long nothing was granted
// anew.
//
// A drill starts a cluster of its own, in this process, over real sockets on loopback.
// Only the machines around it are not real: what cuts them off, stops their clocks or
// ends them is in this package.
package drill

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	crand "crypto/rand"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// The times of a drill's cluster. They are short, so that a drill is: a real cluster
// has an authority lease of 10 s.
const (
	ElectionTimeout = 300 * time.Millisecond
	AuthorityLease  = 2 * time.Second
	CeilingFloor    = 3 * time.Second
	ReformAfter     = 3 * time.Second
	WorkerTTL       = 3 * time.Second
	// KeeperTTL is that of the one lease that is to last through everything: a takeover,
	// and a search among nodes that do not answer, have to come within two thirds of it.
	// It is the longest, so it is the ceiling of TTLs too.
	KeeperTTL = 9 * time.Second
	probeTTL  = leases.MinTTL
)

// Workers is how many workers compete for a few names.
const Workers = 6

// Config says where and how drills run. The zero value is an arbiter in memory.
type Config struct {
	// Store is the arbiter; nil: one in memory, anew for each drill. It is not closed.
	Store arbiter.Store
	// Cluster begins the name under which a drill's cluster is in the store; the rest is
	// drawn at random, since a drill needs registers that nobody has written. Default "drill".
	Cluster string
	// Seed fixes what is chosen by chance: which nodes, which names, how long. It does
	// not fix the timing.
	Seed uint64

	Clock clock.Clock  // nil: the system's
	Log   *slog.Logger // of nodes and clients; nil: silent
}

func (c *Config) setDefaults() {
	if c.Store == nil {
		c.Store = arbiter.NewMemory()
	}
	if c.Cluster == "" {
		c.Cluster = "drill"
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Cluster += "-" + strings.ToLower(crand.Text()[:8])
}

// Run carries out one drill. progress, if it is not nil, is called for each event as it
// happens, one at a time, and must not block.
//
// The error says that the drill could not be run, or was ended by ctx: then there is no
// result. That a promise was broken, or that the cluster did not do what the drill waited
// for, is told by the result: see Result.Bad.
func Run(ctx context.Context, cfg Config, name string, progress func(Event)) (Result, error) {
	sc, ok := find(name)
	if !ok {
		return Result{}, &leases.InvalidError{Field: "drill", Value: name, Bounds: strings.Join(names(), ", ")}
	}
	cfg.setDefaults()
	s := newStage(cfg, sc.keeperTTL(), progress)
	defer s.close()
	if err := s.begin(ctx); err != nil {
		return Result{}, fmt.Errorf("drill %s: %w", name, err)
	}
	failure := s.play(ctx, sc)
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("drill %s: %w", name, context.Cause(ctx))
	}
	return s.result(sc, failure), nil
}

// chance is the source of one part's choices.
func (c *Config) chance(part uint64) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, part)) }
