package nodetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// turn is one grant of the name, as a watch tells it.
type turn struct {
	who         string
	from, until clock.Instant // until: 0 as long as it is held
}

// turns are the grants of the name, in their order.
type turns struct {
	mu  sync.Mutex // guards all
	all []turn
}

// follow watches the name on one node until ctx ends.
func (u *turns) follow(ctx context.Context, c *Cluster, node int, from leases.Position) {
	c.Node(node).Watch(ctx, name, from, func(b leases.Batch) error {
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, change := range b.Changes {
			if change.Kind == leases.ChangeGranted {
				u.all = append(u.all, turn{who: change.Owner.Label, from: c.True.Now()})
			} else if change.Free && len(u.all) > 0 {
				u.all[len(u.all)-1].until = c.True.Now()
			}
		}
		return nil
	})
}

// deaths are the ends of clients while they wait or hold: when, by the true clock.
type deaths struct {
	mu sync.Mutex // guards at
	at map[string]clock.Instant
}

func (d *deaths) end(c *Cluster, k *Client, how int) {
	d.mu.Lock()
	d.at[k.Name] = c.True.Now()
	d.mu.Unlock()
	switch how {
	case 0:
		c.Note("%s is closed", k.Name)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		k.Close(ctx)
	case 1:
		c.Note("%s crashes", k.Name)
		c.Net.Crash(k.Name)
	case 2:
		c.Note("%s is paused", k.Name)
		k.pause()
	}
}

const waiters, doomed = 200, 60

// W2, S45, S55. Two hundred wait for one name; every third of them ends, in one
// way or another. Within one term they have it in the order in which they came,
// each release calls one of them, and who is dead keeps it no longer than its
// first deadline.
var longLine = scenario{
	run: func(c *Cluster) {
		ttl := []time.Duration{time.Second, 30 * time.Second}[c.Rand.IntN(2)]
		c.Note("ttl %v", ttl)
		leader := c.Leader()
		term := c.Node(leader).Status().Term
		first := c.Client("first", ClientConfig{}).acquire(10*time.Second, ttl)
		if first == nil {
			return
		}
		clients := c.lineUp(ttl)
		c.eventually("all wait", func() bool { return c.Node(leader).Status().Waiters == waiters })
		before := c.queued(leader)

		var got turns
		began := c.Claims(name)
		ctx, end := context.WithCancel(context.Background())
		var watching sync.WaitGroup
		watching.Go(func() { got.follow(ctx, c, leader, before) })
		defer watching.Wait()
		defer end()

		dead := deaths{at: map[string]clock.Instant{}}
		for i, place := range c.Rand.Perm(waiters)[:doomed] {
			k := clients[place]
			time.AfterFunc(c.some(0, 15*time.Second), func() { dead.end(c, k, i%3) })
			defer k.resume()
		}
		first.Release(context.Background())
		c.eventually("the line is empty", func() bool {
			s := c.Node(leader).Status()
			return s.Waiters == 0 && s.Leases == 0
		})
		time.Sleep(16 * time.Second) // all that are to end have ended
		if s := c.Node(leader).Status(); s.Term != term || !s.Serving {
			c.Note("the leader has changed")
			return
		}
		got.mu.Lock()
		defer got.mu.Unlock()
		dead.mu.Lock()
		defer dead.mu.Unlock()
		c.inTurn(got.all, dead.at, leases.Stretch(min(ttl, leases.FirstDeadline)))
		if called := c.Claims(name) - began; called != len(got.all) {
			c.Broken("%d claims were proposed for %d grants: a release calls more than one", called, len(got.all))
		}
	},
	least: history.Counts{Grants: 140},
	heavy: 20,
}

// lineUp lets w0, w1, … ask for the name, one after the other. Each holds it for a
// moment in its turn.
func (c *Cluster) lineUp(ttl time.Duration) (clients []*Client) {
	for i := range waiters {
		k := c.Client(fmt.Sprintf("w%d", i), ClientConfig{})
		clients = append(clients, k)
		work := c.some(10*time.Millisecond, 60*time.Millisecond)
		k.connect()
		time.Sleep(5 * time.Millisecond) // nobody overtakes another on its way
		go func() {
			h, err := k.Acquire(context.Background(), name, client.TTL(ttl))
			if err != nil {
				return // it has been closed
			}
			pause(h.Context(), work)
			soon, cancel := context.WithTimeout(context.Background(), ttl)
			defer cancel()
			h.Release(soon)
		}()
	}
	return clients
}

// queued checks that w0, w1, … stand in this order, and returns the place in the
// history at which they do.
func (c *Cluster) queued(leader int) leases.Position {
	line, err := c.Node(leader).Queue(context.Background(), name)
	if err != nil {
		c.Broken("the queue: %w", err)
	}
	for i, w := range line {
		if w.Owner.Label != fmt.Sprintf("w%d", i) || w.Position != i+1 {
			c.Broken("%s stands at place %d of the queue, told as %d", w.Owner.Label, i+1, w.Position)
			break
		}
	}
	p, err := c.Node(leader).List(context.Background(), "", "", 1)
	if err != nil {
		c.Broken("the list: %w", err)
	}
	return p.At
}

// inTurn checks who of w0, w1, … had the name, in which order, and for how long
// the dead had it.
func (c *Cluster) inTurn(got []turn, dead map[string]clock.Instant, most time.Duration) {
	next := 0
	for _, u := range got {
		for ; next < waiters && fmt.Sprintf("w%d", next) != u.who; next++ {
			if _, ok := dead[fmt.Sprintf("w%d", next)]; !ok {
				c.Broken("w%d was passed over by %s", next, u.who)
				return
			}
		}
		next++
		if died, ok := dead[u.who]; ok && !u.from.Before(died) && (u.until == 0 || u.until.Sub(u.from) > most+250*time.Millisecond) {
			c.Broken("%s, who is dead, has the name for %v, and may have it for %v", u.who, u.until.Sub(u.from), most)
		}
	}
	for ; next < waiters; next++ {
		if _, ok := dead[fmt.Sprintf("w%d", next)]; !ok {
			c.Broken("w%d was forgotten", next)
		}
	}
}

func TestLongLine(t *testing.T)                   { explore(t, longLine) }
func TestLongLineNeedsTurns(t *testing.T)         { needs(t, longLine, rules.Turns) }
func TestLongLineNeedsFirstDeadline(t *testing.T) { needs(t, longLine, rules.FirstDeadline) }
