package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Bounds of one conversation. An acquire may wait for hours, so one too many is
// refused and never keeps the stream from being read; all else is answered as
// fast as the node can, so there the stream is read no further until it has been.
const (
	maxRenews   = 256             // and reclaims
	maxReturns  = 16384           // releases, transfers, withdrawals and refusals
	openTime    = 5 * time.Second // from a stream's beginning until it is open
	answerTime  = 200 * time.Millisecond
	partingTime = time.Second // for the last message to a client that may not read
)

// errHungUp is how a conversation ends that the client has ended.
var errHungUp = errors.New("the client has ended the conversation")

// converse serves one conversation, from the first message to the last.
func (s *Service) converse(stream grpc.BidiStreamingServer[coorddv1.SessionRequest, coorddv1.SessionResponse]) error {
	ctx, end := context.WithCancelCause(stream.Context())
	c := &conversation{
		Service: s, stream: stream, ctx: ctx, end: end,
		first: make(chan *coorddv1.SessionRequest, 1), opened: make(chan struct{}),
		out:      newOutbox(),
		acquires: make(chan struct{}, s.maxAcquires), renews: make(chan struct{}, maxRenews), returns: make(chan struct{}, maxReturns),
		idle: make(chan struct{}),
	}
	defer end(nil)
	s.running.Go(c.read)
	err := c.open()
	if err == nil {
		err = c.run()
	} else {
		stream.Send(&coorddv1.SessionResponse{Status: ToStatus(err)})
	}
	if err == errHungUp {
		return nil
	}
	return ToGRPC(err)
}

// conversation is the serving end of a Session stream. Its handler's goroutine
// waits for the end, one goroutine reads, one writes, and each call has one
// unless the session can start it.
type conversation struct {
	*Service
	stream grpc.BidiStreamingServer[coorddv1.SessionRequest, coorddv1.SessionResponse]
	ctx    context.Context // ends with the conversation; the calls run under it
	end    context.CancelCauseFunc

	first   chan *coorddv1.SessionRequest // the reader's, for open
	opened  chan struct{}                 // closed when session is set
	session leases.Session
	starter starter // is session; nil where that is none

	out                       *outbox
	acquires, renews, returns chan struct{} // an element per call whose reply has not been taken out
	lastID                    uint64        // the reader's

	mu    sync.Mutex    // guards what follows
	calls int           // that have not returned
	over  bool          // no more calls begin
	idle  chan struct{} // closed when over and calls is 0
}

// open waits for the first message and begins the conversation it asks for.
func (c *conversation) open() error {
	ctx, cancel := context.WithTimeout(c.ctx, openTime)
	defer cancel()
	var msg *coorddv1.SessionRequest
	select {
	case msg = <-c.first:
	case <-c.closing.Done():
		return ErrClosing
	case <-ctx.Done():
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		return &leases.InvalidError{Field: "conversation", Value: "silence", Bounds: fmt.Sprintf("an Open within %v", openTime)}
	}
	if msg.Open == nil || len(msg.Calls) > 0 {
		return &leases.InvalidError{Field: "first message", Value: "no Open, or calls beside it", Bounds: "an Open and nothing else"}
	}
	id, err := leases.IDFromBytes("session", msg.Open.Session)
	if err != nil {
		return err
	}
	if id.IsZero() {
		return &leases.InvalidError{Field: "session", Value: "zeros", Bounds: "16 random bytes"}
	}
	var pinned leases.ID
	if len(msg.Open.Cluster) > 0 {
		if pinned, err = leases.IDFromBytes("cluster", msg.Open.Cluster); err != nil {
			return err
		}
	}
	session, err := c.beginSession(ctx, id)
	if err != nil {
		return err
	}
	if got := session.Info().Cluster; !pinned.IsZero() && pinned != got {
		session.Close()
		return &leases.WrongClusterError{Want: pinned, Got: got}
	}
	c.session = session
	c.starter, _ = session.(starter)
	return nil
}

func (c *conversation) beginSession(ctx context.Context, id leases.ID) (s leases.Session, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, panicked(c.log, "Open", p)
		}
	}()
	s, err = c.backend.Open(ctx, id, c.out.event)
	switch {
	case errors.Is(err, leases.ErrClosed):
		return nil, ErrClosing
	case err != nil && ctx.Err() != nil && c.ctx.Err() == nil:
		// Nothing has begun, so nothing can have been changed.
		return nil, &leases.UnavailableError{Reason: fmt.Sprintf("the node did not open the conversation within %v", openTime)}
	}
	return s, err
}

// run serves the open conversation until it ends, and returns why.
func (c *conversation) run() error {
	written := make(chan struct{})
	c.running.Go(func() {
		defer close(written)
		c.write(&coorddv1.SessionResponse{Opened: toOpened(c.session.Info())})
	})
	close(c.opened)

	var err error
	select {
	case <-c.session.Done():
		if err = c.session.Err(); err == nil || errors.Is(err, leases.ErrClosed) {
			err = ErrClosing
		}
		// The backend knows best what became of the calls: it answers them now.
		c.awaitCalls(answerTime)
	case <-c.closing.Done():
		err = ErrClosing
	case <-c.ctx.Done():
		err = context.Cause(c.ctx)
	}
	c.session.Close()
	c.end(err)
	c.awaitCalls(partingTime)
	last := &coorddv1.SessionResponse{}
	if err != errHungUp {
		last.Status = ToStatus(err)
	}
	c.out.close(last)
	select {
	case <-written:
	case <-c.stream.Context().Done():
	case <-time.After(partingTime):
	}
	if dropped := c.out.droppedEvents(); dropped > 0 {
		c.log.Warn("a client did not read its events; some were dropped", "dropped", dropped)
	}
	return err
}

// begin counts a call in and reports whether it may still begin.
func (c *conversation) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.calls++
	}
	return !c.over
}

func (c *conversation) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.over && c.calls == 0 {
		close(c.idle)
	}
}

// awaitCalls lets no more calls begin, and returns when all have returned or
// after d.
func (c *conversation) awaitCalls(d time.Duration) {
	c.mu.Lock()
	if !c.over && c.calls == 0 {
		close(c.idle)
	}
	c.over = true
	c.mu.Unlock()
	select {
	case <-c.idle:
	case <-time.After(d):
	}
}

func (c *conversation) read() {
	for {
		msg, err := c.stream.Recv()
		switch {
		case errors.Is(err, io.EOF), err != nil && c.stream.Context().Err() != nil:
			c.end(errHungUp)
			return
		case err != nil: // gRPC has told the client, that its message is too long for instance
			c.end(FromGRPC(err))
			return
		}
		select {
		case <-c.opened:
			err = c.take(msg)
		default:
			err = c.takeFirst(msg)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// takeFirst hands the first message over and waits until it has been dealt with.
func (c *conversation) takeFirst(msg *coorddv1.SessionRequest) error {
	c.first <- msg
	select {
	case <-c.opened:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

func (c *conversation) write(msg *coorddv1.SessionResponse) {
	for last := false; ; {
		if msg != nil {
			if err := c.stream.Send(msg); err != nil {
				c.end(errHungUp)
				return
			}
		}
		if last {
			return
		}
		if msg, last = c.out.take(); msg != nil {
			continue
		}
		select {
		case <-c.out.wake:
		case <-c.stream.Context().Done():
			return
		}
	}
}
