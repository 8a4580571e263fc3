package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// hanging is a cluster whose calls tell that they have come and go on until
// their contexts end.
func hanging(come, gone chan<- string) *cluster {
	return &cluster{
		acquire:  hang[coorddv1.AcquireRequest, coorddv1.AcquireResponse]("acquire", come, gone),
		withdraw: hang[coorddv1.WithdrawRequest, coorddv1.WithdrawResponse]("withdraw", come, gone),
		renew:    hang[coorddv1.RenewRequest, coorddv1.RenewResponse]("renew", come, gone),
		reclaim:  hang[coorddv1.ReclaimRequest, coorddv1.ReclaimResponse]("reclaim", come, gone),
		release:  hang[coorddv1.ReleaseRequest, coorddv1.ReleaseResponse]("release", come, gone),
		transfer: hang[coorddv1.TransferRequest, coorddv1.TransferResponse]("transfer", come, gone),
		get:      hang[coorddv1.GetRequest, coorddv1.GetResponse]("lease", come, gone),
		list:     hang[coorddv1.ListRequest, coorddv1.ListResponse]("leases", come, gone),
		queue:    hang[coorddv1.QueueRequest, coorddv1.QueueResponse]("queue", come, gone),
		status:   hang[coorddv1.StatusRequest, coorddv1.StatusResponse]("status", come, gone),
		watch: func(r *coorddv1.WatchRequest, stream watchStream) error {
			for range r.Revision { // so many lines before it hangs
				if err := stream.Send(&coorddv1.WatchResponse{}); err != nil {
					return err
				}
			}
			_, err := hang[coorddv1.WatchRequest, coorddv1.WatchResponse]("watch", come, gone)(stream.Context(), r)
			return err
		},
	}
}

func hang[Q, R any](name string, come, gone chan<- string) func(context.Context, *Q) (*R, error) {
	return func(ctx context.Context, _ *Q) (*R, error) {
		come <- name
		<-ctx.Done()
		gone <- name
		return nil, ctx.Err()
	}
}

// raw begins a request on a connection of its own.
func (s *server) raw(t testing.TB, method, path, body string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path)
	if method == "POST" {
		head += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	if _, err := io.WriteString(conn, head+"\r\n"+body); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func TestHangUpsEndEveryCall(t *testing.T) {
	come, gone := make(chan string, 1), make(chan string, 1)
	s := serve(t, hanging(come, gone))
	for how, hangUp := range map[string]func(*net.TCPConn){
		"closed":          func(c *net.TCPConn) { c.Close() },
		"reset":           func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"closed half way": func(c *net.TCPConn) { c.CloseWrite() },
	} {
		for _, call := range append(everyCall, "GET /v1/watch?revision=1", "GET /v1/watch?revision=100") {
			method, path, _ := strings.Cut(call, " ")
			conn := s.raw(t, method, path, "{}")
			name := within(t, call, come)
			if !strings.Contains(path, name) {
				t.Fatalf("%s: got the call %s", call, name)
			}
			hangUp(conn)
			if got := within(t, call+"'s end, "+how, gone); got != name {
				t.Errorf("%s, %s: got the end of %s", call, how, got)
			}
		}
	}
}

// An acquire whose caller is still there when it is granted is answered, whatever
// the caller does then: the node, which has drawn its attempt, would not know
// that nobody has heard of it.
func TestGrantsAreAnswered(t *testing.T) {
	granted := make(chan bool, 1)
	come := make(chan struct{}, 1)
	s := serve(t, &cluster{acquire: func(ctx context.Context, r *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
		come <- struct{}{}
		for range r.WaitMs {
			runtime.Gosched()
		}
		err := ctx.Err()
		granted <- err == nil
		return &coorddv1.AcquireResponse{Name: r.Name}, err
	}})
	there := 0
	for i := range 1000 {
		conn := s.raw(t, "POST", "/v1/acquire", fmt.Sprintf(`{"wait_ms": %d}`, i%50))
		<-come
		conn.CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if !within(t, "the call's end", granted) {
			continue
		}
		if there++; !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
			t.Fatalf("got %q, want the grant", answer)
		}
	}
	t.Logf("%d of 1000 callers were still there", there)
	if there == 0 {
		t.Error("every caller was gone too early")
	}
}

// One whose request is not whole yet has asked for nothing.
func TestHangUpsBeforeTheCall(t *testing.T) {
	s := serve(t, untouchable(t))
	const request = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"name\":\"a\"}"
	for n := 1; n < len(request); n++ {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request[:n])
		conn.Close()
	}
	s.stop() // waits for all of them
}

// A watcher that goes while a line is being written to it.
func TestHangUpWhileALineIsWritten(t *testing.T) {
	gone := make(chan error, 1)
	s := serve(t, &cluster{watch: func(_ *coorddv1.WatchRequest, stream watchStream) error {
		m := &coorddv1.WatchResponse{Changes: []*coorddv1.Change{{Name: strings.Repeat("n", 100_000)}}}
		for {
			if err := stream.Send(m); err != nil {
				<-stream.Context().Done()
				gone <- err
				return err
			}
		}
	}})
	conn := s.raw(t, "GET", "/v1/watch", "")
	if _, err := io.ReadFull(conn, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	within(t, "the watch's end", gone)
	if log := s.log.String(); log != "" {
		t.Errorf("a hang-up is logged: %s", log)
	}
}
