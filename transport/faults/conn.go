package faults

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// window is how many bytes one direction of a connection holds before its
// writer blocks.
const window = 64 << 10

// conn is one end of a connection. The fabric's lock guards its fields.
type conn struct {
	f             *Fabric
	host          *Host
	local, remote addr
	peer          *conn
	link          *link // to the peer

	queue   []packet // from the peer, not read yet
	size    int      // bytes in queue
	last    time.Time
	eof     time.Time // when the peer's orderly end arrives; zero: it has not closed
	dead    error     // why the calls of this end fail; nil while it is open
	told    bool      // the peer hears of the end as a reset
	writing bool      // a Write is under way, others wait for their turn

	readBy, writeBy    time.Time
	readable, writable signal
}

// packet is what one Write brought, and when it arrives.
type packet struct {
	at   time.Time
	data []byte
}

type addr string

func (a addr) Network() string { return "faults" }
func (a addr) String() string  { return string(a) }

// pair connects a dialling and a listening host. It is called with f.mu held.
func (f *Fabric) pair(from, to *Host, fromAddr, toAddr addr) (*conn, *conn) {
	a := &conn{f: f, host: from, local: fromAddr, remote: toAddr, link: f.link(way{from.name, to.name})}
	b := &conn{f: f, host: to, local: toAddr, remote: fromAddr, link: f.link(way{to.name, from.name}), peer: a}
	a.peer = b
	f.conns[a], f.conns[b] = struct{}{}, struct{}{}
	f.stats.Conns++
	return a, b
}

// errBlocked is what a try returns that has to wait.
var errBlocked = errors.New("blocked")

// Read returns what has arrived, waits for it, or fails at the deadline.
func (c *conn) Read(b []byte) (n int, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	err = c.await("read", &c.readable, &c.readBy, func(now time.Time) (at time.Time, err error) {
		n, at, err = c.take(b, now)
		return at, err
	})
	return n, err
}

// Write returns when all of b is on its way.
func (c *conn) Write(b []byte) (n int, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	mine := false
	err = c.await("write", &c.writable, &c.writeBy, func(now time.Time) (time.Time, error) {
		if c.writing && !mine {
			return time.Time{}, errBlocked
		}
		mine, c.writing = true, true
		k, err := c.put(b[n:], now)
		n += k
		return time.Time{}, err
	})
	if mine {
		c.writing = false
		c.writable.fire()
	}
	return n, err
}

// await repeats try until it does not have to wait. It is called with f.mu
// held. A try that is blocked may tell when to repeat it at the latest.
func (c *conn) await(op string, s *signal, deadline *time.Time, try func(now time.Time) (time.Time, error)) error {
	for {
		if c.host.paused {
			c.f.wait(nil, time.Time{}, &c.f.changed)
			continue
		}
		now := time.Now()
		if c.dead != nil {
			return c.fail(op, c.dead)
		}
		if !deadline.IsZero() && !now.Before(*deadline) {
			return c.fail(op, os.ErrDeadlineExceeded)
		}
		at, err := try(now)
		if err != errBlocked {
			return c.fail(op, err)
		}
		c.f.wait(nil, earlier(at, *deadline), s)
	}
}

// take moves what has arrived into b.
func (c *conn) take(b []byte, now time.Time) (n int, at time.Time, err error) {
	if c.peer.link.cut {
		return 0, time.Time{}, errBlocked
	}
	if c.peer.told {
		return 0, time.Time{}, syscall.ECONNRESET
	}
	for len(c.queue) > 0 && n < len(b) && !now.Before(c.queue[0].at) {
		k := copy(b[n:], c.queue[0].data)
		n += k
		if c.queue[0].data = c.queue[0].data[k:]; len(c.queue[0].data) == 0 {
			c.queue = c.queue[1:]
		}
	}
	switch {
	case n > 0:
		c.size -= n
		c.f.stats.Bytes += n
		c.peer.writable.fire()
		return n, time.Time{}, nil
	case len(b) == 0:
		return 0, time.Time{}, nil
	case len(c.queue) > 0:
		return 0, c.queue[0].at, errBlocked
	case c.eof.IsZero():
		return 0, time.Time{}, errBlocked
	case now.Before(c.eof):
		return 0, c.eof, errBlocked
	default:
		return 0, time.Time{}, io.EOF
	}
}

// put sends as much of b as the window takes.
func (c *conn) put(b []byte, now time.Time) (n int, err error) {
	p := c.peer
	if p.dead != nil && !p.link.cut {
		if p.told {
			return 0, syscall.ECONNRESET
		}
		return 0, syscall.EPIPE
	}
	if n = min(len(b), window-p.size); n > 0 {
		p.queue = append(p.queue, packet{at: c.arrival(now), data: append([]byte(nil), b[:n]...)})
		p.size += n
		p.readable.fire()
	}
	if n < len(b) {
		return n, errBlocked
	}
	return n, nil
}

// arrival draws when what is sent now reaches the peer, behind what was sent before.
func (c *conn) arrival(now time.Time) time.Time {
	at := now.Add(c.f.latency(c.link))
	if at.Before(c.peer.last) {
		at = c.peer.last
	}
	c.peer.last = at
	return at
}

// Close ends the connection in order: the peer gets what was written before,
// then the end. A second Close does nothing.
func (c *conn) Close() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	for c.host.paused && c.dead == nil {
		c.f.wait(nil, time.Time{}, &c.f.changed)
	}
	if c.dead == nil {
		c.peer.eof = c.arrival(time.Now())
		c.end(net.ErrClosed)
	}
	return nil
}

// reset ends the connection at this end with an error. The peer is reset too
// as soon as the link to it lets it know.
func (c *conn) reset() {
	if c.dead == nil {
		c.told = true
		c.f.stats.Resets++
		c.end(syscall.ECONNRESET)
	}
}

func (c *conn) end(err error) {
	c.dead = err
	c.queue, c.size = nil, 0
	delete(c.f.conns, c)
	c.wake()
	c.peer.wake()
}

func (c *conn) wake() {
	c.readable.fire()
	c.writable.fire()
}

// LocalAddr is this end's "host:port".
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the other end's "host:port".
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the read and the write deadline.
func (c *conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy, &c.writeBy) }

// SetReadDeadline makes reads fail from t on; zero: never.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy) }

// SetWriteDeadline makes writes fail from t on; zero: never.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeBy) }

func (c *conn) setDeadlines(t time.Time, which ...*time.Time) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.dead != nil {
		return c.fail("set", c.dead)
	}
	for _, d := range which {
		*d = t
	}
	c.wake()
	return nil
}

// fail says which connection an error is of. io.EOF stays bare, as readers expect.
func (c *conn) fail(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}
