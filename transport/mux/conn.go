package mux

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// route is a listener that yields the connections of one protocol.
type route struct {
	addr  net.Addr
	conns chan net.Conn
	close func()
	done  chan struct{}
}

func newRoute(addr net.Addr) *route {
	r := &route{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	r.close = sync.OnceFunc(func() { close(r.done) })
	return r
}

// Accept returns net.ErrClosed once the route or its Mux is closed.
func (r *route) Accept() (net.Conn, error) {
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.done:
		return nil, &net.OpError{Op: "accept", Net: r.addr.Network(), Addr: r.addr, Err: net.ErrClosed}
	}
}

func (r *route) Close() error   { r.close(); return nil }
func (r *route) Addr() net.Addr { return r.addr }

// deliver reports whether somebody accepted c.
func (r *route) deliver(ctx context.Context, c net.Conn) bool {
	select {
	case r.conns <- c:
		return true
	case <-r.done:
		return false
	case <-ctx.Done():
		return false
	}
}

// secured is a TLS connection whose Close cannot block: tls.Conn's own writes a
// farewell first, for up to 5 s if the peer does not read.
type secured struct {
	*tls.Conn
	raw net.Conn
}

func (c secured) Close() error { return c.raw.Close() }

// replay gives back the bytes that were read to tell what the connection is.
type replay struct {
	net.Conn
	head []byte // not read yet; used by the one reader only
}

func (c *replay) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// tracked is a connection that its Mux forgets once it is closed.
type tracked struct {
	net.Conn
	raw net.Conn
	mux *Mux
}

func (c *tracked) Close() error {
	c.mux.drop(c.raw)
	return c.raw.Close()
}
