package loopback

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// errKilled is what a dead host's calls fail with.
var errKilled = errors.New("this host was killed")

// Host is the network as one host sees it, until it is killed. It is a
// transport.Network.
type Host struct {
	n    *Network
	name string

	// The network's lock guards these.
	listeners map[*listener]struct{}
	dead      bool
}

// Listen accepts connections at an address of this machine.
func (h *Host) Listen(ctx context.Context, address string) (net.Listener, error) {
	inner, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.dead {
		_ = inner.Close()
		return nil, errKilled
	}
	l := &listener{Listener: inner, host: h}
	h.listeners[l] = struct{}{}
	h.n.homes[inner.Addr().String()] = h.name
	return l, nil
}

// Dial connects to an address. Over a cut link it waits until ctx ends.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	n, to := h.n, ""
	never := func() time.Time { return time.Time{} }
	err := n.await(ctx, never, func() (bool, error) {
		if h.dead {
			return false, errKilled
		}
		to = n.homes[address]
		return !n.blocked(h.name, to), nil
	})
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	inner, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return h.own(inner, to)
}

// own makes a connection one of the host's, or resets it if the host is dead. to is
// the host that was dialled; empty for a connection that was accepted.
func (h *Host) own(inner net.Conn, to string) (*conn, error) {
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &conn{Conn: inner, host: h, to: to}
	n.conns[c] = struct{}{}
	if h.dead {
		c.reset()
		return nil, errKilled
	}
	return c, nil
}

// listener notes what it accepts, so that Kill can reset it.
type listener struct {
	net.Listener
	host *Host
}

func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.host.own(inner, "")
}

func (l *listener) Close() error {
	l.host.n.mu.Lock()
	delete(l.host.listeners, l)
	l.host.n.mu.Unlock()
	return l.Listener.Close()
}

// rest waits for a change, until ctx or at (zero: never), whichever is first.
func rest(ctx context.Context, at time.Time, changed <-chan struct{}) error {
	var alarm <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-changed:
		return nil
	case <-alarm:
		return os.ErrDeadlineExceeded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
