package transport

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// health answers grpc.health.v1: this process serves until its closing begins,
// whether or not its node leads. Unlike gRPC's own it ends its streams then.
type health struct {
	healthv1.UnimplementedHealthServer
	closing context.Context // ends when the closing begins
}

// healthy are the services that can be asked about.
var healthy = map[string]bool{"": true, coorddv1.Coordd_ServiceDesc.ServiceName: true}

func (h health) now() *healthv1.HealthCheckResponse {
	if h.closing.Err() != nil {
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}
}

// Check implements grpc.health.v1.
func (h health) Check(_ context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if !healthy[r.Service] {
		return nil, status.Errorf(codes.NotFound, "no service %q is served here", text(r.Service, maxDetail))
	}
	return h.now(), nil
}

// List implements grpc.health.v1.
func (h health) List(context.Context, *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	all := &healthv1.HealthListResponse{Statuses: make(map[string]*healthv1.HealthCheckResponse, len(healthy))}
	for service := range healthy {
		all.Statuses[service] = h.now()
	}
	return all, nil
}

// Watch implements grpc.health.v1.
func (h health) Watch(r *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	if !healthy[r.Service] { // the protocol wants the stream to stay, lest the client asks again at once
		if err := stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVICE_UNKNOWN}); err != nil {
			return err
		}
	} else if err := stream.Send(h.now()); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return ToGRPC(stream.Context().Err())
	case <-h.closing.Done():
	}
	if healthy[r.Service] {
		if err := stream.Send(h.now()); err != nil {
			return err
		}
	}
	return ToGRPC(ErrClosing)
}
