package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// cluster is a Backend that keeps the leader's rules of section 3 and 4 in its
// memory, in virtual time, over a network whose faults a test decides on.
type cluster struct {
	network sync.WaitGroup // what is on its way

	mu      sync.Mutex // guards what follows
	held    map[string]*grant
	queues  map[string][]*waiter
	gone    map[leases.ID]bool // withdrawn attempts
	epoch   uint32
	last    uint32         // counter of the epoch's newest token
	links   map[*link]bool // those that are open
	calls   []call         // all that were made, in order
	counts  map[string]int // of them, by op
	opened  int            // tries
	grants  int
	expired int
	arbiter arbiter

	revision uint64
	changes  []leases.Change // that are remembered, the oldest first
	floor    uint64          // those up to it are not
	more     chan struct{}   // closed at the next change
	broke    chan struct{}   // closed when all watches break
	passed   map[tokens.Token]tokens.Token
	pageSize int // the most that a page has

	// fault decides what the network does to a call; nil: nothing. It is called
	// with mu held.
	fault func(call) fault
	// open decides whether a try to open a conversation fails; nil: it does not.
	open func(ctx context.Context, try int) error
}

// call is one request that a client made.
type call struct {
	op      string // acquire, withdraw, renew, reclaim, release, transfer, get, list, queue, watch
	name    string // the first one's of a renewal or reclaim
	attempt leases.ID
	token   tokens.Token
	wait    time.Duration
	from    leases.Position
	link    int    // the number of the conversation, from 1; 0: it needs none
	n       int    // how many of that op there were, this one included
	size    int    // leases in a renewal or reclaim
	epoch   uint32 // of a reclaim
	at      time.Time
}

// fault is what happens to a call on its way.
type fault struct {
	lost   bool          // it never arrives
	late   time.Duration // it arrives so much later
	mute   bool          // its answer never arrives
	slow   time.Duration // its answer arrives so much later
	err    error         // it is answered with that, and not carried out
	each   error         // of a renewal or reclaim: every lease is answered with that, and not renewed
	closed bool          // the conversation breaks when it would be answered
}

type grant struct {
	leases.Claim
	session  leases.ID
	token    tokens.Token
	waited   bool // not renewed yet
	broken   bool
	at       time.Time
	deadline time.Time
	timer    *time.Timer
}

type waiter struct {
	leases.Claim
	link   *link
	answer chan reply
}

type reply struct {
	grant  leases.Grant
	err    error
	errs   []error
	passed bool // of a transfer
}

// link is a Session.
type link struct {
	cluster *cluster
	number  int
	session leases.ID
	on      func(leases.Event)
	done    chan struct{}
	once    sync.Once
	err     error
}

func newCluster() *cluster {
	return &cluster{
		held:     map[string]*grant{},
		queues:   map[string][]*waiter{},
		gone:     map[leases.ID]bool{},
		links:    map[*link]bool{},
		counts:   map[string]int{},
		epoch:    1,
		pageSize: leases.MaxPage,
		passed:   map[tokens.Token]tokens.Token{},
		more:     make(chan struct{}),
		broke:    make(chan struct{}),
	}
}

// inBubble runs f, which closes its clients, with a new cluster in virtual time,
// and waits for what f has left in the network.
func inBubble(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		f(t, c)
		c.network.Wait()
		if n := len(c.links); n != 0 {
			t.Errorf("%d conversations are left open, want none", n)
		}
	})
}

// client returns a client of c in virtual time. The test must close it.
func (c *cluster) client(opts ...Option) *Client {
	return New(c, append([]Option{WithClock(clock.NewRuntime())}, opts...)...)
}

func (c *cluster) Open(ctx context.Context, session leases.ID, on func(leases.Event)) (leases.Session, error) {
	c.mu.Lock()
	c.opened++
	try, open := c.opened, c.open
	c.mu.Unlock()
	if open != nil {
		if err := open(ctx, try); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &link{cluster: c, number: try, session: session, on: on, done: make(chan struct{})}
	c.links[l] = true
	return l, nil
}

func (l *link) Info() leases.Info {
	return leases.Info{Cluster: leases.ID{1}, Node: fmt.Sprintf("node%d", l.number), Rho: leases.Rho, MaxTTL: leases.MaxTTL, ElectionTimeout: time.Second}
}

func (l *link) Done() <-chan struct{} { return l.done }
func (l *link) Err() error            { return l.err }
func (l *link) Close() error          { l.end(leases.ErrClosed); return nil }

// end breaks the conversation: its waiters go.
func (l *link) end(err error) {
	l.once.Do(func() { l.err = err; close(l.done) })
	c := l.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l)
	for name, q := range c.queues {
		c.queues[name] = slices.DeleteFunc(q, func(w *waiter) bool {
			gone := w.link == l
			if gone {
				w.answer <- reply{err: leases.ErrUnavailable}
			}
			return gone
		})
	}
}

// breakAll breaks all conversations, as a leader that loses its term does.
func (c *cluster) breakAll(err error) {
	c.mu.Lock()
	links := slices.Collect(maps.Keys(c.links))
	close(c.broke)
	c.broke = make(chan struct{})
	c.mu.Unlock()
	for _, l := range links {
		l.end(err)
	}
}

// note notes a call and returns what the network does to it.
func (c *cluster) note(k call) fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[k.op]++
	k.n, k.at = c.counts[k.op], time.Now()
	c.calls = append(c.calls, k)
	if c.fault == nil {
		return fault{}
	}
	return c.fault(k)
}

// do brings a call over the network, has it carried out and brings the answer back.
func (l *link) do(ctx context.Context, k call, carryOut func() reply) reply {
	k.link = l.number
	c := l.cluster
	f := c.note(k)
	answer := make(chan reply, 1)
	switch {
	case f.err != nil:
		answer <- reply{err: f.err}
	case f.each != nil:
		answer <- reply{errs: slices.Repeat([]error{f.each}, k.size)}
	case !f.lost:
		c.network.Go(func() {
			time.Sleep(f.late)
			r := carryOut()
			time.Sleep(f.slow)
			switch {
			case f.closed:
				l.end(errors.New("connection reset"))
			case !f.mute:
				answer <- r
			}
		})
	}
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
		return reply{err: fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, context.Cause(ctx))}
	case <-l.done:
		return reply{err: fmt.Errorf("%w: the conversation broke", leases.ErrUnknownOutcome)}
	}
}

func (l *link) Acquire(ctx context.Context, claim leases.Claim) (leases.Grant, error) {
	r := l.do(ctx, call{op: "acquire", name: claim.Name, attempt: claim.Attempt, wait: claim.Wait}, func() reply {
		return l.cluster.acquire(l, claim)
	})
	return r.grant, r.err
}

func (l *link) Withdraw(ctx context.Context, name string, attempt leases.ID) error {
	return l.do(ctx, call{op: "withdraw", name: name, attempt: attempt}, func() reply {
		return reply{err: l.cluster.withdraw(l.session, name, attempt)}
	}).err
}

func (l *link) Renew(ctx context.Context, held []leases.Held) ([]error, error) {
	k := call{op: "renew", size: len(held)}
	if len(held) > 0 {
		k.name, k.token = held[0].Name, held[0].Token
	}
	r := l.do(ctx, k, func() reply {
		errs := make([]error, len(held))
		for i, h := range held {
			errs[i] = l.cluster.renew(l.session, h)
		}
		return reply{errs: errs}
	})
	return r.errs, r.err
}

func (l *link) Reclaim(ctx context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	k := call{op: "reclaim", epoch: epoch, size: len(held), name: held[0].Name, token: held[0].Token}
	r := l.do(ctx, k, func() reply {
		errs := make([]error, len(held))
		for i, h := range held {
			errs[i] = l.cluster.reclaim(l.session, epoch, h)
		}
		return reply{errs: errs}
	})
	return r.errs, r.err
}

func (l *link) Release(ctx context.Context, h leases.Held) error {
	return l.do(ctx, call{op: "release", name: h.Name, token: h.Token}, func() reply {
		return reply{err: l.cluster.release(l.session, h)}
	}).err
}

func (l *link) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	r := l.do(ctx, call{op: "transfer", name: h.Name, token: h.Token, attempt: to}, func() reply {
		passed, err := l.cluster.transfer(l.session, h, to)
		return reply{passed: passed, err: err}
	})
	return r.passed, r.err
}

// acquire answers a claim, if need be after a wait.
func (c *cluster) acquire(l *link, claim leases.Claim) reply {
	w, r := c.claim(l, claim)
	if w == nil {
		return r
	}
	var over <-chan time.Time
	if claim.Wait < time.Hour {
		timer := time.NewTimer(claim.Wait)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case r := <-w.answer:
		return r
	case <-over:
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.queues[claim.Name], w)
		if i < 0 {
			return <-w.answer
		}
		c.queues[claim.Name] = slices.Delete(c.queues[claim.Name], i, i+1)
		return reply{err: c.refusal(claim.Name)}
	}
}

// claim answers a claim, or returns its place in the queue.
func (c *cluster) claim(l *link, claim leases.Claim) (*waiter, reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, q := c.held[claim.Name], c.queues[claim.Name]
	switch {
	case c.gone[claim.Attempt]:
		return nil, reply{err: &leases.NotHeldError{Name: claim.Name, Why: leases.WhyWithdrawn}}
	case g != nil && g.Attempt == claim.Attempt && g.session == l.session:
		return nil, reply{grant: leases.Grant{Token: g.token, Waited: g.waited}}
	case g == nil && len(q) == 0 && c.grace() == 0:
		return nil, reply{grant: c.grant(l.session, claim, false)}
	case claim.Wait == 0:
		return nil, reply{err: c.refusal(claim.Name)}
	}
	if !c.links[l] {
		return nil, reply{err: leases.ErrUnavailable}
	}
	w := &waiter{claim, l, make(chan reply, 1)}
	i := slices.IndexFunc(q, func(o *waiter) bool { return o.Attempt == claim.Attempt })
	if i < 0 {
		i = len(q)
		c.queues[claim.Name] = append(q, w)
	} else {
		q[i].answer <- reply{err: &leases.UnavailableError{Reason: "displaced by a newer copy"}}
		q[i] = w
	}
	l.on(leases.Queued{Name: claim.Name, Attempt: claim.Attempt, Position: i + 1})
	return w, reply{}
}

// refusal says why a name is not granted. It is called with mu held.
func (c *cluster) refusal(name string) error {
	g := c.held[name]
	if g == nil && c.grace() > 0 {
		return c.graceError()
	}
	e := &leases.HeldError{Name: name, Waiters: len(c.queues[name])}
	if g != nil {
		e.By = g.Owner
	}
	return e
}

// grant is called with mu held.
func (c *cluster) grant(session leases.ID, claim leases.Claim, waited bool) leases.Grant {
	g := c.insert(session, claim, waited)
	c.record(g, leases.Change{Kind: leases.ChangeGranted, Token: g.token})
	return leases.Grant{Token: g.token, AcquiredAt: g.at, Waited: waited}
}

// insert is grant without a change. It is called with mu held.
func (c *cluster) insert(session leases.ID, claim leases.Claim, waited bool) *grant {
	c.last++
	c.grants++
	c.arbiter.closed = true
	g := &grant{Claim: claim, session: session, token: tokens.New(c.epoch, c.last), waited: waited, at: time.Now()}
	c.held[claim.Name] = g
	life := claim.TTL
	if waited {
		life = min(life, leases.FirstDeadline)
	}
	c.until(g, leases.Stretch(life))
	return g
}

// until sets a lease's deadline. It is called with mu held.
func (c *cluster) until(g *grant, d time.Duration) {
	g.deadline = time.Now().Add(d)
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.held[g.Name] == g && !time.Now().Before(g.deadline) {
			c.expired++
			c.end(g, leases.ChangeExpired)
		}
	})
}

// free ends a lease as its release does. It is called with mu held.
func (c *cluster) free(g *grant) { c.end(g, leases.ChangeReleased) }

// end ends a lease; the next in turn gets the name. It is called with mu held.
func (c *cluster) end(g *grant, kind leases.ChangeKind) {
	g.timer.Stop()
	delete(c.held, g.Name)
	c.record(g, leases.Change{Kind: kind, Token: g.token, Free: true})
	c.next(g.Name)
}

// next lets the next in turn have a name that is free. It is called with mu held.
func (c *cluster) next(name string) {
	if q := c.queues[name]; len(q) > 0 && c.grace() == 0 {
		w := q[0]
		c.queues[name] = slices.Delete(q, 0, 1)
		w.answer <- reply{grant: c.grant(w.link.session, w.Claim, true)}
	}
}

func (c *cluster) find(session leases.ID, h leases.Held) (*grant, error) {
	g := c.held[h.Name]
	if g == nil || g.token != h.Token || g.session != session {
		gone := &leases.NotHeldError{Name: h.Name, Token: h.Token, Next: c.passed[h.Token]}
		if gone.Next != 0 {
			gone.Why = leases.WhyTransferred
		}
		return nil, gone
	}
	return g, nil
}

func (c *cluster) renew(session leases.ID, h leases.Held) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, err := c.find(session, h)
	if err != nil {
		if c.lost(h) {
			return c.graceError()
		}
		return err
	}
	if g.broken {
		return &leases.NotHeldError{Name: h.Name, Token: h.Token, Why: leases.WhyBroken}
	}
	g.waited = false
	c.until(g, leases.Stretch(g.TTL))
	return nil
}

func (c *cluster) release(session leases.ID, h leases.Held) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, err := c.find(session, h)
	if err != nil {
		if c.lost(h) {
			return nil
		}
		return err
	}
	c.free(g)
	return nil
}

func (c *cluster) transfer(session leases.ID, h leases.Held, to leases.ID) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, err := c.find(session, h)
	if err != nil {
		if c.lost(h) {
			return false, nil
		}
		return false, err
	}
	q := c.queues[h.Name]
	i := slices.IndexFunc(q, func(w *waiter) bool { return w.Attempt == to })
	if i < 0 || c.grace() > 0 {
		c.free(g)
		return false, nil
	}
	heir := q[i]
	c.queues[h.Name] = slices.Delete(q, i, i+1)
	g.timer.Stop()
	next := c.insert(heir.link.session, heir.Claim, true)
	c.passed[g.token] = next.token
	c.record(next, leases.Change{Kind: leases.ChangeTransferred, Token: g.token, Next: next.token})
	heir.answer <- reply{grant: leases.Grant{Token: next.token, Waited: true}}
	return true, nil
}

func (c *cluster) withdraw(session leases.ID, name string, attempt leases.ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[attempt] = true
	c.queues[name] = slices.DeleteFunc(c.queues[name], func(w *waiter) bool {
		gone := w.Attempt == attempt
		if gone {
			w.answer <- reply{err: &leases.NotHeldError{Name: name, Why: leases.WhyWithdrawn}}
		}
		return gone
	})
	if g := c.held[name]; g != nil && g.Attempt == attempt && g.session == session {
		c.end(g, leases.ChangeWithdrawn)
	}
	return nil
}

// changeLeader begins a new term: conversations break, waiters go, and every
// lease has a full TTL again.
func (c *cluster) changeLeader() {
	c.breakAll(leases.ErrUnavailable)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = map[leases.ID]bool{}
	for _, g := range c.held {
		c.until(g, leases.Stretch(g.TTL))
	}
}

// endLease ends a lease against its holder's will, and tells it.
func (c *cluster) endLease(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.held[name]
	c.end(g, leases.ChangeBroken)
	c.tell(g, leases.Ended{Held: g.id(), Err: &leases.NotHeldError{Name: name, Token: g.token, Why: leases.WhyBroken}})
}

// breakLease lets a lease, if there is one, be renewed no more; told: its holder
// hears of it at once.
func (c *cluster) breakLease(name string, told bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.held[name]
	if g == nil {
		return
	}
	g.broken = true
	c.record(g, leases.Change{Kind: leases.ChangeBroken, Token: g.token})
	if told {
		c.tell(g, leases.Breaking{Held: g.id()})
	}
}

// tell tells the holder of a lease. It is called with mu held.
func (c *cluster) tell(g *grant, e leases.Event) {
	for l := range c.links {
		if l.session == g.session {
			l.on(e)
		}
	}
}

func (g *grant) id() leases.Held { return leases.Held{Name: g.Name, Token: g.token} }

// set changes the faults.
func (c *cluster) set(f func(call) fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// opening decides from now on whether conversations can be opened.
func (c *cluster) opening(f func(ctx context.Context, try int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = f
}

// made returns the calls of one kind so far.
func (c *cluster) made(op string) []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	var made []call
	for _, k := range c.calls {
		if k.op == op {
			made = append(made, k)
		}
	}
	return made
}

// holder returns the token that a name is held under; zero: it is free.
func (c *cluster) holder(name string) tokens.Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.held[name]; g != nil {
		return g.token
	}
	return 0
}

func (c *cluster) waiters(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queues[name])
}

// on makes a fault of the calls of one kind.
func on(op string, f fault) func(call) fault {
	return func(k call) fault {
		if k.op == op {
			return f
		}
		return fault{}
	}
}

// first makes a fault of the first n calls of one kind.
func first(n int, op string, f fault) func(call) fault {
	return func(k call) fault {
		if k.op == op && k.n <= n {
			return f
		}
		return fault{}
	}
}

// everything makes a fault of every call.
func everything(f fault) func(call) fault { return func(call) fault { return f } }

// closing closes a client in time.
func closing(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("Close: got %v, want nil", err)
	}
	if n := len(c.renewer.due.turns); n != 0 {
		t.Errorf("%d leases are still to be renewed after Close, want none", n)
	}
}

func acquire(t *testing.T, c *Client, name string, opts ...LeaseOption) *Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): got %v, want a lease", name, err)
	}
	return l
}

func release(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release: got %v, want nil", err)
	}
}

// mustBe fails unless err matches all of the targets.
func mustBe(t *testing.T, what string, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: got error %v, want one that matches %q", what, err, target)
		}
	}
}
