// Package transport is coordd's wire: the gRPC server of a node and the
// connection of a client to a cluster, TLS, and the one table of errors. Both
// ends are about package leases' Backend: a Server serves one, a Conn is one.
package transport

import (
	"context"
	"net"
	"time"
)

// Network is where nodes and clients reach each other. Implementations are
// safe for concurrent use.
type Network interface {
	// Listen begins to listen on addr, "host:port".
	Listen(ctx context.Context, addr string) (net.Listener, error)
	// Dial connects to addr, "host:port", within ctx. It resolves a name anew
	// at each call.
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// TCP is the network of this machine.
func TCP() Network { return tcp{} }

type tcp struct{}

func (tcp) Listen(ctx context.Context, addr string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}

func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// How both ends find out that the other is gone without a word. The client asks
// less often than the server allows, or the server would send it away.
const (
	clientPing    = 10 * time.Second // gRPC allows no less
	serverPing    = 5 * time.Second
	pingTimeout   = 5 * time.Second
	pingTolerance = clientPing / 2
)

// Bounds of the messages on the wire, in bytes and in parts. A message is
// filled up to fullMessage; its last part may exceed that: a Renew of 1024
// leases has up to 0.6 MB, its answer up to 2.7 MB.
const (
	maxCalls      = 512 // in a SessionRequest
	fullMessage   = 256 << 10
	maxRequest    = 1 << 20
	maxResponse   = 4 << 20
	maxHeaders    = 16 << 10
	maxUnanswered = 131072 // acquires of one conversation

	// What one end sends before the other has read it.
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)
