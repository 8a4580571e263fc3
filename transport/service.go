package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxUnaryAcquires and maxWatches bound what may wait at one Service without a
// conversation; each costs a few goroutines.
const (
	maxUnaryAcquires = 16384
	maxWatches       = 1024
)

// ServiceConfig is what a Service needs; all but Anywhere and Log is required.
type ServiceConfig struct {
	// Backend serves the calls. Its Open and its Directory's calls fail where it does not serve.
	Backend leases.Backend
	// Anywhere reaches the serving node, whichever that is; nil: Backend. Attempts
	// that the Service drew are withdrawn over it, also when Backend serves no more.
	Anywhere leases.Backend
	// Status answers coordd.v1's Status; a name, if there is one, is valid.
	Status func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error)
	Log    *slog.Logger // nil: silent
}

// Service serves coordd.v1 over a backend: conversations, unary calls and
// watches. It is registered with a gRPC server that has UnaryInterceptor and
// StreamInterceptor. It is safe for concurrent use.
type Service struct {
	coorddv1.UnimplementedCoorddServer
	backend  leases.Backend
	anywhere leases.Backend
	status   func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error)
	log      *slog.Logger

	maxAcquires int           // that one conversation may have unanswered
	acquires    chan struct{} // an element per unary Acquire that is not over, its withdrawal included
	watches     chan struct{} // an element per watch

	closing context.Context // ends when the closing begins
	shut    context.CancelFunc
	running sync.WaitGroup // every call, and every goroutine that one has started

	mu sync.Mutex // nobody is counted into running once closing has ended
}

var _ coorddv1.CoorddServer = (*Service)(nil)

// NewService returns a Service that is ready to serve.
func NewService(cfg ServiceConfig) *Service {
	if cfg.Anywhere == nil {
		cfg.Anywhere = cfg.Backend
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		backend: cfg.Backend, anywhere: cfg.Anywhere, status: cfg.Status, log: cfg.Log,
		maxAcquires: maxUnanswered, acquires: make(chan struct{}, maxUnaryAcquires), watches: make(chan struct{}, maxWatches),
	}
	s.closing, s.shut = context.WithCancel(context.Background())
	return s
}

// Close ends conversations, watches and waiting acquires with a status that
// sends the client to another node, all other calls a second later, and refuses
// new ones in the same way. It waits for all of them, and for the withdrawals
// under way, until ctx ends. It is idempotent.
func (s *Service) Close(ctx context.Context) error {
	s.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.running.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the calls did not end in time: %w", context.Cause(ctx))
	}
}

// stop begins the closing.
func (s *Service) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut()
}

// enter counts in a call that Close waits for until running.Done. Its error is
// ErrClosing.
func (s *Service) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return ErrClosing
	}
	s.running.Add(1)
	return nil
}

// bound is ctx, ended when the closing has begun, after grace.
func (s *Service) bound(ctx context.Context, grace time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.closing, func() {
		if grace > 0 {
			select {
			case <-time.After(grace):
			case <-ctx.Done():
			}
		}
		cancel(ErrClosing)
	})
	return ctx, func() { stop(); cancel(nil) }
}

// occupied returns the error for who found a bound reached.
func occupied(what string, slots chan struct{}) error {
	return &leases.ExhaustedError{What: what, Bound: uint64(cap(slots))}
}

// ErrClosing is what a client hears of a node that is being closed: it is not
// the client that is, so it is told to look for another node.
var ErrClosing = &leases.UnavailableError{Reason: "the node is closing"}

// cutOff is err of a call that the node's closing may have cut off: then it may
// have been carried out.
func cutOff(err error) error {
	if errors.Is(err, leases.ErrClosed) && !errors.Is(err, leases.ErrUnknownOutcome) {
		return fmt.Errorf("%w: the node is closing (%v)", leases.ErrUnknownOutcome, err)
	}
	return err
}

// untouched is err of what changes nothing, so that it is no matter how far it came.
func untouched(err error) error {
	if errors.Is(err, leases.ErrClosed) {
		return ErrClosing
	}
	return err
}

// Status answers about the cluster or a lease.
func (s *Service) Status(ctx context.Context, r *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
	if r.Name != "" {
		if err := leases.ValidateName(r.Name); err != nil {
			return nil, err
		}
	}
	return s.status(ctx, r)
}

// Session is one conversation, from the first message to the last.
func (s *Service) Session(stream grpc.BidiStreamingServer[coorddv1.SessionRequest, coorddv1.SessionResponse]) error {
	if err := s.enter(); err != nil {
		return ToGRPC(err)
	}
	defer s.running.Done()
	return s.converse(stream)
}
