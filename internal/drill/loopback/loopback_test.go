package loopback

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/transport"
)

var _ transport.Network = (*Host)(nil)

// shortly is long for a loopback, and short for a test: that nothing happens within it
// shows that something is held back.
const shortly = 100 * time.Millisecond

// soon bounds what is to happen.
const soon = 5 * time.Second

// joined connects two hosts, and returns the ends: that which dialled, and that which
// accepted.
func joined(t *testing.T, n *Network, from, to string) (net.Conn, net.Conn) {
	t.Helper()
	l, err := n.Host(to).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	dialled, err := n.Host(from).Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return dialled, <-accepted
}

func network(t *testing.T) *Network {
	n := New()
	t.Cleanup(n.Close)
	return n
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if err := c.SetWriteDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(s)); err != nil {
		t.Fatalf("write %q: %v", s, err)
	}
}

// reads reads len(want) bytes within soon.
func reads(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("got %q, %v, want %q", b, err, want)
	}
}

// deaf wants that a read gets nothing for a while.
func deaf(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(shortly)); err != nil {
		t.Fatal(err)
	}
	if k, err := c.Read(make([]byte, 8)); k != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes and %v, want nothing before the deadline", k, err)
	}
}

func TestOpenLink(t *testing.T) {
	a, b := joined(t, network(t), "a", "b")
	write(t, a, "there")
	reads(t, b, "there")
	write(t, b, "back")
	reads(t, a, "back")
}

// Over a cut link nothing arrives in either direction, and nothing is lost.
func TestCutHoldsBothWays(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Cut([]string{"x", "b"}, []string{"a"})
	write(t, b, "back")
	deaf(t, a)
	write(t, a, "the")
	write(t, a, "re")
	deaf(t, b)
	n.Heal()
	reads(t, a, "back")
	write(t, a, ", again")
	reads(t, b, "there, again")
}

// What was written over a cut link arrives once it is mended, also if nobody writes more,
// and before the end of the connection.
func TestUnsentIsSent(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Cut([]string{"a"}, []string{"b"})
	write(t, a, "last words")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	deaf(t, b)
	n.Heal()
	reads(t, b, "last words")
	if k, err := b.Read(make([]byte, 1)); k != 0 || err != io.EOF {
		t.Errorf("got %d bytes and %v, want the end", k, err)
	}
}

// A writer waits once there is no room for more, and goes on when the link is mended.
func TestWindow(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Cut([]string{"a"}, []string{"b"})
	text := strings.Repeat("0123456789abcdef", window/16+1)
	if err := a.SetWriteDeadline(time.Now().Add(shortly)); err != nil {
		t.Fatal(err)
	}
	k, err := a.Write([]byte(text))
	if k != window || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes and %v, want %d and a writer that waits", k, err, window)
	}
	if err := a.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := a.Write([]byte(text[k:]))
		written <- err
	}()
	n.Heal()
	reads(t, b, text)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// A read that waits when its link is cut gets what was sent afterwards once it is mended.
func TestCutHoldsReadUnderWay(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	got := make(chan string, 1)
	go func() {
		buf := make([]byte, 8)
		k, _ := a.Read(buf)
		got <- string(buf[:k])
	}()
	n.Cut([]string{"a"}, []string{"b"})
	write(t, b, "late")
	select {
	case s := <-got:
		t.Fatalf("got %q over a cut link", s)
	case <-time.After(shortly):
	}
	n.Heal()
	if s := <-got; s != "late" {
		t.Fatalf("got %q, want what had waited", s)
	}
}

func TestOtherLinksStay(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Cut([]string{"a"}, []string{"c"})
	write(t, a, "x")
	reads(t, b, "x")
}

func TestSilence(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Silence("b")
	write(t, b, "back")
	deaf(t, a)
	n.Speak("b")
	reads(t, a, "back")
}

// To dial over a cut link is to wait; it goes on when the link is mended.
func TestDialOverCutLink(t *testing.T) {
	n := network(t)
	l, err := n.Host("b").Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.Cut([]string{"a"}, []string{"b"})
	ctx, cancel := context.WithTimeout(t.Context(), shortly)
	defer cancel()
	if c, err := n.Host("a").Dial(ctx, l.Addr().String()); err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, %v, want the end of the context", c, err)
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := n.Host("a").Dial(t.Context(), l.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		dialled <- err
	}()
	n.Heal()
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
}

// The end of a connection over a cut link is heard of when that is mended.
func TestCloseOverCutLink(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Cut([]string{"a"}, []string{"b"})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want the end of its own connection", err)
	}
	deaf(t, b)
	n.Heal()
	if err := b.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	if k, err := b.Read(make([]byte, 1)); k != 0 || err != io.EOF {
		t.Errorf("got %d bytes and %v, want the end", k, err)
	}
}

// Close ends a read that waits at a cut link.
func TestCloseEndsRead(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	n.Cut([]string{"a"}, []string{"b"})
	write(t, b, "held back")
	ended := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 8))
		ended <- err
	}()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a closed connection has read what a cut link held back")
		}
	case <-time.After(soon):
		t.Fatal("the read goes on")
	}
}

func TestKill(t *testing.T) {
	n := network(t)
	a, b := joined(t, n, "a", "b")
	host := n.Host("b")
	address := b.LocalAddr().String()
	n.Kill("b")
	if err := a.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a reset", err)
	}
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("the dead host's connection goes on")
	}
	if _, err := host.Dial(t.Context(), address); !errors.Is(err, errKilled) {
		t.Errorf("got %v, want that a dead host cannot dial", err)
	}
	if _, err := host.Listen(t.Context(), "127.0.0.1:0"); !errors.Is(err, errKilled) {
		t.Errorf("got %v, want that a dead host cannot listen", err)
	}
	if _, err := n.Host("a").Dial(t.Context(), address); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want that nobody listens", err)
	}
	l, err := n.Host("b").Listen(t.Context(), address)
	if err != nil {
		t.Fatalf("the next life cannot listen at the same address: %v", err)
	}
	_ = l.Close()
}
