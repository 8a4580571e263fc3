package sim

import "time"

// Time is true time, from the beginning of a run. No simulated process knows it.
type Time = time.Duration

// class is the part of a process that an event belongs to: each may stand still while
// the others go on, as goroutines do.
type class uint8

const (
	driver   class = iota // that of the state machines, and all of a client
	raftLoop              // Raft's own
	batch                 // clients' ops on their way into the log
	internal              // the node's own ops on their way into the log
	classes
)

// process is a node or a client: something that crashes and pauses.
type process struct {
	life   uint32        // counts crashes and starts: an event of an earlier life does not happen
	until  [classes]Time // a part stands still until then
	parked [classes][]parked
}

// parked is an event that waits until its part goes on.
type parked struct {
	seq uint64
	event
}

// event is something that happens.
type event struct {
	of   *process // nil: the world
	life uint32
	part class
	do   func()
}

// turn is when an event happens. It has no pointer, so that the heap is cheap to sort.
type turn struct {
	at    Time
	seq   uint64 // of two at the same instant, which comes first
	event int32  // in queue.events
}

func (t turn) before(u turn) bool { return t.at < u.at || t.at == u.at && t.seq < u.seq }

// queue has the events to come: a binary heap of their turns, the earliest first.
type queue struct {
	heap   []turn
	events []event
	free   []int32 // places in events
	seq    uint64
}

func (q *queue) put(at Time, seq uint64, e event) {
	var place int32
	if n := len(q.free); n > 0 {
		place = q.free[n-1]
		q.free = q.free[:n-1]
		q.events[place] = e
	} else {
		place = int32(len(q.events))
		q.events = append(q.events, e)
	}
	t := turn{at, seq, place}
	q.heap = append(q.heap, t)
	h, i := q.heap, len(q.heap)-1
	for i > 0 {
		up := (i - 1) / 2
		if !t.before(h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = t
}

func (q *queue) take() (turn, event) {
	h := q.heap
	first, n := h[0], len(h)-1
	last := h[n]
	h = h[:n]
	q.heap = h
	i := 0
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(last) {
			break
		}
		h[i] = h[down]
		i = down
	}
	if n > 0 {
		h[i] = last
	}
	e := q.events[first.event]
	q.events[first.event].do = nil
	q.free = append(q.free, first.event)
	return first, e
}

// at lets something happen.
func (s *Sim) at(t Time, of *process, part class, do func()) {
	s.queue.seq++
	e := event{of: of, part: part, do: do}
	if of != nil {
		e.life = of.life
	}
	s.queue.put(max(t, s.now), s.queue.seq, e)
}

// after is at, from now on.
func (s *Sim) after(d time.Duration, of *process, part class, do func()) { s.at(s.now+d, of, part, do) }

// step lets the next event happen. false: there is none before end.
func (s *Sim) step(end Time) bool {
	for len(s.queue.heap) > 0 && s.queue.heap[0].at <= end {
		t, e := s.queue.take()
		s.now = t.at
		if p := e.of; p != nil {
			if e.life != p.life {
				continue
			}
			if p.until[e.part] > s.now {
				s.park(p, t.seq, e)
				continue
			}
		}
		e.do()
		return true
	}
	return false
}

// park keeps an event until its part goes on.
func (s *Sim) park(p *process, seq uint64, e event) {
	waiting := &p.parked[e.part]
	*waiting = append(*waiting, parked{seq, e})
	if len(*waiting) == 1 {
		s.at(p.until[e.part], nil, driver, func() { s.goOn(p, e.part) })
	}
}

// goOn lets what waits happen, in the order in which it was put on the queue, unless
// its part stands still for longer.
func (s *Sim) goOn(p *process, part class) {
	waiting := p.parked[part]
	switch {
	case len(waiting) == 0:
	case p.until[part] > s.now:
		s.at(p.until[part], nil, driver, func() { s.goOn(p, part) })
	default:
		p.parked[part] = nil
		for _, w := range waiting {
			s.queue.put(s.now, w.seq, w.event)
		}
	}
}

// resume ends the pause of a part, or of all.
func (s *Sim) resume(p *process, parts ...class) {
	if len(parts) == 0 {
		parts = []class{driver, raftLoop, batch, internal}
	}
	for _, part := range parts {
		p.until[part] = 0
		s.goOn(p, part)
	}
}
