package history

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// simulation is a lock service without faults of its own, behind a network
// that loses, delays and reorders requests and answers. Now and then it forgets all
// leases, as in a takeover by the arbiter, and takes them back. What it does is legal.
type simulation struct {
	rand   *rand.Rand
	clock  manual
	rec    *Recorder
	names  []simName
	flying []*flight
	calm   int // of 20 requests or answers so many are not lost
	last   tokens.Token
	ids    uint64

	epoch    uint32
	fallback bool          // the arbiter serves
	fresh    clock.Instant // then: the end of its grace
}

type simName struct {
	name    string
	clients []*simClient

	// The lease; the deadline is the service's.
	holder   *simClient
	attempt  leases.ID
	token    tokens.Token
	before   tokens.Token // the lease before it
	deadline clock.Instant
	broken   bool
	closed   bool // it was granted anew in this epoch: nothing is reclaimed
}

// simClient is a client that asks for one name again and again.
type simClient struct {
	name     string
	session  leases.ID
	attempt  leases.ID
	sent     clock.Instant // the first copy of the attempt
	token    tokens.Token
	deadline clock.Instant
	holding  *Holding
	refused  bool   // its renewal was: it stops, and releases
	told     bool   // its renewal was refused, but it goes on up to its deadline
	epoch    uint32 // in which it is to reclaim its lease
}

// flight is a request under way: first to the service, then back.
type flight struct {
	c       *simClient // nil: an operator's
	name    *simName
	event   Event
	sent    clock.Instant
	end     func(Outcome, tokens.Token, error)
	applied bool
	given   bool // the client has been told that there is no answer
	outcome Outcome
	token   tokens.Token
	epoch   uint32 // in which the lease is to be reclaimed
}

const simTTL = 10 * time.Second

// simulate makes a history of about steps events under so many names.
func simulate(seed uint64, steps, names int) History {
	s := &simulation{rand: rand.New(rand.NewPCG(seed, 0)), names: make([]simName, names), epoch: 1, last: tokens.New(1, 0)}
	s.calm = 12 + s.rand.IntN(9)
	s.rec = NewRecorder(&s.clock)
	for i := range s.names {
		s.names[i].name = fmt.Sprintf("n%d", i)
		for range 2 + s.rand.IntN(4) {
			s.names[i].clients = append(s.names[i].clients, &simClient{name: fmt.Sprintf("c%d", s.ids), session: s.id()})
		}
	}
	for range steps {
		s.clock.now = s.clock.now.Add(time.Duration(s.rand.Int64N(int64(simTTL) / 20 / int64(names))))
		s.change()
		if len(s.flying) < 3*names && s.rand.IntN(2) == 0 {
			s.send(&s.names[s.rand.IntN(names)])
		} else if len(s.flying) > 0 {
			s.move(s.rand.IntN(len(s.flying)))
		}
	}
	return s.rec.History()
}

// change lets the arbiter take over from the leader now and then, and back.
func (s *simulation) change() {
	switch n := s.rand.IntN(40 * len(s.names)); {
	case !s.fallback && n == 0:
		for i := range s.names {
			s.names[i].holder = nil
		}
		s.fallback, s.fresh = true, s.clock.now.Add(simTTL)
	case s.fallback && n <= 1 && !s.grace():
		for i := range s.names {
			s.names[i].deadline = s.clock.now.Add(simTTL)
		}
		s.fallback = false
	default:
		return
	}
	s.epoch++
	s.rec.Epoch(s.epoch)
	s.last = tokens.New(s.epoch, 0)
	for i := range s.names {
		s.names[i].closed = false
	}
}

// grace reports whether nothing is granted anew.
func (s *simulation) grace() bool { return s.fallback && s.clock.now.Before(s.fresh) }

func (s *simulation) id() leases.ID {
	s.ids++
	var id leases.ID
	binary.BigEndian.PutUint64(id[:], s.ids)
	return id
}

// send lets a client of n do something that a client may do.
func (s *simulation) send(n *simName) {
	if n.token != 0 && s.rand.IntN(12) == 0 {
		s.sendBreak(n)
		return
	}
	c := n.clients[s.rand.IntN(len(n.clients))]
	for _, other := range n.clients {
		if other.holding != nil && s.rand.IntN(2) == 0 { // who holds the lease has more to do
			c = other
		}
	}
	e := Event{Client: c.name, Session: c.session, Name: n.name}
	held := c.holding != nil && s.clock.now.Before(c.deadline)
	switch {
	case held && !c.refused && !c.told && c.epoch != 0 && s.rand.IntN(4) > 0:
		e.Kind, e.Token, e.Epoch = Reclaim, c.token, c.epoch
		if s.rand.IntN(2) == 0 {
			c.epoch = 0
		}
	case held && !c.refused && s.rand.IntN(8) > 0:
		e.Kind, e.Token = Renew, c.token
	case held:
		e.Kind, e.Token = Release, c.token
		if s.rand.IntN(2) == 0 {
			e.Kind = Transfer
		}
		c.holding.End()
		c.forget()
	case c.holding != nil: // it has lapsed
		c.holding.End()
		c.forget()
		return
	case c.attempt.IsZero():
		c.attempt, c.sent = s.id(), s.clock.now
		e.Kind, e.Attempt = Acquire, c.attempt
	case s.rand.IntN(2) == 0:
		e.Kind, e.Attempt = Acquire, c.attempt
	default:
		e.Kind, e.Attempt = Withdraw, c.attempt
		c.forget()
	}
	s.fly(c, n, e)
}

// sendBreak lets an operator break the lease of n, or mean the one before it.
func (s *simulation) sendBreak(n *simName) {
	e := Event{Kind: Break, Client: "operator", Name: n.name, Token: n.token, Now: s.rand.IntN(3) > 0}
	if n.before != 0 && s.rand.IntN(4) == 0 {
		e.Token = n.before
	}
	s.fly(nil, n, e)
}

func (s *simulation) fly(c *simClient, n *simName, e Event) {
	s.flying = append(s.flying, &flight{c: c, name: n, event: e, sent: s.clock.now, end: s.rec.Begin(e)})
}

// forget ends the client's token and attempt: no answer counts any more.
func (c *simClient) forget() {
	c.attempt, c.token, c.holding, c.refused, c.told, c.epoch = leases.ID{}, 0, nil, false, false, 0
}

// move takes a request a step further.
func (s *simulation) move(i int) {
	f := s.flying[i]
	lost := s.rand.IntN(20) >= s.calm
	switch {
	case f.applied || f.given && lost:
		s.flying = slices.Delete(s.flying, i, i+1)
		if !f.given && !lost {
			s.answer(f)
		} else if !f.given && s.rand.IntN(2) == 0 {
			f.end(Unknown, 0, nil)
		}
	case !f.given && lost:
		f.given = true
		f.end(Unknown, 0, nil)
	default:
		f.applied = true
		s.apply(f)
	}
}

// apply is the service.
func (s *simulation) apply(f *flight) {
	n, e := f.name, f.event
	if n.holder != nil && !s.clock.now.Before(n.deadline) && s.rand.IntN(2) == 0 {
		n.holder = nil
	}
	held := n.holder != nil && n.token == e.Token
	mine := held && n.holder == f.c
	unknown := s.grace() && (n.holder == nil || n.token < e.Token) // a lease that may be reclaimed
	f.outcome = Done
	switch {
	case e.Kind == Reclaim:
		s.reclaim(f)
	case e.Kind == Acquire && s.grace() && n.holder == nil, (e.Kind == Renew || e.Kind == Break) && unknown:
		f.outcome, f.epoch = Nothing, s.epoch
	case (e.Kind == Release || e.Kind == Transfer) && unknown: // it is answered as done
	case e.Kind == Acquire && n.holder == nil:
		s.grant(f)
	case e.Kind == Acquire && n.attempt == e.Attempt:
		f.token = n.token
	case e.Kind == Acquire:
		f.outcome = Held
	case e.Kind == Withdraw:
		if n.holder != nil && n.attempt == e.Attempt {
			n.holder = nil
		}
	case e.Kind == Break && !held, e.Kind != Break && !mine, e.Kind == Renew && n.broken:
		f.outcome = NotHeld
	case e.Kind == Renew:
		n.deadline = max(n.deadline, s.clock.now.Add(simTTL))
	case e.Kind == Break && !e.Now:
		n.broken = true
	default: // the lease ends
		n.holder = nil
		if e.Kind == Transfer && !s.grace() {
			s.pass(n, f.c)
		}
	}
}

// reclaim takes back what f presents.
func (s *simulation) reclaim(f *flight) {
	n, e := f.name, f.event
	mine := n.holder == f.c && n.token == e.Token
	switch {
	case e.Epoch != s.epoch || n.closed && mine:
		f.outcome, f.epoch = Nothing, s.epoch
	case n.closed, mine && n.broken, n.holder != nil && n.token > e.Token:
		f.outcome = NotHeld
	default:
		n.holder, n.token, n.attempt, n.broken = f.c, e.Token, leases.ID{}, false
		n.deadline = s.clock.now.Add(simTTL)
	}
}

// grant gives the free name to who sent f.
func (s *simulation) grant(f *flight) {
	n := f.name
	s.last++
	n.before, n.token = n.token, s.last
	n.holder, n.attempt, n.deadline, n.broken, n.closed = f.c, f.event.Attempt, s.clock.now.Add(simTTL), false, true
	f.applied, f.outcome, f.token = true, Done, s.last
}

// pass grants what giver has given to another one whose request has come that far.
func (s *simulation) pass(n *simName, giver *simClient) {
	for _, f := range s.flying {
		if f.name == n && f.event.Kind == Acquire && !f.applied && f.c != giver {
			s.grant(f)
			return
		}
	}
}

// answer brings an answer to the client.
func (s *simulation) answer(f *flight) {
	c, e, deadline := f.c, f.event, f.sent.Add(simTTL)
	f.end(f.outcome, f.token, nil)
	if c == nil {
		return
	}
	switch {
	case e.Kind == Acquire && f.outcome == Done && c.attempt == e.Attempt && c.holding == nil:
		if c.deadline = c.sent.Add(simTTL); s.clock.now.Before(c.deadline) {
			c.token = f.token
			c.holding = s.rec.Believe(c.name, e.Name, c.token, func() clock.Instant { return c.deadline })
		}
	case e.Kind == Acquire && f.outcome == Held && c.attempt == e.Attempt && c.holding == nil:
		c.forget()
	case (e.Kind == Renew || e.Kind == Reclaim) && c.holding != nil && c.token == e.Token && s.clock.now.Before(c.deadline):
		switch {
		case f.outcome == Done:
			c.deadline = max(c.deadline, deadline)
		case f.outcome == Nothing:
			c.epoch = f.epoch
		case s.rand.IntN(2) == 0: // else it uses the time that it has
			c.holding.End()
			c.refused = true
		default:
			c.told = true
		}
	}
}

func TestLegalHistoriesAreAccepted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawLegal(t)
		if err := h.Check(time.Minute); err != nil {
			t.Fatalf("a legal history: %v", err)
		}
	})
}

func drawLegal(t *rapid.T) History {
	return simulate(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(100, 600).Draw(t, "steps"), rapid.IntRange(1, 4).Draw(t, "names"))
}

// flaws change a legal history so that it breaks a promise, and report whether
// they found a place to.
var flaws = map[string]func(History) bool{
	"a token twice": func(h History) bool {
		for _, e := range h.grants()[min(1, len(h.grants())):] {
			if first := h.grants()[0]; first.Attempt != e.Attempt {
				e.Token = first.Token
				return true
			}
		}
		return false
	},
	"a token back": func(h History) bool {
		for _, a := range h.grants() {
			for _, b := range h.grants() {
				if a.Name == b.Name && a.returned < b.invoked && a.Token < b.Token {
					a.Token, b.Token = b.Token, a.Token
					return true
				}
			}
		}
		return false
	},
	"an overlap": func(h History) bool {
		for _, a := range h.Beliefs {
			for _, b := range h.Beliefs {
				if a.Name == b.Name && a.From < b.From && b.From < b.Until && !h.met(a.Token, Break) && !h.met(b.Token, Break) {
					a.Until = b.From + 1
					return true
				}
			}
		}
		return false
	},
	"a lost grant": func(h History) bool {
		for _, b := range h.Beliefs {
			for _, e := range h.Events {
				if e.Kind == Renew && e.Outcome == Done && e.Token == b.Token && b.From < e.Invoke && e.Return < b.Until && !h.met(e.Token, Break) {
					e.Outcome = NotHeld
					return true
				}
			}
		}
		return false
	},
	"a renewal after a break": func(h History) bool {
		for _, b := range h.Events {
			for _, e := range h.Events {
				if b.Kind == Break && b.Outcome == Done && e.Kind == Renew && e.Outcome == NotHeld && e.Token == b.Token && b.returned < e.invoked && !h.met(e.Token, Reclaim) {
					e.Outcome = Done
					return true
				}
			}
		}
		return false
	},
	"a mark that ends the lease": func(h History) bool {
		for _, e := range h.Events {
			if e.Kind == Break && e.Now && e.Outcome == Done && h.early(e.Token) && !h.met(e.Token, Release, Transfer) {
				for _, other := range h.Events {
					if other.Token == e.Token {
						other.Now = false
					}
				}
				return true
			}
		}
		return false
	},
	"a lost reclaim": func(h History) bool {
		for _, b := range h.Beliefs {
			for _, e := range h.Events {
				if e.Kind == Reclaim && e.Outcome == Done && e.Token == b.Token && e.Return < b.Until && !h.met(e.Token, Break) {
					e.Outcome = NotHeld
					return true
				}
			}
		}
		return false
	},
	"a forged reclaim": func(h History) bool {
		for _, e := range h.Events {
			for _, other := range h.Events {
				if e.Kind == Reclaim && e.Outcome == Done && other.Kind != Break && other.Session != e.Session {
					e.Client, e.Session = other.Client, other.Session
					return true
				}
			}
		}
		return false
	},
	"a lease that comes back": func(h History) bool {
		for e, g := range h.overtaken(h.Events) {
			for _, first := range h.grants() {
				if e.Kind == Acquire && e.Outcome == Held && e.Name == first.Name && e.Session == first.Session && first.Token < g.Token && !h.met(first.Token, Break) {
					*e = Event{
						Kind: Reclaim, Client: e.Client, Session: e.Session, Name: e.Name, Token: first.Token, Epoch: tokens.MaxEpoch, Outcome: Done,
						Invoke: e.Invoke, Return: e.Return, invoked: e.invoked, returned: e.returned,
					}
					return true
				}
			}
		}
		return false
	},
	"a transfer without effect": func(h History) bool {
		for _, e := range h.Events {
			if e.Kind == Transfer && e.Outcome == Done && h.early(e.Token) && !h.met(e.Token, Break, Release) {
				e.Outcome = Nothing
				return true
			}
		}
		return false
	},
}

// met reports whether a request of those kinds may have taken effect on the lease
// of token t.
func (h History) met(t tokens.Token, kinds ...Kind) bool {
	return slices.ContainsFunc(h.Events, func(e *Event) bool {
		return e.Token == t && slices.Contains(kinds, e.Kind) && (e.Outcome == Done || e.Outcome == Unknown)
	})
}

// early reports whether the name was granted anew before the deadline of the
// holder of token t, who relied on it, and no late answer can explain that.
func (h History) early(t tokens.Token) bool {
	b := h.deadlines()[t]
	if b == nil {
		return false
	}
	late := map[tokens.Token]bool{} // tokens of which something was told after the deadline
	for _, e := range h.Events {
		if !e.Return.Before(b.Deadline) {
			late[e.Token] = true
		}
	}
	var next tokens.Token
	for _, e := range h.grants() {
		if e.Name == b.Name && e.Token > t && (next == 0 || e.Token < next) {
			next = e.Token
		}
	}
	return next != 0 && !late[t] && !late[next]
}

func TestFlawsAreRejected(t *testing.T) {
	for name, plant := range flaws {
		t.Run(name, func(t *testing.T) {
			planted := 0
			rapid.Check(t, func(t *rapid.T) {
				h := drawLegal(t)
				if !plant(h) {
					return
				}
				planted++
				if err := h.Check(time.Minute); err == nil {
					t.Fatal("the flaw was not found")
				}
			})
			if planted < 5 {
				t.Errorf("planted in %d histories, want at least 5", planted)
			}
		})
	}
}

func TestUnknownOutcomesAreMany(t *testing.T) {
	h := simulate(1, 5000, 2)
	unknown := 0
	for _, e := range h.Events {
		if e.Outcome == Unknown {
			unknown++
		}
	}
	if c := h.Counts(); c.Grants < 50 || c.Refusals < 20 || c.Transfers < 10 || c.Breaks < 20 || c.Reclaims < 20 || unknown < 100 || len(h.Beliefs) < 30 {
		t.Errorf("the simulation shows too little: %+v, %d unknown outcomes, %d beliefs", c, unknown, len(h.Beliefs))
	}
}

func TestCheckIsFast(t *testing.T) {
	h := simulate(2, 40000, 16)
	if len(h.Events) < 10000 {
		t.Fatalf("%d events, want at least 10,000", len(h.Events))
	}
	start := time.Now()
	if err := h.Check(time.Minute); err != nil {
		t.Error(err)
	}
	t.Logf("%+v in %v", h.Counts(), time.Since(start))
}

func BenchmarkCheck(b *testing.B) {
	h := simulate(2, 40000, 16)
	for b.Loop() {
		if err := h.Check(time.Minute); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(h.Events)), "events")
}
