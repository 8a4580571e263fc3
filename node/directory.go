package node

import (
	"context"

	"github.com/coordd/coordd/leases"
)

// Get implements leases.Directory.
func (l local) Get(ctx context.Context, name string) (leases.State, error) {
	if err := leases.ValidateName(name); err != nil {
		return leases.State{}, err
	}
	t, err := l.node.tenure()
	if err != nil {
		return leases.State{}, err
	}
	return t.get(ctx, name)
}

// List implements leases.Directory.
func (l local) List(ctx context.Context, prefix, after string, limit int) (leases.Page, error) {
	if err := leases.ValidateList(prefix, after, limit); err != nil {
		return leases.Page{}, err
	}
	t, err := l.node.tenure()
	if err != nil {
		return leases.Page{}, err
	}
	return t.list(ctx, prefix, after, limit)
}

// Queue implements leases.Directory.
func (l local) Queue(ctx context.Context, name string) ([]leases.Waiter, error) {
	if err := leases.ValidateName(name); err != nil {
		return nil, err
	}
	t, err := l.node.tenure()
	if err != nil {
		return nil, err
	}
	return t.queue(ctx, name)
}

// Watch implements leases.Directory, on any member: from its own memory.
func (l local) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	return l.node.Watch(ctx, prefix, from, on)
}

// Get implements leases.Directory.
func (n *Node) Get(ctx context.Context, name string) (leases.State, error) {
	b, err := n.nearest()
	if err != nil {
		return leases.State{}, err
	}
	return b.Get(ctx, name)
}

// List implements leases.Directory.
func (n *Node) List(ctx context.Context, prefix, after string, limit int) (leases.Page, error) {
	b, err := n.nearest()
	if err != nil {
		return leases.Page{}, err
	}
	return b.List(ctx, prefix, after, limit)
}

// Queue implements leases.Directory.
func (n *Node) Queue(ctx context.Context, name string) ([]leases.Waiter, error) {
	b, err := n.nearest()
	if err != nil {
		return nil, err
	}
	return b.Queue(ctx, name)
}

// get tells about a name, once that is certain (N5).
func (t *tenure) get(ctx context.Context, name string) (leases.State, error) {
	if err := t.replicator.certain(ctx, name); err != nil {
		return leases.State{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := leases.State{Name: name}
	l, last := t.replicator.look(name)
	if l != nil {
		s = t.state(l)
	} else if err := t.settled(); err != nil {
		return leases.State{}, err
	}
	s.Last = last
	if q := t.lines[name]; q != nil {
		s.Waiters = len(q.waiting)
	}
	return s, nil
}

// state is what there is to tell of a held lease. It is called with mu held.
func (t *tenure) state(l *leases.Lease) leases.State {
	return leases.State{
		Name: l.Name, Held: true, Token: l.Token, Owner: l.Owner, Attributes: l.Attributes, TTL: l.TTL,
		AcquiredAt: l.AcquiredAt, AtMost: t.replicator.atMost(l), Broken: l.Broken,
	}
}

// list tells which names are held.
func (t *tenure) list(ctx context.Context, prefix, after string, limit int) (leases.Page, error) {
	found, err := t.replicator.list(ctx, prefix, after, limit)
	if err != nil {
		return leases.Page{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.settled(); err != nil {
		return leases.Page{}, err
	}
	p := leases.Page{At: found.at}
	for _, l := range found.leases {
		p.Leases = append(p.Leases, t.state(l))
	}
	if found.more {
		p.Next = found.leases[limit-1].Name
	}
	return p, nil
}

// queue tells who waits for a name here.
func (t *tenure) queue(ctx context.Context, name string) ([]leases.Waiter, error) {
	if err := t.replicator.certain(ctx, name); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.lines[name]
	if q == nil {
		return nil, nil
	}
	now := t.clock.Now()
	waiters := make([]leases.Waiter, len(q.waiting))
	for i, c := range q.waiting {
		waiters[i] = leases.Waiter{Position: i + 1, Attempt: c.Attempt, Owner: c.Owner, Waiting: now.Sub(c.since)}
	}
	return waiters, nil
}
