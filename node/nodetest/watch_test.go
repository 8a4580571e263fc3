package nodetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/tokens"
)

// mirror is what one who watches makes of a list and the changes after it.
type mirror struct {
	cluster *Cluster
	who     string
	prefix  string
	spoil   func(leases.Batch) leases.Batch // what a test makes of each batch; nil: nothing
	slow    <-chan struct{}                 // it takes changes only once this is closed; nil: at once

	mu      sync.Mutex // guards what follows
	held    map[string]image
	watches []*told
}

// image is a lease in a mirror.
type image struct {
	token  tokens.Token
	broken bool
}

// told is what one watch told.
type told struct {
	from, at leases.Position
	changes  []leases.Change
	listed   bool // it began with a list
}

// begin begins a watch from a place, with what was listed there; no list: nil.
func (m *mirror) begin(from leases.Position, held map[string]image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = held
	m.watches = append(m.watches, &told{from: from, at: from, listed: held != nil})
}

// take takes a batch.
func (m *mirror) take(b leases.Batch) error {
	if m.slow != nil && len(b.Changes) > 0 {
		<-m.slow
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spoil != nil {
		b = m.spoil(b)
	}
	w := m.watches[len(m.watches)-1]
	if w.from == (leases.Position{}) {
		w.from, w.at = b.At, b.At
	}
	last := w.at.Revision
	for _, c := range b.Changes {
		if c.Revision <= last || c.Revision > b.At.Revision || !strings.HasPrefix(c.Name, m.prefix) {
			m.cluster.Broken("%s is told of %+v after revision %d, in a batch up to %v", m.who, c, last, b.At)
		}
		last = c.Revision
		if m.held == nil {
			continue
		}
		switch {
		case c.Free:
			delete(m.held, c.Name)
		case c.Kind == leases.ChangeGranted:
			m.held[c.Name] = image{token: c.Token}
		case c.Kind == leases.ChangeTransferred:
			m.held[c.Name] = image{token: c.Next}
		default:
			m.held[c.Name] = image{c.Token, true}
		}
	}
	if b.At.Revision < w.at.Revision || b.At.Epoch < w.at.Epoch {
		m.cluster.Broken("%s comes from %v to %v", m.who, w.at, b.At)
	}
	w.at, w.changes = b.At, append(w.changes, b.Changes...)
	return nil
}

// place is how far the newest watch has come.
func (m *mirror) place() leases.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.watches) == 0 {
		return leases.Position{}
	}
	return m.watches[len(m.watches)-1].at
}

// caughtUp reports whether the newest watch has told all changes, and the mirror
// shows the table.
func (m *mirror) caughtUp(table *leases.Table, applied []leases.Change) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.watches) == 0 {
		return false
	}
	w := m.watches[len(m.watches)-1]
	if len(w.changes) < len(m.after(w.from, applied)) {
		return false
	}
	held := map[string]image{}
	for l := range table.From(m.prefix, "") {
		held[l.Name] = image{l.Token, l.Broken}
	}
	if w.listed && !maps.Equal(held, m.held) {
		m.cluster.Broken("%s shows %v, and held is %v", m.who, m.held, held)
	}
	return true
}

// after are the changes after a place that concern the mirror.
func (m *mirror) after(from leases.Position, applied []leases.Change) (some []leases.Change) {
	for _, c := range applied {
		if c.Revision > from.Revision && strings.HasPrefix(c.Name, m.prefix) {
			some = append(some, c)
		}
	}
	return some
}

// check checks that each watch told every change from where it began, in order,
// up to where it ended, and nothing else.
func (m *mirror) check(applied []leases.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.watches {
		want := m.after(w.from, applied)
		n := len(w.changes)
		if n > len(want) {
			m.cluster.Broken("%s was told %d changes after %v, and there were %d", m.who, n, w.from, len(want))
			n = len(want)
		}
		for i, c := range w.changes[:n] {
			if !same(c, want[i]) {
				m.cluster.Broken("%s was told %+v, and the next change after %v was %+v", m.who, c, w.from, want[i])
				return
			}
		}
		if n < len(want) && want[n].Revision <= w.at.Revision {
			m.cluster.Broken("%s has come to %v and was not told %+v", m.who, w.at, want[n])
		}
	}
}

// same compares two changes; on its way one loses how its time and its
// attributes are held.
func same(a, b leases.Change) bool {
	times, attributes := a.AcquiredAt.Equal(b.AcquiredAt), bytes.Equal(a.Attributes, b.Attributes)
	a.AcquiredAt, b.AcquiredAt, a.Attributes, b.Attributes = time.Time{}, time.Time{}, nil, nil
	return times && attributes && reflect.DeepEqual(a, b)
}

// mirrors are those of one scenario.
type mirrors struct {
	cluster *Cluster
	ctx     context.Context
	stop    context.CancelFunc
	all     []*mirror
	lives   map[int]*life
	spoil   func(leases.Batch) leases.Batch
	running sync.WaitGroup
}

func newMirrors(c *Cluster) *mirrors {
	m := &mirrors{cluster: c, lives: map[int]*life{}}
	m.ctx, m.stop = context.WithCancel(context.Background())
	c.t.Cleanup(func() { m.stop(); m.running.Wait() })
	return m
}

func (m *mirrors) add(who, prefix string) *mirror {
	one := &mirror{cluster: m.cluster, who: who, prefix: prefix, spoil: m.spoil}
	m.all = append(m.all, one)
	return one
}

// client lists and watches as a client does, wherever that finds a node.
func (m *mirrors) client(who, prefix string) { m.follow(m.add(who, prefix)) }

func (m *mirrors) follow(one *mirror) {
	k := m.cluster.Client(one.who, ClientConfig{})
	m.running.Go(func() {
		for m.ctx.Err() == nil {
			switch err := one.mirror(m.ctx, k); {
			case errors.Is(err, leases.ErrMissed):
				m.cluster.Note("%s has missed changes", one.who)
			case m.ctx.Err() == nil:
				m.cluster.Broken("the watch of %s ends: %w", one.who, err)
				return
			}
		}
	})
}

func (m *mirror) mirror(ctx context.Context, k *Client) error {
	var from leases.Position
	held := map[string]image{}
	for page, err := range k.Pages(ctx, m.prefix) {
		if err != nil {
			return err
		}
		if from == (leases.Position{}) {
			from = page.At
		}
		for _, s := range page.Leases {
			held[s.Name] = image{s.Token, s.Broken}
		}
	}
	m.begin(from, held)
	for b, err := range k.Watch(ctx, m.prefix, client.From(from)) {
		if err != nil {
			return err
		}
		if err := m.take(b); err != nil {
			return err
		}
	}
	return nil
}

// life is the watch in the process of one life of a node.
type life struct {
	*mirror
	end  context.CancelFunc
	done chan struct{}
}

// node watches in the process of node i, which has just been started: from where
// the watch of its life before was.
func (m *mirrors) node(i int) {
	l := m.lives[i]
	if l == nil {
		l = &life{mirror: m.add("the watch in "+m.cluster.Host(i), "")}
		l.begin(leases.Position{}, nil)
		m.lives[i] = l
	} else {
		l.end()
		<-l.done
	}
	var ctx context.Context
	ctx, l.end = context.WithCancel(m.ctx)
	l.done = make(chan struct{})
	n := m.cluster.Node(i)
	m.running.Go(func() {
		defer close(l.done)
		l.watch(ctx, n)
	})
}

// inside watches in the process of node i, which lives as long as the scenario.
func (m *mirrors) inside(i int, one *mirror) {
	one.begin(leases.Position{}, nil)
	n := m.cluster.Node(i)
	m.running.Go(func() { one.watch(m.ctx, n) })
}

// watch watches in the process of a node until ctx ends.
func (m *mirror) watch(ctx context.Context, n *node.Node) {
	for ctx.Err() == nil {
		switch err := n.Watch(ctx, "", m.place(), m.take); {
		case errors.Is(err, leases.ErrMissed): // or the node has restarted from a snapshot, or was sent one
			m.cluster.Note("%s has missed changes", m.who)
			m.begin(leases.Position{}, nil)
		case ctx.Err() != nil || errors.Is(err, leases.ErrNoQuorum) || errors.Is(err, leases.ErrUnavailable) || errors.Is(err, leases.ErrClosed):
			pause(ctx, 50*time.Millisecond) // it is cut off, or over
		default:
			m.cluster.Broken("%s ends: %w", m.who, err)
			return
		}
	}
}

// end waits until every watch has told all that was applied, ends them, and
// checks what they have told.
func (m *mirrors) end() {
	c := m.cluster
	leader := c.Leader()
	s := c.Node(leader).Status()
	table, applied := c.Applied(leader, s.Revision)
	if table.Revision() != s.Revision || table.Epoch() != s.Epoch || table.Len() != s.Leases {
		c.Broken("the log makes revision %d of %d", table.Revision(), s.Revision)
	}
	for _, one := range m.all {
		ok := false
		for range 1000 {
			if ok = one.caughtUp(table, applied); ok {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !ok {
			c.Broken("%s, who is at %v, is not told all up to %v", one.who, one.place(), s.Revision)
		}
	}
	m.stop()
	m.running.Wait()
	for _, one := range m.all {
		one.check(applied)
	}
}

// Sixteen write, the leader changes, members are cut off, restarted from
// snapshots and sent them. Whoever lists and then watches, over the network or in
// a member, is told each change once and in order, or that it has missed some.
var watched = watching(nil)

// watching is the scenario with what a test makes of each batch on its way.
func watching(spoil func(leases.Batch) leases.Batch) scenario {
	return scenario{
		config: Config{ElectionTimeout: 500 * time.Millisecond, Keep: 20},
		run: func(c *Cluster) {
			const ttl = 2 * time.Second
			w := newMirrors(c)
			w.spoil = spoil
			for i := range c.Size() {
				w.node(i)
			}
			w.client("early", "x")
			l := &load{c: c, names: 8, ttl: ttl}
			l.hold = func(ctx context.Context, k *Client, h *Hold, r *rand.Rand) {
				pause(h.Context(), time.Duration(r.Int64N(int64(ttl/2))))
				soon, cancel := context.WithTimeout(ctx, ttl)
				defer cancel()
				if q, err := k.Queue(soon, h.Name()); err == nil && len(q) > 0 && r.IntN(3) == 0 {
					_, _ = h.Transfer(soon, q[0].Attempt)
					return
				}
				_ = h.Release(soon)
			}
			l.start(16)
			o := c.Operator("operator")
			ctx, stop := context.WithCancel(context.Background())
			var breaking sync.WaitGroup
			breaking.Go(func() { l.breaker(ctx, o, rand.New(rand.NewPCG(c.cfg.Seed, 4))) })
			w.client("one name", "x1")
			for range 3 {
				time.Sleep(c.some(0, 3*time.Second))
				i := c.Rand.IntN(c.Size())
				if c.Rand.IntN(2) == 0 {
					i = c.Leader()
				}
				switch c.Rand.IntN(4) {
				case 0:
					c.Partition(c.nodes(i), c.others(i))
					time.Sleep(c.some(0, 4*time.Second))
					c.HealAll()
				case 1:
					c.Crash(i)
					time.Sleep(c.some(0, 4*time.Second))
					c.Restart(i)
					w.node(i)
				case 2:
					c.Stop(i)
					c.Restart(i)
					w.node(i)
				case 3:
					c.cutAll(c.others(i), []string{"early", "one name"})
					time.Sleep(c.some(0, 3*time.Second))
					c.HealAll()
				}
				c.AllVote()
			}
			w.client("late", "")
			time.Sleep(c.some(0, 3*time.Second))
			stop()
			breaking.Wait()
			l.end()
			time.Sleep(2 * ttl) // what was left behind has expired
			w.end()
		},
		least: history.Counts{Grants: 30, Releases: 15, Breaks: 1},
		heavy: 3,
	}
}

func TestWatched(t *testing.T) { explore(t, watched) }

// What a watch could do wrong is seen.
func TestWatchedWrongly(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(leases.Batch) leases.Batch{
		"a change is lost": func(b leases.Batch) leases.Batch {
			for i, c := range b.Changes {
				if c.Revision%32 == 0 {
					b.Changes = slices.Delete(slices.Clone(b.Changes), i, i+1)
					break
				}
			}
			return b
		},
		"a change is told twice": func(b leases.Batch) leases.Batch {
			if n := len(b.Changes); n > 0 && b.At.Revision%32 == 0 {
				b.Changes = append(slices.Clone(b.Changes), b.Changes[n-1])
			}
			return b
		},
		"changes are told in another order": func(b leases.Batch) leases.Batch {
			if len(b.Changes) > 1 {
				b.Changes = slices.Clone(b.Changes)
				slices.Reverse(b.Changes)
			}
			return b
		},
		"a change is another": func(b leases.Batch) leases.Batch {
			b.Changes = slices.Clone(b.Changes)
			for i := range b.Changes {
				if b.Changes[i].Revision%32 == 0 {
					b.Changes[i].Owner.Label = "nobody"
				}
			}
			return b
		},
	} {
		c := watching(spoil).play(t, 1, rules.Set{})
		if err := c.Check(time.Minute); err == nil {
			t.Errorf("%s: nothing was seen", what)
		}
	}
}

// Whoever reads slowly holds up nobody, and is told what it has missed: nothing
// is left out in silence. It lists anew, and goes on.
var slowReader = scenario{
	run: func(c *Cluster) {
		w := newMirrors(c)
		for i := range c.Size() {
			w.node(i)
		}
		w.client("fast", "")
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		slow := []*mirror{w.add("slow", ""), w.add("slow, in a member", ""), w.add("slow, of some names", "x1")}
		for _, one := range slow {
			one.slow = gate
		}
		w.follow(slow[0])
		w.inside(0, slow[1])
		w.follow(slow[2])
		c.eventually("all have begun", func() bool {
			return !slices.ContainsFunc(w.all, func(one *mirror) bool { return one.place() == leases.Position{} })
		})
		c.write(8 * fsm.RememberedChanges / 10)
		_, applied := c.Applied(c.Leader(), c.Node(c.Leader()).Status().Revision)
		c.eventually("all but the slow ones are told", func() bool {
			for _, one := range w.all {
				if one.slow == nil && !one.told(len(applied)) {
					return false
				}
			}
			return true
		})
		open()
		w.end()
		for _, one := range slow[:2] { // what the third was told may all have been on its way
			if len(one.watches) < 2 {
				c.Broken("%s has missed nothing", one.who)
			}
		}
	},
	heavy: 25,
}

// write takes and gives back leases, so many in all.
func (c *Cluster) write(many int) {
	const writers = 100
	leader := c.Node(c.Leader())
	var writing sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s, err := leader.Open(ctx, leases.NewID(), func(leases.Event) {})
			if err != nil {
				c.Broken("open: %w", err)
				return
			}
			defer s.Close()
			for range many / writers {
				h := leases.Held{Name: fmt.Sprint("x", i)}
				g, err := s.Acquire(ctx, leases.Claim{Name: h.Name, Attempt: leases.NewID(), TTL: leases.MaxTTL, Attributes: make([]byte, leases.MaxAttributes)})
				if h.Token = g.Token; err == nil {
					err = s.Release(ctx, h)
				}
				if err != nil {
					c.Broken("a writer: %w", err)
					return
				}
			}
		})
	}
	writing.Wait()
}

// told reports whether the newest watch has told so many changes.
func (m *mirror) told(many int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.watches) > 0 && len(m.watches[len(m.watches)-1].changes) >= many
}

func TestSlowReader(t *testing.T) { explore(t, slowReader) }
