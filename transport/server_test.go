package transport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/mux"
)

func clientConn(t testing.TB, addr string, tls *transport.TLS) *grpc.ClientConn {
	t.Helper()
	cc, err := transport.NewClientConn(addr, tls, transport.TCP())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

type rawStream = grpc.BidiStreamingClient[coorddv1.SessionRequest, coorddv1.SessionResponse]

// rawSession begins a stream without saying anything.
func rawSession(t testing.TB, addr string) rawStream {
	t.Helper()
	stream, err := coorddv1.NewCoorddClient(clientConn(t, addr, nil)).Session(timeout(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func opening() *coorddv1.SessionRequest {
	id := leases.NewID()
	return &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:]}}
}

func calls(c ...*coorddv1.Call) *coorddv1.SessionRequest { return &coorddv1.SessionRequest{Calls: c} }

func renewal(id uint64) *coorddv1.Call {
	return &coorddv1.Call{Id: id, Call: &coorddv1.Call_Renew{Renew: &coorddv1.Renew{Held: []*coorddv1.Held{{Name: "a", Token: 1}}}}}
}

// ending reads the stream to its end and returns its final status, which the
// gRPC status must repeat.
func ending(t *testing.T, stream rawStream) error {
	t.Helper()
	var last error
	for {
		r, err := stream.Recv()
		if err != nil {
			if last == nil && !errors.Is(err, io.EOF) {
				return transport.FromGRPC(err)
			}
			if got := transport.FromGRPC(err); last == nil || got.Error() != last.Error() {
				t.Errorf("the stream's gRPC status is %v, its last message's %v", got, last)
			}
			return last
		}
		if last = transport.FromStatus(r.Status); last != nil && (len(r.Replies) > 0 || r.Opened != nil) {
			t.Errorf("the last message is %v, want a status alone", r)
		}
	}
}

func TestBrokenRulesEndTheStream(t *testing.T) {
	n := serve(t, &backend{})
	many := make([]*coorddv1.Call, transport.MaxCalls+1)
	for i := range many {
		many[i] = renewal(uint64(i + 1))
	}
	long := renewal(1)
	long.GetRenew().Held[0].Name = strings.Repeat("n", 2<<20)
	zeros := opening()
	zeros.Open.Session = make([]byte, 16)
	short := opening()
	short.Open.Session = short.Open.Session[:15]
	foreign := opening()
	foreign.Open.Cluster = bytes.Repeat([]byte{9}, 16)
	halfPinned := opening()
	halfPinned.Open.Cluster = []byte{9}
	both := opening()
	both.Calls = []*coorddv1.Call{renewal(1)}
	for _, c := range []struct {
		name string
		sent []*coorddv1.SessionRequest
		want error
		says string
	}{
		{"no Open", []*coorddv1.SessionRequest{calls(renewal(1))}, leases.ErrInvalid, "an Open and nothing else"},
		{"an empty first message", []*coorddv1.SessionRequest{{}}, leases.ErrInvalid, "an Open and nothing else"},
		{"calls beside the Open", []*coorddv1.SessionRequest{both}, leases.ErrInvalid, "an Open and nothing else"},
		{"a second Open", []*coorddv1.SessionRequest{opening(), opening()}, leases.ErrInvalid, "a second Open"},
		{"no session id", []*coorddv1.SessionRequest{zeros}, leases.ErrInvalid, "session"},
		{"a short session id", []*coorddv1.SessionRequest{short}, leases.ErrInvalid, "15 bytes"},
		{"a short cluster id", []*coorddv1.SessionRequest{halfPinned}, leases.ErrInvalid, "cluster"},
		{"another cluster", []*coorddv1.SessionRequest{foreign}, leases.ErrWrongCluster, cluster.String()},
		{"an id of zero", []*coorddv1.SessionRequest{opening(), calls(renewal(0))}, leases.ErrInvalid, "call id"},
		{"an id twice", []*coorddv1.SessionRequest{opening(), calls(renewal(5)), calls(renewal(5))}, leases.ErrInvalid, "greater than 5"},
		{"an id that goes back", []*coorddv1.SessionRequest{opening(), calls(renewal(5), renewal(4))}, leases.ErrInvalid, "greater than 5"},
		{"too many calls", []*coorddv1.SessionRequest{opening(), calls(many...)}, leases.ErrInvalid, "at most 512 calls"},
		{"a message that is too long", []*coorddv1.SessionRequest{opening(), calls(long)}, leases.ErrExhausted, "1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Without the client's own bound on what it sends.
			cc := clientConn(t, n.addr, nil)
			stream, err := coorddv1.NewCoorddClient(cc).Session(timeout(t, 20*time.Second), grpc.MaxCallSendMsgSize(8<<20))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range c.sent {
				if err := stream.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			if err := ending(t, stream); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
		})
	}
}

// anything is sent as the bytes that it is.
type anything struct{}

func (anything) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (anything) Unmarshal([]byte, any) error   { return nil }
func (anything) Name() string                  { return "proto" }

func TestUndecodableMessagesEndTheStream(t *testing.T) {
	n := serve(t, &backend{})
	acquire := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff\xfe")
	call := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), acquire)
	badUTF8 := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), call)
	for name, msg := range map[string][]byte{"garbage": {0xff, 0xff, 0xff}, "a name that is not UTF-8": badUTF8} {
		cc := clientConn(t, n.addr, nil)
		desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
		stream, err := cc.NewStream(timeout(t, 10*time.Second), desc, coorddv1.Coordd_Session_FullMethodName, grpc.ForceCodec(anything{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(msg); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			err = stream.RecvMsg(nil)
		}
		if got := transport.FromGRPC(err); !strings.Contains(got.Error(), "failed to unmarshal the received message") {
			t.Errorf("%s: got %v, want it to say so", name, got)
		}
	}
	if _, err := open(t, nil, n.addr).Renew(timeout(t, 10*time.Second), []leases.Held{{Name: "a", Token: 1}}); err != nil {
		t.Errorf("the node afterwards: %v", err)
	}
}

func TestBadCallsAreAnswered(t *testing.T) {
	n := serve(t, &backend{
		acquire: func(context.Context, leases.Claim) (leases.Grant, error) {
			t.Error("a bad acquire came through")
			return leases.Grant{}, nil
		},
		reclaim: func(context.Context, uint32, []leases.Claimed) ([]error, error) {
			t.Error("a bad reclaim came through")
			return nil, nil
		},
	})
	id := bytes.Repeat([]byte{1}, 16)
	acquire := func(change func(*coorddv1.Acquire)) *coorddv1.Call {
		a := &coorddv1.Acquire{Name: "a", Attempt: id, TtlMs: 5000}
		change(a)
		return &coorddv1.Call{Call: &coorddv1.Call_Acquire{Acquire: a}}
	}
	renew := func(held ...*coorddv1.Held) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Renew{Renew: &coorddv1.Renew{Held: held}}}
	}
	transfer := func(held *coorddv1.Held, to []byte) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Transfer{Transfer: &coorddv1.Transfer{Held: held, To: to}}}
	}
	// One bad lease behind a good one.
	claimed := func(change func(*coorddv1.Claimed)) *coorddv1.Call {
		bad := &coorddv1.Claimed{Held: &coorddv1.Held{Name: "a", Token: 1}, TtlMs: 5000}
		good := proto.CloneOf(bad)
		change(bad)
		return &coorddv1.Call{Call: &coorddv1.Call_Reclaim{Reclaim: &coorddv1.Reclaim{Epoch: 2, Claimed: []*coorddv1.Claimed{good, bad}}}}
	}
	reclaim := func(epoch uint32, n int) *coorddv1.Call {
		c := claimed(func(*coorddv1.Claimed) {})
		r := c.GetReclaim()
		r.Epoch, r.Claimed = epoch, slices.Repeat(r.Claimed[:1], n)
		return c
	}
	cases := []struct {
		name, field string
		call        *coorddv1.Call
	}{
		{"no name", "name", acquire(func(a *coorddv1.Acquire) { a.Name = "" })},
		{"a long name", "name", acquire(func(a *coorddv1.Acquire) { a.Name = strings.Repeat("n", 513) })},
		{"a reserved name", "name", acquire(func(a *coorddv1.Acquire) { a.Name = "@a" })},
		{"a name with a newline", "name", acquire(func(a *coorddv1.Acquire) { a.Name = "a\nb" })},
		{"no attempt", "attempt", acquire(func(a *coorddv1.Acquire) { a.Attempt = nil })},
		{"a long attempt", "attempt", acquire(func(a *coorddv1.Acquire) { a.Attempt = make([]byte, 17) })},
		{"an attempt of zeros", "attempt", acquire(func(a *coorddv1.Acquire) { a.Attempt = make([]byte, 16) })},
		{"no TTL", "ttl", acquire(func(a *coorddv1.Acquire) { a.TtlMs = 0 })},
		{"a long TTL", "ttl", acquire(func(a *coorddv1.Acquire) { a.TtlMs = 300_001 })},
		{"a long label", "owner label", acquire(func(a *coorddv1.Acquire) { a.Owner = &coorddv1.Owner{Label: strings.Repeat("l", 129)} })},
		{"long attributes", "attributes", acquire(func(a *coorddv1.Acquire) { a.Attributes = make([]byte, 513) })},
		{"nothing to renew", "held", renew()},
		{"too much to renew", "held", renew(make([]*coorddv1.Held, transport.MaxHeld+1)...)},
		{"a renewal without a name", "name", renew(&coorddv1.Held{Token: 1})},
		{"a renewal without a token", "token", renew(&coorddv1.Held{Name: "a"})},
		{"a token out of range", "token", renew(&coorddv1.Held{Name: "a", Token: uint64(tokens.Max) + 1})},
		{"nothing to reclaim", "claimed", reclaim(2, 0)},
		{"too much to reclaim", "claimed", reclaim(2, transport.MaxClaimed+1)},
		{"a reclaim without an epoch", "epoch", reclaim(0, 1)},
		{"a reclaim in an epoch out of range", "epoch", reclaim(tokens.MaxEpoch+1, 1)},
		{"a reclaim of nothing in particular", "name", claimed(func(c *coorddv1.Claimed) { c.Held = nil })},
		{"a reclaim without a name", "name", claimed(func(c *coorddv1.Claimed) { c.Held.Name = "" })},
		{"a reclaim of a reserved name", "name", claimed(func(c *coorddv1.Claimed) { c.Held.Name = "@a" })},
		{"a reclaim without a token", "token", claimed(func(c *coorddv1.Claimed) { c.Held.Token = 0 })},
		{"a reclaim of a token out of range", "token", claimed(func(c *coorddv1.Claimed) { c.Held.Token = uint64(tokens.Max) + 1 })},
		{"a reclaim without a TTL", "ttl", claimed(func(c *coorddv1.Claimed) { c.TtlMs = 0 })},
		{"a reclaim with a long TTL", "ttl", claimed(func(c *coorddv1.Claimed) { c.TtlMs = 300_001 })},
		{"a reclaim with a long host", "owner host", claimed(func(c *coorddv1.Claimed) { c.Owner = &coorddv1.Owner{Host: strings.Repeat("h", 129)} })},
		{"a reclaim with long attributes", "attributes", claimed(func(c *coorddv1.Claimed) { c.Attributes = make([]byte, 513) })},
		{"a reclaim of before 1970", "acquired at", claimed(func(c *coorddv1.Claimed) { c.AcquiredAtUnixMs = -1 })},
		{"a reclaim of after 9999", "acquired at", claimed(func(c *coorddv1.Claimed) { c.AcquiredAtUnixMs = 1<<63 - 1 })},
		{"a release of nothing", "name", &coorddv1.Call{Call: &coorddv1.Call_Release{Release: &coorddv1.Release{}}}},
		{"a transfer of nothing", "name", transfer(nil, id)},
		{"a transfer without a token", "token", transfer(&coorddv1.Held{Name: "a"}, id)},
		{"a transfer to nobody", "to", transfer(&coorddv1.Held{Name: "a", Token: 1}, nil)},
		{"a transfer to zeros", "to", transfer(&coorddv1.Held{Name: "a", Token: 1}, make([]byte, 16))},
		{"a withdrawal of nothing", "attempt", &coorddv1.Call{Call: &coorddv1.Call_Withdraw{Withdraw: &coorddv1.Withdraw{Name: "a"}}}},
		{"a withdrawal without a name", "name", &coorddv1.Call{Call: &coorddv1.Call_Withdraw{Withdraw: &coorddv1.Withdraw{Attempt: id}}}},
		{"a call of no kind", "call", &coorddv1.Call{}},
	}
	stream := rawSession(t, n.addr)
	send := func(m *coorddv1.SessionRequest) {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(opening())
	if r, err := stream.Recv(); err != nil || r.Opened == nil {
		t.Fatalf("got %v, %v, want Opened", r, err)
	}
	for i, c := range cases {
		c.call.Id = uint64(10 * (i + 1))
		send(calls(c.call))
		r, err := stream.Recv()
		if err != nil || len(r.Replies) != 1 || r.Replies[0].Id != c.call.Id {
			t.Fatalf("%s: got %v, %v, want one reply", c.name, r, err)
		}
		var invalid *leases.InvalidError
		if err := transport.FromStatus(r.Replies[0].Status); !errors.As(err, &invalid) || invalid.Field != c.field || invalid.Bounds == "" {
			t.Errorf("%s: got %v, want it to say that %s is invalid, and the bounds", c.name, err, c.field)
		}
	}
	send(calls(renewal(1000)))
	if r, err := stream.Recv(); err != nil || transport.FromStatus(r.Replies[0].Status) != nil {
		t.Errorf("a good call afterwards: got %v, %v", r, err)
	}
}

func TestUnaryCallsHaveTypedErrors(t *testing.T) {
	ctx := timeout(t, 10*time.Second)
	want := &leases.NotLeaderError{Node: "n1", Leader: "127.0.0.1:1"}
	n := serve(t, &backend{}, func(cfg *transport.ServerConfig) {
		cfg.Status = func(_ context.Context, r *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			if r.Name == "panic" {
				panic("ouch")
			}
			return nil, want
		}
	})
	client := coorddv1.NewCoorddClient(clientConn(t, n.addr, nil))
	_, err := client.Status(ctx, &coorddv1.StatusRequest{})
	var got *leases.NotLeaderError
	if !errors.As(err, &got) || *got != *want {
		t.Errorf("got %v, want %v", err, want)
	}
	if _, err := client.Status(ctx, &coorddv1.StatusRequest{Name: "@a"}); !errors.Is(err, leases.ErrInvalid) {
		t.Errorf("a bad name: got %v, want invalid", err)
	}
	var internal *transport.InternalError
	if _, err := client.Status(ctx, &coorddv1.StatusRequest{Name: "panic"}); !errors.As(err, &internal) || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("a panic: got %v, want an internal error that says ouch", err)
	}
	if r, err := peerv1.NewPeerClient(clientConn(t, n.addr, nil)).Hello(ctx, &peerv1.HelloRequest{}); err != nil || r.Version != "test" {
		t.Errorf("the peer service: got %v, %v", r, err)
	}
	if _, err := peerv1.NewPeerClient(clientConn(t, n.addr, nil)).Join(ctx, &peerv1.JoinRequest{}); !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "another release") {
		t.Errorf("a call that the node does not know: got %v, want unavailable", err)
	}
}

func TestUnaryCallsSayWhetherTheyLeft(t *testing.T) {
	entered := make(chan struct{}, 1)
	n := serve(t, &backend{}, func(cfg *transport.ServerConfig) {
		cfg.Status = func(ctx context.Context, _ *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	for name, addr := range map[string]string{"refused": dead(t), "hanging": silent(t)} {
		_, err := coorddv1.NewCoorddClient(clientConn(t, addr, nil)).Status(timeout(t, 100*time.Millisecond), &coorddv1.StatusRequest{})
		if !errors.Is(err, leases.ErrUnavailable) || strings.Contains(err.Error(), "rpc error") {
			t.Errorf("%s: got %v, want unavailable", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	_, err := coorddv1.NewCoorddClient(clientConn(t, n.addr, nil)).Status(ctx, &coorddv1.StatusRequest{})
	if !errors.Is(err, leases.ErrUnknownOutcome) || errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("given up on the way: got %v, want an unknown outcome", err)
	}
	if _, ok := grpcstatus.FromError(err); ok {
		t.Errorf("got the gRPC status %v, want an error of package leases", err)
	}
}

func TestStockClientsGetAStatus(t *testing.T) {
	n := serve(t, &backend{}, func(cfg *transport.ServerConfig) {
		cfg.Status = func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			return nil, leases.ErrNoQuorum
		}
	})
	err := clientConn(t, n.addr, nil).Invoke(timeout(t, 10*time.Second), "/coordd.v1.Coordd/Nonsense", &coorddv1.StatusRequest{}, &coorddv1.StatusResponse{})
	if !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("an unknown method: got %v, want unavailable", err)
	}
	if code := grpcstatus.Code(transport.ToGRPC(leases.ErrNoQuorum)); code != codes.Unavailable {
		t.Errorf("no quorum: got %v, want Unavailable", code)
	}
}

func TestServerCloseWithoutStart(t *testing.T) {
	n := launch(t, &backend{})
	n.stop()
	if _, err := net.Dial("tcp", n.addr); err == nil {
		t.Error("the port is still open")
	}
	if err := n.Close(t.Context()); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

func TestServerCloseIsBounded(t *testing.T) {
	b := &backend{}
	n := serve(t, b)
	s := open(t, nil, n.addr)
	stuck, entered := make(chan struct{}), make(chan struct{})
	b.acquire = func(context.Context, leases.Claim) (leases.Grant, error) {
		close(entered)
		<-stuck // whatever its context says
		return leases.Grant{}, leases.ErrUnavailable
	}
	go s.Acquire(context.Background(), claim("a"))
	within(t, "the acquire's arrival", entered)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := n.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not end in time") {
		t.Errorf("got %v, want an error that says what did not end", err)
	}
	close(stuck)
	n.stop()
	within(t, "Done", s.Done())
}

// A client that is stopped, or plays dead, keeps nobody from closing.
func TestServerCloseWithIdleAndDeafClients(t *testing.T) {
	n := serve(t, &backend{})
	deaf := rawSession(t, n.addr)
	if err := deaf.Send(opening()); err != nil {
		t.Fatal(err)
	}
	mute := rawSession(t, n.addr) // never opens its session
	defer mute.CloseSend()
	if _, err := dial(t, transport.DialConfig{Addrs: []string{n.addr}}).Status(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	n.stop()
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestRaftConnections(t *testing.T) {
	n := serve(t, &backend{}, func(cfg *transport.ServerConfig) {
		cfg.AcceptRaft = func(h mux.Hello) error {
			if h.To != "n1.1" {
				return errors.New("this is n1.1")
			}
			return nil
		}
	})
	ctx := timeout(t, 10*time.Second)
	_, err := mux.DialRaft(ctx, transport.TCP().Dial, n.addr, nil, mux.Hello{Cluster: cluster, Group: cluster, To: "n1.0", From: "n2.1"})
	var refused *mux.RefusedError
	if !errors.As(err, &refused) || refused.Reason != "this is n1.1" {
		t.Errorf("for another server: got %v, want it refused", err)
	}
	conn, err := mux.DialRaft(ctx, transport.TCP().Dial, n.addr, nil, mux.Hello{Cluster: cluster, Group: cluster, To: "n1.1", From: "n2.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := n.Raft().Accept()
	if err != nil {
		t.Fatal(err)
	}
	reading := make(chan error, 1)
	go func() {
		_, err := accepted.Read(make([]byte, 1))
		reading <- err
	}()
	n.stop()
	if err := within(t, "the end of the read", reading); err == nil {
		t.Error("a Raft connection outlives the server")
	}
	if _, err := n.Raft().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept afterwards: got %v, want closed", err)
	}
}
