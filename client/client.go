// Package client holds leases: it acquires them from a cluster, or from a node
// in the same process, keeps them renewed, and tells their holder at once when
// they end.
//
//	c, err := client.Dial([]string{"127.0.0.1:7420"})
//	...
//	defer c.Close(ctx)
//	err = c.Run(ctx, "nightly-report", func(ctx context.Context) error {
//		lease, _ := client.FromContext(ctx)
//		return report(ctx, lease.Token()) // ctx ends when the lease does
//	})
//
// A lease is believed in for as long as its holder's own clock says, counted
// from before the request that was granted; so it ends in time with no network
// at all. No answer, "unavailable" and a lost connection are never a loss: the
// client looks for another node and goes on. After a takeover by the arbiter,
// which may know nothing of the lease, it reclaims it. What lies beyond that, such
// as a process that is paused between a look at the clock and a write, only the
// fencing token can stop: pass it to the store and let the store refuse an older
// one.
//
// Elect stands for a lease again and again. Get, List, Queue and Watch tell about
// all leases, whoever holds them.
//
// The errors are those of package leases.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// Client acquires leases and keeps them. It is safe for concurrent use.
type Client struct {
	options
	directory    leases.Directory
	conversation *conversation
	renewer      *renewer
	deadlines    *watcher // of the leases believed in
	silences     *watcher // of the attempts that wait for a word
	naive        naive
	conn         io.Closer // what Dial made; nil: the backend is not ours to close

	ctx     context.Context // ends when nothing may be sent any more
	stop    context.CancelCauseFunc
	waits   context.Context // ends when Close begins
	endWait context.CancelCauseFunc
	running sync.WaitGroup // every goroutine of the client's, but for alarms that ring

	// mu guards what follows. It may be taken under a lease's, not around one.
	mu      sync.Mutex
	closing bool
	stopped bool
	unended map[leases.ID]*Lease // by attempt, all but the settled ones

	closed   chan struct{} // closed when Close has done its work
	closeErr error         // of that, once closed
}

// Dial returns a client of the cluster that the nodes at addrs belong to; any
// one of them that can be reached will do. It does no I/O: a cluster that
// cannot be reached shows when a lease is acquired. Close ends the client.
//
// Errors: leases.ErrInvalid, if addrs is empty or has one that is no address.
func Dial(addrs []string, opts ...Option) (*Client, error) {
	o := newOptions(opts)
	conn, err := transport.Dial(transport.DialConfig{Addrs: addrs, TLS: o.tls, Network: o.network, Log: o.log, Rules: o.rules})
	if err != nil {
		return nil, err
	}
	c := newClient(conn, o)
	c.conn = conn
	return c, nil
}

// New returns a client over b, such as an embedded node. b stays the caller's,
// who closes the client before it.
func New(b leases.Backend, opts ...Option) *Client { return newClient(b, newOptions(opts)) }

func newClient(b leases.Backend, o options) *Client {
	c := &Client{
		options:   o,
		directory: b,
		unended:   map[leases.ID]*Lease{},
		naive:     naive{rules: o.rules},
		closed:    make(chan struct{}),
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.waits, c.endWait = context.WithCancelCause(c.ctx)
	c.conversation = newConversation(c, b)
	c.renewer = newRenewer(c)
	c.deadlines = newWatcher(c.clock, func(l *Lease) { l.step((*holder.Holder).Lapse) }) // which looks whether it is so
	c.silences = newWatcher(c.clock, func(l *Lease) { l.post(func(in *inbox) { in.silent = true }) })
	return c
}

// Info finds a node that serves leases, unless a conversation with one goes on,
// and returns what it told about itself and its cluster. It tries until ctx
// ends; the error then is what the last try said, joined with ctx's cause.
func (c *Client) Info(ctx context.Context) (leases.Info, error) {
	ctx, cancel := bound(ctx, c.waits)
	defer cancel()
	s, err := c.conversation.with(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		return leases.Info{}, err
	}
	return s.Info(), nil
}

// bound returns ctx, ended also when other does, with its cause.
func bound(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// spawn runs f in a goroutine that Close waits for. false: the client has
// stopped, and f does not run.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.running.Go(f)
	return true
}

// part lets the last request about l be made over and over until it is answered,
// or nothing can be left of the lease, and then done be called. It may be called
// with l's mutex held; done is not.
func (c *Client) part(l *Lease, r request, done func(error)) {
	c.partLater(l, r, done, leases.Stretch(l.claim.TTL), 0)
}

// partNow is part, but makes the request once itself, until ctx ends: mostly
// nothing is left to do then. It is called without l's mutex.
func (c *Client) partNow(ctx context.Context, l *Lease, r request, done func(error)) {
	began, tries := time.Now(), 0
	if ctx.Err() == nil {
		if err := c.conversation.ask(ctx, patience(l.claim.TTL), r); final(err) {
			done(err)
			return
		} else if ctx.Err() == nil {
			tries++
		}
	}
	c.partLater(l, r, done, leases.Stretch(l.claim.TTL)-time.Since(began), tries)
}

// partLater is part for d at most, where the request was made tries times.
func (c *Client) partLater(l *Lease, r request, done func(error), d time.Duration, tries int) {
	if !c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.ctx, d)
		defer cancel()
		done(c.conversation.until(ctx, patience(l.claim.TTL), r, tries))
	}) {
		c.settle(l, errClosed)
	}
}

// enter makes the lease of an attempt known to Close and to hear.
func (c *Client) enter(l *Lease) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return errClosed
	}
	c.unended[l.claim.Attempt] = l
	return nil
}

// settle notes that the cluster need not be told anything more of l.
func (c *Client) settle(l *Lease, outcome error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-l.settled:
		return
	default:
	}
	if c.unended[l.claim.Attempt] == l {
		delete(c.unended, l.claim.Attempt)
	}
	l.outcome = outcome
	close(l.settled)
}

// hear takes an event of the conversation's. It does not block.
func (c *Client) hear(e leases.Event) {
	switch e := e.(type) {
	case leases.Queued:
		c.mu.Lock()
		l := c.unended[e.Attempt]
		c.mu.Unlock()
		if l != nil {
			l.post(func(in *inbox) { in.place = e.Position })
		}
	case leases.Ended:
		if !errors.Is(e.Err, leases.ErrNotHeld) {
			return // only a certain refusal is a loss
		}
		c.tell(news(e.Held, e.Err, (*holder.Holder).Gone))
	case leases.Breaking:
		broken := &leases.NotHeldError{Name: e.Held.Name, Token: e.Held.Token, Why: leases.WhyBroken}
		c.tell(news(e.Held, broken, (*holder.Holder).Refused))
	}
}

func (c *Client) tell(event func(*holder.Holder, clock.Instant) holder.Verdict) {
	for _, l := range c.all() {
		l.step(event)
	}
}

// all returns the leases that have not settled.
func (c *Client) all() []*Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*Lease, 0, len(c.unended))
	for _, l := range c.unended {
		all = append(all, l)
	}
	return all
}

// urgency is how long the most pressing lease can wait for an answer.
func (c *Client) urgency() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := maxPatience
	for _, l := range c.unended {
		d = min(d, patience(l.claim.TTL))
	}
	return d
}
