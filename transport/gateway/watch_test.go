package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// lines is a watch as a client reads it.
type lines struct {
	read chan string // a line each, without its end; closed at the end
	err  error       // how it ended; once read is closed
	stop func()      // hangs up
}

// watch begins to read path until the test ends.
func (s *server) watch(t testing.TB, path string) *lines {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := s.client.Do(s.request(t, "GET", path, "").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("got %d %s, want a watch", resp.StatusCode, b)
	}
	w := &lines{read: make(chan string, 100)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(w.read)
		r := bufio.NewReader(resp.Body)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				if line != "" {
					err = fmt.Errorf("%w after %q", err, line)
				}
				w.err = err
				return
			}
			w.read <- strings.TrimSuffix(line, "\n")
		}
	}()
	w.stop = func() {
		cancel()
		resp.Body.Close()
		within(t, "the reader's end", ended)
	}
	t.Cleanup(w.stop)
	return w
}

// next returns the next line, "" at the end.
func (w *lines) next(t testing.TB) string {
	t.Helper()
	return within(t, "a line", w.read)
}

// ended waits for the orderly end of the stream.
func (w *lines) ended(t testing.TB) {
	t.Helper()
	if line := w.next(t); line != "" || w.err != io.EOF {
		t.Errorf("got the line %q and %v, want the end", line, w.err)
	}
}

// watching is a cluster whose watches tell what comes over batches, until it is
// closed, and then end with err.
func watching(batches <-chan *coorddv1.WatchResponse, err error) *cluster {
	return &cluster{watch: func(_ *coorddv1.WatchRequest, stream watchStream) error {
		for {
			select {
			case m, ok := <-batches:
				if !ok {
					return err
				}
				if err := stream.Send(m); err != nil {
					return err
				}
			case <-stream.Context().Done():
				return context.Cause(stream.Context())
			}
		}
	}}
}

// Every line comes as soon as it is there, and an error as the last one.
func TestWatch(t *testing.T) {
	batches := make(chan *coorddv1.WatchResponse, 1)
	s := serve(t, watching(batches, &leases.MissedError{Newest: leases.Position{Epoch: 2, Revision: 7}}))
	batches <- &coorddv1.WatchResponse{Epoch: 1, Revision: 3}
	w := s.watch(t, "/v1/watch")
	if got, want := w.next(t), `{"result":{"epoch":1,"revision":"3","changes":[]}}`; got != want {
		t.Errorf("the first line: got %s, want %s", got, want)
	}
	for revision := uint64(4); revision < 50; revision++ {
		name := strings.Repeat("\u2028 \"n\\", int(revision))
		batches <- &coorddv1.WatchResponse{Epoch: 1, Revision: revision, Changes: []*coorddv1.Change{{Revision: revision, Name: name}}}
		var got struct {
			Result struct {
				Revision string
				Changes  []struct{ Revision, Name string }
			}
		}
		line := w.next(t)
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.Result.Revision != fmt.Sprint(revision) || len(got.Result.Changes) != 1 || got.Result.Changes[0].Name != name {
			t.Fatalf("line %d: got %s (%v)", revision, line, err)
		}
	}
	close(batches)
	f := failed(t, w.next(t))
	if f.Code != "MISSED" || f.Details["newest"].(map[string]any)["revision"] != "7" {
		t.Errorf("the last line: got %+v, want MISSED with the positions", f)
	}
	w.ended(t)
}

func TestWatchesThatDoNotBegin(t *testing.T) {
	for err, want := range map[error]int{
		&leases.MissedError{}: http.StatusGone,
		leases.ErrUnavailable: http.StatusServiceUnavailable,
		&leases.InvalidError{Field: "prefix", Value: "x", Bounds: "y"}: http.StatusBadRequest,
		error(nil): http.StatusServiceUnavailable,
	} {
		s := serve(t, refusing(func() error { return err }))
		code, body := s.get(t, "/v1/watch")
		if failed(t, body); code != want {
			t.Errorf("%v: got %d %s, want %d", err, code, body, want)
		}
		s.stop()
	}
}

// A panic in the middle is an error like any other.
func TestWatchThatPanics(t *testing.T) {
	s := serve(t, &cluster{watch: func(_ *coorddv1.WatchRequest, stream watchStream) error {
		stream.Send(&coorddv1.WatchResponse{})
		panic("ouch")
	}})
	w := s.watch(t, "/v1/watch")
	w.next(t)
	if f := failed(t, w.next(t)); f.Code != "INTERNAL" || !strings.Contains(f.Message, "ouch") {
		t.Errorf("the last line: got %+v, want what it was", f)
	}
	w.ended(t)
}

// Who does not read keeps nobody else from being served.
func TestDeafWatchers(t *testing.T) {
	flood := func(_ *coorddv1.WatchRequest, stream watchStream) error {
		m := &coorddv1.WatchResponse{Changes: []*coorddv1.Change{{Name: strings.Repeat("n", 10_000)}}}
		for {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
	s := serve(t, &cluster{watch: flood})
	for range 20 {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, err := io.ReadFull(conn, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if code, body := s.post(t, "/v1/renew", "{}"); code != http.StatusOK {
			t.Fatalf("a renewal meanwhile: got %d %s, want 200", code, body)
		}
	}
	s.stop() // nor from closing
}
