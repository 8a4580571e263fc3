package transport_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// stock is a connection as any program makes it.
func stock(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func TestHealth(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	// A node that follows is as healthy as one that leads.
	n := serve(t, follower("127.0.0.1:1"))
	c := healthv1.NewHealthClient(stock(t, n.addr))
	services := []string{"", "coordd.v1.Coordd"}
	var watches []healthv1.Health_WatchClient
	for _, service := range services {
		r, err := c.Check(ctx, &healthv1.HealthCheckRequest{Service: service})
		if err != nil || r.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%q: got %v, %v, want it to be serving", service, r, err)
		}
		w, err := c.Watch(ctx, &healthv1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := w.Recv(); err != nil || r.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("watching %q: got %v, %v, want it to be serving", service, r, err)
		}
		watches = append(watches, w)
	}
	if _, err := c.Check(ctx, &healthv1.HealthCheckRequest{Service: "other"}); grpcstatus.Code(err) != codes.NotFound {
		t.Errorf("another service: got %v, want NotFound", err)
	}
	w, err := c.Watch(ctx, &healthv1.HealthCheckRequest{Service: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil || r.Status != healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("watching another service: got %v, %v, want that it is unknown", r, err)
	}
	all, err := c.List(ctx, &healthv1.HealthListRequest{})
	if err != nil || len(all.Statuses) != len(services) {
		t.Errorf("List: got %v, %v, want %q", all, err, services)
	}
	n.stop()
	for i, w := range watches {
		if r, err := w.Recv(); err != nil || r.Status != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("watching %q: got %v, %v after the closing has begun, want it not to be serving", services[i], r, err)
		}
		if _, err := w.Recv(); !errors.Is(transport.FromGRPC(err), leases.ErrUnavailable) {
			t.Errorf("watching %q: got %v at the end, want unavailable", services[i], err)
		}
	}
}

func TestReflection(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	ask := func(n *node) (*reflectionv1.ServerReflectionResponse, error) {
		stream, err := reflectionv1.NewServerReflectionClient(stock(t, n.addr)).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		return stream.Recv()
	}
	if _, err := ask(serve(t, &backend{})); grpcstatus.Code(err) != codes.Unimplemented {
		t.Errorf("not asked for: got %v, want Unimplemented", err)
	}
	r, err := ask(serve(t, &backend{}, func(cfg *transport.ServerConfig) { cfg.Reflection = true }))
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	for _, s := range r.GetListServicesResponse().GetService() {
		services = append(services, s.Name)
	}
	for _, want := range []string{"coordd.v1.Coordd", "grpc.health.v1.Health"} {
		if !slices.Contains(services, want) {
			t.Errorf("got the services %q, want %s among them", services, want)
		}
	}
}
