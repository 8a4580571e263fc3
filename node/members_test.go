package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// follows watches until it has been told so many changes, and returns them.
func follows(t *testing.T, d leases.Directory, prefix string, from leases.Position, many int) (all []leases.Change) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := d.Watch(ctx, prefix, from, func(b leases.Batch) error {
		if all = append(all, b.Changes...); len(all) >= many {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("watch from %v: got %d changes and %v, want %d", from, len(all), err, many)
	}
	return all
}

func failed[T any](_ T, err error) error { return err }

// Every member tells about leases: the leader by itself, the others by asking
// it. Over the network only the leader does, and the others say who that is. The
// changes are told by all.
func TestDirectoryOfEveryMember(t *testing.T) {
	nodes := cluster(t, 3)
	leader := allVote(t, nodes...)
	a, b := holderOf(t, leader), holderOf(t, leader)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var held []leases.Held
	for i := range 25 {
		h, err := a.want(fmt.Sprintf("job-%02d", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, h)
	}
	if err := a.session.Release(ctx, held[24]); err != nil {
		t.Fatal(err)
	}
	waiter := leases.Claim{Name: "job-00", Attempt: leases.NewID(), TTL: leases.MaxTTL, Wait: leases.Forever, Owner: leases.Owner{Label: "waiter"}}
	waiting := make(chan error, 1)
	go func() { waiting <- failed(b.session.Acquire(ctx, waiter)) }()
	eventually(t, "it waits", func() bool { return leader.Status().Waiters == 1 })

	var from leases.Position
	for _, n := range nodes {
		from = tellsOfLeases(ctx, t, n, held, waiter)
		if n != leader {
			tellsWhoLeads(ctx, t, n, leader)
		}
	}
	begun, told := make(chan struct{}, len(nodes)), make(chan []leases.Change, len(nodes))
	for _, n := range nodes {
		go func() {
			var all []leases.Change
			_ = n.Watch(ctx, "job-00", leases.Position{}, func(b leases.Batch) error {
				if len(b.Changes) == 0 {
					begun <- struct{}{}
				}
				if all = append(all, b.Changes...); len(all) >= 2 {
					told <- all
					return errEnough
				}
				return nil
			})
		}()
		<-begun
	}
	if err := a.session.Release(ctx, held[0]); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	right := func(what string, got []leases.Change) {
		if got[0].Kind != leases.ChangeReleased || got[0].Token != held[0].Token || got[1].Kind != leases.ChangeGranted || got[1].Token <= held[24].Token || got[1].Owner.Label != "waiter" {
			t.Errorf("%s: got %+v, want that it was given back, and granted to the waiter", what, got)
		}
	}
	for range nodes {
		select {
		case got := <-told:
			right("from now on", got)
		case <-ctx.Done():
			t.Fatal("the changes were not told by all")
		}
	}
	for _, n := range nodes {
		wire, err := transport.Dial(transport.DialConfig{Addrs: []string{n.Address()}})
		if err != nil {
			t.Fatal(err)
		}
		defer wire.Close()
		for how, d := range map[string]leases.Directory{"in its process": n, "over the network": wire} {
			right(n.Status().Node+" "+how, follows(t, d, "job-00", from, 2))
			var missed *leases.MissedError
			if err := d.Watch(ctx, "", leases.Position{Epoch: 7, Revision: 1}, func(leases.Batch) error { return nil }); !errors.As(err, &missed) || missed.Newest.Epoch != 1 {
				t.Errorf("%s %s: watch from another history: got %v, want %v", n.Status().Node, how, err, leases.ErrMissed)
			}
		}
	}
}

// tellsOfLeases checks what a member tells in its own process, and returns the
// place of its last list.
func tellsOfLeases(ctx context.Context, t *testing.T, n *node.Node, held []leases.Held, waiter leases.Claim) (at leases.Position) {
	t.Helper()
	name := n.Status().Node
	s, err := n.Get(ctx, "job-00")
	if err != nil || !s.Held || s.Token != held[0].Token || s.Waiters != 1 || s.AtMost <= 0 || s.AtMost > leases.Stretch(leases.MaxTTL) {
		t.Errorf("%s: get: got %+v, %v", name, s, err)
	}
	if s, err := n.Get(ctx, "job-24"); err != nil || s.Held || s.Last.Token != held[24].Token || s.Last.Why != leases.WhyReleased {
		t.Errorf("%s: get a free name: got %+v, %v", name, s, err)
	}
	if w, err := n.Queue(ctx, "job-00"); err != nil || len(w) != 1 || w[0].Attempt != waiter.Attempt || w[0].Owner != waiter.Owner || w[0].Position != 1 {
		t.Errorf("%s: queue: got %+v, %v", name, w, err)
	}
	var names []string
	for page := (leases.Page{Next: "job-"}); page.Next != ""; {
		if page, err = n.List(ctx, "job-", page.Next, 10); err != nil {
			t.Fatalf("%s: list: %v", name, err)
		}
		for _, l := range page.Leases {
			names = append(names, l.Name)
		}
		at = page.At
	}
	if len(names) != 24 || !slices.IsSorted(names) || names[0] != "job-00" || names[23] != "job-23" {
		t.Errorf("%s: list: got %v", name, names)
	}
	for call, err := range map[string]error{
		"get":    failed(n.Get(ctx, "@x")),
		"queue":  failed(n.Queue(ctx, "")),
		"list":   failed(n.List(ctx, "@", "", 10)),
		"after":  failed(n.List(ctx, "", "\x00", 10)),
		"few":    failed(n.List(ctx, "", "", 0)),
		"many":   failed(n.List(ctx, "", "", leases.MaxPage+1)),
		"prefix": n.Watch(ctx, "@", leases.Position{}, nil),
	} {
		if !errors.Is(err, leases.ErrInvalid) {
			t.Errorf("%s: %s that cannot be: got %v, want %v", name, call, err, leases.ErrInvalid)
		}
	}
	return at
}

// tellsWhoLeads checks what a follower answers over the network.
func tellsWhoLeads(ctx context.Context, t *testing.T, n, leader *node.Node) {
	t.Helper()
	conn, err := transport.NewClientConn(n.Address(), nil, transport.TCP())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := coorddv1.NewCoorddClient(conn)
	for call, err := range map[string]error{
		"get":   failed(c.Get(ctx, &coorddv1.GetRequest{Name: "job-00"})),
		"list":  failed(c.List(ctx, &coorddv1.ListRequest{})),
		"queue": failed(c.Queue(ctx, &coorddv1.QueueRequest{Name: "job-00"})),
	} {
		var elsewhere *leases.NotLeaderError
		if err := transport.FromGRPC(err); !errors.As(err, &elsewhere) || elsewhere.Leader != leader.Address() {
			t.Errorf("%s of %s: got %v, want %v and where it is", call, n.Status().Node, err, leases.ErrNotLeader)
		}
	}
}

// nothingKnown reports whether an error says nothing of any lease.
func nothingKnown(err error) bool {
	return errors.Is(err, leases.ErrNoQuorum) || errors.Is(err, leases.ErrUnavailable) || errors.Is(err, leases.ErrNotLeader) || errors.Is(err, leases.ErrUnknownOutcome)
}

// A leader that is cut off says nothing of any lease: at once, and also before
// it has noticed.
func TestDirectoryWithoutAQuorum(t *testing.T) {
	nodes := cluster(t, 3)
	leader := allVote(t, nodes...)
	if _, err := holderOf(t, leader).want("job", 0); err != nil {
		t.Fatal(err)
	}
	last, others := leader, slices.DeleteFunc(slices.Clone(nodes), func(n *node.Node) bool { return n == leader })
	stop(t, others[0])
	eventually(t, "one of the two serves", func() bool {
		for _, n := range []*node.Node{leader, others[1]} {
			if n.Status().Serving {
				last = n
				return true
			}
		}
		return false
	})
	other := others[1]
	if last == other {
		other = leader
	}
	stop(t, other)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		for call, err := range map[string]error{
			"get":   failed(last.Get(ctx, "job")),
			"list":  failed(last.List(ctx, "", "", 10)),
			"queue": failed(last.Queue(ctx, "job")),
		} {
			if !nothingKnown(err) {
				t.Errorf("%s without a quorum: got %v, want that nothing is known", call, err)
			}
		}
		cancel()
	}
}
