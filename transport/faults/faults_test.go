package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/coordd/coordd/transport/faults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns both ends of a connection from a to b, and a function that
// closes all.
func connect(t *testing.T, f *faults.Fabric, a, b string) (net.Conn, net.Conn) {
	t.Helper()
	l, err := f.Host(b).Listen(t.Context(), ":0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Host(a).Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close(); l.Close() })
	return c, d
}

func TestConnConforms(t *testing.T) {
	f := faults.New(1)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		c, d := connect(t, f, "a", "b")
		return c, d, func() { c.Close(); d.Close() }, nil
	})
}

func TestConnConformsWithDelay(t *testing.T) {
	f := faults.New(1)
	f.Delay("a", "b", 0, 2*time.Millisecond)
	f.Delay("b", "a", time.Millisecond, 0)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		c, d := connect(t, f, "a", "b")
		return c, d, func() { c.Close(); d.Close() }, nil
	})
}

// inBubble runs a test of two connected hosts in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, f *faults.Fabric, a, b net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		a, b := connect(t, f, "a", "b")
		test(t, f, a, b)
	})
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("write %q: got %d, %v", s, n, err)
	}
}

func receive(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read: got %q, %v, want %q", b, err, want)
	}
}

// silent checks that nothing arrives within a minute.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	defer c.SetReadDeadline(time.Time{})
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read: got %d bytes, %v, want the deadline", n, err)
	}
}

func TestCutHoldsBytesUntilHeal(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		send(t, a, "one ")
		f.Cut("a", "b")
		send(t, a, "two ")
		silent(t, b)
		send(t, b, "back")
		receive(t, a, "back")
		f.Heal("a", "b")
		send(t, a, "three")
		receive(t, b, "one two three")
	})
}

func TestCutHoldsTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		f.Cut("a", "b")
		send(t, a, "last words")
		a.Close()
		silent(t, b)
		send(t, b, "unheard")
		f.Heal("a", "b")
		if got, err := io.ReadAll(b); err != nil || string(got) != "last words" {
			t.Errorf("read: got %q, %v, want %q", got, err, "last words")
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to a closed peer: got %v, want %v", err, syscall.EPIPE)
		}
	})
}

func TestFullWindowBlocksWriter(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		f.Cut("a", "b")
		a.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := a.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n > 1<<17 {
			t.Fatalf("write over a cut link: got %d, %v, want a full window and the deadline", n, err)
		}
		a.SetWriteDeadline(time.Time{})
		done := make(chan error)
		go func() { _, err := a.Write(make([]byte, 1<<20)); done <- err }()
		synctest.Wait()
		f.Heal("a", "b")
		if _, err := io.ReadFull(b, make([]byte, n+1<<20)); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWritesDoNotMix(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		const size = 100 << 10 // more than a window
		for i := range 4 {
			go func() {
				p := make([]byte, size)
				for j := range p {
					p[j] = byte(i)
				}
				a.Write(p)
			}()
		}
		for range 4 {
			p := make([]byte, size)
			if _, err := io.ReadFull(b, p); err != nil {
				t.Fatal(err)
			}
			for j := range p {
				if p[j] != p[0] {
					t.Fatalf("byte %d is of write %d, byte 0 of write %d", j, p[j], p[0])
				}
			}
		}
	})
}

func TestDelayKeepsOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		f.Delay("a", "b", 100*time.Millisecond, 50*time.Millisecond)
		start, want := time.Now(), ""
		for i := range 20 {
			s := fmt.Sprintf("%d,", i)
			send(t, a, s)
			want += s
		}
		a.Close()
		got, err := io.ReadAll(b)
		if err != nil || string(got) != want {
			t.Errorf("read: got %q, %v, want %q", got, err, want)
		}
		if d := time.Since(start); d < 100*time.Millisecond || d >= 150*time.Millisecond {
			t.Errorf("the bytes took %v, want 100 ms to 150 ms", d)
		}
	})
}

func TestDelayAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		f.DelayAll(10*time.Millisecond, 0)
		c, d := connect(t, f, "c", "d")
		for _, pair := range [][2]net.Conn{{a, b}, {c, d}} {
			start := time.Now()
			send(t, pair[0], "x")
			receive(t, pair[1], "x")
			if got := time.Since(start); got != 10*time.Millisecond {
				t.Errorf("a byte took %v, want 10 ms", got)
			}
		}
		start := time.Now()
		e, g := connect(t, f, "e", "e")
		send(t, e, "x")
		receive(t, g, "x")
		if got := time.Since(start); got != 0 {
			t.Errorf("a byte to the same host took %v, want 0", got)
		}
	})
}

func TestJitterIsFixedBySeed(t *testing.T) {
	took := func(seed uint64) (d time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			f := faults.New(seed)
			f.Delay("a", "b", 0, time.Second)
			start := time.Now()
			connect(t, f, "a", "b")
			d = time.Since(start)
		})
		return d
	}
	if a, b := took(7), took(7); a != b {
		t.Errorf("one seed, two delays: got %v and %v", a, b)
	}
	if a, b := took(7), took(8); a == b {
		t.Errorf("two seeds, one delay: %v", a)
	}
}

func TestBreakResetsBothEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		blocked := make(chan error)
		go func() { _, err := a.Read(make([]byte, 1)); blocked <- err }()
		synctest.Wait()
		f.Break("b", "a")
		if err := <-blocked; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a blocked read: got %v, want %v", err, syscall.ECONNRESET)
		}
		for _, c := range []net.Conn{a, b} {
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("write: got %v, want %v", err, syscall.ECONNRESET)
			}
		}
		c, d := connect(t, f, "a", "b")
		send(t, c, "again")
		receive(t, d, "again")
	})
}

func TestDialFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		a, b := f.Host("a"), f.Host("b")
		l, err := b.Listen(t.Context(), "b:80")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		dial := func(address string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c, err := a.Dial(ctx, address)
			if err == nil {
				c.Close()
			}
			return err
		}
		var unknown *net.DNSError
		if err := dial("c:80"); !errors.As(err, &unknown) {
			t.Errorf("unknown host: got %v, want a DNS error", err)
		}
		if err := dial("b:81"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("no listener: got %v, want %v", err, syscall.ECONNREFUSED)
		}
		f.Refuse("a", "b")
		if err := dial("b:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused: got %v, want %v", err, syscall.ECONNREFUSED)
		}
		f.HealAll()
		f.Cut("b", "a")
		start := time.Now()
		if err := dial("b:80"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("dial over a cut link: got %v after %v, want the deadline after 1 s", err, time.Since(start))
		}
		time.AfterFunc(time.Second/2, f.HealAll)
		if err := dial("b:80"); err != nil {
			t.Errorf("dial over a link that heals: %v", err)
		}
		f.Delay("a", "b", 30*time.Millisecond, 0)
		f.Delay("b", "a", 20*time.Millisecond, 0)
		start = time.Now()
		if err := dial("b:80"); err != nil || time.Since(start) != 50*time.Millisecond {
			t.Errorf("dial over a slow link: got %v after %v, want nil after 50 ms", err, time.Since(start))
		}
	})
}

func TestListenErrors(t *testing.T) {
	h := faults.New(1).Host("a")
	l, err := h.Listen(t.Context(), ":80")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		address string
		want    error
	}{
		{"a:80", syscall.EADDRINUSE},
		{"b:80", syscall.EADDRNOTAVAIL},
	} {
		if _, err := h.Listen(t.Context(), test.address); !errors.Is(err, test.want) {
			t.Errorf("listen %s: got %v, want %v", test.address, err, test.want)
		}
	}
	for _, address := range []string{"a", "a:x", "a:-1", "a:65536"} {
		if _, err := h.Listen(t.Context(), address); err == nil {
			t.Errorf("listen %s: got no error", address)
		}
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: got %v, want %v", err, net.ErrClosed)
	}
	if l, err = h.Listen(t.Context(), ":80"); err != nil {
		t.Errorf("listen again: %v", err)
	}
	l.Close()
}

func TestBacklogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		l, err := f.Host("b").Listen(t.Context(), ":80")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := 0
		for ; ctx.Err() == nil; n++ {
			if c, err := f.Host("a").Dial(ctx, "b:80"); err == nil {
				defer c.Close()
			}
		}
		if n < 2 || n > 1000 {
			t.Errorf("%d dials without an accept", n)
		}
		go func() {
			for range n {
				if c, err := l.Accept(); err == nil {
					c.Close()
				}
			}
		}()
		c, err := f.Host("a").Dial(t.Context(), "b:80")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		synctest.Wait()
		l.Close()
	})
}

func TestPauseStopsTheHostsCode(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		l, err := f.Host("b").Listen(t.Context(), ":80")
		if err != nil {
			t.Fatal(err)
		}
		returned := make(chan string, 5)
		b.SetDeadline(time.Now().Add(time.Second))
		go func() { _, err := b.Read(make([]byte, 1)); returned <- fmt.Sprint("read: ", err) }()
		go func() { _, err := l.Accept(); returned <- fmt.Sprint("accept: ", err) }()
		synctest.Wait()
		f.Pause("b")
		send(t, a, "held")
		go func() { _, err := b.Write([]byte("x")); returned <- fmt.Sprint("write: ", err) }()
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := f.Host("b").Dial(ctx, "nowhere:80")
			returned <- fmt.Sprint("dial: ", err)
		}()
		// The system of a stopped process still completes connections to it.
		c, err := f.Host("a").Dial(t.Context(), "b:80")
		if err != nil {
			t.Fatal(err)
		}
		silent(t, a)
		silent(t, c)
		go func() { returned <- fmt.Sprint("close: ", l.Close()) }()
		synctest.Wait()
		if len(returned) > 0 {
			t.Errorf("a paused host's call returned: %s", <-returned)
		}
		f.Resume("b")
		for range cap(returned) {
			<-returned
		}
		b.SetDeadline(time.Time{})
		receive(t, b, "held")
		c.Close()
	})
}

func TestCrash(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		old := f.Host("b")
		l, err := old.Listen(t.Context(), ":80")
		if err != nil {
			t.Fatal(err)
		}
		send(t, b, "unread")
		f.Pause("b") // a stopped process can be killed
		f.Cut("b", "a")
		f.Crash("b")
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read of the dead host: got %v, want %v", err, syscall.ECONNRESET)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept of the dead host: got %v, want %v", err, net.ErrClosed)
		}
		if _, err := old.Dial(t.Context(), "a:80"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial of the dead host: got %v, want %v", err, net.ErrClosed)
		}
		if _, err := old.Listen(t.Context(), ":80"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("listen of the dead host: got %v, want %v", err, net.ErrClosed)
		}
		silent(t, a)
		f.Heal("b", "a")
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read of the other end: got %v, want %v", err, syscall.ECONNRESET)
		}
		if _, err := f.Host("a").Dial(t.Context(), "b:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to the dead host: got %v, want %v", err, syscall.ECONNREFUSED)
		}
		c, d := connect(t, f, "a", "b")
		send(t, c, "the next life")
		receive(t, d, "the next life")
	})
}

func TestStats(t *testing.T) {
	inBubble(t, func(t *testing.T, f *faults.Fabric, a, b net.Conn) {
		send(t, a, "four")
		receive(t, b, "four")
		f.Partition([]string{"a", "b"}, []string{"c"})
		f.Cut("a", "c")
		f.HealAll()
		f.Heal("a", "c")
		f.Break("a", "b")
		f.Pause("c")
		f.Crash("c")
		f.Crash("nobody")
		want := faults.Stats{Dials: 1, Conns: 1, Bytes: 4, Cuts: 4, Heals: 4, Resets: 2, Crashes: 1, Pauses: 1}
		if got := f.Stats(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
