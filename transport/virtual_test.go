package transport_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/faults"
	"github.com/coordd/coordd/transport/mux"
)

// In virtual time, over a network in memory: a client that is cut off in
// silence is noticed by both ends, and finds the other node.
func TestPartitionIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		backends := map[string]*backend{"n1": {}, "n2": {}}
		for name, b := range backends {
			defer serveOn(t, f.Host(name), b)()
		}
		c, err := transport.Dial(transport.DialConfig{Addrs: []string{"n1:7420", "n2:7420"}, Network: f.Host("client")})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.Open(t.Context(), leases.NewID(), nil)
		if err != nil {
			t.Fatal(err)
		}
		answers := waitFor(t, 1, backends["n1"], s)

		f.Partition([]string{"client"}, []string{"n1"})
		start := time.Now()
		<-backends["n1"].last().closed
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("the node let go of the waiter after %v, want at most 10s", took)
		}
		<-s.Done()
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("the client noticed after %v, want at most 15s", took)
		}
		if err := <-answers; !errors.Is(err, leases.ErrUnknownOutcome) {
			t.Errorf("the acquire in flight: got %v, want an unknown outcome", err)
		}
		start = time.Now()
		if _, err := c.Open(t.Context(), leases.NewID(), nil); err != nil {
			t.Errorf("the other node: %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("finding the other node took %v: it should come first", took)
		}
	})
}

func TestSilenceEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		defer serveOn(t, f.Host("n1"), &backend{})()
		cc, err := transport.NewClientConn("n1:7420", nil, f.Host("client"))
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Close()
		start := time.Now()
		stream, err := coorddv1.NewCoorddClient(cc).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := ending(t, stream); !errors.Is(err, leases.ErrInvalid) || !strings.Contains(err.Error(), "an Open within 5s") {
			t.Errorf("got %v, want it to ask for an Open", err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("it ended after %v, want 5s", took)
		}
	})
}

// A client that asks as often as Conn does whether the node is still there is
// not sent away, with a stream or without one; one that asks all the time is.
func TestPingsAreTolerated(t *testing.T) {
	for every, want := range map[time.Duration]bool{transport.ClientPing: true, 100 * time.Millisecond: false} {
		synctest.Test(t, func(t *testing.T) {
			f := faults.New(1)
			defer serveOn(t, f.Host("n1"), &backend{})()
			conn, err := f.Host("client").Dial(t.Context(), "n1:7420")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, http2.ClientPreface)
			framer := http2.NewFramer(conn, conn)
			framer.WriteSettings()
			next := time.Now().Add(every) // whatever the node sends: its own pings would keep a gRPC client from asking
			for answered := 0; answered < 100; {
				conn.SetReadDeadline(next)
				frame, err := framer.ReadFrame()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					framer.WritePing(false, [8]byte{1})
					next = next.Add(every)
					continue
				}
				_, goAway := frame.(*http2.GoAwayFrame)
				if err != nil || goAway {
					if want {
						t.Errorf("asked every %v, the node sent %v, %v after %d answers", every, frame, err, answered)
					}
					return
				}
				if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
					answered++
				} else if ok {
					framer.WritePing(true, ping.Data)
				}
			}
			if !want {
				t.Errorf("the node can be asked every %v", every)
			}
		})
	}
}

// serveOn runs a server on a host until the returned function is called.
// Each change is applied to its configuration before.
func serveOn(t *testing.T, h *faults.Host, b *backend, changes ...func(*transport.ServerConfig)) (stop func()) {
	t.Helper()
	l, err := h.Listen(t.Context(), h.Name()+":7420")
	if err != nil {
		t.Fatal(err)
	}
	cfg := transport.ServerConfig{
		Listener: l, Sessions: b, Peer: peers{}, AcceptRaft: func(mux.Hello) error { return nil },
		Status: func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			return &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Cluster: cluster.String()}}, nil
		},
	}
	for _, change := range changes {
		change(&cfg)
	}
	s := transport.NewServer(cfg)
	s.Start()
	return func() {
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("closing %s: %v", h.Name(), err)
		}
	}
}

func logTo(log *lockedBuffer) func(*transport.ServerConfig) {
	return func(cfg *transport.ServerConfig) { cfg.Log = slog.New(slog.NewTextHandler(log, nil)) }
}
