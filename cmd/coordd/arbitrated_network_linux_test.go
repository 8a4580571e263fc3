package main

import (
	"context"
	order "encoding/binary"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// network carries every TCP connection among the nodes of a test, and from each of
// them to the arbiter, through this process, so that it can be cut without any
// privilege. Where it is cut nothing comes through and nobody is told, as where
// packets are lost; what was sent arrives once it is mended, late, and whether or not
// its sender is still there.
type network struct {
	t   *testing.T
	ctx context.Context // ends with the test

	mu        sync.Mutex // guards what follows
	processes map[string]int
	cut       map[way]bool
	changed   chan struct{} // closed, and replaced, when cut has changed

	running sync.WaitGroup
}

// way is between two ends, in the order of their names.
type way struct{ one, other string }

func wayOf(a, b string) way { return way{min(a, b), max(a, b)} }

// anybody is whoever is no node: clients. Their ways are never cut.
const anybody = ""

func newNetwork(t *testing.T) *network {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	n := &network{t: t, ctx: ctx, processes: map[string]int{}, cut: map[way]bool{}, changed: make(chan struct{})}
	t.Cleanup(func() {
		stop()
		n.running.Wait()
	})
	return n
}

// lives says which process a node is from now on.
func (n *network) lives(node string, pid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes[node] = pid
}

// part cuts every end of one group off from every end of the other.
func (n *network) part(group []string, from ...string) { n.set(true, group, from) }

// join undoes part.
func (n *network) join(group []string, with ...string) { n.set(false, group, with) }

func (n *network) set(cut bool, group, other []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range group {
		for _, b := range other {
			if n.cut[wayOf(a, b)] = cut; !cut {
				delete(n.cut, wayOf(a, b))
			}
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// mend lets everything through.
func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	close(n.changed)
	n.changed = make(chan struct{})
}

// passes waits until a way is open. false: the test is over.
func (n *network) passes(w way) bool {
	for n.ctx.Err() == nil {
		n.mu.Lock()
		cut, changed := n.cut[w], n.changed
		n.mu.Unlock()
		if !cut {
			return true
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
		}
	}
	return false
}

// door returns an address that leads to one end, which listens at addr. who tells from
// which end a connection comes.
func (n *network) door(end, addr string, who func(net.Conn) (string, error)) string {
	n.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	context.AfterFunc(n.ctx, func() { l.Close() })
	n.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.running.Go(func() {
				if from, err := who(conn); err != nil {
					conn.Close() // who has made it is gone
				} else {
					n.carry(conn, addr, wayOf(from, end))
				}
			})
		}
	})
	return l.Addr().String()
}

// arbiterDoor is a door to the arbiter for one node alone.
func (n *network) arbiterDoor(node, addr string) string {
	return n.door(theArbiter, addr, func(net.Conn) (string, error) { return node, nil })
}

const theArbiter = "arbiter"

// nodeDoor is a door to a node for everybody.
func (n *network) nodeDoor(node, addr string) string { return n.door(node, addr, n.who) }

// carry connects a connection with who listens at addr.
func (n *network) carry(from net.Conn, addr string, w way) {
	defer from.Close()
	if !n.passes(w) {
		return
	}
	to, err := net.Dial("tcp", addr)
	if err != nil {
		_ = from.(*net.TCPConn).SetLinger(0) // whom it was for is gone, and so resets it
		return
	}
	defer to.Close()
	defer context.AfterFunc(n.ctx, func() { from.Close(); to.Close() })()
	var both sync.WaitGroup
	both.Go(func() { n.pump(to.(*net.TCPConn), from, w) })
	both.Go(func() { n.pump(from.(*net.TCPConn), to, w) })
	both.Wait()
}

// pump copies until from ends, which to is told too.
func (n *network) pump(to *net.TCPConn, from net.Conn, w way) {
	buffer := make([]byte, 32<<10)
	for {
		count, err := from.Read(buffer)
		if !n.passes(w) {
			return
		}
		if _, failed := to.Write(buffer[:count]); err != nil || failed != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// who tells which node has made a connection: its process has the socket at the other
// end. A connection that is closed already is nobody's.
func (n *network) who(conn net.Conn) (string, error) {
	inode, err := socketOf(conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr))
	if err != nil {
		return "", err
	}
	n.mu.Lock()
	processes := maps.Clone(n.processes)
	n.mu.Unlock()
	for node, pid := range processes {
		if has(pid, inode) {
			return node, nil
		}
	}
	return anybody, nil
}

// socketOf asks the kernel for the inode of the socket at one end of a connection:
// sock_diag(7).
func socketOf(local, remote *net.TCPAddr) (inode uint32, err error) {
	const (
		header, request, inodeAt = 16, 56, 16 + 68 // bytes
		byFamily                 = 20              // SOCK_DIAG_BY_FAMILY
	)
	kernel, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(kernel)
	ask := make([]byte, header+request)
	order.NativeEndian.PutUint32(ask, uint32(len(ask)))
	order.NativeEndian.PutUint16(ask[4:], byFamily)
	order.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST)
	ask[16], ask[17] = unix.AF_INET, unix.IPPROTO_TCP
	order.BigEndian.PutUint16(ask[24:], uint16(local.Port))
	order.BigEndian.PutUint16(ask[26:], uint16(remote.Port))
	copy(ask[28:], local.IP.To4())
	copy(ask[44:], remote.IP.To4())
	order.NativeEndian.PutUint64(ask[64:], math.MaxUint64) // any cookie
	if err := unix.Sendto(kernel, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	answer := make([]byte, 4096)
	count, _, err := unix.Recvfrom(kernel, answer, 0)
	if err != nil {
		return 0, err
	}
	if count >= inodeAt+4 && order.NativeEndian.Uint16(answer[4:]) == byFamily {
		inode = order.NativeEndian.Uint32(answer[inodeAt:])
	}
	if inode == 0 {
		return 0, fmt.Errorf("nobody has the end %v of a connection", local)
	}
	return inode, nil
}

// has reports whether a process has a socket.
func has(pid int, inode uint32) bool {
	folder, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false // it is gone
	}
	defer folder.Close()
	files, _ := folder.Readdirnames(-1)
	for _, file := range files {
		if to, err := os.Readlink(folder.Name() + "/" + file); err == nil && to == fmt.Sprintf("socket:[%d]", inode) {
			return true
		}
	}
	return false
}
