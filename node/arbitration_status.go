package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// AuthorityStatus is what a node knows of the root register, and of its own right to act.
type AuthorityStatus struct {
	Root       authority.Root
	Sequence   uint64        // how often the root register was written; 0: it was not read yet
	WindowLeft time.Duration // of this node, as the leader; 0: closed
	WindowBy   authority.By
	GraceLeft  time.Duration // as this node counts; 0: none
	Arbiter    arbiter.Health
	Fill       []uint32 // bytes of each shard's leases, as this node knows them
	Err        error    // why the register cannot be used
}

// elsewhere says that nobody serves, or that it is by the registers, where the root
// register says so; nil: the mode is raft.
func (a *arbitration) elsewhere() error {
	root, known := a.root()
	name := a.node.cfg.Name
	switch {
	case !known:
		return &leases.UnavailableError{Reason: name + " has not read the arbiter's root register yet"}
	case root.Mode == authority.Importing:
		return &leases.UnavailableError{Reason: fmt.Sprintf("%s takes the leases over from the arbiter, for epoch %d", root.Owner.Node, root.Epoch)}
	case root.Mode == authority.Fallback:
		return &leases.UnavailableError{Reason: fmt.Sprintf("%s begins to serve by the arbiter's registers, in epoch %d", name, root.Epoch)}
	}
	return nil
}

// status is this node's view; term is Raft's.
func (a *arbitration) status(term uint64, t *tenure) *AuthorityStatus {
	s := &AuthorityStatus{}
	s.Err = a.err()
	a.with(func(m *authority.Machine, now clock.Instant) {
		root, version, _ := m.Root()
		s.Root, s.Sequence = root, uint64(version)
		s.WindowLeft, s.WindowBy = m.Window(now, term)
		s.GraceLeft = m.GraceLeft(now)
		s.Arbiter = arbiter.Health{Store: "memory", Reachable: m.Reaches(now)}
	})
	if h, ok := a.store.(interface{ Health() arbiter.Health }); ok {
		s.Arbiter = h.Health()
	}
	if t != nil {
		s.Fill = t.fill()
	}
	return s
}

func (s *AuthorityStatus) proto() *coorddv1.Authority {
	if s == nil {
		return nil
	}
	r := &s.Root
	p := &coorddv1.Authority{
		Mode: string(r.Mode), Epoch: r.Epoch, RaftEpoch: r.RaftEpoch, Owner: r.Owner.Node, OwnerTerm: r.Owner.Term, Sequence: s.Sequence,
		Takers: r.Takers, TtlCeilingMs: uint32(r.CeilingMs), GraceDone: r.GraceDone, GraceLeftMs: uint32(s.GraceLeft.Milliseconds()), Held: r.Held,
		LeaseMs: uint32(r.Params.LeaseMs), Rho: r.Params.Rho, WindowLeftMs: uint32(s.WindowLeft.Milliseconds()), WindowBy: string(s.WindowBy),
		Arbiter: &coorddv1.ArbiterHealth{Store: s.Arbiter.Store, Reachable: s.Arbiter.Reachable, RoundTripUs: uint32(s.Arbiter.RoundTrip.Microseconds()), Errors: s.Arbiter.Errors},
		Shards:  &coorddv1.Shards{Count: r.Params.Shards.Count, Bytes: r.Params.Shards.Bytes},
	}
	if !r.Group.IsZero() {
		p.Group = r.Group.String()
	}
	switch {
	case s.Err != nil:
		p.Arbiter.Error = s.Err.Error()
	case s.Arbiter.Err != nil:
		p.Arbiter.Error = s.Arbiter.Err.Error()
	}
	for shard, bytes := range s.Fill {
		if bytes > p.Shards.FullestBytes {
			p.Shards.Fullest, p.Shards.FullestBytes = uint32(shard), bytes
		}
	}
	for _, c := range r.History {
		p.History = append(p.History, &coorddv1.AuthorityChange{Epoch: c.Epoch, Mode: string(c.Mode), Node: c.Node, Why: string(c.Why), AtUnixMs: c.At.UnixMilli()})
	}
	return p
}

// Change tells of a change of authority that an operator asked for.
type Change struct {
	Epoch uint32        // that has begun
	Took  time.Duration // how long nothing was granted, as this node saw it
}

// HandOver passes authority to the registers, or lets a Raft group take over again.
func (n *Node) HandOver(ctx context.Context, to string) (Change, error) {
	a := n.arbitration
	if !n.governed() {
		return Change{}, errNoArbiter()
	}
	a.load() // another node may have passed authority on just now
	began := n.clock.Now()
	switch to {
	case string(authority.Fallback):
		if root, _ := a.root(); root.Mode == authority.Fallback {
			return a.hold(ctx)
		}
		answer := make(chan error, 1)
		a.take(func(m *authority.Machine, now clock.Instant) { m.HandOver(now, func(err error) { answer <- err }) })
		err := a.until(ctx, func(m *authority.Machine, now clock.Instant) bool {
			if !m.Handing() {
				began = now // so far it only waits
			}
			return len(answer) > 0
		})
		if err != nil {
			return Change{}, unknown(ctx)
		}
		if err := <-answer; err != nil {
			return Change{}, err
		}
	case string(authority.Raft):
		err := a.until(ctx, func(m *authority.Machine, now clock.Instant) bool {
			root, _, _ := m.Root()
			if root.Mode == authority.Fallback {
				began = now // so far the registers serve
				if m.Release() {
					a.poke()
				}
			}
			return root.Mode == authority.Raft
		})
		if err != nil {
			return Change{}, unknown(ctx)
		}
	default:
		return Change{}, &leases.InvalidError{Field: "to", Value: clip(to), Bounds: "fallback or raft"}
	}
	root, _ := a.root()
	return Change{Epoch: root.Epoch, Took: n.clock.Now().Sub(began)}, nil
}

// hold keeps authority with the registers, which have it.
func (a *arbitration) hold(ctx context.Context) (Change, error) {
	a.take(func(m *authority.Machine, _ clock.Instant) { m.Hold() })
	var root authority.Root
	var grace time.Duration
	err := a.until(ctx, func(m *authority.Machine, now clock.Instant) bool {
		root, _, _ = m.Root()
		grace = m.GraceLeft(now)
		return root.Held || root.Mode != authority.Fallback
	})
	switch {
	case err != nil:
		return Change{}, unknown(ctx)
	case !root.Held:
		return Change{}, &leases.UnavailableError{Reason: "authority has passed on meanwhile"}
	case grace > 0:
		return Change{}, fmt.Errorf("authority stays with the registers from now on; %w", &leases.GraceError{Epoch: root.Epoch, FreshIn: grace})
	}
	return Change{Epoch: root.Epoch}, nil
}

func errNoArbiter() error {
	return &leases.InvalidError{Field: "arbiter", Value: "none", Bounds: "a cluster that has one: see coordd arbiter adopt"}
}

// TakeOver lets this node begin a fallback epoch, as an operator wants it (V4).
func (n *Node) TakeOver(ctx context.Context) (Change, error) {
	a := n.arbitration
	if !n.governed() {
		return Change{}, errNoArbiter()
	}
	a.load()
	began := n.clock.Now()
	root, known := a.root()
	switch {
	case !known:
		return Change{}, &leases.UnavailableError{Reason: "the root register could not be read"}
	case root.Mode == authority.Fallback:
		return Change{}, &leases.UnavailableError{Reason: fmt.Sprintf("the registers have authority already, in epoch %d", root.Epoch)}
	}
	a.take(func(m *authority.Machine, now clock.Instant) { m.Force(now, true) })
	defer a.take(func(m *authority.Machine, now clock.Instant) { m.Force(now, false) })
	before := root.Epoch
	err := a.until(ctx, func(m *authority.Machine, _ clock.Instant) bool {
		root, _, _ = m.Root()
		return root.Epoch > before || !m.Forcing()
	})
	switch {
	case err != nil:
		return Change{}, unknown(ctx)
	case root.Epoch == before:
		return Change{}, &leases.UnavailableError{Reason: "the root register was written meanwhile: a node that may take over is not gone"}
	case root.Mode != authority.Fallback:
		return Change{}, &leases.UnavailableError{Reason: fmt.Sprintf("authority has passed on meanwhile: %s, epoch %d", root.Mode, root.Epoch)}
	}
	return Change{Epoch: root.Epoch, Took: n.clock.Now().Sub(began)}, nil
}

// mode is the metric's number.
func (s *AuthorityStatus) mode() float64 {
	if s == nil || s.Sequence == 0 {
		return 0
	}
	return map[authority.Mode]float64{authority.Raft: 1, authority.Fallback: 2, authority.Importing: 3}[s.Root.Mode]
}

// seconds is a duration out of s; 0 without an arbiter.
func (s *AuthorityStatus) seconds(of func(*AuthorityStatus) time.Duration) float64 {
	if s == nil {
		return 0
	}
	return of(s).Seconds()
}

// fullest is how full the fullest shard is, from 0 to 1.
func (s *AuthorityStatus) fullest() float64 {
	if s == nil || len(s.Fill) == 0 || s.Root.Params.Shards.Bytes == 0 {
		return 0
	}
	return float64(slices.Max(s.Fill)) / float64(s.Root.Params.Shards.Bytes)
}
