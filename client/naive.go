package client

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// naive is what a client does only with a rule switched off, for the tests that
// show what the rule is for.
type naive struct {
	rules rules.Set

	mu         sync.Mutex // guards what follows
	counter    uint64
	unreleased map[string]leases.ID // attempts whose release has not been answered
}

// attempt returns the id of a new attempt at a lease. It is drawn at random
// (S52) and never used again (S47).
func (n *naive) attempt(name string, session leases.ID) leases.ID {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.unreleased[name]; ok {
		return id
	}
	if n.rules.On(rules.AttemptRandom) {
		return leases.NewID()
	}
	n.counter++
	id := session
	binary.BigEndian.PutUint64(id[8:], n.counter)
	return id
}

// copies returns the context of the copies of a claim, which ends when ctx does,
// and what ends it where it does not.
func (n *naive) copies(ctx, client context.Context) (context.Context, context.CancelFunc) {
	if n.rules.On(rules.AttemptOver) {
		return ctx, func() {}
	}
	return context.WithCancel(client)
}

// releasing notes that the release of l is being sent.
func (n *naive) releasing(l *Lease) {
	if n.rules.On(rules.AttemptOver) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unreleased == nil {
		n.unreleased = map[string]leases.ID{}
	}
	n.unreleased[l.Name()] = l.claim.Attempt
}

// released notes that the release of l was answered.
func (n *naive) released(l *Lease) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.unreleased, l.Name())
}

// believed lets a lease that had lapsed be relied on again. It is called with l's
// mutex held.
func (n *naive) believed(l *Lease) {
	if !n.rules.On(rules.LateAnswer) && errors.Is(l.cause, leases.ErrExpired) {
		l.ctx, l.cause = nil, nil
	}
}
