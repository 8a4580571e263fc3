// Package mux lets gRPC and Raft share one port. Under TLS the negotiated
// protocol (ALPN) says which of the two a connection carries; without it the
// first bytes do. A Raft connection opens with a Hello that names its
// addressee, and whoever is not meant refuses it. The package knows nothing of
// Raft's own messages.
package mux

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// The protocols of a connection, as ALPN names them.
const (
	ProtoGRPC = "h2"
	ProtoRaft = "coordd-raft/1"
)

const (
	// grpcPreface is what every HTTP/2 client says first.
	grpcPreface = "PRI * HTTP/2.0"
	// raftPreface is what a Raft dialer says first where there is no ALPN.
	raftPreface = ProtoRaft + "\n"

	// openTimeout bounds the time from a connection's arrival until it has
	// said what it is and was taken over.
	openTimeout = 5 * time.Second
	// maxOpening bounds the connections that have not come so far yet.
	maxOpening = 1024
	// lingerTime and lingerBytes bound how long a refused peer is listened to:
	// closed at once, with bytes unread, the connection would be reset and the
	// peer would never read why it was refused.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 64 << 10
)

// The prefaces are told apart by reading as many bytes as both have, no more:
// what comes after a Raft preface belongs to the Hello.
var _ = [1]struct{}{}[len(grpcPreface)-len(raftPreface)]

var (
	tlsHandshake = []byte{0x16, 0x03}
	// tlsAlert is protocol_version, fatal, in a record of its own: what a
	// plaintext peer of a TLS port is answered. Dial knows it.
	tlsAlert = []byte{0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46}
	// plaintextNotice is what a TLS peer of a plaintext port is answered. It is
	// no TLS record, which is how Dial knows it.
	plaintextNotice = []byte("coordd: this port speaks plaintext, not TLS\n")
)

// Config is what a Mux needs. Listener and AcceptRaft are required.
type Config struct {
	Listener net.Listener // owned by the Mux from New on
	// TLS nil means plaintext. With it, TLS 1.3 and a verified certificate of
	// the peer's are required, whatever the configuration says.
	TLS *tls.Config
	// AcceptRaft decides on a Raft connection; its error's text is the reason
	// that the dialer gets. It is called concurrently and must not block.
	AcceptRaft func(Hello) error
	Log        *slog.Logger // nil: silent
}

// Mux splits the connections of one listener into two routes.
type Mux struct {
	cfg        Config
	grpc, raft *route
	opening    chan struct{} // one element per connection that is not handed out yet
	strangers  sparse
	refusals   sparse
	done       chan struct{}
	running    sync.WaitGroup

	mu     sync.Mutex            // guards what follows
	closed bool                  // done is closed
	conns  map[net.Conn]struct{} // opening, or handed out as Raft: what Close closes
}

// New returns a Mux that does nothing until Start.
func New(cfg Config) *Mux {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.TLS != nil {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.MinVersion = tls.VersionTLS13
		cfg.TLS.ClientAuth = tls.RequireAndVerifyClientCert
		cfg.TLS.NextProtos = []string{ProtoGRPC, ProtoRaft}
	}
	return &Mux{
		cfg:       cfg,
		grpc:      newRoute(cfg.Listener.Addr()),
		raft:      newRoute(cfg.Listener.Addr()),
		opening:   make(chan struct{}, maxOpening),
		strangers: sparse{log: cfg.Log, level: slog.LevelDebug},
		refusals:  sparse{log: cfg.Log, level: slog.LevelWarn},
		done:      make(chan struct{}),
		conns:     make(map[net.Conn]struct{}),
	}
}

// GRPC yields the connections that speak HTTP/2. Under TLS they are past the
// handshake and have a method ConnectionState. Closing the listener ends this
// route alone; what it has yielded belongs to whoever accepted it.
func (m *Mux) GRPC() net.Listener { return m.grpc }

// Raft yields the Raft connections that AcceptRaft took, past their Hello.
// Mux.Close closes them: Raft reads without a deadline.
func (m *Mux) Raft() net.Listener { return m.raft }

// Start begins to accept. It must be called at most once.
func (m *Mux) Start() { m.running.Go(m.accept) }

// Close closes the listener, both routes, every connection that has not been
// handed out and every one that was handed out as Raft, and waits for the
// Mux's goroutines. It is idempotent, also on a Mux that was never started.
func (m *Mux) Close() error {
	err := m.stop()
	m.running.Wait()
	return err
}

func (m *Mux) stop() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	close(m.done)
	conns := m.conns
	m.conns = nil
	m.mu.Unlock()

	err := m.cfg.Listener.Close()
	m.grpc.Close()
	m.raft.Close()
	for c := range conns {
		c.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// keep registers c to be closed by Close, and reports whether it is not too late.
func (m *Mux) keep(c net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.conns[c] = struct{}{}
	return true
}

func (m *Mux) drop(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, c)
}

func (m *Mux) accept() {
	const shortest, longest = 5 * time.Millisecond, time.Second
	pause := shortest
	for {
		select {
		case m.opening <- struct{}{}:
		case <-m.done:
			return
		}
		conn, err := m.cfg.Listener.Accept()
		if err == nil {
			pause = shortest
			m.running.Go(func() {
				defer func() { <-m.opening }()
				m.open(conn)
			})
			continue
		}
		<-m.opening
		if errors.Is(err, net.ErrClosed) {
			m.stop()
			return
		}
		// Such as too many open files: it passes.
		m.refusals.note("cannot accept connections", "err", err, "retry_in", pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, longest)
		case <-m.done:
			return
		}
	}
}

// open finds out what conn is and hands it out, or closes it.
func (m *Mux) open(conn net.Conn) {
	if !m.keep(conn) {
		conn.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	conn.SetDeadline(time.Now().Add(openTimeout))
	defer func() {
		if p := recover(); p != nil {
			m.cfg.Log.Error("opening a connection panicked", "remote", conn.RemoteAddr(), "panic", p, "stack", string(debug.Stack()))
			m.drop(conn)
			conn.Close()
		}
	}()
	if m.cfg.TLS != nil {
		m.openTLS(ctx, conn)
	} else {
		m.openPlain(ctx, conn)
	}
}

func (m *Mux) openTLS(ctx context.Context, conn net.Conn) {
	tc := tls.Server(conn, m.cfg.TLS)
	if err := tc.HandshakeContext(ctx); err != nil {
		var notTLS tls.RecordHeaderError
		switch {
		case errors.As(err, &notTLS) && notTLS.Conn != nil:
			m.strangers.note("connection closed: it is not TLS", "remote", conn.RemoteAddr())
			conn.Write(tlsAlert)
		case errors.Is(err, io.EOF):
			m.strangers.note("connection ended before its TLS handshake", "remote", conn.RemoteAddr())
		default:
			m.refusals.note("TLS handshake failed", "remote", conn.RemoteAddr(), "err", err)
		}
		m.refuse(conn)
		return
	}
	switch proto := tc.ConnectionState().NegotiatedProtocol; proto {
	case ProtoGRPC:
		m.toGRPC(ctx, conn, secured{tc, conn})
	case ProtoRaft:
		if !member(tc.ConnectionState()) {
			m.refusals.note("raft connection refused", "remote", conn.RemoteAddr(), "err", errNotMember)
			writeAnswer(tc, errNotMember)
			m.refuse(conn)
			return
		}
		m.toRaft(ctx, conn, secured{tc, conn})
	default:
		m.strangers.note("connection closed: no protocol negotiated", "remote", conn.RemoteAddr())
		m.refuse(conn)
	}
}

var errNotMember = errors.New("the certificate is not a member's: it lacks the extended key usage serverAuth")

// member reports whether a peer's certificate, which has been verified, is one
// of a server, as a member's is and a client's is not: a client must not speak
// Raft.
func member(s tls.ConnectionState) bool {
	return len(s.PeerCertificates) > 0 && slices.Contains(s.PeerCertificates[0].ExtKeyUsage, x509.ExtKeyUsageServerAuth)
}

func (m *Mux) openPlain(ctx context.Context, conn net.Conn) {
	head, err := readPreface(conn)
	switch {
	case string(head) == grpcPreface:
		m.toGRPC(ctx, conn, &replay{Conn: conn, head: head})
	case string(head) == raftPreface:
		m.toRaft(ctx, conn, conn)
	case bytes.HasPrefix(head, tlsHandshake):
		m.strangers.note("connection closed: it speaks TLS, this port does not", "remote", conn.RemoteAddr())
		conn.Write(plaintextNotice)
		m.refuse(conn)
	default:
		m.strangers.note("connection closed: neither gRPC nor Raft", "remote", conn.RemoteAddr(), "first", head, "err", err)
		m.refuse(conn)
	}
}

// readPreface reads the bytes that tell what conn speaks: all of a preface, or
// fewer as soon as it can be none.
func readPreface(conn net.Conn) ([]byte, error) {
	head := make([]byte, 0, len(grpcPreface))
	for len(head) < cap(head) {
		n, err := conn.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		if !hasPrefix(grpcPreface, head) && !hasPrefix(raftPreface, head) && len(head) >= len(tlsHandshake) {
			return head, nil
		}
		if err != nil {
			return head, err
		}
	}
	return head, nil
}

func hasPrefix(s string, p []byte) bool { return len(p) <= len(s) && s[:len(p)] == string(p) }

func (m *Mux) toGRPC(ctx context.Context, raw, conn net.Conn) {
	raw.SetDeadline(time.Time{})
	// From here on the connection is gRPC's, which closes it.
	m.drop(raw)
	if !m.grpc.deliver(ctx, conn) {
		raw.Close()
	}
}

func (m *Mux) toRaft(ctx context.Context, raw, conn net.Conn) {
	hello, err := readHello(conn)
	if err != nil {
		m.strangers.note("raft connection closed: no hello", "remote", raw.RemoteAddr(), "err", err)
		m.refuse(raw)
		return
	}
	if err := m.cfg.AcceptRaft(hello); err != nil {
		m.refusals.note("raft connection refused", "remote", raw.RemoteAddr(), "from", hello.From, "to", hello.To, "err", err)
		writeAnswer(conn, err)
		m.refuse(raw)
		return
	}
	if err := writeAnswer(conn, nil); err != nil {
		m.refuse(raw)
		return
	}
	raw.SetDeadline(time.Time{})
	if !m.raft.deliver(ctx, &tracked{Conn: conn, raw: raw, mux: m}) {
		m.drop(raw)
		raw.Close()
	}
}

// refuse ends conn in a way that lets the peer read what it was told.
func (m *Mux) refuse(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
		conn.SetReadDeadline(time.Now().Add(lingerTime))
		io.CopyN(io.Discard, conn, lingerBytes)
	}
	m.drop(conn)
	conn.Close()
}
