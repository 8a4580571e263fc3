package node

import (
	"context"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// Whoever waits is told its place when it comes in, and as it changes: at most
// each placesEvery, and at most placesAtOnce of them at once, since one release
// moves everybody behind it.
const (
	placesEvery  = 250 * time.Millisecond
	placesAtOnce = 4096
)

// places are the lines in which places have changed. The tenure's mutex guards it.
type places struct {
	names map[string]struct{}
	wake  chan struct{} // has room for one
}

func newPlaces() places {
	return places{names: map[string]struct{}{}, wake: make(chan struct{}, 1)}
}

func (p *places) moved(name string) {
	p.names[name] = struct{}{}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// place tells a waiting claim its place, the first being 1, unless it knows it.
func (c *claim) place(place int) {
	if c.told != place {
		c.told = place
		c.session.on(leases.Queued{Name: c.Name, Attempt: c.Attempt, Position: place})
	}
}

// tellPlaces tells the places that have changed until ctx ends.
func (t *tenure) tellPlaces(ctx context.Context) {
	for {
		select {
		case <-t.places.wake:
		case <-ctx.Done():
			return
		}
		if clock.Wait(ctx, t.clock, t.clock.Now().Add(placesEvery)) != nil {
			return
		}
		t.tellMoved()
	}
}

func (t *tenure) tellMoved() {
	t.mu.Lock()
	defer t.mu.Unlock()
	told := 0
	for name := range t.places.names {
		if told >= placesAtOnce {
			t.places.moved(name) // the rest comes next time
			return
		}
		delete(t.places.names, name)
		if q := t.lines[name]; q != nil {
			for i, c := range q.waiting {
				c.place(i + 1)
			}
			told += len(q.waiting)
		}
	}
}
