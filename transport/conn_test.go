package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

func TestDialChecksItsAddresses(t *testing.T) {
	for _, addrs := range [][]string{nil, {""}, {"localhost"}, {"a:1", ":7420"}, {"a:"}, make([]string, 65)} {
		if c, err := transport.Dial(transport.DialConfig{Addrs: addrs}); !errors.Is(err, leases.ErrInvalid) {
			t.Errorf("%q: got %v, %v, want invalid", addrs, c, err)
		}
	}
}

// network counts the dials, and looks addresses up in a table first.
type network struct {
	transport.Network
	mu    sync.Mutex // guards what follows
	dials []string
	hosts map[string]string
}

func newNetwork() *network {
	return &network{Network: transport.TCP(), hosts: make(map[string]string)}
}

func (n *network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, addr)
	to, named := n.hosts[addr]
	n.mu.Unlock()
	if !named {
		to = addr
	}
	return n.Network.Dial(ctx, to)
}

func (n *network) point(name, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[name] = addr
}

// dialed returns the addresses dialed so far, and forgets them.
func (n *network) dialed() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := strings.Join(n.dials, " ")
	n.dials = nil
	return s
}

// follower does not serve and points at the leader.
func follower(leader string) *backend {
	return &backend{open: func(context.Context) error { return &leases.NotLeaderError{Node: "n2", Leader: leader} }}
}

func TestOpenFindsTheLeader(t *testing.T) {
	leader := serve(t, &backend{}).addr
	for name, addrs := range map[string][]string{
		"it is the only one":         {leader},
		"the first is dead":          {dead(t), leader},
		"the first hangs":            {silent(t), leader},
		"a hint leads there":         {serve(t, follower(leader)).addr},
		"a hint leads astray":        {serve(t, follower(dead(t))).addr, leader},
		"a hint of a hint":           {serve(t, follower(serve(t, follower(leader)).addr)).addr},
		"a follower knows no leader": {serve(t, follower("")).addr, leader},
		"all of it":                  {dead(t), silent(t), serve(t, follower("")).addr, leader},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, nil, addrs...)
			if _, err := s.Renew(timeout(t, 10*time.Second), []leases.Held{{Name: "a", Token: 1}}); err != nil {
				t.Errorf("Renew: %v", err)
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	gone, hangs := dead(t), silent(t)
	lost := serve(t, &backend{open: func(context.Context) error { return leases.ErrNoQuorum }}).addr
	young := serve(t, &backend{open: func(context.Context) error { return &leases.UnavailableError{Reason: "starting"} }}).addr
	closed := serve(t, &backend{open: func(context.Context) error { return leases.ErrClosed }}).addr
	idle := serve(t, follower("")).addr
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	other := web.Listener.Addr().String()
	for _, c := range []struct {
		name  string
		addrs []string
		want  error
		says  []string
	}{
		{"another protocol", []string{other}, leases.ErrUnavailable, []string{other + ": unavailable: what listens there is no coordd node"}},
		{"dead", []string{gone}, leases.ErrUnavailable, []string{gone + ": unavailable: connect: connection refused"}},
		{"hanging", []string{hangs, gone}, leases.ErrUnavailable, []string{hangs + ": unavailable: no answer within 1s", gone}},
		{"no quorum", []string{gone, lost, idle}, leases.ErrNoQuorum, []string{gone, lost + ": no quorum", idle}},
		{"starting", []string{young}, leases.ErrUnavailable, []string{young + ": unavailable: starting"}},
		{"closing", []string{closed}, leases.ErrUnavailable, []string{"the node is closing"}},
		{"no leader", []string{idle, young}, leases.ErrNotLeader, []string{"n2 is not the leader and knows of none yet"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := dial(t, transport.DialConfig{Addrs: c.addrs}).Open(timeout(t, 10*time.Second), leases.NewID(), nil)
			if !errors.Is(err, c.want) || errors.Is(err, leases.ErrClosed) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("got %q, want it to say %q", err, s)
				}
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "rpc error") || strings.Contains(err.Error(), "desc = ") {
				t.Errorf("got %q, want one readable line", err)
			}
		})
	}
}

func TestOpenIsBoundedByItsContext(t *testing.T) {
	c := dial(t, transport.DialConfig{Addrs: []string{silent(t), silent(t), silent(t)}})
	start := time.Now()
	_, err := c.Open(timeout(t, 200*time.Millisecond), leases.NewID(), nil)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v, want about 200 ms", took)
	}
	if !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("got %v, want unavailable: no answer in time", err)
	}
}

func TestOpenFollowsFewHints(t *testing.T) {
	// Each follower names another one, and the last the first.
	hops := make([]string, 10)
	var asked atomic.Int32
	for i := range hops {
		hops[i] = serve(t, &backend{open: func(context.Context) error {
			asked.Add(1)
			return &leases.NotLeaderError{Node: "n", Leader: hops[(i+1)%len(hops)]}
		}}).addr
	}
	_, err := dial(t, transport.DialConfig{Addrs: hops[:1]}).Open(timeout(t, 10*time.Second), leases.NewID(), nil)
	if !errors.Is(err, leases.ErrNotLeader) || asked.Load() != 4 {
		t.Errorf("got %v after asking %d nodes, want not leader after the first and three more", err, asked.Load())
	}
}

func TestNamesAreResolvedAnew(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	n := newNetwork()
	n.point("coordd:7420", dead(t))
	c := dial(t, transport.DialConfig{Addrs: []string{"coordd:7420"}, Network: n})
	if _, err := c.Open(ctx, leases.NewID(), nil); !errors.Is(err, leases.ErrUnavailable) {
		t.Fatalf("got %v, want unavailable", err)
	}
	first := serve(t, &backend{})
	n.point("coordd:7420", first.addr)
	s, err := c.Open(ctx, leases.NewID(), nil)
	if err != nil {
		t.Fatalf("after the name has got an address: %v", err)
	}
	n.point("coordd:7420", serve(t, &backend{}).addr)
	first.stop()
	within(t, "Done", s.Done())
	if _, err := c.Open(ctx, leases.NewID(), nil); err != nil {
		t.Fatalf("after the name has got another address: %v", err)
	}
}

func TestNextOpenPrefersAnotherNode(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b1, b2 := &backend{}, &backend{}
	asked := make(chan string, 2)
	answers := func(b *backend, name string, err error) {
		b.open = func(context.Context) error { asked <- name; return err }
	}
	answers(b1, "n1", nil)
	answers(b2, "n2", nil)
	n := newNetwork()
	n.point("n1:1", serve(t, b1).addr)
	n.point("n2:1", serve(t, b2).addr)
	c := dial(t, transport.DialConfig{Addrs: []string{"n1:1", "n2:1"}, Network: n})
	next := func(want ...string) leases.Session {
		t.Helper()
		s, err := c.Open(ctx, leases.NewID(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for len(asked) > 0 {
			got = append(got, <-asked)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("asked %q, want %q", got, want)
		}
		return s
	}
	s := next("n1")
	s.Close() // as a client does that got no answer: the node may hang
	s = next("n2")
	b2.last().lose(&leases.NotLeaderError{Node: "n2", Leader: "n1:1"})
	within(t, "Done", s.Done())
	s = next("n1")
	b1.last().lose(leases.ErrNoQuorum)
	within(t, "Done", s.Done())
	answers(b2, "n2", &leases.NotLeaderError{Node: "n2", Leader: "n1:1"})
	next("n2", "n1") // the one that broke last, but still
}

// As long as no node serves, a client asks all of them again and again, and
// needs no new connections for that; a node that hung is connected to anew.
func TestSearchesShareConnections(t *testing.T) {
	t.Parallel()
	ctx := timeout(t, 20*time.Second)
	n := newNetwork()
	n.point("n1:1", serve(t, follower("")).addr)
	n.point("n2:1", serve(t, &backend{open: func(context.Context) error { return &leases.UnavailableError{Reason: "starting"} }}).addr)
	n.point("n3:1", silent(t))
	c := dial(t, transport.DialConfig{Addrs: []string{"n1:1", "n2:1", "n3:1"}, Network: n})
	for range 2 {
		if _, err := c.Open(ctx, leases.NewID(), nil); !errors.Is(err, leases.ErrNotLeader) {
			t.Fatalf("got %v, want not leader", err)
		}
	}
	dials := strings.Fields(n.dialed())
	slices.Sort(dials)
	if want := []string{"n1:1", "n2:1", "n3:1", "n3:1"}; !slices.Equal(dials, want) {
		t.Errorf("dialed %q, want %q", dials, want)
	}
}

func TestSessionsShareAConnection(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	n := newNetwork()
	c := dial(t, transport.DialConfig{Addrs: []string{serve(t, &backend{}).addr}, Network: n})
	for range 3 {
		if _, err := c.Open(ctx, leases.NewID(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if dials := strings.Fields(n.dialed()); len(dials) != 1 {
		t.Errorf("dialed %v, want one dial", dials)
	}
}

func TestClusterIsPinned(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	mine, other := serve(t, &backend{}), serve(t, &backend{cluster: leases.ID{9}})
	n := newNetwork()
	for name, set := range map[string]rules.Set{"on": {}, "off": rules.Without(rules.ClusterPin)} {
		n.point("coordd:1", mine.addr)
		c := dial(t, transport.DialConfig{Addrs: []string{"coordd:1"}, Network: n, Rules: set})
		s, err := c.Open(ctx, leases.NewID(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		n.point("coordd:1", other.addr)
		s, err = c.Open(ctx, leases.NewID(), nil)
		var wrong *leases.WrongClusterError
		switch {
		case name == "off" && err != nil:
			t.Errorf("without the rule: %v", err)
		case name == "on" && (!errors.As(err, &wrong) || wrong.Want != cluster || wrong.Got != (leases.ID{9})):
			t.Errorf("got %v, %v, want the wrong cluster", s, err)
		}
	}
}

func TestWrongClusterDoesNotHideTheRightOne(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	right, other := serve(t, &backend{}), serve(t, &backend{cluster: leases.ID{9}})
	c := dial(t, transport.DialConfig{Addrs: []string{right.addr, other.addr}})
	s, err := c.Open(ctx, leases.NewID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Close() // so the other one is asked first
	if s, err = c.Open(ctx, leases.NewID(), nil); err != nil || s.Info().Cluster != cluster {
		t.Fatalf("got %v, want a conversation with the right cluster", err)
	}
	right.stop()
	within(t, "Done", s.Done())
	if _, err = c.Open(ctx, leases.NewID(), nil); !errors.Is(err, leases.ErrUnavailable) || errors.Is(err, leases.ErrWrongCluster) {
		t.Errorf("with the right one gone: got %v, want unavailable: it may come back", err)
	}
}

func TestCloseOfTheConn(t *testing.T) {
	c := dial(t, transport.DialConfig{Addrs: []string{silent(t)}})
	opened := make(chan error, 1)
	go func() {
		_, err := c.Open(context.Background(), leases.NewID(), nil)
		opened <- err
	}()
	c.Close()
	if err := within(t, "the end of Open", opened); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("Open while it is closed: got %v, want closed", err)
	}
	if _, err := c.Open(t.Context(), leases.NewID(), nil); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("Open afterwards: got %v, want closed", err)
	}
	if _, err := c.Status(t.Context(), ""); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("Status afterwards: got %v, want closed", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

func statusOf(serving bool, state, leader, leaderAddr string) func(*transport.ServerConfig) {
	return func(cfg *transport.ServerConfig) {
		cfg.Status = func(_ context.Context, r *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			resp := &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Cluster: cluster.String(), Node: state, Serving: serving, State: state, Leader: leader, LeaderAddress: leaderAddr}}
			switch {
			case r.Name != "" && !serving:
				return nil, &leases.NotLeaderError{Node: state, Leader: leaderAddr}
			case r.Name != "":
				resp.Lease = &coorddv1.LeaseStatus{Name: r.Name, Held: true}
			}
			return resp, nil
		}
	}
}

func TestStatus(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	leader := serve(t, &backend{}, statusOf(true, "leading", "n1", "")).addr
	lonely := serve(t, &backend{}, statusOf(false, "lonely", "", "")).addr
	behind := serve(t, &backend{}, statusOf(false, "behind", "n1", dead(t))).addr
	pointing := serve(t, &backend{}, statusOf(false, "pointing", "n1", leader)).addr
	for _, c := range []struct {
		name, of string
		addrs    []string
		state    string
		lease    bool
	}{
		{"the leader", "", []string{leader}, "leading", false},
		{"the leader of a lease", "a", []string{dead(t), leader}, "leading", true},
		{"by a hint", "", []string{pointing}, "leading", false},
		{"by a hint, of a lease", "a", []string{pointing}, "leading", true},
		{"no leader", "", []string{lonely, behind}, "behind", false},
		{"no leader, of a lease", "a", []string{behind, lonely}, "behind", false},
		{"one that hangs", "a", []string{silent(t), lonely}, "lonely", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := dial(t, transport.DialConfig{Addrs: c.addrs}).Status(ctx, c.of)
			if err != nil || r.Cluster.State != c.state || (r.Lease != nil) != c.lease {
				t.Errorf("got %v, %v, want it from the node that is %s, with a lease: %v", r, err, c.state, c.lease)
			}
		})
	}
	gone, hangs := dead(t), silent(t)
	_, err := dial(t, transport.DialConfig{Addrs: []string{hangs, gone}}).Status(ctx, "a")
	if !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), gone+": unavailable: connect: connection refused") || !strings.Contains(err.Error(), hangs+": unavailable: no answer") {
		t.Errorf("nobody there: got %v, want unavailable with what each said", err)
	}
	if _, err := dial(t, transport.DialConfig{Addrs: []string{leader}}).Status(ctx, "@a"); !errors.Is(err, leases.ErrInvalid) {
		t.Errorf("a bad name: got %v, want invalid", err)
	}
}

// cutter is a relay to addr whose connections can be cut.
type cutter struct {
	addr string
	cut  func()
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: l.Addr().String()}
	var mu sync.Mutex
	var conns []net.Conn
	c.cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			on, err := net.Dial("tcp", to)
			if err != nil {
				from.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, from, on)
			mu.Unlock()
			for _, way := range [][2]net.Conn{{from, on}, {on, from}} {
				running.Go(func() {
					defer way[1].Close()
					way[1].(*net.TCPConn).ReadFrom(way[0])
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.cut()
		running.Wait()
	})
	return c
}

func TestConnectionBreaks(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &backend{}
	relay := newCutter(t, serve(t, b).addr)
	s := open(t, nil, relay.addr)
	asked := make(chan struct{}, 1)
	b.renew = func(ctx context.Context, held []leases.Held) ([]error, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, leases.ErrUnavailable
	}
	answers := waitFor(t, 3, b, s)
	renewed := make(chan error, 1)
	go func() {
		_, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}})
		renewed <- err
	}()
	within(t, "the renewal's arrival", asked)
	relay.cut()
	within(t, "Done", s.Done())
	for range 3 {
		if err := within(t, "an answer", answers); !errors.Is(err, leases.ErrUnknownOutcome) || !strings.Contains(err.Error(), "connection to node n1 broke") {
			t.Errorf("an acquire in flight: got %v, want an unknown outcome", err)
		}
	}
	if err := within(t, "the renewal's end", renewed); !errors.Is(err, leases.ErrUnknownOutcome) {
		t.Errorf("a renewal in flight: got %v, want an unknown outcome", err)
	}
	if !errors.Is(s.Err(), leases.ErrUnavailable) {
		t.Errorf("Err: got %v, want unavailable", s.Err())
	}
	within(t, "the end of the backend's session", b.last().closed)
	if _, err := s.Acquire(ctx, claim("a")); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("an acquire afterwards: got %v, want unavailable", err)
	}
}

// A node that does not read takes no more calls at some point. What was never
// handed to the network has certainly changed nothing.
func TestUnsentCallsAreUnavailable(t *testing.T) {
	b := &backend{}
	s := open(t, nil, serve(t, b).addr)
	// The node stops reading when so many renewals wait; then the window fills.
	const few, many = transport.MaxRenews, 300
	arrived := make(chan struct{}, few+many)
	b.renew = func(ctx context.Context, held []leases.Held) ([]error, error) {
		arrived <- struct{}{}
		<-ctx.Done()
		return nil, leases.ErrUnavailable
	}
	errs := make(chan error, few+many)
	renew := func(times, leasesEach int) {
		held := make([]leases.Held, leasesEach)
		for i := range held {
			held[i] = leases.Held{Name: fmt.Sprintf("%0512d", i), Token: 1}
		}
		for range times {
			go func() {
				_, err := s.Renew(context.Background(), held)
				errs <- err
			}()
		}
	}
	renew(few, 1)
	for range few {
		within(t, "a renewal's arrival", arrived)
	}
	renew(many, 16)
	// Until the node has read the first of these, it reads an acquire too.
	acquire := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := s.Acquire(ctx, claim("a"))
		return err
	}
	err := acquire()
	for err == nil {
		err = acquire()
	}
	if !errors.Is(err, leases.ErrUnknownOutcome) {
		t.Errorf("an acquire that is not read: got %v, want an unknown outcome", err)
	}
	s.Close()
	var unknown, unavailable int
	for range few + many {
		switch err := within(t, "an answer", errs); {
		case errors.Is(err, leases.ErrUnknownOutcome):
			unknown++
		case errors.Is(err, leases.ErrUnavailable):
			unavailable++
		default:
			t.Errorf("got %v", err)
		}
	}
	if unknown < few || unavailable == 0 {
		t.Errorf("got %d unknown outcomes and %d unavailable, want at least %d and some", unknown, unavailable, few)
	}
}
