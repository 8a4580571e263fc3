package gateway

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// begunClient returns a watch once it has begun: one that is refused can then
// be answered with an HTTP status, instead of a line after 200.
type begunClient struct{ coorddv1.CoorddClient }

func (c begunClient) Watch(ctx context.Context, r *coorddv1.WatchRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[coorddv1.WatchResponse], error) {
	stream, err := c.CoorddClient.Watch(ctx, r, opts...)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, transport.ToGRPC(&leases.UnavailableError{Reason: "the watch ended before it began"})
	}
	if err != nil {
		return nil, err
	}
	return &begun{stream, first}, nil
}

// begun is a watch whose first message has been read.
type begun struct {
	grpc.ServerStreamingClient[coorddv1.WatchResponse]
	first *coorddv1.WatchResponse // nil once it was passed on
}

func (s *begun) Recv() (*coorddv1.WatchResponse, error) {
	if m := s.first; m != nil {
		s.first = nil
		return m, nil
	}
	return s.ServerStreamingClient.Recv()
}
