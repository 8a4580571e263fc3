package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway"
)

func TestNewRefusesWhatIsMissing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	whole := gateway.Config{Listener: l, Cluster: &cluster{}, Ready: func(context.Context) error { return nil }}
	for field, drop := range map[string]func(*gateway.Config){
		"listener": func(cfg *gateway.Config) { cfg.Listener = nil },
		"cluster":  func(cfg *gateway.Config) { cfg.Cluster = nil },
		"ready":    func(cfg *gateway.Config) { cfg.Ready = nil },
	} {
		cfg := whole
		drop(&cfg)
		var invalid *leases.InvalidError
		if _, err := gateway.New(cfg); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("without a %s: got %v, want it refused", field, err)
		}
	}
}

func TestPages(t *testing.T) {
	var mu sync.Mutex
	var why error
	s := serve(t, &cluster{}, func(cfg *gateway.Config) {
		cfg.Ready = func(ctx context.Context) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("Ready has no deadline")
			}
			mu.Lock()
			defer mu.Unlock()
			return why
		}
		cfg.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "up 1\n# for %s\n", r.Header.Get("Accept"))
		})
	})
	for path, want := range map[string]string{"/healthz": `{"healthy":true}`, "/readyz": `{"ready":true}`} {
		if code, body := s.get(t, path); code != http.StatusOK || body != want+"\n" {
			t.Errorf("%s: got %d %q, want 200 %s", path, code, body, want)
		}
		if resp, body := s.do(t, s.request(t, "HEAD", path, "")); resp.StatusCode != http.StatusOK || body != "" {
			t.Errorf("HEAD %s: got %d %q, want 200", path, resp.StatusCode, body)
		}
	}
	r := s.request(t, "GET", "/metrics", "")
	r.Header.Set("Accept", "text/plain")
	if resp, body := s.do(t, r); resp.StatusCode != http.StatusOK || body != "up 1\n# for text/plain\n" {
		t.Errorf("/metrics: got %d %q, want what the handler says", resp.StatusCode, body)
	}
	for err, code := range map[error]string{
		leases.ErrNoQuorum:       "NO_QUORUM",
		errors.New("no network"): "INTERNAL",
		&leases.InvalidError{Field: "join", Value: "x", Bounds: "y"}: "INVALID",
	} {
		mu.Lock()
		why = err
		mu.Unlock()
		got, body := s.get(t, "/readyz")
		if f := failed(t, body); got != http.StatusServiceUnavailable || f.Code != code || f.Message != err.Error() {
			t.Errorf("not ready: got %d %+v, want 503 %s: %v", got, f, code, err)
		}
		if got, _ := s.get(t, "/healthz"); got != http.StatusOK {
			t.Errorf("/healthz meanwhile: got %d, want 200", got)
		}
	}
}

func TestCloseWithoutStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, l, &cluster{})
	s.stop()
	if _, err := net.Dial("tcp", s.addr); err == nil {
		t.Error("the port is still open")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

func TestCloseOfAnIdleOne(t *testing.T) {
	s := serve(t, &cluster{})
	if code, _ := s.get(t, "/v1/leases"); code != http.StatusOK {
		t.Errorf("got %d, want 200", code)
	}
	mute, err := net.Dial("tcp", s.addr) // says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	begun, err := net.Dial("tcp", s.addr) // does not end its request
	if err != nil {
		t.Fatal(err)
	}
	defer begun.Close()
	io.WriteString(begun, "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
	s.stop()
	if _, err := net.Dial("tcp", s.addr); err == nil {
		t.Error("the port is still open")
	}
}

// Close tells each call what is known of it.
func TestCloseWithCalls(t *testing.T) {
	arrived := make(chan string, 20)
	quick := make(chan struct{})
	c := &cluster{
		acquire: func(ctx context.Context, _ *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
			arrived <- "acquire"
			<-ctx.Done()
			return nil, ctx.Err()
		},
		list: func(ctx context.Context, _ *coorddv1.ListRequest) (*coorddv1.ListResponse, error) {
			arrived <- "list"
			<-ctx.Done()
			return nil, ctx.Err()
		},
		renew: func(context.Context, *coorddv1.RenewRequest) (*coorddv1.RenewResponse, error) {
			arrived <- "renew"
			<-quick
			return &coorddv1.RenewResponse{}, nil
		},
	}
	s := serve(t, c)
	type answer struct {
		code int
		body string
	}
	ask := func(r *http.Request) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			resp, err := s.client.Do(r)
			if err != nil {
				got <- answer{body: err.Error()}
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				b = append(b, err.Error()...)
			}
			got <- answer{resp.StatusCode, string(b)}
		}()
		return got
	}
	acquire := ask(s.request(t, "POST", "/v1/acquire", "{}"))
	list := ask(s.request(t, "GET", "/v1/leases", ""))
	renew := ask(s.request(t, "POST", "/v1/renew", "{}"))
	for range 3 {
		within(t, "the calls' arrival", arrived)
	}
	var watches []<-chan answer
	for range 5 {
		watches = append(watches, ask(s.request(t, "GET", "/v1/watch", "")))
	}
	first := s.watch(t, "/v1/watch")
	first.next(t)

	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.stop()
	}()
	if f := failed(t, first.next(t)); f.Code != "UNAVAILABLE" || f.Message != "unavailable: the node is closing" {
		t.Errorf("a watch: got %+v as its last line, want that the node is closing", f)
	}
	first.ended(t)
	close(quick)
	if got := within(t, "the renewal's answer", renew); got.code != http.StatusOK {
		t.Errorf("what is answered soon: got %d %s, want 200", got.code, got.body)
	}
	if got := within(t, "the acquire's answer", acquire); got.code != http.StatusGatewayTimeout || failed(t, got.body).Code != "UNKNOWN_OUTCOME" || !strings.Contains(got.body, "the node is closing") {
		t.Errorf("an acquire: got %d %s, want 504 UNKNOWN_OUTCOME", got.code, got.body)
	}
	if got := within(t, "the list's answer", list); got.code != http.StatusServiceUnavailable || failed(t, got.body).Code != "UNAVAILABLE" {
		t.Errorf("a list: got %d %s, want 503 UNAVAILABLE", got.code, got.body)
	}
	for _, w := range watches { // some may not have arrived in time
		if got := within(t, "a watch's end", w); got.code == http.StatusOK && !strings.Contains(got.body, "the node is closing") {
			t.Errorf("a watch: got %d %s, want that the node is closing", got.code, got.body)
		}
	}
	within(t, "the end of Close", closed)
}

func TestCloseIsBounded(t *testing.T) {
	stuck, entered := make(chan struct{}), make(chan struct{})
	s := serve(t, &cluster{release: func(context.Context, *coorddv1.ReleaseRequest) (*coorddv1.ReleaseResponse, error) {
		close(entered)
		<-stuck // whatever its context says
		return nil, leases.ErrUnavailable
	}})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if resp, err := s.client.Do(s.request(t, "POST", "/v1/release", "{}")); err == nil {
			resp.Body.Close()
		}
	}()
	within(t, "the call's arrival", entered)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not end in time") {
		t.Errorf("got %v, want an error that says what did not end", err)
	}
	within(t, "the call's end", answered) // its client need not wait
	close(stuck)
	s.stop()
}

// A listener that fails does not end the process, and is told.
func TestABrokenListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, broken{l}, &cluster{})
	s.Start()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.log.String(), "out of order"); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got the log %q, want why nothing is accepted", s.log)
		}
	}
	s.stop()
}

type broken struct{ net.Listener }

func (broken) Accept() (net.Conn, error) { return nil, errors.New("out of order") }
