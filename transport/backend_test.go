package transport_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/mux"
)

var cluster = leases.ID{1, 2, 3}

// backend is a leases.Backend out of functions; a nil one does what a node with
// nothing to object would do.
type backend struct {
	cluster  leases.ID
	open     func(ctx context.Context) error
	acquire  func(context.Context, leases.Claim) (leases.Grant, error)
	withdraw func(ctx context.Context, name string, attempt leases.ID) error
	renew    func(context.Context, []leases.Held) ([]error, error)
	reclaim  func(context.Context, uint32, []leases.Claimed) ([]error, error)
	release  func(context.Context, leases.Held) error
	transfer func(context.Context, leases.Held, leases.ID) (bool, error)

	get   func(ctx context.Context, name string) (leases.State, error)
	list  func(ctx context.Context, prefix, after string, limit int) (leases.Page, error)
	queue func(ctx context.Context, name string) ([]leases.Waiter, error)
	watch func(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error

	mu       sync.Mutex // guards sessions
	sessions []*backendSession
}

func (b *backend) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	if b.open != nil {
		if err := b.open(ctx); err != nil {
			return nil, err
		}
	}
	s := &backendSession{backend: b, id: id, on: on, done: make(chan struct{}), closed: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions = append(b.sessions, s)
	return s, nil
}

func (b *backend) Get(ctx context.Context, name string) (leases.State, error) {
	if b.get == nil {
		return leases.State{}, nil
	}
	return b.get(ctx, name)
}

func (b *backend) List(ctx context.Context, prefix, after string, limit int) (leases.Page, error) {
	if b.list == nil {
		return leases.Page{At: leases.Position{Epoch: 1, Revision: 9}}, nil
	}
	return b.list(ctx, prefix, after, limit)
}

func (b *backend) Queue(ctx context.Context, name string) ([]leases.Waiter, error) {
	if b.queue == nil {
		return nil, nil
	}
	return b.queue(ctx, name)
}

func (b *backend) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	if b.watch != nil {
		return b.watch(ctx, prefix, from, on)
	}
	if err := on(leases.Batch{At: leases.Position{Epoch: 1, Revision: 9}}); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// last is the session that was opened last.
func (b *backend) last() *backendSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[len(b.sessions)-1]
}

// opened are all sessions that were opened.
func (b *backend) opened() []*backendSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sessions)
}

type backendSession struct {
	*backend
	id     leases.ID
	on     func(leases.Event)
	err    error // set before done is closed
	done   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (s *backendSession) Info() leases.Info {
	c := cluster
	if !s.cluster.IsZero() {
		c = s.cluster
	}
	return leases.Info{Cluster: c, Node: "n1", Rho: leases.Rho, MaxTTL: leases.MaxTTL, ElectionTimeout: time.Second}
}

func (s *backendSession) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	if s.acquire == nil {
		return leases.Grant{Token: tokens.New(1, 7), AcquiredAt: time.UnixMilli(1_700_000_000_123)}, nil
	}
	return s.acquire(ctx, c)
}

func (s *backendSession) Withdraw(ctx context.Context, name string, attempt leases.ID) error {
	if s.withdraw == nil {
		return nil
	}
	return s.withdraw(ctx, name, attempt)
}

func (s *backendSession) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	if s.renew == nil {
		return make([]error, len(held)), nil
	}
	return s.renew(ctx, held)
}

func (s *backendSession) Reclaim(ctx context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	if s.reclaim == nil {
		return make([]error, len(held)), nil
	}
	return s.reclaim(ctx, epoch, held)
}

func (s *backendSession) Release(ctx context.Context, h leases.Held) error {
	if s.release == nil {
		return nil
	}
	return s.release(ctx, h)
}

func (s *backendSession) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	if s.transfer == nil {
		return true, nil
	}
	return s.transfer(ctx, h, to)
}

func (s *backendSession) Done() <-chan struct{} { return s.done }
func (s *backendSession) Err() error            { return s.err }
func (s *backendSession) Close() error          { s.once.Do(func() { close(s.closed) }); return nil }

// lose ends the session as a node does that no longer serves.
func (s *backendSession) lose(err error) {
	s.err = err
	close(s.done)
}

// waiting is an acquire that is never granted.
func waiting(ctx context.Context, _ leases.Claim) (leases.Grant, error) {
	<-ctx.Done()
	return leases.Grant{}, leases.ErrUnknownOutcome
}

type peers struct{ peerv1.UnimplementedPeerServer }

func (peers) Hello(context.Context, *peerv1.HelloRequest) (*peerv1.HelloResponse, error) {
	return &peerv1.HelloResponse{Version: "test"}, nil
}

// node is a server on a port of its own.
type node struct {
	*transport.Server
	addr string
	log  *bytes.Buffer
	stop func()
}

// serve runs a server for b until the test ends. Each change is applied to its
// configuration before.
func serve(t testing.TB, b *backend, changes ...func(*transport.ServerConfig)) *node {
	t.Helper()
	n := launch(t, b, changes...)
	n.Start()
	return n
}

func launch(t testing.TB, b *backend, changes ...func(*transport.ServerConfig)) *node {
	t.Helper()
	l, err := transport.TCP().Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := new(lockedBuffer)
	cfg := transport.ServerConfig{
		Listener: l, Sessions: b, Peer: peers{}, Log: slog.New(slog.NewTextHandler(log, nil)),
		Status: func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			return &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Cluster: cluster.String(), Node: "n1", Serving: true}}, nil
		},
		AcceptRaft: func(mux.Hello) error { return nil },
	}
	for _, change := range changes {
		change(&cfg)
	}
	n := &node{Server: transport.NewServer(cfg), addr: l.Addr().String(), log: &log.Buffer}
	n.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Errorf("closing the server: %v", err)
		}
		log.mu.Lock()
		defer log.mu.Unlock()
	})
	t.Cleanup(n.stop)
	return n
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func dial(t testing.TB, cfg transport.DialConfig) *transport.Conn {
	t.Helper()
	c, err := transport.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// open opens a session over a connection of its own to addrs.
func open(t testing.TB, on func(leases.Event), addrs ...string) leases.Session {
	t.Helper()
	s, err := dial(t, transport.DialConfig{Addrs: addrs}).Open(timeout(t, 10*time.Second), leases.NewID(), on)
	if err != nil {
		t.Fatalf("opening a session: %v", err)
	}
	return s
}

// timeout is a context that ends with the test, or after d.
func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func claim(name string) leases.Claim {
	return leases.Claim{Name: name, Attempt: leases.NewID(), TTL: 15 * time.Second}
}

// within fails the test unless done is closed or sent to soon.
func within[T any](t testing.TB, what string, done <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: it did not happen within 20 s", what)
	}
	return v
}

// silent is a port that accepts connections and never says a word.
func silent(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	var conns []net.Conn
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
		for _, c := range conns {
			c.Close()
		}
	})
	return l.Addr().String()
}

// dead is an address at which nobody listens.
func dead(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
