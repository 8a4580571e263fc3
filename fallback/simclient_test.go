package fallback

import (
	"errors"
	"slices"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// clientStep has a client send something, by the rules of section 3.
func (s *simulation) clientStep() {
	c, name := pick(s, s.clients), pick(s, s.names)
	if n := pick(s, s.names); c.holds[name] == nil || c.holds[name].token == 0 { // holders more often
		name = n
	}
	h := c.holds[name]
	if h != nil && h.token != 0 && s.now >= h.deadline {
		h.holding.End()
		delete(c.holds, name)
		h = nil
	}
	switch {
	case h == nil:
		h = &simHold{attempt: s.id(), first: s.now}
		c.holds[name] = h
		s.send(c, h, history.Acquire, leases.Op{Kind: leases.KindAcquire, Name: name, Session: c.session, Attempt: h.attempt, TTL: simTTL})
	case h.token == 0 && s.now < h.first.Add(simTTL) && !s.chance(6): // once more
		s.send(c, h, history.Acquire, leases.Op{Kind: leases.KindAcquire, Name: name, Session: c.session, Attempt: h.attempt, TTL: simTTL})
	case h.token == 0:
		delete(c.holds, name)
		s.gone[h.attempt] = true
		s.send(c, h, history.Withdraw, leases.Op{Kind: leases.KindWithdraw, Name: name, Session: c.session, Attempt: h.attempt})
	case s.chance(20):
		s.end(c, name)
		if heir, hh := s.heir(c, name); heir != nil && s.chance(2) {
			// It may have given the attempt up when it is granted it.
			s.rec.Begin(history.Event{Kind: history.Acquire, Client: heir.name, Session: heir.session, Name: name, Attempt: hh.attempt, TTL: simTTL})
			s.send(c, h, history.Transfer, leases.Op{
				Kind: leases.KindTransfer, Name: name, Session: c.session, Token: h.token, Heir: heir.session, Attempt: hh.attempt, TTL: simTTL,
			})
			return
		}
		s.send(c, h, history.Release, leases.Op{Kind: leases.KindRelease, Name: name, Session: c.session, Token: h.token})
	case h.epoch != 0 && !s.chance(4):
		s.send(c, h, history.Renew, leases.Op{Kind: leases.KindReclaim, Epoch: h.epoch, Name: name, Session: c.session, Token: h.token, TTL: simTTL})
	default:
		s.send(c, h, history.Renew, leases.Op{Kind: leases.KindRenew, Name: name, Session: c.session, Token: h.token})
	}
}

// end is what comes before a client sends a lease's end.
func (s *simulation) end(c *simClient, name string) {
	h := c.holds[name]
	h.holding.End()
	s.over[h.token] = true
	delete(c.holds, name)
}

// heir finds another client that asks for the name.
func (s *simulation) heir(giver *simClient, name string) (*simClient, *simHold) {
	for _, c := range s.clients {
		if h := c.holds[name]; c != giver && h != nil && h.token == 0 {
			return c, h
		}
	}
	return nil, nil
}

func (s *simulation) send(c *simClient, h *simHold, kind history.Kind, op leases.Op) {
	r := &simRequest{c: c, op: op, hold: h, sent: s.now, heard: new(bool)}
	r.end = s.rec.Begin(history.Event{
		Kind: kind, Client: c.name, Session: c.session, Name: op.Name, Attempt: op.Attempt, Token: op.Token, TTL: op.TTL,
	})
	s.address(r)
	s.requests = append(s.requests, r)
	if op.Kind != leases.KindAcquire && s.chance(6) {
		r.copied = true
		copied := *r
		s.address(&copied)
		s.requests = append(s.requests, &copied)
	}
}

// address chooses who is asked: mostly somebody who serves.
func (s *simulation) address(r *simRequest) {
	r.node = pick(s, s.nodes)
	if n := pick(s, s.nodes); !r.node.serves {
		r.node = n
	}
	if s.mode == "raft" != s.chance(20) {
		r.node = nil
	}
}

// requestStep has a request or an answer arrive, or get lost.
func (s *simulation) requestStep() {
	waiting := slices.DeleteFunc(slices.Clone(s.requests), func(r *simRequest) bool { return r.asked && !r.answered })
	if len(waiting) == 0 {
		return
	}
	r := waiting[s.draw(min(len(waiting), 1+s.draw(len(waiting))))] // the older ones more often
	switch {
	case s.chance(25):
		s.drop(r)
	case r.answered:
		s.drop(r)
		s.hear(r)
	case r.node == nil:
		r.asked = true
		s.askRaft(r)
	default:
		r.asked = true
		k := s.shards.Of(r.op.Name)
		r.node.shards[k].Ask(r.op, func(result leases.Result, err error) {
			if r.answered {
				s.wrong("answered twice: %v", r.op.Kind)
			}
			r.answered, r.result, r.err = true, result, err
		})
	}
}

func (s *simulation) drop(r *simRequest) {
	s.requests = slices.DeleteFunc(s.requests, func(o *simRequest) bool { return o == r })
}

// askRaft is the Raft group.
func (s *simulation) askRaft(r *simRequest) {
	r.answered = true
	if s.mode != "raft" {
		r.err = leases.ErrUnavailable
		return
	}
	for name, at := range s.deadlines {
		if l, held := s.raft.Get(name); held && s.now >= at {
			s.raft.Apply(leases.Op{Kind: leases.KindExpire, Epoch: s.raft.Epoch(), Name: name, Token: l.Token})
		}
	}
	op := r.op
	op.Epoch = s.raft.Epoch()
	l, held := s.raft.Get(op.Name)
	switch op.Kind {
	case leases.KindReclaim:
		r.err = leases.ErrUnavailable
	case leases.KindRenew:
		if r.result.Outcome = leases.Absent; held && l.Token == op.Token && l.Session == op.Session {
			r.result = leases.Result{Outcome: leases.Renewed, Lease: l}
			s.deadlines[op.Name] = s.now.Add(simTTL)
		}
	default:
		r.result = s.raft.Apply(op)
		if r.result.Outcome == leases.Granted || r.result.Outcome == leases.Transferred {
			s.deadlines[op.Name] = s.now.Add(simTTL)
			s.newer(r.result.Lease)
		}
	}
}

// hear has a client take an answer.
func (s *simulation) hear(r *simRequest) {
	if *r.heard {
		return
	}
	*r.heard = true
	c, name := r.c, r.op.Name
	mine := c.holds[name] == r.hold
	alive := mine && r.hold.token != 0 && s.now < r.hold.deadline
	outcome := s.outcome(r)
	var token tokens.Token
	if r.op.Kind == leases.KindAcquire && outcome == history.Done {
		token = r.result.Lease.Token
		s.grants(r.result.Lease)
	}
	r.end(outcome, token, r.err)
	s.counts[r.op.Kind.String()+" "+outcome.String()]++
	var grace *leases.GraceError
	switch {
	case errors.As(r.err, &grace):
		if alive {
			r.hold.epoch = grace.Epoch
		}
	case r.op.Kind == leases.KindAcquire && mine && r.hold.token == 0:
		if outcome == history.Held {
			delete(c.holds, name)
		}
		if outcome == history.Done && s.now < r.hold.first.Add(simTTL) {
			h := r.hold
			h.token, h.deadline = token, h.first.Add(simTTL)
			h.holding = s.rec.Believe(c.name, name, token, func() clock.Instant { return h.deadline })
		}
	case r.op.Kind == leases.KindRenew || r.op.Kind == leases.KindReclaim:
		switch {
		case !alive:
		case outcome == history.NotHeld:
			s.wrong("%s lost %s (%v) before its deadline: %v %v", c.name, name, r.hold.token, r.op.Kind, r.result.Outcome)
		case outcome == history.Done:
			r.hold.deadline = max(r.hold.deadline, r.sent.Add(simTTL))
			if r.op.Kind == leases.KindReclaim {
				r.hold.epoch = 0
			}
		}
	}
}

// grants notes that a client has heard of a grant.
func (s *simulation) grants(l *leases.Lease) {
	if name, ok := s.granted[l.Token]; ok && name != l.Name {
		s.wrong("token %v was granted for %s and for %s", l.Token, name, l.Name)
	}
	s.granted[l.Token] = l.Name
}

// outcome says what an answer means, as a node tells it to a client.
func (s *simulation) outcome(r *simRequest) history.Outcome {
	switch {
	case errors.Is(r.err, leases.ErrGrace):
		switch r.op.Kind {
		case leases.KindRelease, leases.KindWithdraw, leases.KindTransfer:
			return history.Unknown // "done", but a reclaim that was sent before may bring it back
		}
		return history.Nothing
	case r.copied && r.op.Kind != leases.KindRenew && r.op.Kind != leases.KindReclaim: // what the other copy does is not known
		return history.Unknown
	case r.err != nil:
		return history.OutcomeOf(r.err)
	}
	switch r.result.Outcome {
	case leases.Granted, leases.Repeated, leases.Freed, leases.Transferred, leases.Renewed, leases.Reclaimed:
		return history.Done
	case leases.Absent, leases.Closed:
		if r.op.Kind == leases.KindWithdraw {
			return history.Done
		}
		return history.NotHeld
	case leases.Refused:
		if r.op.Kind == leases.KindAcquire {
			if s.over[r.result.Lease.Token] { // by a lease that a late reclaim has brought back (V10)
				return history.Nothing
			}
			return history.Held
		}
		return history.NotHeld
	}
	s.wrong("%v came to %v", r.op.Kind, r.result.Outcome)
	return history.Unknown
}
