package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// take starts the calls of msg, or returns which rule of the conversation it breaks.
func (c *conversation) take(msg *coorddv1.SessionRequest) error {
	if msg.Open != nil {
		return &leases.InvalidError{Field: "message", Value: "a second Open", Bounds: "one, in the first message"}
	}
	if len(msg.Calls) > maxCalls {
		return &leases.InvalidError{Field: "message", Value: fmt.Sprintf("%d calls", len(msg.Calls)), Bounds: fmt.Sprintf("at most %d calls", maxCalls)}
	}
	for _, call := range msg.Calls {
		if call.Id <= c.lastID {
			return &leases.InvalidError{Field: "call id", Value: fmt.Sprint(call.Id), Bounds: fmt.Sprintf("greater than %d, the one before", c.lastID)}
		}
		c.lastID = call.Id
		c.start(call)
	}
	return nil
}

// start starts one call. It blocks where the reading has to wait, never for an
// acquire.
func (c *conversation) start(call *coorddv1.Call) {
	switch x := call.Call.(type) {
	case *coorddv1.Call_Acquire:
		select {
		case c.acquires <- struct{}{}:
			if c.startAcquire(call.Id, x.Acquire) {
				return
			}
			c.serve("Acquire", call.Id, c.acquires, func(r *coorddv1.Reply) { c.acquire(x.Acquire, r) })
		default:
			c.refuse(call.Id, &leases.ExhaustedError{What: "unanswered acquires of one connection", Bound: uint64(c.maxAcquires)})
		}
	case *coorddv1.Call_Renew:
		if c.occupy(c.renews) {
			c.serve("Renew", call.Id, c.renews, func(r *coorddv1.Reply) { c.renew(x.Renew, r) })
		}
	case *coorddv1.Call_Reclaim:
		if c.occupy(c.renews) {
			c.serve("Reclaim", call.Id, c.renews, func(r *coorddv1.Reply) { c.reclaim(x.Reclaim, r) })
		}
	case *coorddv1.Call_Withdraw:
		if c.occupy(c.returns) {
			c.serve("Withdraw", call.Id, c.returns, func(r *coorddv1.Reply) { c.withdraw(x.Withdraw, r) })
		}
	case *coorddv1.Call_Release:
		if c.occupy(c.returns) && !c.startRelease(call.Id, x.Release) {
			c.serve("Release", call.Id, c.returns, func(r *coorddv1.Reply) { c.release(x.Release, r) })
		}
	case *coorddv1.Call_Transfer:
		if c.occupy(c.returns) {
			c.serve("Transfer", call.Id, c.returns, func(r *coorddv1.Reply) { c.transfer(x.Transfer, r) })
		}
	default:
		c.refuse(call.Id, &leases.InvalidError{Field: "call", Value: "of a kind that this release does not know", Bounds: "Acquire, Withdraw, Renew, Reclaim, Release or Transfer"})
	}
}

// occupy waits for a slot and reports whether it got one before the end.
func (c *conversation) occupy(slot chan struct{}) bool {
	select {
	case slot <- struct{}{}:
		return true
	case <-c.ctx.Done():
		return false
	}
}

func (c *conversation) refuse(id uint64, err error) {
	if c.occupy(c.returns) {
		c.out.reply(&coorddv1.Reply{Id: id, Status: ToStatus(err)}, c.returns)
	}
}

// serve runs f in a goroutine of its own and sends the reply that it fills in.
func (c *conversation) serve(method string, id uint64, slot chan struct{}, f func(*coorddv1.Reply)) {
	if !c.begin() {
		return
	}
	c.running.Go(func() {
		defer c.returned()
		r := &coorddv1.Reply{Id: id}
		defer func() {
			if p := recover(); p != nil {
				r = &coorddv1.Reply{Id: id, Status: ToStatus(panicked(c.log, method, p))}
			}
			c.out.reply(r, slot)
		}()
		f(r)
	})
}

// starter is a session that can begin a call which its callback answers. It
// spares the goroutine that would wait for the answer.
type starter interface {
	// StartAcquire and StartRelease never block. After true, done is called once
	// with what Acquire or Release would have returned: maybe before they return,
	// and at the latest when the session has ended. done must neither block nor
	// call the session. After false nothing has begun, and done is not called: the
	// call has to wait for something first, or to tell why it is refused.
	StartAcquire(c leases.Claim, done func(leases.Grant, error)) bool
	StartRelease(h leases.Held, done func(error)) bool
}

// startAcquire reports whether the acquire is or will be answered by a callback;
// else nothing has happened.
func (c *conversation) startAcquire(id uint64, a *coorddv1.Acquire) bool {
	if c.starter == nil {
		return false
	}
	claim, err := fromAcquire(a)
	if err != nil {
		return false
	}
	return c.begun("Acquire", id, c.acquires, func(s *started) bool {
		return c.starter.StartAcquire(claim, func(g leases.Grant, err error) {
			if err != nil {
				s.answer(&coorddv1.Reply{Id: id, Status: callStatus(err)})
				return
			}
			s.answer(&coorddv1.Reply{Id: id, Granted: toGranted(g)})
		})
	})
}

// startRelease is to a release what startAcquire is to an acquire.
func (c *conversation) startRelease(id uint64, x *coorddv1.Release) bool {
	if c.starter == nil {
		return false
	}
	held, err := fromHeld(x.Held)
	if err != nil {
		return false
	}
	return c.begun("Release", id, c.returns, func(s *started) bool {
		return c.starter.StartRelease(held, func(err error) {
			s.answer(&coorddv1.Reply{Id: id, Status: callStatus(err)})
		})
	})
}

// started is a call that its callback answers.
type started struct {
	*conversation
	slot     chan struct{}
	answered atomic.Bool // a panic may come between the callback and its call
}

// begun reports whether start has begun a call, or has failed in it.
func (c *conversation) begun(method string, id uint64, slot chan struct{}, start func(*started) bool) (begun bool) {
	if !c.begin() {
		return false
	}
	s := &started{conversation: c, slot: slot}
	defer func() {
		if p := recover(); p != nil {
			s.answer(&coorddv1.Reply{Id: id, Status: ToStatus(panicked(c.log, method, p))})
			begun = true
		}
	}()
	if begun = start(s); !begun {
		c.returned()
	}
	return begun
}

// answer sends the reply to a started call, unless it has one.
func (s *started) answer(r *coorddv1.Reply) {
	if !s.answered.Swap(true) {
		s.out.reply(r, s.slot)
		s.returned()
	}
}

// callStatus is ToStatus of a call's error.
func callStatus(err error) *coorddv1.Status { return ToStatus(cutOff(err)) }

func (c *conversation) acquire(a *coorddv1.Acquire, r *coorddv1.Reply) {
	claim, err := fromAcquire(a)
	if err == nil {
		var g leases.Grant
		if g, err = c.session.Acquire(c.ctx, claim); err == nil {
			r.Granted = toGranted(g)
		}
	}
	r.Status = callStatus(err)
}

func (c *conversation) withdraw(w *coorddv1.Withdraw, r *coorddv1.Reply) {
	name, id, err := fromWithdraw(w)
	if err == nil {
		err = c.session.Withdraw(c.ctx, name, id)
	}
	r.Status = callStatus(err)
}

func (c *conversation) release(x *coorddv1.Release, r *coorddv1.Reply) {
	held, err := fromHeld(x.Held)
	if err == nil {
		err = c.session.Release(c.ctx, held)
	}
	r.Status = callStatus(err)
}

func (c *conversation) transfer(x *coorddv1.Transfer, r *coorddv1.Reply) {
	held, to, err := fromTransfer(x)
	if err == nil {
		r.Transferred, err = c.session.Transfer(c.ctx, held, to)
	}
	r.Status = callStatus(err)
}

func (c *conversation) renew(x *coorddv1.Renew, r *coorddv1.Reply) {
	held, err := fromRenew(x)
	if err != nil {
		r.Status = ToStatus(err)
		return
	}
	each, err := c.session.Renew(c.ctx, held)
	setResults(r, len(held), each, err)
}

func (c *conversation) reclaim(x *coorddv1.Reclaim, r *coorddv1.Reply) {
	held, err := fromReclaim(x)
	if err != nil {
		r.Status = ToStatus(err)
		return
	}
	each, err := c.session.Reclaim(c.ctx, x.Epoch, held)
	setResults(r, len(held), each, err)
}

// setResults makes r the answer to a call about n leases, each with its own result.
func setResults(r *coorddv1.Reply, n int, each []error, err error) {
	if err == nil && len(each) != n {
		err = &InternalError{fmt.Sprintf("%d results for %d leases", len(each), n)}
	}
	if err != nil {
		r.Status = callStatus(err)
		return
	}
	r.Renewed = make([]*coorddv1.Status, n)
	for i, err := range each {
		if r.Renewed[i] = ToStatus(err); err == nil {
			r.Renewed[i] = &coorddv1.Status{}
		}
	}
}
