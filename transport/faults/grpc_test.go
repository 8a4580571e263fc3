package faults_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/transport/faults"
)

// serveHealth runs gRPC's health service on a host until the returned function is called.
func serveHealth(t *testing.T, h *faults.Host) (*health.Server, func()) {
	t.Helper()
	l, err := h.Listen(t.Context(), ":80")
	if err != nil {
		t.Fatal(err)
	}
	s, service := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(s, service)
	go s.Serve(l)
	return service, s.Stop
}

func dialHealth(t *testing.T, h *faults.Host, address string) (*grpc.ClientConn, grpc_health_v1.HealthClient) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return h.Dial(ctx, a) }),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	return conn, grpc_health_v1.NewHealthClient(conn)
}

func TestGRPCInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		_, stop := serveHealth(t, f.Host("server"))
		defer func() { stop() }()
		conn, client := dialHealth(t, f.Host("client"), "server:80")
		defer conn.Close()
		check := func(d time.Duration) codes.Code {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
			return status.Code(err)
		}
		for range 100 {
			if got := check(time.Second); got != codes.OK {
				t.Fatalf("got %v, want OK", got)
			}
		}

		f.Cut("server", "client")
		if got := check(time.Second); got != codes.DeadlineExceeded {
			t.Errorf("over a cut link: got %v, want DeadlineExceeded", got)
		}
		f.Heal("server", "client")
		if got := check(time.Second); got != codes.OK {
			t.Errorf("after the heal: got %v, want OK", got)
		}

		f.Pause("server")
		if got := check(time.Second); got != codes.DeadlineExceeded {
			t.Errorf("paused server: got %v, want DeadlineExceeded", got)
		}
		f.Resume("server")
		if got := check(time.Second); got != codes.OK {
			t.Errorf("after the pause: got %v, want OK", got)
		}

		f.Crash("server")
		stop()
		if got := check(time.Second); got != codes.DeadlineExceeded {
			t.Errorf("crashed server: got %v, want DeadlineExceeded", got)
		}
		_, stop = serveHealth(t, f.Host("server"))
		if got := check(time.Minute); got != codes.OK {
			t.Errorf("after the restart: got %v, want OK", got)
		}
	})
}

func TestGRPCStream(t *testing.T) {
	f := faults.New(1)
	service, stop := serveHealth(t, f.Host("server"))
	defer stop()
	conn, client := dialHealth(t, f.Host("client"), "server:80")
	defer conn.Close()
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
		grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING,
	} {
		got, err := stream.Recv()
		if err != nil || got.Status != want {
			t.Fatalf("got %v, %v, want %v", got.GetStatus(), err, want)
		}
		service.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	f.Break("client", "server")
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the break: got %v, want Unavailable", err)
	}
}
