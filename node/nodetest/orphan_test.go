package nodetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
)

// lossy loses the answers of some acquires: the request is carried out, and its
// conversation breaks before the answer comes.
type lossy struct {
	leases.Backend

	mu        sync.Mutex // guards what follows
	rand      *rand.Rand
	committed map[leases.ID]bool // attempts that were granted and did not hear of it
}

// loses decides whether the answer to an attempt that was granted is lost.
func (l *lossy) loses(attempt leases.ID, unheard bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := unheard || l.rand.IntN(4) > 0
	if lost {
		l.committed[attempt] = true
	}
	return lost
}

func (l *lossy) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.committed)
}

func (l *lossy) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	s, err := l.Backend.Open(ctx, id, on)
	if err != nil {
		return nil, err
	}
	return &lossySession{s, l}, nil
}

type lossySession struct {
	leases.Session
	lossy *lossy
}

func (s *lossySession) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	// The request is under way whether its sender still listens or not.
	type answer struct {
		grant leases.Grant
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		g, err := s.Session.Acquire(context.WithoutCancel(ctx), c)
		if err == nil && ctx.Err() != nil {
			s.lossy.loses(c.Attempt, true)
		}
		got <- answer{g, err}
	}()
	select {
	case a := <-got:
		if a.err == nil && s.lossy.loses(c.Attempt, false) {
			return leases.Grant{}, fmt.Errorf("%w: the answer was lost", leases.ErrUnknownOutcome)
		}
		return a.grant, a.err
	case <-ctx.Done():
		return leases.Grant{}, leases.ErrUnknownOutcome
	}
}

// Of acquires whose answer is lost or whose context is cancelled at a random
// moment no orphan is left: within a second nobody holds the name, or the retry
// under the same attempt has it.
func TestNoAcquireLeavesAnOrphan(t *testing.T) {
	const names, atLeast = 200, 50
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(t, Config{Seed: seed, ElectionTimeout: 300 * time.Millisecond})
				lossy := &lossy{rand: rand.New(rand.NewPCG(seed, 2)), committed: map[leases.ID]bool{}}
				k := c.Client("worker", ClientConfig{Backend: func(b leases.Backend) leases.Backend {
					lossy.Backend = b
					return lossy
				}})
				watcher := c.Client("watcher", ClientConfig{})
				k.connect()
				watcher.connect()
				var all sync.WaitGroup
				for i := range names {
					moment := time.Duration(c.Rand.IntN(300_000)) * time.Microsecond
					all.Go(func() { lose(t, k, watcher, fmt.Sprintf("job-%d", i), moment) })
				}
				all.Wait()
				got := lossy.count()
				t.Logf("%d of %d acquires had been granted when their answer was lost", got, names)
				if got < atLeast {
					t.Errorf("grants without an answer: got %d, want at least %d", got, atLeast)
				}
			})
		})
	}
}

// lose acquires a name for a moment and then looks who holds it.
func lose(t *testing.T, k, watcher *Client, name string, moment time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	long, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	h, err := k.Acquire(ctx, name, client.TTL(time.Minute))
	if err == nil { // a retry under the same attempt has it
		if other, err := watcher.TryAcquire(long, name); err == nil {
			t.Errorf("%s: two hold it, under tokens %v and %v", name, h.Token(), other.Token())
		}
		if err := h.Release(long); err != nil {
			t.Errorf("%s: release: %v", name, err)
		}
		return
	}
	given := time.Now()
	for {
		other, err := watcher.TryAcquire(long, name)
		if err == nil {
			if err := other.Release(long); err != nil {
				t.Errorf("%s: release: %v", name, err)
			}
			return
		}
		if time.Since(given) > time.Second {
			t.Errorf("%s: an orphan holds it %v after its acquire was given up: %v", name, time.Since(given), err)
			return
		}
		pause(long, 10*time.Millisecond)
	}
}
