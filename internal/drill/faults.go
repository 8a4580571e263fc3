package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// member returns the node of that name.
func (s *stage) member(name string) *member {
	i := slices.IndexFunc(s.members, func(m *member) bool { return m.name == name })
	return s.members[i]
}

// names are the nodes' names, but for some.
func (s *stage) names(but ...string) (names []string) {
	for _, m := range s.members {
		if !slices.Contains(but, m.name) {
			names = append(names, m.name)
		}
	}
	return names
}

// at are the names of the nodes at a site.
func (s *stage) at(site string) (names []string) {
	for _, m := range s.members {
		if m.site == site {
			names = append(names, m.name)
		}
	}
	return names
}

// halves are the workers in two groups: those that go with one side of a partition, and
// those that go with the other.
func (s *stage) halves() (one, other []string) {
	for i, w := range s.workers {
		if i%2 == 0 {
			one = append(one, w.name)
		} else {
			other = append(other, w.name)
		}
	}
	return one, other
}

// leader waits for one, and returns its name.
func (s *stage) leader(ctx context.Context) (name string, err error) {
	err = s.until(ctx, recoverWithin, "a node leads and has a window", func(v view) bool {
		name = v.leader()
		return name != ""
	})
	return name, err
}

// follower is a node that is not the leader, by chance.
func (s *stage) follower(leader string) string {
	others := s.names(leader)
	return others[s.cfg.chance(0).IntN(len(others))]
}

// cutArbiter keeps some nodes from the arbiter.
func (s *stage) cutArbiter(names ...string) {
	for _, name := range names {
		s.member(name).arbiter(unreachable)
	}
}

// mend lets all nodes and clients reach each other, and the arbiter.
func (s *stage) mend() {
	s.net.Heal()
	for _, m := range s.members {
		m.arbiter(nil)
	}
}

// partition cuts two groups of nodes and workers off from each other. The keeper and the
// probe are on neither side: they reach both.
func (s *stage) partition(one, other []string) { s.net.Cut(one, other) }

// mode waits until leases are granted anew in that mode.
func (s *stage) mode(ctx context.Context, mode authority.Mode) error {
	if err := s.until(ctx, recoverWithin, "leases are granted in mode "+string(mode), func(v view) bool { return v.in(mode) }); err != nil {
		return err
	}
	return s.granted(ctx, recoverWithin)
}

// whole waits until all nodes vote in one group, and it grants leases.
func (s *stage) whole(ctx context.Context) error {
	if err := s.until(ctx, recoverWithin, "all nodes vote, and one of them leads", view.whole); err != nil {
		return err
	}
	return s.granted(ctx, recoverWithin)
}

// steps carries out one after the other, until one fails.
func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// pass has an operator pass authority on, by whichever node carries it out.
func (s *stage) pass(ctx context.Context, to authority.Mode) error {
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	for {
		err := s.passOnce(ctx, to)
		if err == nil || ctx.Err() != nil {
			return err
		}
		s.journal.note(NoteEvent, "authority was not passed on yet: %v", err)
		s.rest(ctx, ElectionTimeout)
	}
}

func (s *stage) passOnce(ctx context.Context, to authority.Mode) error {
	leader, err := s.anyNode()
	if err != nil {
		return err
	}
	change, err := leader.HandOver(ctx, string(to))
	if err == nil {
		s.journal.note(AuthorityEvent, "authority was passed to %s, as planned: epoch %d", to, change.Epoch)
	}
	return err
}

// anyNode is the leader's, or where nobody leads the first that is up.
func (s *stage) anyNode() (*node.Node, error) {
	v, _ := s.sampler.latest()
	if leader := v.leader(); leader != "" {
		if n := s.member(leader).now(); n != nil {
			return n, nil
		}
	}
	for _, m := range s.members {
		if n := m.now(); n != nil {
			return n, nil
		}
	}
	return nil, &leases.UnavailableError{Reason: "no node is up"}
}

// startAll begins another life of some nodes.
func (s *stage) startAll(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, s.member(name).start(ctx))
	}
	return errors.Join(errs...)
}

// list is for people: "n1, n2 and n3".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return fmt.Sprintf("%s and %s", strings.Join(names[:last], ", "), names[last])
}

// severalLeases is a few times the authority lease: long enough for all that rests on it to
// have run out.
const severalLeases = 3 * AuthorityLease

// settle lets a state that has been reached last for a while.
func (s *stage) settle(ctx context.Context) error {
	s.rest(ctx, time.Second)
	return ctx.Err()
}
