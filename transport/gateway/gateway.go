// Package gateway is the HTTP and JSON face of coordd.v1, for whatever speaks
// no gRPC: scripts with curl, workers in any language. docs/http.md is its
// manual. Which call is found where, gateway.yaml says; the translation is
// generated from it (grpc-gateway), and so is the OpenAPI file that is served.
//
// A call goes on as gRPC over a connection in memory (Acquire without one, see
// client), so that it is served as any other, and its context ends when the HTTP
// client hangs up.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

const (
	// maxBody bounds a request's body, maxHeader its line and headers together,
	// in bytes: a name has at most 512, three times as many in a query.
	maxBody   = 64 << 10
	maxHeader = 16 << 10
	// readTime is how long the headers of a request may take, and then its
	// body; writeTime how long a client may take to read a part of an answer.
	readTime  = 10 * time.Second
	writeTime = 30 * time.Second
	// idleTime is how long a connection is kept for another request.
	idleTime = 2 * time.Minute
	// readyTime is how long Config.Ready may take.
	readyTime = 5 * time.Second
	// partingTime is how long Close lets calls go on, and then again how long
	// those that it has ended may take to say so.
	partingTime = time.Second
	// pipe is the buffer of the connection in memory.
	pipe = 256 << 10
)

// Config is what a Server needs; all but Metrics and Log is required.
type Config struct {
	// Listener is owned by the Server once New has returned one. On a loopback
	// address, requests that name another host are refused.
	Listener net.Listener
	// Cluster serves the calls. It is called concurrently; its errors are those
	// of package leases, or gRPC's.
	Cluster coorddv1.CoorddServer
	// Ready tells /readyz why the node cannot serve, nil if it can. It is called
	// concurrently, with a context that ends after 5 s.
	Ready   func(context.Context) error
	Metrics http.Handler // of /metrics; nil: there is none
	Log     *slog.Logger // nil: silent
}

// Server serves HTTP on one port.
type Server struct {
	cfg    Config
	local  bool // it listens on loopback
	routes map[string]route

	http *http.Server
	pipe *bufconn.Listener // between conn and grpc
	grpc *grpc.Server
	conn *grpc.ClientConn

	streams, calls       context.Context // end during Close, with transport.ErrClosing
	endStreams, endCalls context.CancelCauseFunc
	serving              sync.WaitGroup // the goroutines of Start
	running              sync.WaitGroup // requests
	closing              sync.Once
	closed               chan struct{} // closed when Close has nothing left to do

	mu   sync.Mutex // nobody is counted into running once shut is set
	shut bool
}

// New returns a Server that does nothing until Start. The errors are
// *leases.InvalidError.
func New(cfg Config) (*Server, error) {
	for what, missing := range map[string]bool{"listener": cfg.Listener == nil, "cluster": cfg.Cluster == nil, "ready": cfg.Ready == nil} {
		if missing {
			return nil, &leases.InvalidError{Field: what, Value: "nil", Bounds: "one"}
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, local: onLoopback(cfg.Listener.Addr()), pipe: bufconn.Listen(pipe), closed: make(chan struct{})}
	s.streams, s.endStreams = context.WithCancelCause(context.Background())
	s.calls, s.endCalls = context.WithCancelCause(context.Background())
	s.grpc = grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(transport.UnaryInterceptor(cfg.Log)),
		grpc.StreamInterceptor(transport.StreamInterceptor(cfg.Log)),
	)
	coorddv1.RegisterCoorddServer(s.grpc, cfg.Cluster)
	var err error
	if s.conn, err = s.dial(); err != nil {
		return nil, err
	}
	if s.routes, err = s.newRoutes(); err != nil {
		s.conn.Close()
		return nil, err
	}
	s.http = &http.Server{
		Handler:                      http.HandlerFunc(s.serve),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            readTime,
		IdleTimeout:                  idleTime,
		MaxHeaderBytes:               maxHeader,
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// dial returns the connection to s.grpc. It has no bound on messages: what the
// service sends it has bounded itself.
func (s *Server) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///gateway",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.pipe.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	)
}

// Start begins to serve. It must be called at most once, and not after Close.
func (s *Server) Start() {
	s.serving.Go(func() { s.ended("gRPC", s.grpc.Serve(s.pipe)) })
	s.serving.Go(func() { s.ended("HTTP", s.http.Serve(s.cfg.Listener)) })
}

func (s *Server) ended(what string, err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
		s.cfg.Log.Error("the gateway serves no more", "protocol", what, "err", err)
	}
}

// Close stops accepting and ends watches at once, other calls after a second,
// and waits for all that runs, until ctx ends. It is idempotent, also on a
// Server that was never started. The error tells what had not ended.
func (s *Server) Close(ctx context.Context) error {
	s.closing.Do(func() {
		s.mu.Lock()
		s.shut = true
		s.mu.Unlock()
		s.endStreams(transport.ErrClosing)
		go func() {
			defer close(s.closed)
			s.close()
		}()
	})
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the gateway's calls did not end in time: %w", context.Cause(ctx))
	}
}

func (s *Server) close() {
	s.shutdown()
	s.endCalls(transport.ErrClosing)
	s.shutdown()
	s.http.Close()
	s.cfg.Listener.Close() // where it was never served
	s.running.Wait()
	s.conn.Close()
	s.grpc.Stop()
	s.serving.Wait()
	s.pipe.Close()
}

// shutdown lets requests end by themselves, and connections with them, for a while.
func (s *Server) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	s.http.Shutdown(ctx)
}

// enter counts in a request that Close waits for until running.Done. Its error
// is transport.ErrClosing.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return transport.ErrClosing
	}
	s.running.Add(1)
	return nil
}
