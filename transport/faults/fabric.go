// Package faults is a network in memory for tests and drills: named hosts,
// connections with buffers and deadlines as TCP has them, and the faults that
// real networks and machines show. It waits on channels and timers alone, so
// that it runs in virtual time (testing/synctest) if it is made there.
package faults

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Fabric is the network that connects the hosts. Its methods are safe for
// concurrent use and take effect at once: a byte that was not read when Cut
// returns is not read before the Heal.
//
// Faults of a link have a direction, from a host to another. A host that does
// not exist yet can be named; a host's link to itself can have faults too.
type Fabric struct {
	mu      sync.Mutex // guards all that is below, and all that hosts, listeners and connections hold
	rand    *rand.Rand
	hosts   map[string]*Host
	links   map[way]*link
	usual   link               // what a link begins as
	conns   map[*conn]struct{} // both ends of every connection, until each is closed
	changed signal             // fires whenever a fault begins or ends
	stats   Stats
}

// Stats counts what has been done since the fabric was made.
type Stats struct {
	Dials   int // attempts to connect, those that failed too
	Refused int // of them, by Refuse or for want of a listener
	Conns   int // connections made
	Bytes   int // bytes read by their receivers
	Cuts    int // links cut, by Cut and Partition
	Heals   int // links healed, by Heal and HealAll
	Resets  int // ends of connections reset by Break, Crash and the close of a listener
	Crashes int
	Pauses  int
}

type way struct{ from, to string }

type link struct {
	cut, refuse   bool
	delay, jitter time.Duration
}

// New makes a network without hosts and faults. The seed fixes the jitter.
func New(seed uint64) *Fabric {
	return &Fabric{
		rand:  rand.New(rand.NewPCG(seed, 0)),
		hosts: map[string]*Host{},
		links: map[way]*link{},
		conns: map[*conn]struct{}{},
	}
}

// Host returns the host of that name, and makes it first if there is none.
func (f *Fabric) Host(name string) *Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hosts[name] == nil {
		f.hosts[name] = f.newHost(name)
	}
	return f.hosts[name]
}

// Stats returns the counts so far.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Cut lets nothing more arrive at to from from, as if every packet were lost:
// the bytes under way and those written later wait for the Heal, nobody is
// told, and to dial over the link, in either direction, blocks. The sender
// blocks once the buffer is full.
func (f *Fabric) Cut(from, to string) { f.each(f.cut, way{from, to}) }

// Partition cuts every link between a host of a and one of b, both ways.
func (f *Fabric) Partition(a, b []string) {
	var ways []way
	for _, x := range a {
		for _, y := range b {
			ways = append(ways, way{x, y}, way{y, x})
		}
	}
	f.each(f.cut, ways...)
}

// Heal undoes Cut and Refuse of the one direction; what waited arrives, in order.
func (f *Fabric) Heal(from, to string) { f.each(f.heal, way{from, to}) }

// HealAll undoes every Cut, Partition and Refuse. Delays stay.
func (f *Fabric) HealAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.links {
		f.heal(w)
	}
	f.wakeAll()
}

// Refuse makes every later dial from from to to fail at once.
func (f *Fabric) Refuse(from, to string) {
	f.each(func(w way) { f.link(w).refuse = true }, way{from, to})
}

// Delay makes every later byte on the link arrive d and a random part of
// jitter after it was written. The order of a connection's bytes stays.
func (f *Fabric) Delay(from, to string, d, jitter time.Duration) {
	f.each(func(w way) { l := f.link(w); l.delay, l.jitter = d, jitter }, way{from, to})
}

// DelayAll is Delay for every link that there is or will be, but those of a
// host to itself.
func (f *Fabric) DelayAll(d, jitter time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usual = link{delay: d, jitter: jitter}
	for w, l := range f.links {
		if w.from != w.to {
			l.delay, l.jitter = d, jitter
		}
	}
}

// Break resets the connections between two hosts: each end's calls fail, the
// bytes under way are lost. New connections can be made at once.
func (f *Fabric) Break(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if from, to := c.host.name, c.peer.host.name; from == a && to == b || from == b && to == a {
			c.reset()
		}
	}
}

// Crash ends a host as a killed process ends: its listeners and connections
// are gone, and the other ends of the latter are reset, or will be when the
// link to them heals. The *Host is dead for good: whoever still holds it gets
// errors. Host returns the next life, with no listeners, of the same name.
func (f *Fabric) Crash(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.hosts[name]
	if h == nil {
		return
	}
	f.stats.Crashes++
	f.hosts[name] = f.newHost(name)
	h.die()
	f.wakeAll()
}

// Pause stops a host's code, as SIGSTOP stops a process, at its next call of
// a Host, Listener or Conn: it returns after the Resume, whatever deadline or
// context ends before. Calls that wait already do not return either. What
// others send meanwhile waits.
func (f *Fabric) Pause(name string) {
	h := f.Host(name)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !h.paused {
		h.paused = true
		f.stats.Pauses++
		f.wakeAll()
	}
}

// Resume lets a paused host go on.
func (f *Fabric) Resume(name string) {
	h := f.Host(name)
	f.mu.Lock()
	defer f.mu.Unlock()
	h.paused = false
	f.wakeAll()
}

// each changes some links and then wakes whom that may concern.
func (f *Fabric) each(change func(way), ways ...way) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range ways {
		change(w)
	}
	f.wakeAll()
}

// The methods below are called with mu held.

func (f *Fabric) cut(w way) {
	if l := f.link(w); !l.cut {
		l.cut = true
		f.stats.Cuts++
	}
}

func (f *Fabric) heal(w way) {
	if l := f.link(w); l.cut || l.refuse {
		l.cut, l.refuse = false, false
		f.stats.Heals++
	}
}

func (f *Fabric) link(w way) *link {
	l := f.links[w]
	if l == nil {
		l = &link{}
		if w.from != w.to {
			*l = f.usual
		}
		f.links[w] = l
	}
	return l
}

// latency draws how long what is sent now will take.
func (f *Fabric) latency(l *link) time.Duration {
	if l.jitter <= 0 {
		return l.delay
	}
	return l.delay + time.Duration(f.rand.Int64N(int64(l.jitter)))
}

func (f *Fabric) wakeAll() {
	f.changed.fire()
	for c := range f.conns {
		c.wake()
	}
}

// wait gives mu up until one of the signals fires, done is closed, or it is at
// (zero: never).
func (f *Fabric) wait(done <-chan struct{}, at time.Time, signals ...*signal) {
	var some, more <-chan struct{}
	some = signals[0].ch()
	if len(signals) > 1 {
		more = signals[1].ch()
	}
	var alarm <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		alarm = t.C
	}
	f.mu.Unlock()
	select {
	case <-some:
	case <-more:
	case <-alarm:
	case <-done:
	}
	f.mu.Lock()
}

// signal wakes everybody who waits for a change. The fabric's lock guards it.
type signal struct{ c chan struct{} }

func (s *signal) ch() <-chan struct{} {
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}

func (s *signal) fire() {
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}

// earlier returns the earlier of two instants, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
