package transport

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxEvents bounds the events that a client has not read; more are dropped.
const maxEvents = 16384

// outbox is what a conversation has to tell its client, gathered into as few
// messages as the client reads. Its parts are bounded: replies by the slots
// that the calls occupy until their replies are taken out, events by dropping.
// An event is news of what the client would find out anyway.
type outbox struct {
	wake chan struct{} // holds an element where there may be something new

	mu        sync.Mutex // guards what follows
	replies   []reply
	events    []*coorddv1.Event
	positions map[leases.ID]*coorddv1.Queued // those among events, to be brought up to date
	dropped   uint64
	last      *coorddv1.SessionResponse // comes after all else; nil: there is more to come
}

// reply is an answer and the slot that its call occupies.
type reply struct {
	*coorddv1.Reply
	slot chan struct{}
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), positions: make(map[leases.ID]*coorddv1.Queued)}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) reply(r *coorddv1.Reply, slot chan struct{}) {
	o.mu.Lock()
	o.replies = append(o.replies, reply{r, slot})
	o.mu.Unlock()
	o.signal()
}

// event never blocks. Of the positions of one waiting attempt only the newest
// is kept.
func (o *outbox) event(e leases.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	queued, isQueued := e.(leases.Queued)
	if waiting := o.positions[queued.Attempt]; isQueued && waiting != nil {
		waiting.Position = uint32(max(queued.Position, 0))
		return
	}
	if len(o.events) >= maxEvents {
		o.dropped++
		return
	}
	wire := toEvent(e)
	if wire == nil {
		return
	}
	o.events = append(o.events, wire)
	if isQueued {
		o.positions[queued.Attempt] = wire.GetQueued()
	}
	o.signal()
}

// close lets the writer end after everything that is in the outbox, and last.
func (o *outbox) close(last *coorddv1.SessionResponse) {
	o.mu.Lock()
	o.last = last
	o.mu.Unlock()
	o.signal()
}

// take returns the next message, nil if there is none now, and whether it is
// the last.
func (o *outbox) take() (msg *coorddv1.SessionResponse, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	msg = &coorddv1.SessionResponse{Replies: make([]*coorddv1.Reply, 0, min(len(o.replies), maxCalls))}
	size := 0
	for size < fullMessage && len(msg.Events) < maxCalls && len(o.events) > 0 {
		e := o.events[0]
		o.events = o.events[1:]
		if q := e.GetQueued(); q != nil {
			delete(o.positions, leases.ID(q.Attempt))
		}
		size += proto.Size(e)
		msg.Events = append(msg.Events, e)
	}
	for size < fullMessage && len(msg.Replies) < maxCalls && len(o.replies) > 0 {
		r := o.replies[0]
		o.replies[0] = reply{}
		o.replies = o.replies[1:]
		<-r.slot
		size += replySize(r.Reply)
		msg.Replies = append(msg.Replies, r.Reply)
	}
	switch {
	case len(msg.Events)+len(msg.Replies) > 0:
		return msg, false
	case o.last != nil:
		return o.last, true
	}
	return nil, false
}

// replySize bounds how long r is on the wire. Of most replies a bound is known.
func replySize(r *coorddv1.Reply) int {
	if r.Status == nil && len(r.Renewed) == 0 {
		return shortReply
	}
	return proto.Size(r)
}

// shortReply is more than an id and a Granted take.
const shortReply = 64

func (o *outbox) droppedEvents() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}
