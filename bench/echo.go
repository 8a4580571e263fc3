package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// packet is the size of a request and of its reply in the floors.
const packet = 64

// listener is the part of a role that serves TCP connections on 127.0.0.1.
type listener struct {
	net.Listener
	run sync.WaitGroup

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]struct{}
	ended bool
}

// listen serves each connection by serve until one of its ends is closed.
func (l *listener) listen(serve func(net.Conn) error) (addr string, err error) {
	if l.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	l.conns = map[net.Conn]struct{}{}
	l.run.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if !l.keep(conn) {
				conn.Close()
				return
			}
			l.run.Go(func() {
				_ = serve(conn) // it ends with an error always
				l.drop(conn)
			})
		}
	})
	return l.Addr().String(), nil
}

func (l *listener) keep(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.conns[conn] = struct{}{}
	}
	return !l.ended
}

func (l *listener) drop(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn.Close()
	delete(l.conns, conn)
}

func (l *listener) close() {
	if l.Listener == nil {
		return
	}
	l.Listener.Close()
	l.mu.Lock()
	l.ended = true
	for conn := range l.conns {
		conn.Close()
	}
	l.mu.Unlock()
	l.run.Wait()
}

// Echo is the role that sends back each packet.
type Echo struct {
	Base
	listener listener
}

// Start begins to listen.
func (e *Echo) Start(_ None, addr *string) (err error) {
	*addr, err = e.listener.listen(func(conn net.Conn) error {
		for b := make([]byte, packet); ; {
			if err := receive(conn, b); err != nil {
				return err
			}
			if _, err := conn.Write(b); err != nil {
				return err
			}
		}
	})
	return err
}

func (e *Echo) close() { e.listener.close() }

func receive(conn net.Conn, b []byte) error {
	_, err := io.ReadFull(conn, b)
	return err
}

// Replicator is the role that answers a packet when one of two followers, which
// are Echos, has: the least that a replicated service does. Each client's
// connection has its own goroutine and connections to the followers.
type Replicator struct {
	Base
	listener listener
}

// Start begins to listen.
func (r *Replicator) Start(followers []string, addr *string) (err error) {
	*addr, err = r.listener.listen(func(conn net.Conn) error { return replicate(conn, followers) })
	return err
}

func replicate(conn net.Conn, followers []string) error {
	var others []net.Conn
	for _, addr := range followers {
		other, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer other.Close()
		others = append(others, other)
	}
	for b := make([]byte, packet); ; {
		if err := receive(conn, b); err != nil {
			return err
		}
		for _, other := range others {
			if _, err := other.Write(b); err != nil {
				return err
			}
		}
		if err := receive(others[0], b); err != nil {
			return err
		}
		if _, err := conn.Write(b); err != nil {
			return err
		}
		for _, other := range others[1:] { // has come meanwhile, mostly
			if err := receive(other, b); err != nil {
				return err
			}
		}
	}
}

func (r *Replicator) close() { r.listener.close() }

// pings is a target whose workers have a TCP connection each.
type pings struct {
	addr  string
	conns []net.Conn
}

func (p *pings) worker(ctx context.Context, _ int) (worker, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	p.conns = append(p.conns, conn)
	b := make([]byte, packet)
	ping := func() error {
		if _, err := conn.Write(b); err != nil {
			return err
		}
		return receive(conn, b)
	}
	return func(context.Context) (time.Duration, error) {
		began := time.Now()
		if err := ping(); err != nil {
			return 0, err
		}
		took := time.Since(began)
		return took, ping()
	}, nil
}

func (p *pings) close() error {
	var errs []error
	for _, conn := range p.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
