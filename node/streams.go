package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport/mux"
)

// streams is Raft's network: its addresses are server ids, which are looked up
// at each dial.
type streams struct {
	node   *Node
	id     string
	open   sync.WaitGroup // accepted connections that Raft still reads from
	queue  chan net.Conn  // accepted ones that Raft has not taken yet
	closed chan struct{}
	close  func()

	mu    sync.Mutex // guards what follows
	ended bool       // from then on open only falls
	taken map[*accepted]struct{}
}

var _ raft.StreamLayer = (*streams)(nil)

func newStreams(n *Node, id string) *streams {
	s := &streams{node: n, id: id, queue: make(chan net.Conn), closed: make(chan struct{}), taken: map[*accepted]struct{}{}}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	return s
}

// offer hands an accepted connection to Raft, unless its part in the group is over.
func (s *streams) offer(conn net.Conn) bool {
	select {
	case s.queue <- conn:
		return true
	case <-s.closed:
		return false
	}
}

// Close implements net.Listener: the port is the node's, and stays open.
func (s *streams) Close() error {
	s.close()
	return nil
}

// Addr is the server id: votes are kept by address, and a new incarnation must
// not pass for its predecessor.
func (s *streams) Addr() net.Addr { return serverAddr(s.id) }

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	var conn net.Conn
	select {
	case conn = <-s.queue:
	case <-s.closed:
		return nil, net.ErrClosed
	case <-s.node.raftEnded:
		return nil, net.ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	s.open.Add(1)
	c := &accepted{Conn: conn, streams: s}
	c.done = sync.OnceFunc(func() { s.left(c) })
	s.taken[c] = struct{}{}
	return c, nil
}

// left notes that Raft has let go of a connection.
func (s *streams) left(c *accepted) {
	s.mu.Lock()
	delete(s.taken, c)
	s.mu.Unlock()
	s.open.Done()
}

// drain takes no more connections, ends those that there are, and waits until Raft
// reads from none: it would wait for as long as the other members keep them.
func (s *streams) drain(ctx context.Context) error {
	s.mu.Lock()
	s.ended = true
	for c := range s.taken {
		_ = c.Conn.Close()
	}
	s.mu.Unlock()
	return wait(ctx, &s.open, "the other members' connections")
}

// ending reports whether the node's part in the group is over.
func (s *streams) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.node.ctx.Err() != nil
}

// accepted tells when Raft lets go of a connection: the last thing that the
// goroutine which reads from it does.
type accepted struct {
	net.Conn
	streams *streams
	done    func()
}

// Read reports no failure while the group is left: Raft would complain of it.
func (c *accepted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.streams.ending() {
		err = io.EOF
	}
	return n, err
}

func (c *accepted) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// Dial connects to a server. The connection opens with the addressee's server
// id and is refused by anyone else (S18).
func (s *streams) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	e, ok := s.node.book.get(string(id))
	if !ok {
		return nil, fmt.Errorf("the address of %s is not known yet", id)
	}
	ctx, cancel := context.WithTimeout(s.node.ctx, min(timeout, 2*s.node.cfg.ElectionTimeout))
	defer cancel()
	self := s.node.who()
	opening := mux.Hello{Cluster: self.Cluster, Group: self.Group, To: string(id), From: s.id}
	return mux.DialRaft(ctx, s.node.cfg.Network.Dial, e.address, s.node.clientTLS(), opening)
}

// clientTLS is nil where the node speaks plaintext.
func (n *Node) clientTLS() *tls.Config {
	switch {
	case n.cfg.TLS == nil:
		return nil
	case n.cfg.TLS.Client == nil:
		return &tls.Config{MinVersion: tls.VersionTLS13} // which fails, rather than speak plaintext
	}
	return n.cfg.TLS.Client
}

// acceptRaft refuses a Raft connection that is meant for somebody else:
// hashicorp/raft's messages name no addressee.
func (n *Node) acceptRaft(h mux.Hello) error {
	self := n.who()
	switch {
	case n.member() == nil:
		return &leases.UnavailableError{Reason: n.cfg.Name + " takes part in no Raft group yet"}
	case !n.cfg.Testing.Rules.On(rules.Identity):
		return nil
	case h.Cluster != self.Cluster:
		return &leases.WrongClusterError{Want: h.Cluster, Got: self.Cluster}
	case h.Group != self.Group || h.To != self.ServerID():
		return fmt.Errorf("this is %s, not %s", self.ServerID(), h.To)
	}
	return nil
}

type serverAddr string

func (serverAddr) Network() string  { return "coordd" }
func (a serverAddr) String() string { return string(a) }
