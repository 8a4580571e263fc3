package transport_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// embed serves b on a gRPC server in memory, as a gateway does, whose service
// the test closes.
func embed(t *testing.T, b *backend) (*transport.Service, coorddv1.CoorddClient) {
	t.Helper()
	service := transport.NewService(transport.ServiceConfig{Backend: b, Status: func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
		return &coorddv1.StatusResponse{}, nil
	}})
	log := slog.New(slog.DiscardHandler)
	s := grpc.NewServer(grpc.UnaryInterceptor(transport.UnaryInterceptor(log)), grpc.StreamInterceptor(transport.StreamInterceptor(log)))
	coorddv1.RegisterCoorddServer(s, service)
	l := bufconn.Listen(1 << 16)
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(l) })
	cc, err := grpc.NewClient("passthrough:///embedded", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cc.Close()
		s.Stop()
		serving.Wait()
		if err := service.Close(context.Background()); err != nil {
			t.Errorf("the last Close: %v", err)
		}
	})
	return service, coorddv1.NewCoorddClient(cc)
}

// A Service ends what it serves by itself, while its gRPC server goes on.
func TestServiceClose(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	id := leases.NewID().String()
	waitingThere, slow := make(chan struct{}), make(chan struct{})
	b := &backend{
		acquire: func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
			waitingThere <- struct{}{}
			return waiting(ctx, c)
		},
		release: func(context.Context, leases.Held) error { // is still let finish
			slow <- struct{}{}
			slow <- struct{}{}
			return nil
		},
		watch: func(ctx context.Context, _ string, _ leases.Position, on func(leases.Batch) error) error {
			for { // to one who does not read
				if err := on(leases.Batch{Changes: []leases.Change{{Kind: leases.ChangeGranted, Name: "a", Token: 1, Attributes: make([]byte, 512)}}}); err != nil {
					return err
				}
			}
		},
	}
	service, c := embed(t, b)
	watch, err := c.Watch(ctx, &coorddv1.WatchRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	mute, err := c.Session(ctx) // never opens its conversation
	if err != nil {
		t.Fatal(err)
	}
	acquired, released := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, &coorddv1.AcquireRequest{Name: "a", Session: id, Attempt: id, TtlMs: 5000})
		acquired <- transport.FromGRPC(err)
	}()
	go func() {
		_, err := c.Release(ctx, &coorddv1.ReleaseRequest{Name: "a", Session: id, Token: 1})
		released <- transport.FromGRPC(err)
	}()
	within(t, "the acquire", waitingThere)
	within(t, "the release", slow)
	closed := make(chan error, 1)
	go func() { closed <- service.Close(ctx) }()
	if err := within(t, "the end of the acquire", acquired); !errors.Is(err, leases.ErrUnknownOutcome) {
		t.Errorf("the acquire: got %v, want an unknown outcome", err)
	}
	within(t, "the release", slow)
	if err := within(t, "the end of the release", released); err != nil {
		t.Errorf("a release that takes a moment: %v", err)
	}
	if err := within(t, "the end of Close", closed); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := ending(t, mute); !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "the node is closing") {
		t.Errorf("the conversation: got %v, want that the node is closing", err)
	}
	_, err = c.Get(ctx, &coorddv1.GetRequest{Name: "a"})
	if err := transport.FromGRPC(err); !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "the node is closing") {
		t.Errorf("a call afterwards: got %v, want that the node is closing", err)
	}
	late, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := ending(t, late); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("a conversation afterwards: got %v, want unavailable", err)
	}
}

func TestServiceCloseIsBounded(t *testing.T) {
	entered, stuck := make(chan struct{}), make(chan struct{})
	service, c := embed(t, &backend{get: func(context.Context, string) (leases.State, error) {
		close(entered)
		<-stuck // whatever its context says
		return leases.State{Name: "a"}, nil
	}})
	answered := make(chan error, 1)
	go func() {
		_, err := c.Get(context.Background(), &coorddv1.GetRequest{Name: "a"})
		answered <- err
	}()
	within(t, "the call's arrival", entered)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := service.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not end in time") {
		t.Errorf("got %v, want an error that says what did not end", err)
	}
	close(stuck)
	if err := within(t, "the answer", answered); err != nil {
		t.Errorf("the call that was stuck: %v", err)
	}
}
