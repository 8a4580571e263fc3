package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport/mux"
)

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// start runs a mux on a port of its own until the test ends.
func start(t testing.TB, accept func(mux.Hello) error) (m *mux.Mux, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m = mux.New(mux.Config{Listener: l, AcceptRaft: accept})
	m.Start()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return m, l.Addr().String()
}

func yes(mux.Hello) error { return nil }

func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestRoutes(t *testing.T) {
	want := mux.Hello{Cluster: leases.NewID(), Group: leases.NewID(), To: "n1.abc", From: strings.Repeat("n", 255)}
	m, addr := start(t, func(h mux.Hello) error {
		if h != want {
			return fmt.Errorf("unexpected %+v", h)
		}
		return nil
	})
	if got := m.Raft().Addr().String(); got != addr {
		t.Errorf("the Raft route's address is %s, want %s", got, addr)
	}
	raft, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, want)
	if err != nil {
		t.Fatal(err)
	}
	defer raft.Close()
	grpc, err := mux.Dial(timeout(t, 10*time.Second), dialTCP, addr, nil, mux.ProtoGRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer grpc.Close()
	// In pieces, as a network may deliver it.
	for _, part := range []string{"P", "RI * HTTP", "/2.0\r\n", "\r\nSM\r\n\r\n"} {
		if _, err := io.WriteString(grpc, part); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(raft, "vote for me"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		route net.Listener
		says  string
	}{{m.Raft(), "vote for me"}, {m.GRPC(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}} {
		conn, err := c.route.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		b := make([]byte, len(c.says))
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != c.says {
			t.Errorf("got %q, %v, want %q", b, err, c.says)
		}
	}
}

func TestRefusal(t *testing.T) {
	for _, c := range []struct{ reason, want string }{
		{"this is n1.2, not n1.1", "this is n1.2, not n1.1"},
		{"two\nlines\x00and \xff", "two lines and \uFFFD"},
		{strings.Repeat("ü", 5000), strings.Repeat("ü", 512)},
		{"", ""},
	} {
		_, addr := start(t, func(mux.Hello) error { return errors.New(c.reason) })
		conn, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, mux.Hello{To: "n1.1"})
		var refused *mux.RefusedError
		if !errors.As(err, &refused) || refused.Reason != c.want {
			t.Errorf("got %v, %v, want it refused: %q", conn, err, c.want)
		}
	}
}

func TestHelloIsBounded(t *testing.T) {
	_, addr := start(t, func(mux.Hello) error { return errors.New("it arrived") })
	long := strings.Repeat("n", 256)
	for _, h := range []mux.Hello{{To: long}, {From: long}} {
		if _, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, h); err == nil || !strings.Contains(err.Error(), "256 bytes: the bound is 255") {
			t.Errorf("got %v, want the bound", err)
		}
	}
}

func TestStrangersAreClosed(t *testing.T) {
	m, addr := start(t, func(mux.Hello) error { t.Error("a stranger's hello came through"); return nil })
	for _, said := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/1.0\r\n\r\n", "coordd-raft/2\n", "\x00", "\x16\x04", "PX",
		"coordd-raft/1\n\xff\xff", "coordd-raft/1\n\x00\x00", "coordd-raft/1\n\x00\x02ab", "coordd-raft/1\n\x00\x23" + strings.Repeat("x", 35),
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, said)
		conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
			t.Errorf("after %q: got %q, %v, want the end", said, b, err)
		}
		conn.Close()
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestTLSClientsAreToldOfPlaintext(t *testing.T) {
	_, addr := start(t, yes)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "\x16\x03\x01\x02\x00"+strings.Repeat("x", 0x200))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if b, err := io.ReadAll(conn); err != nil || string(b) != "coordd: this port speaks plaintext, not TLS\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestDialRaftGivesUp(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	addr := silent.Addr().String()
	cause := errors.New("enough")
	cancelled, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	if _, err := mux.DialRaft(cancelled, dialTCP, addr, nil, mux.Hello{}); !errors.Is(err, cause) || !strings.Contains(err.Error(), "no answer to the hello") {
		t.Errorf("got %v, want that there was no answer, and the cause", err)
	}
	if _, err := mux.DialRaft(timeout(t, 20*time.Millisecond), dialTCP, addr, nil, mux.Hello{}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), addr) {
		t.Errorf("got %v, want that the time was up at %s", err, addr)
	}
}

func TestCloseClosesRaftConnections(t *testing.T) {
	m, addr := start(t, yes)
	var reading sync.WaitGroup
	for range 3 {
		dialed, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, mux.Hello{})
		if err != nil {
			t.Fatal(err)
		}
		defer dialed.Close()
		conn, err := m.Raft().Accept()
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("the read brought something")
			}
			conn.Close()
		})
	}
	half, err := net.Dial("tcp", addr) // in its opening
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	io.WriteString(half, "coordd-raft/1\n\x00")
	closed := make(chan struct{})
	go func() {
		m.Close()
		reading.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(4 * time.Second): // less than an opening may take
		t.Fatal("Close did not close everything")
	}
	for _, route := range []net.Listener{m.Raft(), m.GRPC()} {
		if _, err := route.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: got %v, want closed", err)
		}
	}
}

func TestALateAcceptIsNoLeak(t *testing.T) {
	m, addr := start(t, yes)
	m.Raft().Close() // nobody will accept
	conn, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, mux.Hello{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// pipes is a listener whose connections are pipes, for virtual time. It fails
// first, as often as it is told.
type pipes struct {
	conns    chan net.Conn
	failures int
	closed   chan struct{}
	once     sync.Once
}

func newPipes(failures int) *pipes {
	return &pipes{conns: make(chan net.Conn), failures: failures, closed: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	if p.failures > 0 {
		p.failures--
		return nil, errors.New("too many open files")
	}
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) Dial(context.Context, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

func TestSilenceIsCutAfterFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes(0)
		m := mux.New(mux.Config{Listener: l, AcceptRaft: yes})
		m.Start()
		defer m.Close()
		for _, said := range []string{"", "PRI", "coordd-raft/1\n", "coordd-raft/1\n\x00\x22half"} {
			conn, _ := l.Dial(t.Context(), "")
			start := time.Now()
			io.WriteString(conn, said)
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("after %q: got something", said)
			}
			if took := time.Since(start); took != 5*time.Second {
				t.Errorf("after %q: cut after %v, want 5s", said, took)
			}
			conn.Close()
		}
	})
}

func TestAcceptGoesOnAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes(20)
		var log bytes.Buffer
		m := mux.New(mux.Config{Listener: l, AcceptRaft: yes, Log: slog.New(slog.NewTextHandler(&log, nil))})
		m.Start()
		start := time.Now()
		conn, _ := l.Dial(t.Context(), "")
		conn.Close()
		// 20 pauses from 5 ms on, of at most a second.
		if took := time.Since(start); took < 5*time.Second || took > 20*time.Second {
			t.Errorf("accepted after %v, want pauses that grow to a second", took)
		}
		m.Close()
		if lines := strings.Count(log.String(), "too many open files"); lines == 0 || lines > 20 {
			t.Errorf("got %d lines about it, want some", lines)
		}
	})
}

// At most 1024 connections are in their opening; the next one waits its turn.
func TestOpeningsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes(0)
		m := mux.New(mux.Config{Listener: l, AcceptRaft: yes})
		m.Start()
		defer m.Close()
		start := time.Now()
		for range 1024 {
			conn, _ := l.Dial(t.Context(), "")
			defer conn.Close()
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("1024 connections took %v", took)
		}
		conn, _ := l.Dial(t.Context(), "")
		defer conn.Close()
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("one more was accepted after %v, want 5s: when the first was cut", took)
		}
	})
}

func TestAPanicCostsOneConnection(t *testing.T) {
	first := true
	m, addr := start(t, func(mux.Hello) error {
		if first {
			first = false
			panic("ouch")
		}
		return nil
	})
	if _, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, mux.Hello{}); err == nil {
		t.Error("the panic went unnoticed")
	}
	conn, err := mux.DialRaft(timeout(t, 10*time.Second), dialTCP, addr, nil, mux.Hello{})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	m.Close()
}
