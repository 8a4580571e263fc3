package transport

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// read makes one call of the backend that changes nothing.
func (s *Service) read(ctx context.Context, call func(context.Context) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.running.Done()
	ctx, done := s.bound(ctx, partingTime)
	defer done()
	return untouched(call(ctx))
}

// Get tells about one name.
func (s *Service) Get(ctx context.Context, r *coorddv1.GetRequest) (*coorddv1.GetResponse, error) {
	resp := &coorddv1.GetResponse{}
	err := leases.ValidateName(r.Name)
	if err == nil {
		err = s.read(ctx, func(ctx context.Context) error {
			state, err := s.backend.Get(ctx, r.Name)
			resp.Lease = ToLeaseStatus(state)
			return err
		})
	}
	return respond(resp, err)
}

// List tells which names are held.
func (s *Service) List(ctx context.Context, r *coorddv1.ListRequest) (*coorddv1.ListResponse, error) {
	var resp *coorddv1.ListResponse
	l, err := fromListRequest(r)
	if err == nil {
		err = s.read(ctx, func(ctx context.Context) error {
			page, err := s.backend.List(ctx, l.prefix, l.after, l.limit)
			resp = toListResponse(page)
			return err
		})
	}
	return respond(resp, err)
}

// Queue tells who waits for a name: the first maxQueue of them.
func (s *Service) Queue(ctx context.Context, r *coorddv1.QueueRequest) (*coorddv1.QueueResponse, error) {
	var resp *coorddv1.QueueResponse
	err := leases.ValidateName(r.Name)
	if err == nil {
		err = s.read(ctx, func(ctx context.Context) error {
			waiters, err := s.backend.Queue(ctx, r.Name)
			resp = toQueueResponse(waiters)
			return err
		})
	}
	return respond(resp, err)
}

// Watch tells changes until the client hangs up, falls too far behind, or the
// closing begins.
func (s *Service) Watch(r *coorddv1.WatchRequest, stream grpc.ServerStreamingServer[coorddv1.WatchResponse]) error {
	w, err := fromWatchRequest(r)
	if err == nil {
		err = s.enter()
	}
	if err != nil {
		return ToGRPC(err)
	}
	defer s.running.Done()
	select {
	case s.watches <- struct{}{}:
	default:
		return ToGRPC(occupied("watches", s.watches))
	}
	ctx, done := s.bound(stream.Context(), 0)
	defer done()
	ended := make(chan error, 1)
	s.running.Go(func() {
		defer func() { <-s.watches }()
		ended <- s.tell(ctx, w, stream)
	})
	return ToGRPC(s.awaitWatch(ctx, ended))
}

// tell sends what the backend tells. Send blocks while the client does not read,
// and the backend is asked for nothing more.
func (s *Service) tell(ctx context.Context, w watching, stream grpc.ServerStreamingServer[coorddv1.WatchResponse]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(s.log, "Watch", p)
		}
	}()
	return s.backend.Watch(ctx, w.prefix, w.from, func(b leases.Batch) error {
		return stream.Send(toWatchResponse(b))
	})
}

// awaitWatch returns why a watch has ended. It waits little for a client that
// does not read: only the end of its stream ends a Send.
func (s *Service) awaitWatch(ctx context.Context, ended <-chan error) error {
	select {
	case err := <-ended:
		return untouched(err)
	case <-ctx.Done():
	}
	select {
	case <-ended:
	case <-time.After(partingTime):
	}
	return context.Cause(ctx)
}
