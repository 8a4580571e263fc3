package drill

import (
	"fmt"
	"slices"
	"sync"

	"github.com/coordd/coordd/clock"
)

// journal is what was done to the cluster and what it did, in order. It is safe for
// concurrent use.
type journal struct {
	clock clock.Clock
	zero  clock.Instant // the drill's beginning
	tell  func(Event)   // nil: nobody listens

	mu     sync.Mutex // guards what follows; held while tell is called, so that events come in order
	events []Event
	phases []phase
	faults []*fault
}

// phase is a part of the drill; to is zero while it goes on.
type phase struct {
	name     string
	from, to clock.Instant
	bound    *Bound
}

// fault is something that is broken; to is zero until it is mended.
type fault struct {
	text     string
	from, to clock.Instant
}

func newJournal(c clock.Clock, tell func(Event)) *journal {
	return &journal{clock: c, zero: c.Now(), tell: tell}
}

// ms is how results tell an instant.
func (j *journal) ms(at clock.Instant) int64 { return at.Sub(j.zero).Milliseconds() }

func (j *journal) note(kind EventKind, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.add(j.clock.Now(), kind, fmt.Sprintf(format, args...))
}

// add is called with mu held.
func (j *journal) add(at clock.Instant, kind EventKind, text string) {
	e := Event{AtMS: j.ms(at), Kind: kind, Text: text}
	j.events = append(j.events, e)
	if j.tell != nil {
		j.tell(e)
	}
}

// phase begins a part of the drill, and ends the one before.
func (j *journal) phase(bound *Bound, name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.clock.Now()
	j.endPhase(now)
	j.phases = append(j.phases, phase{name: name, from: now, bound: bound})
	j.add(now, PhaseEvent, name)
}

// endPhase is called with mu held.
func (j *journal) endPhase(now clock.Instant) {
	if n := len(j.phases); n > 0 && j.phases[n-1].to == 0 {
		j.phases[n-1].to = now
	}
}

// fault notes that something is broken, until the returned function is called.
func (j *journal) fault(format string, args ...any) (mended func(format string, args ...any)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := &fault{text: fmt.Sprintf(format, args...), from: j.clock.Now()}
	j.faults = append(j.faults, f)
	j.add(f.from, FaultEvent, f.text)
	return func(format string, args ...any) {
		j.mu.Lock()
		defer j.mu.Unlock()
		f.to = j.clock.Now()
		j.add(f.to, FaultEvent, fmt.Sprintf(format, args...))
	}
}

// end ends what goes on still, and returns when that was.
func (j *journal) end() clock.Instant {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.clock.Now()
	j.endPhase(now)
	for _, f := range j.faults {
		if f.to == 0 {
			f.to = now
		}
	}
	return now
}

// read returns a copy of all.
func (j *journal) read() (events []Event, phases []phase, faults []fault) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.faults {
		faults = append(faults, *f)
	}
	return slices.Clone(j.events), slices.Clone(j.phases), faults
}
