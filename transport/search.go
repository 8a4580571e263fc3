package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coordd/coordd/leases"
)

// Bounds of one search for the serving node.
const (
	maxHints = 3
	// tryTime is what one address is given, so that a node that hangs does not
	// use up the time for the others; lastTime is for the last one left.
	tryTime  = time.Second
	lastTime = 3 * time.Second
)

// search is one walk over the addresses at which the serving node may be
// found, each at most once, and what they said.
type search struct {
	wanted string   // for people
	queue  []string // to be tried, in this order, each once
	avoid  string   // where the last conversation broke: tried last
	tried  map[string]bool
	hints  int
	said   []said
}

type said struct {
	addr string
	err  error
}

func newSearch(addrs []string, first, avoid string) *search {
	s := &search{wanted: "serving node", avoid: avoid, tried: make(map[string]bool)}
	for _, addr := range addrs {
		s.add(addr, false)
	}
	if first != "" {
		s.add(first, true)
	}
	return s
}

// add puts addr into the queue, as the next or as the last, once. The address
// to be avoided stays behind all others.
func (s *search) add(addr string, next bool) {
	if s.tried[addr] {
		return
	}
	s.queue = slices.DeleteFunc(s.queue, func(a string) bool { return a == addr })
	at := len(s.queue)
	switch {
	case addr == s.avoid:
	case next:
		at = 0
	case at > 0 && s.queue[at-1] == s.avoid:
		at--
	}
	s.queue = slices.Insert(s.queue, at, addr)
}

// next returns the next address and how long it may take; ok is false when none
// is left.
func (s *search) next() (addr string, limit time.Duration, ok bool) {
	if len(s.queue) == 0 {
		return "", 0, false
	}
	addr, s.queue = s.queue[0], s.queue[1:]
	s.tried[addr] = true
	if len(s.queue) == 0 && (addr != s.avoid || len(s.tried) == 1) {
		return addr, lastTime, true
	}
	return addr, tryTime, true
}

// failed notes what addr said, and follows it.
func (s *search) failed(addr string, err error) {
	s.said = append(s.said, said{addr, err})
	s.follow(err)
}

// follow puts the leader that err names next.
func (s *search) follow(err error) {
	var other *leases.NotLeaderError
	if errors.As(err, &other) {
		s.hint(other.Leader)
	}
}

func (s *search) hint(leader string) {
	if leader == "" || s.tried[leader] || s.hints == maxHints {
		return
	}
	s.hints++
	s.add(leader, true)
}

// err is what all addresses said, in one line, around the answer that decides
// what to do: the wrong cluster only if nobody said anything else.
func (s *search) err() error {
	if len(s.said) == 0 {
		return &leases.UnavailableError{Reason: "no node was asked in time"}
	}
	decisive := s.said[0].err
	lines := make([]string, len(s.said))
	for i, a := range s.said {
		lines[i] = a.addr + ": " + a.err.Error()
		if weight(a.err) > weight(decisive) {
			decisive = a.err
		}
	}
	return &told{"no " + s.wanted + " found: " + strings.Join(lines, "; "), decisive}
}

func weight(err error) int {
	switch {
	case errors.Is(err, leases.ErrWrongCluster):
		return 0
	case errors.Is(err, leases.ErrNoQuorum):
		return 3
	case errors.Is(err, leases.ErrNotLeader):
		return 2
	}
	return 1
}

// search looks for the serving node: it calls visit for one address after
// another until it returns nil.
func (c *Conn) search(ctx context.Context, visit func(context.Context, *link, *search) error) error {
	s := c.newSearch()
	addr, err := c.walk(ctx, s, visit)
	switch {
	case err == nil:
		c.found(addr)
	case c.ctx.Err() == nil:
		c.lost()
	}
	return err
}

// walk calls visit for one address of s after another until it returns nil, and
// returns for which it did.
func (c *Conn) walk(ctx context.Context, s *search, visit func(context.Context, *link, *search) error) (addr string, err error) {
	if !c.enter() {
		return "", errConnClosed
	}
	defer c.run.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(errConnClosed) })()
	for ctx.Err() == nil {
		addr, limit, ok := s.next()
		if !ok {
			break
		}
		l, err := c.borrow(addr)
		if err != nil {
			s.failed(addr, err)
			continue
		}
		if end, bounded := ctx.Deadline(); bounded { // the others are to be asked too, where this one is silent
			limit = min(limit, time.Until(end)/time.Duration(len(s.queue)+1))
		}
		try, done := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
		err = visit(try, l, s)
		c.giveBack(l, err != nil && l.spoiled(try.Err() != nil))
		done()
		if err == nil {
			return addr, nil
		}
		s.failed(addr, err)
	}
	if c.ctx.Err() != nil {
		return "", errConnClosed
	}
	return "", s.err()
}

// newSearch starts where the last one succeeded, or a leader was named; if that
// fails, the next search does not.
func (c *Conn) newSearch() *search {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.first
	c.first = ""
	return newSearch(slices.Concat(c.cfg.Addrs[c.start:], c.cfg.Addrs[:c.start]), first, c.avoid)
}

func (c *Conn) found(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first = addr
}

func (c *Conn) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.start = (c.start + 1) % len(c.cfg.Addrs)
}
