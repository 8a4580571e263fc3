package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/mux"
)

// FuzzPort throws bytes at a node's port. The node stays up.
func FuzzPort(f *testing.F) {
	const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	hello := append([]byte("coordd-raft/1\n\x00\x24"), make([]byte, 36)...)
	for _, seed := range []string{
		"", "P", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x00\x05hello", "coordd-raft/1\n", "coordd-raft/1\n\xff\xff", "coordd-raft/2\n", string(hello), string(hello[:30]),
		http2, http2[:20], http2 + "\x00\x00\x00\x04\x00\x00\x00\x00\x00", http2 + "\xff\xff\xff\x04\x00\x00\x00\x00\x00",
		http2 + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x04\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41",
	} {
		f.Add([]byte(seed))
	}
	n := serve(f, &backend{})
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := n.Raft().Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	f.Cleanup(func() { n.stop(); <-accepted })
	client := coorddv1.NewCoorddClient(clientConn(f, n.addr, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		conn, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(b)
		conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := client.Status(ctx, &coorddv1.StatusRequest{}); err != nil {
			t.Fatalf("the node afterwards: %v", err)
		}
		raft, err := mux.DialRaft(ctx, transport.TCP().Dial, n.addr, nil, mux.Hello{To: "n1"})
		if err != nil {
			t.Fatalf("its Raft afterwards: %v", err)
		}
		raft.Close()
	})
}

// FuzzSession sends messages that are none, or strange ones, in a conversation.
// It ends with an error or goes on, and the node stays up.
func FuzzSession(f *testing.F) {
	id := leases.NewID()
	for _, m := range []*coorddv1.SessionRequest{
		{},
		{Open: &coorddv1.Open{Session: id[:]}},
		calls(renewal(1)), calls(renewal(2), renewal(1)), calls(&coorddv1.Call{Id: 3}),
		calls(&coorddv1.Call{Id: 1, Call: &coorddv1.Call_Acquire{Acquire: &coorddv1.Acquire{Name: "a", Attempt: id[:], TtlMs: 5000, WaitMs: 1<<32 - 1}}}),
		calls(&coorddv1.Call{Id: 1, Call: &coorddv1.Call_Withdraw{Withdraw: &coorddv1.Withdraw{Name: "a", Attempt: id[:]}}}),
		calls(&coorddv1.Call{Id: 1, Call: &coorddv1.Call_Reclaim{Reclaim: &coorddv1.Reclaim{Epoch: 2, Claimed: []*coorddv1.Claimed{
			{Held: &coorddv1.Held{Name: "a", Token: 1}, TtlMs: 5000, Owner: &coorddv1.Owner{Label: "b"}, Attributes: []byte{1}, AcquiredAtUnixMs: 1}, {},
		}}}}),
		calls(&coorddv1.Call{Id: 1, Call: &coorddv1.Call_Release{Release: &coorddv1.Release{}}}),
		calls(&coorddv1.Call{Id: 1, Call: &coorddv1.Call_Transfer{Transfer: &coorddv1.Transfer{Held: &coorddv1.Held{Name: "a", Token: 1}, To: id[:]}}}),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Add([]byte("\xff\xff\xff\xff"), true)
	n := serve(f, &backend{})
	cc := clientConn(f, n.addr, nil)
	opening, err := proto.Marshal(opening())
	if err != nil {
		f.Fatal(err)
	}
	closing, err := proto.Marshal(calls(renewal(1), renewal(1)))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, opened bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, coorddv1.Coordd_Session_FullMethodName, grpc.ForceCodec(anything{}))
		if err != nil {
			t.Fatal(err)
		}
		if opened {
			stream.SendMsg(opening)
		}
		stream.SendMsg(b)
		stream.SendMsg(closing) // breaks a rule in any case, so that the stream ends
		for err == nil {
			err = stream.RecvMsg(nil)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Error("the stream did not end")
		}
		if _, err := coorddv1.NewCoorddClient(cc).Status(ctx, &coorddv1.StatusRequest{}); err != nil {
			t.Fatalf("the node afterwards: %v", err)
		}
	})
}

// FuzzUnary makes any call with any bytes for its request. It is answered, with
// the answer or an error of the table, and nothing panics.
func FuzzUnary(f *testing.F) {
	service := transport.NewService(transport.ServiceConfig{
		Backend: &backend{get: func(_ context.Context, name string) (leases.State, error) { return leases.State{Name: name}, nil }},
		Status: func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			return &coorddv1.StatusResponse{}, nil
		},
	})
	f.Cleanup(func() {
		if err := service.Close(context.Background()); err != nil {
			f.Error(err)
		}
	})
	methods := coorddv1.Coordd_ServiceDesc.Methods
	add := func(method string, r proto.Message) {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		for i, m := range methods {
			if m.MethodName == method {
				f.Add(uint8(i), b)
			}
		}
	}
	for _, b := range badRequests() {
		add(b.method, b.request)
	}
	id := leases.NewID().String()
	add("Acquire", &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000, WaitMs: 1<<32 - 1, Owner: &coorddv1.Owner{Label: "b"}, Attributes: []byte{1}})
	add("Renew", &coorddv1.RenewRequest{Name: "a", Session: id, Token: 1})
	add("Reclaim", &coorddv1.ReclaimRequest{Name: "a", Session: id, Token: 1, Epoch: 2, TtlMs: 5000, Owner: &coorddv1.Owner{Label: "b"}, Attributes: []byte{1}, AcquiredAtUnixMs: 1})
	add("Transfer", &coorddv1.TransferRequest{Name: "a", Session: id, Token: 1, To: id})
	f.Fuzz(func(t *testing.T, method uint8, b []byte) {
		m := methods[int(method)%len(methods)]
		undecodable := errors.New("no such message")
		decode := func(r any) error {
			if proto.Unmarshal(b, r.(proto.Message)) != nil {
				return undecodable
			}
			return nil
		}
		resp, err := m.Handler(service, t.Context(), decode, nil)
		switch {
		case err == undecodable:
		case err == nil && resp == nil:
			t.Errorf("%s: neither answer nor error", m.MethodName)
		case err != nil && !errors.Is(transport.FromGRPC(err), leases.ErrInvalid):
			t.Errorf("%s: got %v, want the answer, or what is invalid", m.MethodName, err)
		}
	})
}

// FuzzAnswers: whatever a node answers, a client returns something of a known
// name and a valid token, or an error.
func FuzzAnswers(f *testing.F) {
	node := &answers{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodec(anything{}), grpc.UnknownServiceHandler(node.handle))
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(l) })
	f.Cleanup(func() { s.Stop(); serving.Wait() })
	c := dial(f, transport.DialConfig{Addrs: []string{l.Addr().String()}})
	for _, r := range []proto.Message{
		&coorddv1.GetResponse{Lease: &coorddv1.LeaseStatus{Name: "a", Held: true, Token: 1, Last: &coorddv1.NotHeld{Token: 1, Why: 99}}},
		&coorddv1.ListResponse{Epoch: 1, Leases: []*coorddv1.LeaseStatus{{Name: "a", Held: true, Token: 1 << 60}}},
		&coorddv1.QueueResponse{Waiters: []*coorddv1.Waiter{{Attempt: leases.NewID().String(), WaitingMs: 1 << 63}}},
		&coorddv1.WatchResponse{Revision: 5, Changes: []*coorddv1.Change{{Kind: 300, Name: "a", Token: 1}}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		node.set(b)
		ctx := timeout(t, 20*time.Second)
		check := func(name string, token tokens.Token) {
			if err := (leases.Held{Name: name, Token: token}).Validate(); err != nil {
				t.Error(err)
			}
		}
		if s, err := c.Get(ctx, "a"); err == nil && s.Held {
			check(s.Name, s.Token)
		}
		if p, err := c.List(ctx, "", "", 1); err == nil {
			for _, s := range p.Leases {
				if s.Held {
					check(s.Name, s.Token)
				}
			}
		}
		if q, err := c.Queue(ctx, "a"); err == nil {
			for _, w := range q {
				if w.Attempt.IsZero() || w.Waiting < 0 {
					t.Errorf("got the waiter %+v", w)
				}
			}
		}
		err := c.Watch(ctx, "", leases.Position{}, func(b leases.Batch) error {
			for _, c := range b.Changes {
				check(c.Name, c.Token)
			}
			return nil
		})
		if !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("Watch: got %v, want unavailable at the end", err)
		}
	})
}

// answers answers every call with the same bytes.
type answers struct {
	mu    sync.Mutex // guards bytes
	bytes []byte
}

func (a *answers) set(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes = bytes.Clone(b)
}

func (a *answers) handle(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(nil); err != nil {
		return err
	}
	a.mu.Lock()
	b := a.bytes
	a.mu.Unlock()
	return stream.SendMsg(b)
}

// FuzzStatus: whatever a status says, it becomes an error with a bounded text,
// and that one a status again.
func FuzzStatus(f *testing.F) {
	for _, err := range sentinels {
		b, _ := proto.Marshal(transport.ToStatus(err))
		f.Add(b)
	}
	for _, err := range []error{&leases.HeldError{Name: "a", By: leases.Owner{Label: "b"}, Waiters: 3}, &leases.GraceError{Epoch: 2, FreshIn: time.Minute}} {
		b, _ := proto.Marshal(transport.ToStatus(err))
		f.Add(b)
	}
	f.Add(binary.AppendUvarint([]byte{8}, 1<<40))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := new(coorddv1.Status)
		if proto.Unmarshal(b, s) != nil {
			return
		}
		err := transport.FromStatus(s)
		if (err == nil) != (s.Code == coorddv1.Code_CODE_UNSPECIFIED) {
			t.Fatalf("%v: got the error %v", s, err)
		}
		if err == nil {
			return
		}
		if _, failed := proto.Marshal(transport.ToStatus(err)); failed != nil {
			t.Fatalf("%v: its error has no status: %v", s, failed)
		}
	})
}
