package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/arbiter"
)

// store is the simulated arbiter: linearizable registers, behind a network that loses
// requests and answers, and holds writes up until long after their senders have given up.
// Register 0 is the root, 1 to K are the shards.
type store struct {
	s    *Sim
	regs []arbiter.Register

	// What a script has in the way. held may keep a write from taking effect before
	// effect is called. The node blind, unless it is 0, does not get to read the root.
	held  func(n *node, key int, w arbiter.Write, effect func()) bool
	blind int
}

const rootKey = 0

var errUnreachable = fmt.Errorf("%w: simulated", arbiter.ErrUnreachable)

// load reads a register for n, and calls done with the answer.
func (a *store) load(n *node, key int, done func(arbiter.Register, error)) {
	s, life := a.s, n.life
	answer := func(d time.Duration, reg arbiter.Register, err error) {
		if n.life == life {
			n.after(d, func() { done(reg, err) })
		}
	}
	switch {
	case s.now < n.throttled:
		answer(n.short(), arbiter.Register{}, errUnreachable)
		return
	case s.now < n.arbiterCut, key == rootKey && n.id == a.blind && a.blind != 0:
		answer(n.timeout(), arbiter.Register{}, errUnreachable)
		return
	}
	s.after(n.short(), nil, driver, func() {
		reg := a.regs[key]
		if s.now < n.answersCut || n.chance(s.p.LoseAnswer) {
			answer(n.timeout(), arbiter.Register{}, errUnreachable)
			return
		}
		answer(n.short(), reg, nil)
	})
}

// write is one CompareAndSwap that is under way.
type write struct {
	n    *node
	life uint32
	key  int
	from arbiter.Version
	w    arbiter.Write
	done func(error)

	late     Time // when its sender gives up
	answered bool // its sender has its answer, or has given up
}

// swap writes a register for n, and calls done with the answer.
func (a *store) swap(n *node, key int, from arbiter.Version, w arbiter.Write, done func(error)) {
	s := a.s
	c := &write{n: n, life: n.life, key: key, from: from, w: w, done: done, late: s.now + n.timeout()}
	if a.held != nil && a.held(n, key, w, func() { a.effect(c) }) {
		a.giveUp(c, n.timeout())
		return
	}
	switch late := n.chance(s.p.Late) || s.now < n.slow; {
	case s.now < n.throttled:
		a.answer(c, n.short(), errUnreachable)
	case s.now < n.arbiterCut && n.chance(0.5):
		a.answer(c, n.timeout(), errUnreachable) // there was no connection
	case s.now < n.arbiterCut && !late:
		a.giveUp(c, n.timeout()) // it is lost on its way
	case late:
		a.giveUp(c, n.timeout())
		s.after(n.short()+time.Duration(n.rng.Int64N(int64(s.p.LateBy))), nil, driver, func() { a.effect(c) })
	default:
		s.after(n.short(), nil, driver, func() { a.effect(c) })
	}
}

// answer tells the sender once.
func (a *store) answer(c *write, d time.Duration, err error) {
	if c.n.life != c.life {
		return
	}
	c.n.after(d, func() {
		if !c.answered {
			c.answered = true
			c.done(err)
		}
	})
}

// giveUp tells the sender after d that nobody knows, unless it has its answer by then.
func (a *store) giveUp(c *write, d time.Duration) {
	if c.n.life != c.life {
		return
	}
	c.n.after(d, func() {
		if c.answered {
			return
		}
		c.answered = true
		e := &arbiter.UnknownError{Err: errTimeout}
		if a.s.now >= c.n.arbiterCut && a.s.now >= c.n.answersCut && c.n.chance(0.3) {
			e.Found = a.regs[c.key] // an adapter that looks
		}
		c.done(e)
	})
}

var errTimeout = errors.New("no answer in time")

// effect is the instant at which the register decides.
func (a *store) effect(c *write) {
	s := a.s
	reg := &a.regs[c.key]
	var err error
	if reg.Version == c.from {
		old := *reg
		*reg = arbiter.Register{Version: c.from + 1, Nonce: c.w.Nonce, Data: c.w.Data}
		how := ""
		if s.now > c.late {
			s.counts.LateWrites++
			how = ", late"
		}
		if s.tracing {
			s.trace("the write by %s of register %d, version %d, takes effect%s", c.n.name, c.key, reg.Version, how)
		}
		s.written(c.key, old.Data, *reg)
	} else {
		if c.key == rootKey && c.from == 0 {
			s.counts.BirthsContested++
		}
		err = &arbiter.ConflictError{From: c.from, Found: *reg}
	}
	if s.now < c.n.answersCut || c.n.chance(s.p.LoseAnswer) {
		a.giveUp(c, c.n.timeout())
		return
	}
	a.answer(c, c.n.short(), err)
}
