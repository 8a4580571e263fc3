package node_test

import (
	"context"
	"errors"
	"testing"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// A member that is cut off ends its watches, rather than let them stay silent:
// there is no telling what happens at the others. Once it hears a leader again
// the watch goes on from where it was.
func TestWatchAtAMemberThatIsCutOff(t *testing.T) {
	configs := site(t)
	nodes := make([]*node.Node, 3)
	for i, c := range configs {
		nodes[i] = start(t, c)
	}
	oneCluster(t, nodes...)
	began, ended := make(chan leases.Position, 1), make(chan error, 1)
	go func() {
		ended <- nodes[0].Watch(t.Context(), "", leases.Position{}, func(b leases.Batch) error {
			if len(b.Changes) == 0 {
				began <- b.At
			}
			return nil
		})
	}()
	at := <-began
	stop(t, nodes[1])
	stop(t, nodes[2])
	if err := <-ended; !errors.Is(err, leases.ErrNoQuorum) {
		t.Errorf("the watch ended with %v, want %v", err, leases.ErrNoQuorum)
	}
	never := func(leases.Batch) error { t.Error("a batch was told"); return nil }
	if err := nodes[0].Watch(t.Context(), "", at, never); !errors.Is(err, leases.ErrNoQuorum) {
		t.Errorf("another watch: got %v, want %v", err, leases.ErrNoQuorum)
	}
	nodes[1] = start(t, configs[1])
	acquire(t, dial(t, configs[0].Listen, configs[1].Listen), "job")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told []leases.ChangeKind
	eventually(t, "the watch goes on", func() bool {
		err := nodes[0].Watch(ctx, "", at, func(b leases.Batch) error {
			for _, c := range b.Changes {
				told = append(told, c.Kind)
			}
			if len(told) < 2 {
				return nil
			}
			return errEnough
		})
		return errors.Is(err, errEnough)
	})
	if len(told) != 2 || told[0] != leases.ChangeGranted || told[1] != leases.ChangeReleased {
		t.Errorf("got %v, want the grant and the release, once", told)
	}
	stop(t, nodes[0])
	if err := nodes[0].Watch(t.Context(), "", at, never); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("at a closed node: got %v, want %v", err, leases.ErrClosed)
	}
}

var errEnough = errors.New("enough was told")
