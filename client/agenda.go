package client

import (
	"container/heap"

	"github.com/coordd/coordd/clock"
)

// agenda is what is due some time, the earliest first. One timer does for all of
// it, which reads the clock twice a second, as deadlines need it. Its user's
// mutex guards it and the turns in it.
type agenda struct {
	clock clock.Clock
	look  func() // what the alarm calls; it notes that with rang

	turns turns
	alarm *clock.Timer
	set   bool          // the alarm is
	rings clock.Instant // and when it does
}

// turn is when something is due for a lease.
type turn struct {
	lease *Lease
	at    clock.Instant
	place int // in the agenda, from 1; 0: it is in none
}

// put sets t's instant, and the alarm if need be.
func (a *agenda) put(t *turn, at clock.Instant) {
	t.at = at
	if t.place == 0 {
		heap.Push(&a.turns, t)
	} else {
		heap.Fix(&a.turns, t.place-1)
	}
	a.wind()
}

// drop takes t out, if it is in.
func (a *agenda) drop(t *turn) {
	if t.place != 0 {
		heap.Remove(&a.turns, t.place-1)
	}
}

// take takes out the first turn if it is due by then; else it returns nil.
func (a *agenda) take(then clock.Instant) *turn {
	if len(a.turns) == 0 || then.Before(a.turns[0].at) {
		return nil
	}
	return heap.Pop(&a.turns).(*turn)
}

// wind sets the alarm to the first turn. Where a turn was dropped it may ring
// for nothing.
func (a *agenda) wind() {
	if len(a.turns) == 0 || a.set && a.rings <= a.turns[0].at {
		return
	}
	a.set, a.rings = true, a.turns[0].at
	if a.alarm == nil || !a.alarm.Reset(a.rings) {
		a.alarm = clock.AfterFunc(a.clock, a.rings, a.look)
	}
}

// rang notes that the alarm has rung, and sets it anew.
func (a *agenda) rang() {
	a.set = false
	a.wind()
}

// stop ends the alarm.
func (a *agenda) stop() {
	if a.alarm != nil {
		a.alarm.Stop()
	}
}

// turns is a heap.Interface.
type turns []*turn

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].at < t[j].at }

func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i+1, j+1
}

func (t *turns) Push(x any) {
	*t = append(*t, x.(*turn))
	(*t)[len(*t)-1].place = len(*t)
}

func (t *turns) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	(*t)[last], x.place = nil, 0
	*t = (*t)[:last]
	return x
}
