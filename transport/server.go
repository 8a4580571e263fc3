package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/coordd/coordd/leases"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/mux"
)

// maxStreams bounds the streams of one connection, gracefulTime how long Close
// waits for clients to hang up after their conversations have ended.
const (
	maxStreams   = 1024
	gracefulTime = time.Second
)

// ServerConfig is what a Server needs; TLS, Log, Anywhere and Reflection may be
// left out.
type ServerConfig struct {
	Listener net.Listener // owned by the Server from NewServer on
	TLS      *TLS         // nil: plaintext
	Log      *slog.Logger // nil: silent
	// Sessions serves the conversations. Its Open fails where this node does not serve.
	Sessions leases.Backend
	// Anywhere is the Service's: see ServiceConfig.
	Anywhere leases.Backend
	// Status answers coordd.v1's Status; a name, if there is one, is valid.
	Status func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error)
	Peer   peerv1.PeerServer
	// AcceptRaft decides on a Raft connection; its error's text is the reason
	// that the dialer gets. It is called concurrently and must not block.
	AcceptRaft func(mux.Hello) error
	Reflection bool // lets tools ask which services and messages there are
}

// Server serves clients, peers and Raft on one port.
type Server struct {
	mux     *mux.Mux
	grpc    *grpc.Server
	service *Service
	log     *slog.Logger

	serving sync.WaitGroup // the goroutine of grpc.Server.Serve
}

// NewServer returns a Server that does nothing until Start.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = adopted{}
	}
	s := &Server{
		mux:     mux.New(mux.Config{Listener: cfg.Listener, TLS: cfg.TLS.server(), AcceptRaft: cfg.AcceptRaft, Log: cfg.Log}),
		service: NewService(ServiceConfig{Backend: cfg.Sessions, Anywhere: cfg.Anywhere, Status: cfg.Status, Log: cfg.Log}),
		log:     cfg.Log,
		grpc: grpc.NewServer(
			grpc.Creds(creds),
			grpc.ConnectionTimeout(connectTimeout),
			grpc.MaxConcurrentStreams(maxStreams),
			grpc.MaxRecvMsgSize(maxRequest),
			grpc.MaxSendMsgSize(maxResponse),
			grpc.MaxHeaderListSize(maxHeaders),
			grpc.StaticStreamWindowSize(streamWindow),
			grpc.StaticConnWindowSize(connWindow),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: pingTimeout}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingTolerance, PermitWithoutStream: true}),
			grpc.WaitForHandlers(true),
			grpc.UnaryInterceptor(UnaryInterceptor(cfg.Log)),
			grpc.StreamInterceptor(StreamInterceptor(cfg.Log)),
		),
	}
	coorddv1.RegisterCoorddServer(s.grpc, s.service)
	peerv1.RegisterPeerServer(s.grpc, cfg.Peer)
	healthv1.RegisterHealthServer(s.grpc, health{closing: s.service.closing})
	if cfg.Reflection {
		reflection.Register(s.grpc)
	}
	return s
}

// Start begins to serve. It must be called at most once, and not after Close.
func (s *Server) Start() {
	s.serving.Go(func() {
		if err := s.grpc.Serve(s.mux.GRPC()); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			s.log.Error("the gRPC server has ended", "err", err)
		}
	})
	s.mux.Start()
}

// Raft yields the Raft connections that AcceptRaft took, past their Hello.
// Close closes them.
func (s *Server) Raft() net.Listener { return s.mux.Raft() }

// Close stops accepting, closes the Raft connections, ends conversations,
// watches and waiting acquires with a status that sends the client to another
// node, and waits for all that runs, until ctx ends. It is idempotent, also on a Server that was never
// started. The error tells what had not ended.
func (s *Server) Close(ctx context.Context) error {
	err := s.mux.Close()
	s.service.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.stop(ctx)
		s.serving.Wait()
		s.service.running.Wait()
	}()
	select {
	case <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("the server's calls did not end in time: %w", context.Cause(ctx)))
	}
}

// stop ends gRPC's part gracefully if the clients let it.
func (s *Server) stop(ctx context.Context) {
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	select {
	case <-graceful:
		return
	case <-time.After(gracefulTime):
	case <-ctx.Done():
	}
	s.grpc.Stop()
	<-graceful
}

// UnaryInterceptor gives a gRPC server's unary calls the errors of this
// package's table, and turns a handler's panic into an error and a log line.
func UnaryInterceptor(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = panicked(log, info.FullMethod, p)
			}
			if err != nil {
				resp, err = nil, ToGRPC(err)
			}
		}()
		return handle(ctx, req)
	}
}

// StreamInterceptor is UnaryInterceptor for streams.
func StreamInterceptor(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = panicked(log, info.FullMethod, p)
			}
			err = ToGRPC(err)
		}()
		return handle(srv, stream)
	}
}

// panicked logs p, which a deferred function has recovered, and returns what
// the caller is told.
func panicked(log *slog.Logger, method string, p any) error {
	log.Error("a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return &InternalError{fmt.Sprintf("%s panicked: %v", method, p)}
}

// adopted lets gRPC take over a connection that the mux has already secured,
// so that the client's certificate reaches peer.FromContext.
type adopted struct{}

func (adopted) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil, nil, errors.New("not a TLS connection")
	}
	return conn, credentials.TLSInfo{State: c.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (adopted) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

func (adopted) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (a adopted) Clone() credentials.TransportCredentials { return a }

func (adopted) OverrideServerName(string) error { return nil }
