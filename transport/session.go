package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxUnsent bounds the calls that wait for their sending.
const maxUnsent = 131072

// session is the client's end of a Session stream. One goroutine sends what the
// callers have queued, as many calls in a message as there are, one receives.
type session struct {
	conn   *Conn
	link   *link
	stream grpc.BidiStreamingClient[coorddv1.SessionRequest, coorddv1.SessionResponse]
	cancel context.CancelCauseFunc // ends the stream
	info   leases.Info
	on     func(leases.Event)
	wake   chan struct{} // holds an element where there may be something to send
	done   chan struct{} // closed when err is set

	mu       sync.Mutex // guards what follows
	err      error      // why it has ended
	lastID   uint64
	unsent   []*call // acquires
	urgent   []*call // all else, which goes first
	inFlight map[uint64]*call
}

var _ leases.Session = (*session)(nil)

// call is one request, and where its caller waits or what is called with its answer.
type call struct {
	msg    *coorddv1.Call // its id is set when it is sent
	answer chan answer    // takes one element
	done   func(answer)   // instead of answer; it must not block
	gone   bool           // nobody waits any more; guarded by the session's mu
}

func (c *call) tell(a answer) {
	if c.done != nil {
		c.done(a)
		return
	}
	c.answer <- a
}

type answer struct {
	reply *coorddv1.Reply
	err   error // of the conversation
}

// open begins a conversation over l.
func (c *Conn) open(ctx context.Context, l *link, id leases.ID, on func(leases.Event)) (*session, error) {
	// The stream outlives ctx, which bounds its beginning only.
	streamCtx, cancel := context.WithCancelCause(c.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	stream, opened, err := c.begin(streamCtx, l, id)
	if !stop() || err != nil {
		cancel(nil)
		return nil, l.unopened(ctx, err)
	}
	s := &session{
		conn: c, link: l, stream: stream, cancel: cancel, on: on,
		wake: make(chan struct{}, 1), done: make(chan struct{}), inFlight: make(map[uint64]*call),
	}
	if s.info, err = fromOpened(opened); err == nil {
		err = c.admit(s.info.Cluster, true)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if !c.launch(s) {
		cancel(nil)
		return nil, errConnClosed
	}
	return s, nil
}

// begin opens the stream and reads the first answer.
func (c *Conn) begin(ctx context.Context, l *link, id leases.ID) (grpc.BidiStreamingClient[coorddv1.SessionRequest, coorddv1.SessionResponse], *coorddv1.Opened, error) {
	stream, err := coorddv1.NewCoorddClient(l.cc).Session(ctx)
	if err != nil {
		return nil, nil, err
	}
	// A failed Send says EOF; what it was is for Recv to say.
	stream.Send(&coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:], Cluster: c.pin()}})
	first, err := stream.Recv()
	switch {
	case err != nil:
		return nil, nil, err
	case first.GetStatus().GetCode() != coorddv1.Code_CODE_UNSPECIFIED:
		return nil, nil, FromStatus(first.Status)
	case first.Opened == nil:
		return nil, nil, &leases.UnavailableError{Reason: "the node's first answer does not open the conversation"}
	}
	return stream, first.Opened, nil
}

// unopened returns what an error in opening a conversation means; nil means
// that ctx ended first.
func (l *link) unopened(ctx context.Context, err error) error {
	if errors.Is(err, leases.ErrClosed) || errors.Is(err, leases.ErrUnknownOutcome) {
		// It is not this side that is closed, and there was nothing to carry out.
		return &leases.UnavailableError{Reason: err.Error()}
	}
	if _, fromGRPC := status.FromError(err); err != nil && !fromGRPC {
		return err // the node's own word
	}
	return l.unreached(ctx, err)
}

// Info is what the node told when the conversation began.
func (s *session) Info() leases.Info { return s.info }

// Done is closed when the conversation has ended.
func (s *session) Done() <-chan struct{} { return s.done }

// Err tells why the conversation has ended; nil while it has not.
func (s *session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the conversation. It does not wait for a node that hangs.
func (s *session) Close() error {
	s.end(fmt.Errorf("%w: the conversation with node %s was closed", leases.ErrClosed, s.info.Node))
	return nil
}

// Acquire is described at leases.Session.
func (s *session) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	a, err := toAcquire(c)
	if err != nil {
		return leases.Grant{}, err
	}
	r, err := s.do(ctx, &coorddv1.Call{Call: &coorddv1.Call_Acquire{Acquire: a}})
	if err != nil {
		return leases.Grant{}, err
	}
	return fromGranted(r.Granted)
}

// StartAcquire is Acquire without a goroutine that waits in it. After true, done
// gets the answer, once, at the latest when the conversation has ended; it is
// called by the goroutine that receives, or that ends the conversation, and must
// not block. After false nothing has begun, and Acquire tells why.
func (s *session) StartAcquire(c leases.Claim, done func(leases.Grant, error)) bool {
	a, err := toAcquire(c)
	if err != nil {
		return false
	}
	return s.start(&coorddv1.Call{Call: &coorddv1.Call_Acquire{Acquire: a}}, func(a answer) {
		if a.err != nil {
			done(leases.Grant{}, a.err)
			return
		}
		done(fromGranted(a.reply.Granted))
	})
}

func (s *session) start(msg *coorddv1.Call, done func(answer)) bool {
	return s.queue(context.Background(), &call{msg: msg, done: done}) == nil
}

// Withdraw is described at leases.Session.
func (s *session) Withdraw(ctx context.Context, name string, id leases.ID) error {
	if err := attempt(name, id); err != nil {
		return err
	}
	_, err := s.do(ctx, &coorddv1.Call{Call: &coorddv1.Call_Withdraw{Withdraw: &coorddv1.Withdraw{Name: name, Attempt: id[:]}}})
	return err
}

// Release is described at leases.Session.
func (s *session) Release(ctx context.Context, h leases.Held) error {
	if err := h.Validate(); err != nil {
		return err
	}
	_, err := s.do(ctx, &coorddv1.Call{Call: &coorddv1.Call_Release{Release: &coorddv1.Release{Held: toHeld(h)}}})
	return err
}

// Transfer is described at leases.Session.
func (s *session) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	if err := h.Validate(); err != nil {
		return false, err
	}
	if err := heir(to); err != nil {
		return false, err
	}
	r, err := s.do(ctx, &coorddv1.Call{Call: &coorddv1.Call_Transfer{Transfer: toTransfer(h, to)}})
	if err != nil {
		return false, err
	}
	return r.Transferred, nil
}

// Renew is described at leases.Session. More leases than one call carries go in
// several, and if one of these fails nothing is known of any.
func (s *session) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	var msgs []*coorddv1.Call
	for part := range slices.Chunk(held, maxHeld) {
		renew := &coorddv1.Renew{Held: make([]*coorddv1.Held, len(part))}
		for i, h := range part {
			if err := h.Validate(); err != nil {
				return nil, err
			}
			renew.Held[i] = toHeld(h)
		}
		msgs = append(msgs, &coorddv1.Call{Call: &coorddv1.Call_Renew{Renew: renew}})
	}
	return s.each(ctx, msgs)
}

// Reclaim is described at leases.Session. It goes in calls as Renew does.
func (s *session) Reclaim(ctx context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	if err := reclaimEpoch(epoch); err != nil {
		return nil, err
	}
	var msgs []*coorddv1.Call
	for part := range slices.Chunk(held, maxClaimed) {
		reclaim := &coorddv1.Reclaim{Epoch: epoch, Claimed: make([]*coorddv1.Claimed, len(part))}
		for i, c := range part {
			if err := claimed(c); err != nil {
				return nil, err
			}
			reclaim.Claimed[i] = toClaimed(c)
		}
		msgs = append(msgs, &coorddv1.Call{Call: &coorddv1.Call_Reclaim{Reclaim: reclaim}})
	}
	return s.each(ctx, msgs)
}

// each makes calls that have a result for each of their leases, and returns all
// results in the leases' order, or the first error of a call.
func (s *session) each(ctx context.Context, msgs []*coorddv1.Call) ([]error, error) {
	calls := make([]*call, len(msgs))
	for i, msg := range msgs {
		calls[i] = newCall(msg)
	}
	if err := s.queue(ctx, calls...); err != nil {
		return nil, err
	}
	var each []error
	for i, c := range calls {
		r, err := s.wait(ctx, c)
		if err != nil {
			for _, c := range calls[i:] {
				s.forget(c)
			}
			return nil, err
		}
		want := len(c.msg.GetRenew().GetHeld()) + len(c.msg.GetReclaim().GetClaimed())
		if len(r.Renewed) != want {
			return nil, &InternalError{fmt.Sprintf("node %s gave %d results for %d leases", s.info.Node, len(r.Renewed), want)}
		}
		for _, st := range r.Renewed {
			each = append(each, FromStatus(st))
		}
	}
	return each, nil
}

func newCall(msg *coorddv1.Call) *call { return &call{msg: msg, answer: make(chan answer, 1)} }

func (s *session) do(ctx context.Context, msg *coorddv1.Call) (*coorddv1.Reply, error) {
	c := newCall(msg)
	if err := s.queue(ctx, c); err != nil {
		return nil, err
	}
	return s.wait(ctx, c)
}

// queue hands calls to the sender, all or none.
func (s *session) queue(ctx context.Context, calls ...*call) error {
	if ctx.Err() != nil {
		return unanswered(ctx, s.info.Node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return &leases.UnavailableError{Reason: fmt.Sprintf("the conversation with node %s has ended: %v", s.info.Node, s.err)}
	}
	if len(s.unsent)+len(s.urgent)+len(calls) > maxUnsent {
		return &leases.ExhaustedError{What: "calls that wait for their sending to node " + s.info.Node, Bound: maxUnsent}
	}
	for _, c := range calls {
		if c.msg.GetAcquire() != nil {
			s.unsent = append(s.unsent, c)
		} else {
			s.urgent = append(s.urgent, c)
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

func (s *session) wait(ctx context.Context, c *call) (*coorddv1.Reply, error) {
	select {
	case a := <-c.answer:
		return a.reply, a.err
	case <-ctx.Done():
		s.forget(c)
		return nil, unanswered(ctx, s.info.Node)
	}
}

func unanswered(ctx context.Context, node string) error {
	return fmt.Errorf("%w: no answer from node %s so far: %w", leases.ErrUnknownOutcome, node, context.Cause(ctx))
}

// forget lets the answer to c, if one comes, be ignored; unsent, c stays so.
func (s *session) forget(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.gone = true
	delete(s.inFlight, c.msg.Id)
}

func (s *session) send() {
	for {
		msg := s.take()
		if msg == nil {
			select {
			case <-s.wake:
				// Who was answered in the same message as the caller that woke this
				// goroutine is about to call again: its call goes along.
				runtime.Gosched()
				continue
			case <-s.done:
				return
			}
		}
		if s.stream.Send(msg) != nil {
			return // the receiver hears why
		}
	}
}

// take makes a message of what is queued, and counts it as in flight; nil: nothing is.
func (s *session) take() *coorddv1.SessionRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	queued := len(s.urgent) + len(s.unsent)
	if queued == 0 {
		return nil
	}
	msg, size := &coorddv1.SessionRequest{Calls: make([]*coorddv1.Call, 0, min(queued, maxCalls))}, 0
	for _, queue := range []*[]*call{&s.urgent, &s.unsent} {
		for len(*queue) > 0 && len(msg.Calls) < maxCalls && size < fullMessage {
			c := (*queue)[0]
			(*queue)[0], *queue = nil, (*queue)[1:]
			if c.gone {
				continue
			}
			s.lastID++
			c.msg.Id = s.lastID
			s.inFlight[c.msg.Id] = c
			size += proto.Size(c.msg)
			msg.Calls = append(msg.Calls, c.msg)
		}
	}
	if len(msg.Calls) == 0 {
		return nil
	}
	return msg
}

func (s *session) receive() {
	for {
		msg, err := s.stream.Recv()
		if err == nil {
			for _, e := range msg.Events {
				if e := fromEvent(e); e != nil && s.on != nil {
					s.on(e)
				}
			}
			for _, r := range msg.Replies {
				s.deliver(r)
			}
			err = FromStatus(msg.Status)
		} else {
			err = s.broken(err)
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

func (s *session) deliver(r *coorddv1.Reply) {
	s.mu.Lock()
	c := s.inFlight[r.Id]
	delete(s.inFlight, r.Id)
	s.mu.Unlock()
	if c != nil {
		c.tell(answer{r, FromStatus(r.Status)})
	}
}

// broken says why the stream ended without a word of the node's.
func (s *session) broken(err error) error {
	if s.conn.ctx.Err() != nil {
		return errConnClosed
	}
	if errors.Is(err, io.EOF) {
		return &leases.UnavailableError{Reason: fmt.Sprintf("node %s ended the conversation", s.info.Node)}
	}
	return &leases.UnavailableError{Reason: fmt.Sprintf("the connection to node %s broke: %s", s.info.Node, status.Convert(err).Message())}
}

// end ends the conversation for the reason err, unless it has ended before.
// What was handed to the sender may have arrived.
func (s *session) end(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	sent, unsent := s.inFlight, append(s.unsent, s.urgent...)
	s.inFlight, s.unsent, s.urgent = nil, nil, nil
	s.mu.Unlock()

	s.cancel(err)
	for _, c := range sent {
		c.tell(answer{err: fmt.Errorf("%w: %v", leases.ErrUnknownOutcome, err)})
	}
	for _, c := range unsent {
		c.tell(answer{err: &leases.UnavailableError{Reason: err.Error()}})
	}
	close(s.done)
	s.conn.ended(s, err)
}
