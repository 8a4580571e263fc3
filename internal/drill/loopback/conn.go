package loopback

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// window is how many bytes wait at a cut link before their writer does: about what a
	// kernel buffers for a peer that it hears nothing of.
	window = 64 << 10
	// flushTime bounds the sending of what has waited.
	flushTime = 5 * time.Second
)

// conn is one end of a connection. At the end that dialled it holds back what arrives,
// and what is to leave, while its link is cut; so the other end neither gets nor gives
// anything.
type conn struct {
	net.Conn
	host *Host
	to   string // the host that was dialled; empty at the end that accepted

	// The network's lock guards these.
	closed          bool   // by its owner, or by Kill
	unsent          []byte // what was written while the link was cut
	readBy, writeBy time.Time

	writes sync.Mutex // held by whoever writes to the socket

	reads   sync.Mutex // held by a Read; guards what follows
	held    []byte     // what has arrived while the link was cut
	heldErr error      // and what comes after it
}

func (c *conn) Read(b []byte) (int, error) {
	c.reads.Lock()
	defer c.reads.Unlock()
	if len(c.held) == 0 && c.heldErr == nil {
		k, err := c.Conn.Read(b)
		if timeout, ok := err.(net.Error); k == 0 && ok && timeout.Timeout() || c.passes() {
			return k, err
		}
		c.held, c.heldErr = append(c.held[:0], b[:k]...), err
	}
	err := c.await(&c.readBy, func() bool { return !c.blocked() })
	if err != nil {
		return 0, err
	}
	k := copy(b, c.held)
	c.held = c.held[k:]
	if len(c.held) > 0 {
		return k, nil
	}
	err, c.heldErr = c.heldErr, nil
	return k, err
}

// Write returns when b is on its way, or waits for that in the window.
func (c *conn) Write(b []byte) (n int, err error) {
	c.writes.Lock()
	defer c.writes.Unlock()
	blocked := false
	err = c.await(&c.writeBy, func() bool {
		if blocked = c.blocked(); !blocked {
			return true
		}
		k := min(len(b)-n, window-len(c.unsent))
		c.unsent = append(c.unsent, b[n:n+k]...)
		n += k
		return n == len(b)
	})
	if err == nil && !blocked {
		err = c.sendUnsent()
	}
	if err != nil || blocked {
		return n, err
	}
	k, err := c.Conn.Write(b[n:])
	return n + k, err
}

// sendUnsent sends what has waited. It is called with writes held.
func (c *conn) sendUnsent() error {
	n := c.host.n
	n.mu.Lock()
	waited, by := c.unsent, c.writeBy
	c.unsent = nil
	n.mu.Unlock()
	if len(waited) == 0 {
		return nil
	}
	if err := c.Conn.SetWriteDeadline(time.Now().Add(flushTime)); err != nil {
		return err
	}
	if _, err := c.Conn.Write(waited); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(by)
}

// mended sends what has waited at the link, and then closes the socket if that was to be.
func (c *conn) mended() {
	c.writes.Lock()
	defer c.writes.Unlock()
	_ = c.sendUnsent() // whoever reads or writes next hears of it
	c.host.n.mu.Lock()
	defer c.host.n.mu.Unlock()
	if c.closed {
		_ = c.drop()
	}
}

// await waits until ready, which is called with the network's lock held.
func (c *conn) await(by *time.Time, ready func() bool) error {
	return c.host.n.await(context.Background(), func() time.Time { return *by }, func() (bool, error) {
		if c.closed {
			return false, net.ErrClosed
		}
		return ready(), nil
	})
}

func (c *conn) passes() bool {
	c.host.n.mu.Lock()
	defer c.host.n.mu.Unlock()
	return c.closed || !c.blocked()
}

// Close closes the connection. Over a cut link the other end hears of it when the link
// is mended.
func (c *conn) Close() error {
	n := c.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	defer n.tell()
	return c.end()
}

func (c *conn) SetDeadline(t time.Time) error {
	c.limit(t, &c.readBy, &c.writeBy)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.limit(t, &c.readBy)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.limit(t, &c.writeBy)
	return c.Conn.SetWriteDeadline(t)
}

// limit notes a deadline, also for those that wait already.
func (c *conn) limit(t time.Time, deadlines ...*time.Time) {
	n := c.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range deadlines {
		*d = t
	}
	if c.blocked() {
		n.tell()
	}
}

// The methods below are called with the network's lock held.

func (c *conn) blocked() bool { return c.to != "" && c.host.n.blocked(c.host.name, c.to) }

// end closes the connection, or leaves that to the mending of its link.
func (c *conn) end() error {
	c.closed = true
	if c.blocked() {
		return c.Conn.SetDeadline(time.Unix(1, 0)) // whoever reads or writes is done
	}
	return c.drop()
}

// reset ends the connection as the end of a process that is killed does.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.unsent = nil
	_ = c.end()
}

// drop closes the socket.
func (c *conn) drop() error {
	delete(c.host.n.conns, c)
	return c.Conn.Close()
}
