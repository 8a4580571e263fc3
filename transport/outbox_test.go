package transport

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

func TestOutboxKeepsTheNewestPosition(t *testing.T) {
	o := newOutbox()
	a, b := leases.NewID(), leases.NewID()
	for position := 9; position > 0; position-- {
		o.event(leases.Queued{Name: "a", Attempt: a, Position: position})
		o.event(leases.Queued{Name: "b", Attempt: b, Position: 10 * position})
	}
	msg, _ := o.take()
	if len(msg.Events) != 2 || msg.Events[0].GetQueued().Position != 1 || msg.Events[1].GetQueued().Position != 10 {
		t.Errorf("got %v, want the two newest positions", msg.Events)
	}
	o.event(leases.Queued{Name: "a", Attempt: a, Position: 7})
	if msg, _ = o.take(); len(msg.GetEvents()) != 1 || msg.Events[0].GetQueued().Position != 7 {
		t.Errorf("after that was taken: got %v, want position 7", msg)
	}
}

func TestOutboxIsBounded(t *testing.T) {
	o := newOutbox()
	for i := range maxEvents + 10 {
		o.event(leases.Ended{Held: leases.Held{Name: "a", Token: 1}, Err: leases.ErrNotHeld})
		if i == 0 {
			o.event(nil) // of a kind that this release does not know
		}
	}
	if o.droppedEvents() != 10 {
		t.Errorf("%d events were dropped, want 10", o.droppedEvents())
	}
	slot := make(chan struct{}, 2000)
	each := make([]*coorddv1.Status, maxHeld)
	for i := range each {
		each[i] = ToStatus(&leases.NotHeldError{Name: "a", Token: 1, Why: leases.WhyExpired})
	}
	for id := range uint64(1000) {
		slot <- struct{}{}
		r := &coorddv1.Reply{Id: id + 1}
		if id%100 == 0 {
			r.Renewed = each
		}
		o.reply(r, slot)
	}
	o.close(&coorddv1.SessionResponse{Status: ToStatus(leases.ErrNoQuorum)})
	events, replies := 0, uint64(0)
	for {
		msg, last := o.take()
		if last {
			if msg.Status.Code != coorddv1.Code_CODE_NO_QUORUM || len(slot) > 0 {
				t.Errorf("got the last message %v with %d slots occupied, want no quorum and none", msg, len(slot))
			}
			break
		}
		if size := proto.Size(msg); size > 2*fullMessage || len(msg.Replies) > maxCalls || len(msg.Events) > maxCalls {
			t.Fatalf("got a message of %d bytes, %d replies and %d events", size, len(msg.Replies), len(msg.Events))
		}
		events += len(msg.Events)
		for _, r := range msg.Replies {
			if replies++; r.Id != replies {
				t.Fatalf("got reply %d, want %d", r.Id, replies)
			}
		}
	}
	if events != maxEvents || replies != 1000 {
		t.Errorf("got %d events and %d replies, want %d and 1000", events, replies, maxEvents)
	}
}
