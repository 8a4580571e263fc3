package gateway_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/faults"
	"github.com/coordd/coordd/transport/gateway"
)

// virtual runs f in virtual time, with a gateway that is reached by dial.
func virtual(t *testing.T, c coorddv1.CoorddServer, f func(t *testing.T, s *server, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := faults.New(1)
		l, err := network.Host("n1").Listen(t.Context(), "n1:7421")
		if err != nil {
			t.Fatal(err)
		}
		s := serveOn(t, l, c)
		defer s.stop()
		s.Start()
		f(t, s, func() net.Conn {
			conn, err := network.Host("client").Dial(t.Context(), "n1:7421")
			if err != nil {
				t.Fatal(err)
			}
			return conn
		})
	})
}

// until returns what conn says until the other side closes it, and after how long.
func until(t *testing.T, conn net.Conn) (string, time.Duration) {
	t.Helper()
	start := time.Now()
	conn.SetReadDeadline(start.Add(time.Hour))
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("got %v after %q, want the connection's end", err, b)
	}
	return string(b), time.Since(start)
}

const post = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"

func TestSlowClientsAreSentAway(t *testing.T) {
	for _, tt := range []struct {
		name, says, want string
		after            time.Duration
	}{
		{"says nothing", "", "", gateway.ReadTime},
		{"half a header", "GET /v1/leases HTTP/1.1\r\nHo", "HTTP/1.1 400 ", gateway.ReadTime},
		{"no body", post, "HTTP/1.1 400 ", gateway.ReadTime},
		{"half a body", post + `{"name":"`, "HTTP/1.1 400 ", gateway.ReadTime},
		{"a body that nobody wants", strings.Replace(post, "acquire", "nonsense", 1), "HTTP/1.1 404 ", gateway.ReadTime},
		{"a body with GET", strings.Replace(strings.Replace(post, "POST", "GET", 1), "acquire", "leases", 1), "HTTP/1.1 400 ", gateway.ReadTime},
		{"no second request", "GET /v1/leases HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 ", 2 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, &cluster{}, func(t *testing.T, _ *server, dial func() net.Conn) {
				conn := dial()
				defer conn.Close()
				io.WriteString(conn, tt.says)
				got, after := until(t, conn)
				if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" || after > tt.after+2*time.Second {
					t.Errorf("got %q after %v, want %q and the end after %v", got, after, tt.want, tt.after)
				}
			})
		})
	}
}

// A watch may be silent for as long as nothing happens; one that is not read is
// ended.
func TestPatientAndDeafWatchers(t *testing.T) {
	c := new(cluster)
	virtual(t, c, func(t *testing.T, s *server, dial func() net.Conn) {
		batches, ended := make(chan *coorddv1.WatchResponse), make(chan struct{}) // of the bubble
		watch := watching(batches, nil).watch
		c.watch = func(r *coorddv1.WatchRequest, stream watchStream) error {
			defer close(ended)
			return watch(r, stream)
		}
		conn := dial()
		defer conn.Close()
		io.WriteString(conn, "GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
		for range 3 {
			batches <- &coorddv1.WatchResponse{}
			if _, err := conn.Read(make([]byte, 1000)); err != nil {
				t.Fatalf("after a while without a line: %v", err)
			}
			time.Sleep(time.Hour)
		}
		line := &coorddv1.WatchResponse{Changes: []*coorddv1.Change{{Name: strings.Repeat("n", 30_000)}}}
		start := time.Now()
		for open := true; open; {
			select {
			case batches <- line:
			case <-ended:
				open = false
			}
		}
		if took := time.Since(start); took < gateway.WriteTime || took > gateway.WriteTime+5*time.Second {
			t.Errorf("a watcher that does not read was ended after %v, want %v", took, gateway.WriteTime)
		}
	})
}

// A slow call is not cut off by any of the bounds on reading and writing.
func TestLongCalls(t *testing.T) {
	c := &cluster{acquire: func(ctx context.Context, _ *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
		select {
		case <-time.After(24 * time.Hour):
			return &coorddv1.AcquireResponse{Waited: true}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	virtual(t, c, func(t *testing.T, s *server, dial func() net.Conn) {
		conn := dial()
		defer conn.Close()
		for range 2 { // over one connection
			io.WriteString(conn, strings.Replace(post, "100", "2", 1)+"{}")
			b := make([]byte, 1000)
			n, err := conn.Read(b)
			if got := string(b[:n]); err != nil || !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.Contains(got, `"waited":true`) {
				t.Errorf("got %q (%v), want the answer", got, err)
			}
		}
	})
}

// While it closes, nothing new is begun, and what goes on is told why it ends.
func TestRequestsDuringClose(t *testing.T) {
	c := &cluster{
		acquire: func(ctx context.Context, _ *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		list: func(context.Context, *coorddv1.ListRequest) (*coorddv1.ListResponse, error) {
			t.Error("a call began during Close")
			return nil, nil
		},
	}
	virtual(t, c, func(t *testing.T, s *server, dial func() net.Conn) {
		busy, late := dial(), dial()
		defer busy.Close()
		defer late.Close()
		io.WriteString(busy, strings.Replace(post, "100", "2", 1)+"{}")
		synctest.Wait()
		go s.Close(t.Context())
		time.Sleep(gateway.PartingTime / 2)
		io.WriteString(late, "GET /v1/leases HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if got, _ := until(t, late); got != "" && !strings.HasPrefix(got, "HTTP/1.1 503 ") {
			t.Errorf("a new request: got %q, want none or 503", got)
		}
		if got, after := until(t, busy); !strings.HasPrefix(got, "HTTP/1.1 504 ") || !strings.Contains(got, "the node is closing") || after > 2*gateway.PartingTime {
			t.Errorf("the call under way: got %q after %v, want 504", got, after)
		}
		s.stop()
	})
}
