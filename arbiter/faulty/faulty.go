// Package faulty puts the faults of a real arbiter between a store and those who
// use it: lost requests and answers, writes that take effect late, throttling,
// latency. It is for tests, also in virtual time, and for drills.
package faulty

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
)

// Kind says what befalls a call.
type Kind int

const (
	// None: the store carries the call out, and the caller has its answer.
	None Kind = iota
	// LostRequest: the store never sees the call. A caller that writes gets
	// ErrUnknown, since it cannot tell this from LostAnswer.
	LostRequest
	// LostAnswer: the store carries the call out, and the caller does not hear of it.
	LostAnswer
	// Late is LostAnswer for a write that the store carries out only when it is
	// released: see Store.Late. A Load that is late is lost.
	Late
	// Unreachable: nothing was sent, and the caller knows.
	Unreachable
	// Throttled: the store has refused, and the caller knows.
	Throttled
)

var words = [...]string{"none", "lost request", "lost answer", "late", "unreachable", "throttled"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(words) {
		return "unknown fault"
	}
	return words[k]
}

// What callers are told, within ErrUnknown or ErrUnreachable.
var (
	errLost      = errors.New("no answer came")
	errNoWay     = errors.New("there is no way to the store")
	errThrottled = errors.New("the store throttles")
)

// refused is why the caller knows that nothing was done; nil: it does not.
func (k Kind) refused() error {
	switch k {
	case Unreachable:
		return errNoWay
	case Throttled:
		return errThrottled
	default:
		return nil
	}
}

// Call is what a fault is chosen for.
type Call struct {
	Key  string
	Swap bool // a CompareAndSwap, with the fields below; else a Load
	From arbiter.Version
	// Write is not to be changed, its Data not to be kept.
	Write arbiter.Write
}

// Fault is what befalls one call. The zero value is none.
type Fault struct {
	Kind Kind
	// There and Back, if not nil, are called on the way to the store and on the way
	// back, and take as long as these are to take; they are to return when ctx ends.
	// A call whose ctx ends on the way there never arrives.
	There, Back func(ctx context.Context)
}

// Plan chooses a fault. It is called once for each call, by many callers at once.
type Plan func(Call) Fault

// Delay is for Fault's There and Back: it waits for d on a clock.
func Delay(c clock.Clock, d time.Duration) func(context.Context) {
	return func(ctx context.Context) { _ = clock.Wait(ctx, c, c.Now().Add(d)) }
}

// Next is a plan for the next calls, in their order; those after them have no fault.
func Next(faults ...Kind) Plan {
	var mu sync.Mutex // guards faults
	return func(Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		if len(faults) == 0 {
			return Fault{}
		}
		kind := faults[0]
		faults = faults[1:]
		return Fault{Kind: kind}
	}
}

// way calls f, if there is one, and says whether ctx has ended.
func way(ctx context.Context, f func(context.Context)) error {
	if f != nil {
		f(ctx)
	}
	return arbiter.Ended(ctx)
}
