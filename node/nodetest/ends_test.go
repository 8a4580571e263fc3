package nodetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// register is a store that refuses whoever comes with a smaller token than it
// has seen.
type register struct {
	mu      sync.Mutex // guards what follows
	newest  map[string]tokens.Token
	refused map[tokens.Token]string // who was
}

func (r *register) write(who, name string, t tokens.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t < r.newest[name] {
		r.refused[t] = who
		return
	}
	r.newest[name] = t
}

// copies are the requests that a network copies: some of those that end leases.
// The copy comes later, over another conversation.
type copies struct {
	bring sync.WaitGroup

	mu   sync.Mutex // guards rand
	rand *rand.Rand
}

// next draws whether a request is copied, and how much later the copy comes.
func (k *copies) next() (later time.Duration, again bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Duration(k.rand.Int64N(int64(4 * time.Second))), k.rand.IntN(3) == 0
}

type copying struct {
	leases.Backend
	copies *copies
}

func (k copying) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	s, err := k.Backend.Open(ctx, id, on)
	if err != nil {
		return nil, err
	}
	return &copiedSession{s, k, id}, nil
}

type copiedSession struct {
	leases.Session
	way copying
	id  leases.ID
}

func (s *copiedSession) Release(ctx context.Context, h leases.Held) error {
	_, err := s.send(ctx, releasing(h))
	return err
}

func (s *copiedSession) Transfer(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
	return s.send(ctx, transferring(h, to))
}

func (s *copiedSession) send(ctx context.Context, e ending) (bool, error) {
	passedOn, err := e(ctx, s.Session)
	if later, again := s.way.copies.next(); again {
		s.way.copies.bring.Go(func() { bring(s.way.Backend, later, s.id, e) })
		err = copied(err)
	}
	return passedOn, err
}

// breaker is an operator who breaks leases at random until ctx ends.
func (l *load) breaker(ctx context.Context, o *Operator, r *rand.Rand) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	c := l.c
	for ctx.Err() == nil {
		pause(ctx, 200*time.Millisecond+upTo(l.ttl/2))
		leader, ok := c.Serving()
		if !ok {
			continue
		}
		soon, cancel := context.WithTimeout(ctx, 2*time.Second)
		s, err := c.Node(leader).Get(soon, []string{"x0", "x1"}[r.IntN(2)])
		now, cut, again := r.IntN(2) == 0, r.IntN(2) == 0, time.Duration(0)
		if r.IntN(2) == 0 {
			again = 1 + upTo(2*l.ttl)
		}
		if err == nil && s.Held {
			host := s.Owner.Label
			if now && cut { // its holder hears nothing of it
				c.Partition([]string{host}, c.nodes(0, 1, 2))
			}
			_, _ = o.Break(soon, leader, leases.Held{Name: s.Name, Token: s.Token}, now, again)
			if now && cut {
				pause(ctx, upTo(l.ttl))
				c.healAll([]string{host}, c.nodes(0, 1, 2))
				c.healAll(c.nodes(0, 1, 2), []string{host})
			}
		}
		cancel()
	}
}

// zombies is how many writes a register has refused.
var zombies atomic.Int64

// W7, W8, S48, S51. Leases are broken and passed on, the leader changes, links
// are cut, and requests are copied and late. Nobody relies on what somebody else
// relies on, but after a break that frees the name at once; and then the
// register knows who came later.
var ends = scenario{
	config: Config{ElectionTimeout: 500 * time.Millisecond},
	run: func(c *Cluster) {
		const ttl = 3 * time.Second
		late := &copies{rand: rand.New(rand.NewPCG(c.cfg.Seed, 3))}
		store := &register{newest: map[string]tokens.Token{}, refused: map[tokens.Token]string{}}
		l := &load{c: c, names: 2, ttl: ttl}
		l.backend = func(b leases.Backend) leases.Backend { return copying{b, late} }
		l.hold = func(ctx context.Context, k *Client, h *Hold, r *rand.Rand) { l.write(ctx, k, h, r, store) }
		l.start(6)
		o := c.Operator("operator")
		ctx, stop := context.WithCancel(context.Background())
		var breaking sync.WaitGroup
		breaking.Go(func() { l.breaker(ctx, o, rand.New(rand.NewPCG(c.cfg.Seed, 4))) })
		for range 4 {
			time.Sleep(c.some(0, 2*ttl))
			i := c.Leader()
			switch c.Rand.IntN(4) {
			case 0:
				c.Partition(c.nodes(i), c.others(i))
				time.Sleep(c.some(0, 2*ttl))
				c.HealAll()
			case 1:
				c.Crash(i)
				time.Sleep(c.some(0, ttl))
				c.Restart(i)
			case 2:
				c.Stop(i)
				c.Restart(i)
			case 3:
				c.cutAll(c.nodes(i), []string{c.someClient()})
				time.Sleep(c.some(0, ttl))
				c.HealAll()
			}
		}
		c.HealAll()
		c.AllVote()
		time.Sleep(2 * ttl)
		stop()
		breaking.Wait()
		l.end()
		late.bring.Wait()
		c.judge(store)
	},
	least: history.Counts{Grants: 10, Renewals: 10, Releases: 3, Transfers: 1, Breaks: 3},
}

// write holds a lease, and writes with its token as long as it is relied on;
// then it is given back, or passed on to somebody who waits.
func (l *load) write(ctx context.Context, k *Client, h *Hold, r *rand.Rand, store *register) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for until := time.Now().Add(upTo(2 * l.ttl)); h.Err() == nil && time.Now().Before(until); {
		store.write(k.Name, h.Name(), h.Token())
		pause(h.Context(), upTo(300*time.Millisecond))
	}
	soon, cancel := context.WithTimeout(ctx, upTo(l.ttl))
	defer cancel()
	if r.IntN(2) == 0 && h.Err() == nil {
		if w, err := k.Queue(soon, h.Name()); err == nil && len(w) > 0 && h.Err() == nil {
			_, _ = h.Transfer(soon, w[r.IntN(len(w))].Attempt)
			return
		}
	}
	_ = h.Release(soon)
}

// judge checks that a register refused nobody but those whose lease an operator
// had ended at once.
func (c *Cluster) judge(store *register) {
	freed := map[tokens.Token]bool{}
	for _, e := range c.History.History().Events {
		if e.Kind == history.Break && e.Now {
			freed[e.Token] = true
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	zombies.Add(int64(len(store.refused)))
	for t, who := range store.refused {
		if !freed[t] {
			c.Broken("%s relied on token %v when a later one had been used", who, t)
		}
	}
}

func TestEnds(t *testing.T) {
	explore(t, ends)
	t.Logf("writes of zombies that were refused: %d", zombies.Load())
	if seeds(t) >= 20 && zombies.Load() == 0 {
		t.Error("no register has refused a zombie: breaks that free a name at once are not shown")
	}
}

func TestEndsNeedBreakToken(t *testing.T) { needs(t, ends, rules.BreakToken) }

// S47, S48, transferred. The transfer hangs in the network, and its giver goes
// on only if it does not hold that it is over.
var transferredLate = scenario{
	run: func(c *Cluster) {
		const ttl = 10 * time.Second
		late := &lateEnds{}
		a := c.Client("a", ClientConfig{Backend: func(b leases.Backend) leases.Backend { late.Backend = b; return late }})
		b := c.Client("b", ClientConfig{})
		held := a.acquire(10*time.Second, ttl)
		if held == nil {
			return
		}
		go b.acquire(3*ttl, ttl)
		time.Sleep(c.some(100*time.Millisecond, ttl))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		w, err := a.Queue(ctx, name)
		if err != nil || len(w) != 1 {
			c.Broken("the queue: %v, %w", w, err)
			return
		}
		late.hold(c.some(500*time.Millisecond, 4*time.Second))
		soon, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		held.Transfer(soon, w[0].Attempt)
		c.Note("a has sent its transfer")
		if c.Rand.IntN(2) == 0 {
			time.Sleep(c.some(0, time.Second))
		}
		go a.acquire(2*ttl, ttl)
		time.Sleep(2 * ttl)
		late.bring.Wait()
	},
	least: history.Counts{Grants: 2},
}

func TestTransferredLate(t *testing.T)                 { explore(t, transferredLate) }
func TestTransferredLateNeedsAttemptOver(t *testing.T) { needs(t, transferredLate, rules.AttemptOver) }
