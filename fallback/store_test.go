package fallback

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coordd/coordd/arbiter"
)

// testStore is a Memory with a latency, whose requests and answers may be lost, and
// that counts.
type testStore struct {
	*arbiter.Memory
	latency time.Duration

	mu            sync.Mutex // guards what follows
	rand          *rand.Rand
	lose          float64 // the part of requests that are lost, and of answers
	down          bool    // nothing gets through, and the caller knows
	hang          bool    // nothing is answered
	loads, swaps  int
	conflicts     int
	under, atOnce int // requests under way, and the most of them
}

func newTestStore(latency time.Duration) *testStore {
	return &testStore{Memory: arbiter.NewMemory(), latency: latency, rand: rand.New(rand.NewPCG(1, 2))}
}

func (s *testStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *testStore) counts() (loads, swaps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads, s.swaps
}

var errLost = errors.New("lost")

// way has a request under way, and tells what befalls it.
func (s *testStore) way(ctx context.Context, swap bool) (request, answer, down bool) {
	s.mu.Lock()
	if swap {
		s.swaps++
	} else {
		s.loads++
	}
	s.under++
	s.atOnce = max(s.atOnce, s.under)
	request, answer, down = s.rand.Float64() < s.lose, s.rand.Float64() < s.lose, s.down
	hang := s.hang
	s.mu.Unlock()
	defer s.set(func() { s.under-- })
	if hang {
		<-ctx.Done()
		return true, true, false
	}
	select {
	case <-time.After(s.latency):
	case <-ctx.Done():
		return true, true, false
	}
	return request, answer, down
}

func (s *testStore) Load(ctx context.Context, key string) (arbiter.Register, error) {
	request, answer, down := s.way(ctx, false)
	if request || answer || down {
		return arbiter.Register{}, errors.Join(arbiter.ErrUnreachable, errLost)
	}
	return s.Memory.Load(ctx, key)
}

func (s *testStore) CompareAndSwap(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
	request, answer, down := s.way(ctx, true)
	if down {
		return errors.Join(arbiter.ErrUnreachable, errLost)
	}
	if request {
		return &arbiter.UnknownError{Key: key, Err: errLost}
	}
	err := s.Memory.CompareAndSwap(context.WithoutCancel(ctx), key, from, w)
	if errors.Is(err, arbiter.ErrConflict) {
		s.set(func() { s.conflicts++ })
	}
	if answer {
		return &arbiter.UnknownError{Key: key, Err: errLost}
	}
	return err
}
