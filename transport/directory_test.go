package transport_test

import (
	"context"
	"errors"
	"math"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

func heldState(name string) leases.State {
	return leases.State{
		Name: name, Held: true, Token: tokens.New(3, 9), Owner: leases.Owner{Label: "billing", Site: "aws", Host: "h1", PID: 7},
		Attributes: []byte{0, 255}, TTL: 15 * time.Second, AcquiredAt: time.UnixMilli(1_700_000_000_123), AtMost: 9500 * time.Millisecond, Broken: true,
	}
}

// Each answer comes from the leader, to which a follower points.
func TestDirectory(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	full := heldState("jobs/ü")
	full.Waiters, full.Last = 3, leases.Ending{Token: 5, Why: leases.WhyTransferred, Next: 6}
	free := leases.State{Name: "free", Last: leases.Ending{Token: 5, Why: leases.WhyBroken}}
	page := leases.Page{At: leases.Position{Epoch: 2, Revision: 1 << 40}, Leases: []leases.State{heldState("a"), heldState("b")}, Next: "b"}
	waiters := []leases.Waiter{
		{Position: 1, Attempt: leases.NewID(), Owner: full.Owner, Waiting: 90 * time.Minute},
		{Position: 2, Attempt: leases.NewID(), Waiting: 7 * time.Millisecond},
	}
	b := &backend{
		get: func(_ context.Context, name string) (leases.State, error) {
			switch name {
			case full.Name:
				return full, nil
			case free.Name:
				return free, nil
			}
			return leases.State{Name: name}, nil
		},
		list: func(_ context.Context, prefix, after string, limit int) (leases.Page, error) {
			if prefix != "jobs/" || after != "jobs/a" || limit != 7 {
				t.Errorf("the backend was asked to list %q after %q, %d of them", prefix, after, limit)
			}
			return page, nil
		},
		queue: func(_ context.Context, name string) ([]leases.Waiter, error) {
			if name != "a" {
				t.Errorf("the backend was asked for the queue of %q", name)
			}
			return waiters, nil
		},
	}
	away := &leases.NotLeaderError{Node: "n2", Leader: serve(t, b).addr}
	pointing := &backend{
		get:   func(context.Context, string) (leases.State, error) { return leases.State{}, away },
		list:  func(context.Context, string, string, int) (leases.Page, error) { return leases.Page{}, away },
		queue: func(context.Context, string) ([]leases.Waiter, error) { return nil, away },
	}
	pointingAddr := serve(t, pointing).addr
	directory := func() *transport.Conn { return dial(t, transport.DialConfig{Addrs: []string{pointingAddr}}) }
	for _, want := range []leases.State{full, free, {Name: "unknown"}} {
		if got, err := directory().Get(ctx, want.Name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Get: got %+v, %v, want %+v", got, err, want)
		}
	}
	if got, err := directory().List(ctx, "jobs/", "jobs/a", 7); err != nil || !reflect.DeepEqual(got, page) {
		t.Errorf("List: got %+v, %v, want %+v", got, err, page)
	}
	if got, err := directory().Queue(ctx, "a"); err != nil || !reflect.DeepEqual(got, waiters) {
		t.Errorf("Queue: got %+v, %v, want %+v", got, err, waiters)
	}
}

// The longest answers fit into a message.
func TestLongAnswers(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	longest := heldState(strings.Repeat("n", leases.MaxName))
	longest.Owner = leases.Owner{Label: strings.Repeat("l", leases.MaxLabel), Site: strings.Repeat("s", leases.MaxLabel), Host: strings.Repeat("h", leases.MaxLabel), PID: math.MaxUint32}
	longest.Attributes = make([]byte, leases.MaxAttributes)
	page := leases.Page{Next: longest.Name, Leases: make([]leases.State, leases.MaxPage)}
	for i := range page.Leases {
		page.Leases[i] = longest
	}
	queue := make([]leases.Waiter, 2*transport.MaxQueue)
	for i := range queue {
		queue[i] = leases.Waiter{Position: i + 1, Attempt: leases.NewID(), Owner: longest.Owner, Waiting: leases.Forever}
	}
	c := dial(t, transport.DialConfig{Addrs: []string{serve(t, &backend{
		list:  func(context.Context, string, string, int) (leases.Page, error) { return page, nil },
		queue: func(context.Context, string) ([]leases.Waiter, error) { return queue, nil },
	}).addr}})
	if got, err := c.List(ctx, "", "", leases.MaxPage); err != nil || len(got.Leases) != leases.MaxPage {
		t.Errorf("List: got %d leases, %v", len(got.Leases), err)
	}
	got, err := c.Queue(ctx, "a")
	if err != nil || len(got) != transport.MaxQueue {
		t.Fatalf("Queue: got %d waiters, %v, want the first %d", len(got), err, transport.MaxQueue)
	}
	if last := got[len(got)-1]; last.Position != transport.MaxQueue {
		t.Errorf("the last waiter told is number %d, want %d", last.Position, transport.MaxQueue)
	}
}

func TestErrorsOfADirectory(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	gone := dead(t)
	failing := func(err error) *backend {
		return &backend{get: func(context.Context, string) (leases.State, error) { return leases.State{}, err }}
	}
	hanging := &backend{get: func(ctx context.Context, _ string) (leases.State, error) {
		<-ctx.Done()
		return leases.State{}, leases.ErrUnknownOutcome
	}}
	for name, c := range map[string]struct {
		addr string
		want error
		says string
	}{
		"dead":            {gone, leases.ErrUnavailable, gone + ": unavailable: connect: connection refused"},
		"hanging":         {serve(t, hanging).addr, leases.ErrUnavailable, "no answer"},
		"no quorum":       {serve(t, failing(leases.ErrNoQuorum)).addr, leases.ErrNoQuorum, "no quorum"},
		"no leader":       {serve(t, failing(&leases.NotLeaderError{Node: "n1"})).addr, leases.ErrNotLeader, "knows of none yet"},
		"unknown outcome": {serve(t, failing(leases.ErrUnknownOutcome)).addr, leases.ErrUnavailable, ""},
		"closed":          {serve(t, failing(leases.ErrClosed)).addr, leases.ErrUnavailable, "closing"},
		"internal":        {serve(t, failing(errors.New("boom"))).addr, leases.ErrUnavailable, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, transport.DialConfig{Addrs: []string{c.addr}})
			_, err := conn.Get(timeout(t, 20*time.Second), "a")
			if !errors.Is(err, c.want) || errors.Is(err, leases.ErrUnknownOutcome) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
		})
	}
	conn := dial(t, transport.DialConfig{Addrs: []string{gone}})
	_, e1 := conn.Get(ctx, "@a")
	_, e2 := conn.List(ctx, strings.Repeat("n", 513), "", 1)
	_, e3 := conn.List(ctx, "", "\xff", 1)
	_, e4 := conn.List(ctx, "", "", 0)
	_, e5 := conn.List(ctx, "", "", leases.MaxPage+1)
	_, e6 := conn.Queue(ctx, "")
	e7 := conn.Watch(ctx, "\xff", leases.Position{}, nil)
	e8 := conn.Watch(ctx, "", leases.Position{Revision: 1}, nil)
	for i, err := range []error{e1, e2, e3, e4, e5, e6, e7, e8} {
		if invalid := (*leases.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Bounds == "" {
			t.Errorf("case %d: got %v, want an invalid error with its bounds", i+1, err)
		}
	}
	// What a node certainly refuses is not asked for elsewhere.
	picky := failing(&leases.InvalidError{Field: "name", Value: "a", Bounds: "another"})
	conn = dial(t, transport.DialConfig{Addrs: []string{serve(t, picky).addr, gone}})
	if _, err := conn.Get(ctx, "a"); !errors.Is(err, leases.ErrInvalid) || strings.Contains(err.Error(), gone) {
		t.Errorf("refused for good: got %v, want invalid, and nobody else asked", err)
	}
	conn.Close()
	if _, err := conn.Get(ctx, "a"); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("Get afterwards: got %v, want closed", err)
	}
	if err := conn.Watch(ctx, "", leases.Position{}, nil); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("Watch afterwards: got %v, want closed", err)
	}
}

// A link that leads to another cluster all of a sudden is noticed, although the
// answers do not say whose they are, and no conversation was ever opened.
func TestDirectoryOfAnotherCluster(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	foreign := func(cfg *transport.ServerConfig) {
		cfg.Status = func(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			return &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Cluster: leases.ID{9}.String()}}, nil
		}
	}
	other := serve(t, &backend{cluster: leases.ID{9}}, foreign)
	for name, set := range map[string]rules.Set{"on": {}, "off": rules.Without(rules.ClusterPin)} {
		n, mine := newNetwork(), serve(t, &backend{})
		n.point("coordd:1", mine.addr)
		c := dial(t, transport.DialConfig{Addrs: []string{"coordd:1"}, Network: n, Rules: set})
		if _, err := c.List(ctx, "", "", 1); err != nil {
			t.Fatalf("before anything is pinned: %v", err)
		}
		n.point("coordd:1", other.addr)
		mine.stop()
		_, err := c.List(ctx, "", "", 1)
		watched := c.Watch(ctx, "", leases.Position{}, func(leases.Batch) error { return errEnough })
		var wrong *leases.WrongClusterError
		switch {
		case name == "off" && (err != nil || watched != errEnough):
			t.Errorf("without the rule: got %v and %v", err, watched)
		case name == "on" && (!errors.As(err, &wrong) || wrong.Got != leases.ID{9} || !errors.Is(watched, leases.ErrWrongCluster)):
			t.Errorf("got %v and %v, want the wrong cluster", err, watched)
		}
	}
}

// impostor answers what no node does.
type impostor struct {
	coorddv1.UnimplementedCoorddServer
	lease   *coorddv1.LeaseStatus
	waiter  *coorddv1.Waiter
	changes []*coorddv1.WatchResponse
}

func (i *impostor) Status(context.Context, *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
	return &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Cluster: cluster.String()}}, nil
}

func (i *impostor) Get(context.Context, *coorddv1.GetRequest) (*coorddv1.GetResponse, error) {
	return &coorddv1.GetResponse{Lease: i.lease}, nil
}

func (i *impostor) List(context.Context, *coorddv1.ListRequest) (*coorddv1.ListResponse, error) {
	return &coorddv1.ListResponse{Leases: []*coorddv1.LeaseStatus{i.lease}}, nil
}

func (i *impostor) Queue(context.Context, *coorddv1.QueueRequest) (*coorddv1.QueueResponse, error) {
	return &coorddv1.QueueResponse{Waiters: []*coorddv1.Waiter{i.waiter}}, nil
}

func (i *impostor) Watch(_ *coorddv1.WatchRequest, stream grpc.ServerStreamingServer[coorddv1.WatchResponse]) error {
	for _, r := range i.changes {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	return nil
}

// pose lets i listen, and returns a connection to it.
func pose(t testing.TB, i *impostor) *transport.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	coorddv1.RegisterCoorddServer(s, i)
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(l) })
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	return dial(t, transport.DialConfig{Addrs: []string{l.Addr().String()}})
}

func TestAnswersAreValidated(t *testing.T) {
	ctx := timeout(t, 60*time.Second)
	beyond := uint64(tokens.Max) + 1
	for name, l := range map[string]*coorddv1.LeaseStatus{
		"none":                         nil,
		"without a name":               {Held: true, Token: 1},
		"held under no token":          {Name: "a", Held: true},
		"a token out of range":         {Name: "a", Held: true, Token: beyond},
		"a last token out of range":    {Name: "a", Last: &coorddv1.NotHeld{Token: beyond}},
		"a token after it, out of it":  {Name: "a", Last: &coorddv1.NotHeld{Token: 1, NextToken: beyond}},
		"a token beyond what can be":   {Name: "a", Held: true, Token: 1<<64 - 1},
		"a name that nothing can have": {Name: "@a", Held: true, Token: 1},
	} {
		c := pose(t, &impostor{lease: l})
		_, e1 := c.Get(ctx, "a")
		_, e2 := c.List(ctx, "", "", 1)
		for _, err := range []error{e1, e2} {
			if !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "makes no sense") {
				t.Errorf("a lease %s: got %v, want unavailable", name, err)
			}
		}
	}
	for name, w := range map[string]*coorddv1.Waiter{"without an attempt": {Position: 1}, "an attempt of zeros": {Attempt: leases.ID{}.String()}} {
		if _, err := pose(t, &impostor{waiter: w}).Queue(ctx, "a"); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("a waiter %s: got %v, want unavailable", name, err)
		}
	}
	for name, c := range map[string]*coorddv1.Change{
		"of no kind": {Name: "a", Token: 1}, "of a kind that cannot be": {Name: "a", Token: 1, Kind: 256}, "of a negative kind": {Name: "a", Token: 1, Kind: -1},
		"without a name": {Kind: 1, Token: 1}, "without a token": {Kind: 1, Name: "a"},
		"a token out of range": {Kind: 1, Name: "a", Token: beyond}, "a next token out of range": {Kind: 6, Name: "a", Token: 1, NextToken: beyond},
	} {
		conn := pose(t, &impostor{changes: []*coorddv1.WatchResponse{{Epoch: 1}, {Epoch: 1, Revision: 2, Changes: []*coorddv1.Change{c}}}})
		told := 0
		err := conn.Watch(ctx, "", leases.Position{}, func(leases.Batch) error { told++; return nil })
		if !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "makes no sense") || told != 1 {
			t.Errorf("a change %s: got %v after %d batches, want unavailable after one", name, err, told)
		}
	}
	// Of a later release: what it does not know it passes on, or leaves out.
	conn := pose(t, &impostor{
		lease:   &coorddv1.LeaseStatus{Name: "a", Last: &coorddv1.NotHeld{Token: 1, Why: 99}},
		waiter:  &coorddv1.Waiter{Attempt: leases.NewID().String(), WaitingMs: 1<<64 - 1},
		changes: []*coorddv1.WatchResponse{{Changes: []*coorddv1.Change{{Kind: 99, Name: "a", Token: 1, Free: true}}}},
	})
	if s, err := conn.Get(ctx, "a"); err != nil || s.Last.Why != leases.WhyUnknown {
		t.Errorf("an end of tomorrow: got %+v, %v", s, err)
	}
	if q, err := conn.Queue(ctx, "a"); err != nil || q[0].Waiting != leases.Forever {
		t.Errorf("a wait without end: got %+v, %v", q, err)
	}
	conn.Watch(ctx, "", leases.Position{}, func(b leases.Batch) error {
		if len(b.Changes) != 1 || b.Changes[0].Kind != 99 || !b.Changes[0].Free {
			t.Errorf("a change of tomorrow: got %+v", b)
		}
		return nil
	})
}
