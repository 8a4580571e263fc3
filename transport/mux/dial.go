package mux

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// What goes wrong when only one of the two sides uses TLS. Dial or the first
// read of the connection that it made returns it.
var (
	ErrTLSRequired = errors.New("the server requires TLS, and this side speaks plaintext")
	ErrPlaintext   = errors.New("the server speaks plaintext, and this side wants TLS")
)

// DialFunc makes a connection to an address, within ctx.
type DialFunc func(ctx context.Context, addr string) (net.Conn, error)

// Dial connects to the mux at addr and, unless t is nil, does the TLS handshake
// for proto; the server's certificate must be good for addr's host, or for
// t.ServerName if that is set. A server that takes no offence before it has
// been spoken to does so in the answer, so the error of the connection's first
// read too is one that people can act on. Closing the connection never blocks.
func Dial(ctx context.Context, dial DialFunc, addr string, t *tls.Config, proto string) (net.Conn, error) {
	raw, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return &dialed{Conn: raw, plaintext: true}, nil
	}
	t = t.Clone()
	t.MinVersion = tls.VersionTLS13
	t.NextProtos = []string{proto}
	if t.ServerName == "" {
		if t.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			raw.Close()
			return nil, fmt.Errorf("no host to check the certificate of: %w", err)
		}
	}
	tc := tls.Client(raw, t)
	if err := tc.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, explain(err)
	}
	if got := tc.ConnectionState().NegotiatedProtocol; got != proto {
		raw.Close()
		return nil, fmt.Errorf("the server speaks TLS, but does not know the protocol %q", proto)
	}
	return &dialed{Conn: secured{tc, raw}}, nil
}

// DialRaft opens the Raft connection that h describes, within ctx and at most
// 5 s. It returns a *RefusedError if the server at addr is not the one that h
// is meant for, or does not want it.
func DialRaft(ctx context.Context, dial DialFunc, addr string, t *tls.Config, h Hello) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn, err := Dial(ctx, dial, addr, t, ProtoRaft)
	if err != nil {
		return nil, fmt.Errorf("raft connection to %s: %w", addr, err)
	}
	// Reads and writes know no context: its end reaches them as a deadline.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = sayHello(conn, t == nil, h)
	if !stop() {
		err = fmt.Errorf("no answer to the hello: %w", context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("raft connection to %s: %w", addr, err)
	}
	return conn, nil
}

func sayHello(conn net.Conn, plaintext bool, h Hello) error {
	body, err := h.encode()
	if err != nil {
		return err
	}
	var b []byte
	if plaintext {
		b = append(b, raftPreface...)
	}
	if _, err := conn.Write(appendFrame(b, body)); err != nil {
		return err
	}
	err = readAnswer(conn)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the server closed the connection without an answer to the hello: %w", err)
	}
	return err
}

// dialed is a connection whose first answer is looked at for a refusal.
type dialed struct {
	net.Conn
	plaintext bool
	answered  atomic.Bool
}

func (c *dialed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.answered.Load() || n == 0 && err == nil {
		return n, err
	}
	c.answered.Store(true)
	switch {
	// No HTTP/2 server's first frame, and no answer to a Hello, is so long
	// that its length begins like a TLS alert.
	case n > 0 && c.plaintext && p[0] == tlsAlert[0]:
		return 0, ErrTLSRequired
	case n == 0 && !c.plaintext && !errors.Is(err, io.EOF):
		return 0, explain(err)
	}
	return n, err
}

// explain says in words what a TLS handshake failed by.
func explain(err error) error {
	var (
		notTLS    tls.RecordHeaderError
		untrusted x509.UnknownAuthorityError
		op        *net.OpError
	)
	switch {
	case errors.As(err, &notTLS):
		return ErrPlaintext
	case errors.As(err, &untrusted):
		return fmt.Errorf("the server's certificate was not issued by the CA that this side trusts: %w", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fmt.Errorf("no answer to the TLS handshake: %w", err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the server closed the connection during the TLS handshake; does it speak TLS? (%w)", err)
	// The package crypto/tls keeps the alerts' type to itself.
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Errorf("the server %s (%w)", objection(op.Err.Error()), err)
	}
	return err
}

func objection(alert string) string {
	switch {
	case strings.Contains(alert, "certificate required"):
		return "requires a client certificate issued by its CA, and this side sent none"
	case strings.Contains(alert, "unknown certificate authority"):
		return "does not accept this side's certificate: another CA has issued it"
	case strings.Contains(alert, "expired certificate"):
		return "does not accept this side's certificate: it has expired"
	case strings.Contains(alert, "bad certificate"):
		return "does not accept this side's certificate"
	case strings.Contains(alert, "no application protocol"):
		return "speaks TLS, but not coordd's protocols"
	}
	return "refused the TLS handshake"
}
