package faults

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"
)

// backlog is how many connections wait for an Accept before dialers do.
const backlog = 128

// The ports from firstPort on are given out to dialers and for port 0.
const (
	firstPort = 49152
	maxPort   = 65535
)

// Host is the network as one host sees it, until it crashes. It is safe for
// concurrent use.
type Host struct {
	f    *Fabric
	name string

	// The fabric's lock guards these.
	listeners map[int]*listener
	port      int // the next to give out
	paused    bool
	dead      bool // it has crashed
}

func (f *Fabric) newHost(name string) *Host {
	return &Host{f: f, name: name, listeners: map[int]*listener{}, port: firstPort}
}

// Name is the host's name.
func (h *Host) Name() string { return h.name }

// Listen accepts connections at "name:port", or ":port"; the name must be the
// host's own. Port 0 draws a free one.
func (h *Host) Listen(_ context.Context, address string) (net.Listener, error) {
	l, err := h.listen(address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "faults", Addr: addr(address), Err: err}
	}
	return l, nil
}

func (h *Host) listen(address string) (*listener, error) {
	name, port, err := split(address)
	if err != nil {
		return nil, err
	}
	if name != "" && name != h.name {
		return nil, fmt.Errorf("%w on host %s", syscall.EADDRNOTAVAIL, h.name)
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.stopWhilePaused()
	if h.dead {
		return nil, errCrashed
	}
	if port == 0 {
		port = h.draw()
	}
	if h.listeners[port] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &listener{host: h, port: port}
	h.listeners[port] = l
	return l, nil
}

// Dial connects to "host:port". Over a cut link it waits until ctx ends.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := h.dial(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "faults", Addr: addr(address), Err: err}
	}
	return c, nil
}

func (h *Host) dial(ctx context.Context, address string) (*conn, error) {
	name, port, err := split(address)
	if err != nil {
		return nil, err
	}
	f := h.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Dials++
	there, back := f.link(way{h.name, name}), f.link(way{name, h.name})
	answer := time.Now().Add(f.latency(there) + f.latency(back))
	for {
		h.stopWhilePaused()
		target, now := f.hosts[name], time.Now()
		switch {
		case h.dead:
			return nil, errCrashed
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case target == nil:
			return nil, &net.DNSError{Err: "no such host in this fabric", Name: name, IsNotFound: true}
		case there.refuse:
			f.stats.Refused++
			return nil, syscall.ECONNREFUSED
		case there.cut || back.cut:
			f.wait(ctx.Done(), time.Time{}, &f.changed)
			continue
		case now.Before(answer):
			f.wait(ctx.Done(), answer, &f.changed)
			continue
		}
		l := target.listeners[port]
		if l == nil {
			f.stats.Refused++
			return nil, syscall.ECONNREFUSED
		}
		if len(l.waiting) < backlog {
			return l.connect(h), nil
		}
		f.wait(ctx.Done(), time.Time{}, &f.changed, &l.changed)
	}
}

// The methods below are called with the fabric's lock held.

// stopWhilePaused returns when the host is not paused.
func (h *Host) stopWhilePaused() {
	for h.paused {
		h.f.wait(nil, time.Time{}, &h.f.changed)
	}
}

// draw returns a port that nobody on the host listens on.
func (h *Host) draw() int {
	for {
		port := h.port
		if h.port++; h.port > maxPort {
			h.port = firstPort
		}
		if h.listeners[port] == nil {
			return port
		}
	}
}

func (h *Host) die() {
	h.dead, h.paused = true, false
	for _, l := range h.listeners {
		l.end(errCrashed)
	}
	for c := range h.f.conns {
		if c.host == h {
			c.reset()
		}
	}
}

var errCrashed = fmt.Errorf("the host has crashed: %w", net.ErrClosed)

func split(address string) (name string, port int, err error) {
	name, p, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(p); err != nil || port < 0 || port > maxPort {
		return "", 0, &net.AddrError{Err: "port: want 0 to 65535", Addr: address}
	}
	return name, port, nil
}

// listener is a port that a host listens on. The fabric's lock guards its fields.
type listener struct {
	host *Host
	port int

	waiting []*conn // connected, not accepted yet
	dead    error   // nil while it is open
	changed signal  // fires when waiting changes, and at the end
}

// connect makes a connection from h and queues its other end for Accept.
func (l *listener) connect(h *Host) *conn {
	from := addr(net.JoinHostPort(h.name, strconv.Itoa(h.draw())))
	ours, theirs := h.f.pair(h, l.host, from, l.addr())
	l.waiting = append(l.waiting, theirs)
	l.changed.fire()
	return ours
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	f := l.host.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		l.host.stopWhilePaused()
		if l.dead != nil {
			return nil, &net.OpError{Op: "accept", Net: "faults", Addr: l.addr(), Err: l.dead}
		}
		if len(l.waiting) > 0 {
			c := l.waiting[0]
			l.waiting = l.waiting[1:]
			l.changed.fire()
			return c, nil
		}
		f.wait(nil, time.Time{}, &f.changed, &l.changed)
	}
}

// Close ends the listener and resets the connections that wait for Accept.
func (l *listener) Close() error {
	l.host.f.mu.Lock()
	defer l.host.f.mu.Unlock()
	l.host.stopWhilePaused()
	l.end(net.ErrClosed)
	return nil
}

// end is called with the fabric's lock held.
func (l *listener) end(err error) {
	if l.dead != nil {
		return
	}
	l.dead = err
	delete(l.host.listeners, l.port)
	for _, c := range l.waiting {
		c.reset()
	}
	l.waiting = nil
	l.changed.fire()
}

// Addr is "host:port".
func (l *listener) Addr() net.Addr { return l.addr() }

func (l *listener) addr() addr {
	return addr(net.JoinHostPort(l.host.name, strconv.Itoa(l.port)))
}
