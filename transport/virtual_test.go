package transport_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
			l, err := f.Host(name).Listen(t.Context(), name+":7420")
			if err != nil {
				t.Fatal(err)
			}
			s := transport.NewServer(transport.ServerConfig{
				Listener: l, Sessions: b, Peer: peers{}, AcceptRaft: func(mux.Hello) error { return nil },
				Status: func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
					return nil, leases.ErrUnavailable
				},
			})
			s.Start()
			defer func() {
				if err := s.Close(t.Context()); err != nil {
					t.Errorf("closing %s: %v", name, err)
				}
			}()
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
