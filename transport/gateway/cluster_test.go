package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway"
)

// cluster is a CoorddServer out of functions; a nil one answers with an empty
// message, and a nil watch begins and goes on until it is ended.
type cluster struct {
	coorddv1.UnimplementedCoorddServer
	acquire  func(context.Context, *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error)
	withdraw func(context.Context, *coorddv1.WithdrawRequest) (*coorddv1.WithdrawResponse, error)
	renew    func(context.Context, *coorddv1.RenewRequest) (*coorddv1.RenewResponse, error)
	reclaim  func(context.Context, *coorddv1.ReclaimRequest) (*coorddv1.ReclaimResponse, error)
	release  func(context.Context, *coorddv1.ReleaseRequest) (*coorddv1.ReleaseResponse, error)
	transfer func(context.Context, *coorddv1.TransferRequest) (*coorddv1.TransferResponse, error)
	get      func(context.Context, *coorddv1.GetRequest) (*coorddv1.GetResponse, error)
	list     func(context.Context, *coorddv1.ListRequest) (*coorddv1.ListResponse, error)
	queue    func(context.Context, *coorddv1.QueueRequest) (*coorddv1.QueueResponse, error)
	status   func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error)
	watch    func(*coorddv1.WatchRequest, watchStream) error
}

type watchStream = grpc.ServerStreamingServer[coorddv1.WatchResponse]

func call[Q, R any](ctx context.Context, f func(context.Context, *Q) (*R, error), r *Q) (*R, error) {
	if f == nil {
		return new(R), nil
	}
	return f(ctx, r)
}

func (c *cluster) Acquire(ctx context.Context, r *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
	return call(ctx, c.acquire, r)
}

func (c *cluster) Withdraw(ctx context.Context, r *coorddv1.WithdrawRequest) (*coorddv1.WithdrawResponse, error) {
	return call(ctx, c.withdraw, r)
}

func (c *cluster) Renew(ctx context.Context, r *coorddv1.RenewRequest) (*coorddv1.RenewResponse, error) {
	return call(ctx, c.renew, r)
}

func (c *cluster) Reclaim(ctx context.Context, r *coorddv1.ReclaimRequest) (*coorddv1.ReclaimResponse, error) {
	return call(ctx, c.reclaim, r)
}

func (c *cluster) Release(ctx context.Context, r *coorddv1.ReleaseRequest) (*coorddv1.ReleaseResponse, error) {
	return call(ctx, c.release, r)
}

func (c *cluster) Transfer(ctx context.Context, r *coorddv1.TransferRequest) (*coorddv1.TransferResponse, error) {
	return call(ctx, c.transfer, r)
}

func (c *cluster) Get(ctx context.Context, r *coorddv1.GetRequest) (*coorddv1.GetResponse, error) {
	return call(ctx, c.get, r)
}

func (c *cluster) List(ctx context.Context, r *coorddv1.ListRequest) (*coorddv1.ListResponse, error) {
	return call(ctx, c.list, r)
}

func (c *cluster) Queue(ctx context.Context, r *coorddv1.QueueRequest) (*coorddv1.QueueResponse, error) {
	return call(ctx, c.queue, r)
}

func (c *cluster) Status(ctx context.Context, r *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
	return call(ctx, c.status, r)
}

func (c *cluster) Watch(r *coorddv1.WatchRequest, stream watchStream) error {
	if c.watch != nil {
		return c.watch(r, stream)
	}
	if err := stream.Send(&coorddv1.WatchResponse{Epoch: 1, Revision: 9}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// server is a gateway on a port of its own, and a client of it.
type server struct {
	*gateway.Server
	url    string
	addr   string
	client *http.Client
	log    *lockedBuffer
	stop   func()
}

// serve runs a gateway for c until the test ends. Each change is applied to its
// configuration before.
func serve(t testing.TB, c coorddv1.CoorddServer, changes ...func(*gateway.Config)) *server {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, l, c, changes...)
	s.Start()
	return s
}

// serveOn makes a gateway and a client of it.
func serveOn(t testing.TB, l net.Listener, c coorddv1.CoorddServer, changes ...func(*gateway.Config)) *server {
	t.Helper()
	log := new(lockedBuffer)
	cfg := gateway.Config{Listener: l, Cluster: c, Ready: func(context.Context) error { return nil }, Log: slog.New(slog.NewTextHandler(log, nil))}
	for _, change := range changes {
		change(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	transport := new(http.Transport)
	s := &server{Server: g, addr: l.Addr().String(), url: "http://" + l.Addr().String(), client: &http.Client{Transport: transport}, log: log}
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			transport.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := g.Close(ctx); err != nil {
				t.Errorf("Close: %v", err)
			}
			transport.CloseIdleConnections()
		})
	}
	t.Cleanup(s.stop)
	return s
}

// request returns a request to s; a body is JSON.
func (s *server) request(t testing.TB, method, path, body string) *http.Request {
	t.Helper()
	var content io.Reader
	if body != "" || method == http.MethodPost {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, content)
	if err != nil {
		t.Fatal(err)
	}
	if content != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// do sends r and returns the answer's status and body.
func (s *server) do(t testing.TB, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: the answer breaks off after %q: %v", r.Method, r.URL, b, err)
	}
	return resp, string(b)
}

func (s *server) get(t testing.TB, path string) (int, string) {
	t.Helper()
	resp, body := s.do(t, s.request(t, http.MethodGet, path, ""))
	return resp.StatusCode, body
}

func (s *server) post(t testing.TB, path, body string) (int, string) {
	t.Helper()
	resp, answer := s.do(t, s.request(t, http.MethodPost, path, body))
	return resp.StatusCode, answer
}

// failure is what every error is answered with.
type failure struct {
	Code, Message string
	Details       map[string]any
}

// failed reads an error's body, strictly.
func failed(t testing.TB, body string) failure {
	t.Helper()
	var f struct{ Error *failure }
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil || f.Error == nil || f.Error.Code == "" || f.Error.Message == "" || f.Error.Details == nil || d.More() {
		t.Fatalf("got %q (%v), want an error with code, message and details", body, err)
	}
	return *f.Error
}

// within returns what comes over c.
func within[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not come", what)
		panic("not reached")
	}
}

type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
