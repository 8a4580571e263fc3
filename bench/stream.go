package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The flow control windows of package transport.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// echoStream is a bidirectional stream that sends back each message.
var echoStream = grpc.StreamDesc{
	StreamName: "Echo", ServerStreams: true, ClientStreams: true,
	Handler: func(_ any, stream grpc.ServerStream) error {
		for {
			var msg wrapperspb.BytesValue
			if err := stream.RecvMsg(&msg); err != nil {
				return err
			}
			if err := stream.SendMsg(&msg); err != nil {
				return err
			}
		}
	},
}

const echoService = "coordd.bench.Echo"

// Streamer is the role that echoes the messages of gRPC streams.
type Streamer struct {
	Base
	server *grpc.Server
	run    sync.WaitGroup
}

// Start begins to listen.
func (s *Streamer) Start(_ None, addr *string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.server = grpc.NewServer(grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow), grpc.WaitForHandlers(true))
	s.server.RegisterService(&grpc.ServiceDesc{ServiceName: echoService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{echoStream}}, nil)
	s.run.Go(func() { _ = s.server.Serve(l) }) // it ends with an error always
	*addr = l.Addr().String()
	return nil
}

func (s *Streamer) close() {
	if s.server != nil {
		s.server.Stop()
	}
	s.run.Wait()
}

// streams is a target whose workers share streams, each on its own connection.
type streams struct {
	open []*stream
	run  sync.WaitGroup
}

// stream sends the packets of its workers, which begin with the worker's index:
// each in a message of its own or, coalesced, together with all that wait while
// the message before it is being sent, as package transport does.
type stream struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
	wake   chan struct{} // has room for one; nil: not coalesced
	ended  chan struct{} // closed when nothing is received any more

	mu      sync.Mutex // guards waiting and unsent, and the sending where not coalesced
	waiting []chan struct{}
	unsent  []byte
}

func openStreams(l Load) (*streams, error) {
	s := &streams{}
	for range min(l.Conns, l.Workers) {
		one, err := openStream(l)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.open = append(s.open, one)
		s.run.Go(one.receive)
		if one.wake != nil {
			s.run.Go(one.send)
		}
	}
	return s, nil
}

func openStream(l Load) (*stream, error) {
	conn, err := grpc.NewClient("passthrough:///"+l.Addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	opened, err := conn.NewStream(ctx, &echoStream, "/"+echoService+"/"+echoStream.StreamName)
	if err != nil {
		cancel()
		return nil, errors.Join(err, conn.Close())
	}
	s := &stream{conn: conn, stream: opened, cancel: cancel, ended: make(chan struct{})}
	if l.Kind == "coalesced" {
		s.wake = make(chan struct{}, 1)
	}
	return s, nil
}

func (s *streams) worker(_ context.Context, i int) (worker, error) {
	one := s.open[i%len(s.open)]
	answered := make(chan struct{}, 1)
	one.mu.Lock()
	b := make([]byte, packet)
	binary.BigEndian.PutUint32(b, uint32(len(one.waiting)))
	one.waiting = append(one.waiting, answered)
	one.mu.Unlock()
	ping := func(ctx context.Context) error {
		if err := one.queue(b); err != nil {
			return err
		}
		select {
		case <-answered:
			return nil
		case <-one.ended:
			return errors.New("the stream has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		if err := ping(ctx); err != nil {
			return 0, err
		}
		took := time.Since(began)
		return took, ping(ctx)
	}, nil
}

// queue sends b, or leaves it to send.
func (s *stream) queue(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		return s.stream.SendMsg(&wrapperspb.BytesValue{Value: b})
	}
	s.unsent = append(s.unsent, b...)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

func (s *stream) send() {
	for {
		select {
		case <-s.wake:
		case <-s.ended:
			return
		}
		s.mu.Lock()
		b := s.unsent
		s.unsent = nil
		s.mu.Unlock()
		if len(b) > 0 && s.stream.SendMsg(&wrapperspb.BytesValue{Value: b}) != nil {
			return // the receiver ends too
		}
	}
}

func (s *stream) receive() {
	defer close(s.ended)
	for {
		var msg wrapperspb.BytesValue
		if s.stream.RecvMsg(&msg) != nil {
			return
		}
		s.mu.Lock()
		waiting := s.waiting
		s.mu.Unlock()
		for b := msg.Value; len(b) >= packet; b = b[packet:] {
			waiting[binary.BigEndian.Uint32(b)] <- struct{}{}
		}
	}
}

func (s *streams) close() error {
	var errs []error
	for _, one := range s.open {
		one.cancel()
		errs = append(errs, one.conn.Close())
	}
	s.run.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("streams: %w", err)
	}
	return nil
}
