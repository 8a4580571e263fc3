package gateway

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// client is how grpc-gateway calls the cluster: over the connection in memory,
// but for what that would tell too little of.
type client struct {
	coorddv1.CoorddClient
	cluster coorddv1.CoorddServer
	around  grpc.UnaryServerInterceptor
}

func newClient(conn *grpc.ClientConn, cfg Config) client {
	return client{coorddv1.NewCoorddClient(conn), cfg.Cluster, transport.UnaryInterceptor(cfg.Log)}
}

// Acquire is served in place. Over a connection a grant could get lost on its
// way when the HTTP client hangs up just then, and where the cluster has drawn
// the attempt nobody would ever know: so either the cluster sees that its caller
// is gone, or the grant is written to the client.
func (c client) Acquire(ctx context.Context, r *coorddv1.AcquireRequest, _ ...grpc.CallOption) (*coorddv1.AcquireResponse, error) {
	info := &grpc.UnaryServerInfo{Server: c.cluster, FullMethod: coorddv1.Coordd_Acquire_FullMethodName}
	resp, err := c.around(ctx, r, info, func(ctx context.Context, _ any) (any, error) {
		resp, err := c.cluster.Acquire(ctx, r)
		if err != nil && err == ctx.Err() {
			err = status.FromContextError(err).Err() // as a connection has it
		}
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	return resp.(*coorddv1.AcquireResponse), nil
}

// Watch returns a watch once it has begun: one that is refused can then be
// answered with an HTTP status, instead of a line after 200.
func (c client) Watch(ctx context.Context, r *coorddv1.WatchRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[coorddv1.WatchResponse], error) {
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
