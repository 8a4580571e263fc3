package transport_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
)

func TestConversation(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	want := leases.Claim{
		Name: "jobs/ü", Attempt: leases.NewID(), TTL: 15 * time.Second, Wait: leases.Forever,
		Owner: leases.Owner{Label: "billing", Site: "aws", Host: "h1", PID: 7}, Attributes: []byte{0, 255},
	}
	held := leases.Held{Name: "jobs/ü", Token: tokens.New(1, 7)}
	lost := &leases.NotHeldError{Name: "other", Token: 5, Why: leases.WhyExpired, Next: 6}
	b := &backend{}
	b.acquire = func(_ context.Context, c leases.Claim) (leases.Grant, error) {
		if !reflect.DeepEqual(c, want) {
			t.Errorf("the backend got the claim %+v, want %+v", c, want)
		}
		b.last().on(leases.Queued{Name: c.Name, Attempt: c.Attempt, Position: 3})
		return leases.Grant{Token: held.Token, AcquiredAt: time.UnixMilli(1_700_000_000_123), Waited: true}, nil
	}
	b.renew = func(_ context.Context, h []leases.Held) ([]error, error) {
		if !slices.Equal(h, []leases.Held{held, {Name: "other", Token: 5}}) {
			t.Errorf("the backend was asked to renew %v", h)
		}
		return []error{nil, lost}, nil
	}
	believed := []leases.Claimed{
		{Held: held, TTL: 15 * time.Second, Owner: want.Owner, Attributes: []byte{0, 255}, AcquiredAt: time.UnixMilli(1_700_000_000_123)},
		{Held: leases.Held{Name: "other", Token: 5}, TTL: time.Second},
	}
	b.reclaim = func(_ context.Context, epoch uint32, c []leases.Claimed) ([]error, error) {
		if epoch != 2 || !reflect.DeepEqual(c, believed) {
			t.Errorf("the backend was asked to reclaim %+v in epoch %d, want %+v in 2", c, epoch, believed)
		}
		return []error{nil, lost}, nil
	}
	b.withdraw = func(_ context.Context, name string, attempt leases.ID) error {
		if name != want.Name || attempt != want.Attempt {
			t.Errorf("the backend was asked to withdraw %q, %v", name, attempt)
		}
		return &leases.UnavailableError{Reason: "starting"}
	}
	b.release = func(_ context.Context, h leases.Held) error {
		if h != held {
			t.Errorf("the backend was asked to release %v", h)
		}
		return lost
	}
	heir := leases.NewID()
	b.transfer = func(_ context.Context, h leases.Held, to leases.ID) (bool, error) {
		if to != heir {
			return false, lost
		}
		return h == held, nil
	}
	events := make(chan leases.Event, 10)
	s := open(t, func(e leases.Event) { events <- e }, serve(t, b).addr)

	if got, want := s.Info(), (leases.Info{Cluster: cluster, Node: "n1", Rho: leases.Rho, MaxTTL: leases.MaxTTL, ElectionTimeout: time.Second}); got != want {
		t.Errorf("Info: got %+v, want %+v", got, want)
	}
	g, err := s.Acquire(ctx, want)
	if err != nil || g.Token != held.Token || !g.AcquiredAt.Equal(time.UnixMilli(1_700_000_000_123)) || !g.Waited {
		t.Errorf("Acquire: got %+v, %v", g, err)
	}
	if got, want := within(t, "the event", events), (leases.Queued{Name: want.Name, Attempt: want.Attempt, Position: 3}); got != want {
		t.Errorf("got the event %+v, want %+v", got, want)
	}
	each, err := s.Renew(ctx, []leases.Held{held, {Name: "other", Token: 5}})
	if err != nil || len(each) != 2 || each[0] != nil || !reflect.DeepEqual(each[1], error(lost)) {
		t.Errorf("Renew: got %v, %v", each, err)
	}
	each, err = s.Reclaim(ctx, 2, believed)
	if err != nil || len(each) != 2 || each[0] != nil || !reflect.DeepEqual(each[1], error(lost)) {
		t.Errorf("Reclaim: got %v, %v", each, err)
	}
	if err := s.Withdraw(ctx, want.Name, want.Attempt); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("Withdraw: got %v, want unavailable", err)
	}
	if err := s.Release(ctx, held); !reflect.DeepEqual(err, error(lost)) {
		t.Errorf("Release: got %v, want %v", err, lost)
	}
	for h, want := range map[leases.Held]bool{held: true, {Name: "other", Token: 5}: false} {
		if transferred, err := s.Transfer(ctx, h, heir); transferred != want || err != nil {
			t.Errorf("Transfer of %v: got %v, %v, want %v", h, transferred, err, want)
		}
	}
	if transferred, err := s.Transfer(ctx, held, leases.NewID()); transferred || !reflect.DeepEqual(err, error(lost)) {
		t.Errorf("Transfer that fails: got %v, %v, want %v", transferred, err, lost)
	}
	b.last().on(leases.Breaking{Held: held})
	if got, want := within(t, "the event", events), (leases.Breaking{Held: held}); got != want {
		t.Errorf("got the event %+v, want %+v", got, want)
	}
	b.last().on(leases.Ended{Held: held, Err: lost})
	if got, want := within(t, "the event", events), (leases.Ended{Held: held, Err: lost}); !reflect.DeepEqual(got, leases.Event(want)) {
		t.Errorf("got the event %+v, want %+v", got, want)
	}
	if s.Err() != nil {
		t.Errorf("Err: got %v, want nil", s.Err())
	}
}

func TestAnswersComeOutOfOrder(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	first := make(chan struct{})
	s := open(t, nil, serve(t, &backend{acquire: func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		if c.Name == "first" {
			select {
			case <-first:
			case <-ctx.Done():
			}
		}
		return leases.Grant{Token: tokens.New(1, uint32(len(c.Name)))}, nil
	}}).addr)
	answered := make(chan leases.Grant, 1)
	go func() {
		g, _ := s.Acquire(ctx, claim("first"))
		answered <- g
	}()
	for range 3 {
		if g, err := s.Acquire(ctx, claim("second")); err != nil || g.Token != tokens.New(1, 6) {
			t.Fatalf("the second acquire: got %+v, %v", g, err)
		}
	}
	select {
	case <-answered:
		t.Error("the first acquire was answered before it was granted")
	default:
	}
	close(first)
	if g := within(t, "the first answer", answered); g.Token != tokens.New(1, 5) {
		t.Errorf("the first acquire: got %+v", g)
	}
}

func TestManyConcurrentAcquires(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	// Nothing is granted before all have arrived: they do not wait for each other.
	const callers = 512
	var arrived atomic.Int32
	all := make(chan struct{})
	s := open(t, nil, serve(t, &backend{acquire: func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		if arrived.Add(1) == callers {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
		}
		var n uint32
		fmt.Sscan(c.Name, &n)
		return leases.Grant{Token: tokens.New(1, n+1)}, nil
	}}).addr)
	var callersDone sync.WaitGroup
	for i := range uint32(callers) {
		callersDone.Go(func() {
			if g, err := s.Acquire(ctx, claim(fmt.Sprint(i))); err != nil || g.Token != tokens.New(1, i+1) {
				t.Errorf("acquire %d: got %+v, %v", i, g, err)
			}
		})
	}
	callersDone.Wait()
}

// waitFor starts n acquires that wait, and returns when all have arrived.
func waitFor(t testing.TB, n int, b *backend, s leases.Session) (errs <-chan error) {
	t.Helper()
	arrived, answers := make(chan struct{}), make(chan error, n)
	b.acquire = func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		arrived <- struct{}{}
		return waiting(ctx, c)
	}
	for range n {
		go func() {
			_, err := s.Acquire(context.Background(), claim("a"))
			answers <- err
		}()
	}
	for range n {
		within(t, "the acquires' arrival", arrived)
	}
	return answers
}

func TestAThousandWaitingAcquiresHoldNothingUp(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	b := &backend{}
	s := open(t, nil, serve(t, b).addr)
	answers := waitFor(t, 1000, b, s)
	held := leases.Held{Name: "a", Token: 1}
	for range 10 {
		if each, err := s.Renew(ctx, []leases.Held{held}); err != nil || each[0] != nil {
			t.Errorf("Renew: got %v, %v", each, err)
		}
		if each, err := s.Reclaim(ctx, 2, []leases.Claimed{{Held: held, TTL: time.Second}}); err != nil || each[0] != nil {
			t.Errorf("Reclaim: got %v, %v", each, err)
		}
		if err := s.Withdraw(ctx, "a", leases.NewID()); err != nil {
			t.Errorf("Withdraw: %v", err)
		}
		if err := s.Release(ctx, held); err != nil {
			t.Errorf("Release: %v", err)
		}
		if _, err := s.Transfer(ctx, held, leases.NewID()); err != nil {
			t.Errorf("Transfer: %v", err)
		}
	}
	s.Close()
	for range 1000 {
		if err := within(t, "an answer", answers); !errors.Is(err, leases.ErrUnknownOutcome) {
			t.Fatalf("an acquire that was waiting: got %v, want an unknown outcome", err)
		}
	}
	within(t, "the end of the backend's session", b.last().closed)
}

func TestUnansweredAcquiresAreBounded(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	b := &backend{}
	n := launch(t, b)
	n.LimitAcquires(10)
	n.Start()
	s := open(t, nil, n.addr)
	waitFor(t, 10, b, s)
	_, err := s.Acquire(ctx, claim("a"))
	var full *leases.ExhaustedError
	if !errors.As(err, &full) || full.Bound != 10 || full.What == "" {
		t.Errorf("one acquire too many: got %v, want an error that names the bound of 10", err)
	}
	if _, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}}); err != nil {
		t.Errorf("Renew with the bound full: %v", err)
	}
}

func TestRenewsOfAnyLength(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	b := &backend{renew: func(_ context.Context, held []leases.Held) ([]error, error) {
		each := make([]error, len(held))
		for i, h := range held {
			if h.Token%2 == 0 {
				each[i] = &leases.NotHeldError{Name: h.Name, Token: h.Token}
			}
		}
		return each, nil
	}}
	s := open(t, nil, serve(t, b).addr)
	longest := strings.Repeat("n", leases.MaxName)
	for n, name := range map[int]string{0: "a", 1: "a", transport.MaxHeld: longest, transport.MaxHeld + 1: "a", 3*transport.MaxHeld + 7: "a"} {
		held := make([]leases.Held, n)
		for i := range held {
			held[i] = leases.Held{Name: name, Token: tokens.Token(i + 1)}
		}
		each, err := s.Renew(ctx, held)
		if err != nil || len(each) != n {
			t.Fatalf("%d leases: got %d results, %v", n, len(each), err)
		}
		for i, err := range each {
			if want := held[i].Token%2 == 0; errors.Is(err, leases.ErrNotHeld) != want {
				t.Fatalf("%d leases, number %d: got %v, not held should be %v", n, i, err, want)
			}
		}
	}
}

// A lease is presented in full: the longest ones have to fit into a message too.
func TestReclaimsOfAnyLength(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	long := strings.Repeat("l", leases.MaxLabel)
	full := leases.Claimed{
		Held: leases.Held{Name: strings.Repeat("n", leases.MaxName)}, TTL: leases.MaxTTL, AcquiredAt: time.UnixMilli(253402300799999),
		Owner: leases.Owner{Label: long, Site: long, Host: long, PID: 1<<32 - 1}, Attributes: make([]byte, leases.MaxAttributes),
	}
	least := leases.Claimed{Held: leases.Held{Name: "a"}, TTL: leases.MinTTL}
	var most atomic.Int32
	b := &backend{reclaim: func(_ context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
		most.Store(max(most.Load(), int32(len(held))))
		each := make([]error, len(held))
		for i, c := range held {
			want := full
			if c.Name == least.Name {
				want = least
			}
			want.Token = c.Token
			if !reflect.DeepEqual(c, want) || epoch != tokens.MaxEpoch {
				return nil, fmt.Errorf("the backend got %+v in epoch %d, want %+v", c, epoch, want)
			}
			if c.Token%2 == 0 {
				each[i] = &leases.NotHeldError{Name: c.Name, Token: c.Token}
			}
		}
		return each, nil
	}}
	s := open(t, nil, serve(t, b).addr)
	for n, lease := range map[int]leases.Claimed{0: least, 1: least, transport.MaxClaimed: full, transport.MaxClaimed + 1: least, 3*transport.MaxClaimed + 7: full} {
		held := make([]leases.Claimed, n)
		for i := range held {
			held[i] = lease
			held[i].Token = tokens.Token(i + 1)
		}
		each, err := s.Reclaim(ctx, tokens.MaxEpoch, held)
		if err != nil || len(each) != n {
			t.Fatalf("%d leases: got %d results, %v", n, len(each), err)
		}
		for i, err := range each {
			if want := held[i].Token%2 == 0; errors.Is(err, leases.ErrNotHeld) != want {
				t.Fatalf("%d leases, number %d: got %v, not held should be %v", n, i, err, want)
			}
		}
	}
	if most.Load() != transport.MaxClaimed {
		t.Errorf("the greatest call had %d leases, want %d", most.Load(), transport.MaxClaimed)
	}
}

// What is said of one lease says nothing of the others.
func TestEachLeaseHasItsOwnError(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	want := []error{
		nil, &leases.GraceError{Epoch: 2, FreshIn: time.Minute}, &leases.NotHeldError{Name: "a", Token: 2, Why: leases.WhyBroken},
		&leases.UnavailableError{Reason: "the register cannot be reached"}, leases.ErrNoQuorum, &leases.NotLeaderError{Node: "n1"},
		&leases.InvalidError{Field: "ttl", Value: "5m0s", Bounds: "at most 1m0s"}, &leases.ExhaustedError{What: "bytes of a shard", Bound: 65536}, leases.ErrUnknownOutcome,
	}
	b := &backend{
		renew:   func(context.Context, []leases.Held) ([]error, error) { return want, nil },
		reclaim: func(context.Context, uint32, []leases.Claimed) ([]error, error) { return want, nil },
	}
	s := open(t, nil, serve(t, b).addr)
	held, believed := make([]leases.Held, len(want)), make([]leases.Claimed, len(want))
	for i := range want {
		held[i] = leases.Held{Name: "a", Token: 1}
		believed[i] = leases.Claimed{Held: held[i], TTL: time.Second}
	}
	if got, err := s.Renew(ctx, held); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Renew: got %v, %v, want %v", got, err, want)
	}
	if got, err := s.Reclaim(ctx, 2, believed); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Reclaim: got %v, %v, want %v", got, err, want)
	}
}

func TestRenewFailsAsAWhole(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	believed := []leases.Claimed{{Held: leases.Held{Name: "a", Token: 1}, TTL: time.Second}, {Held: leases.Held{Name: "b", Token: 2}, TTL: time.Second}}
	for _, c := range []struct {
		name string
		each []error
		err  error
		want error
	}{
		{"unavailable", nil, &leases.UnavailableError{Reason: "no round"}, leases.ErrUnavailable},
		{"no quorum", nil, leases.ErrNoQuorum, leases.ErrNoQuorum},
		{"grace", nil, &leases.GraceError{Epoch: 3}, leases.ErrGrace},
		{"too few results", []error{nil}, nil, leases.ErrUnknownOutcome},
		{"too many results", []error{nil, nil, nil}, nil, leases.ErrUnknownOutcome},
	} {
		s := open(t, nil, serve(t, &backend{
			renew:   func(context.Context, []leases.Held) ([]error, error) { return c.each, c.err },
			reclaim: func(context.Context, uint32, []leases.Claimed) ([]error, error) { return c.each, c.err },
		}).addr)
		if each, err := s.Reclaim(ctx, 2, believed); each != nil || !errors.Is(err, c.want) {
			t.Errorf("%s, reclaimed: got %v, %v, want nothing and %v", c.name, each, err, c.want)
		}
		if each, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}, {Name: "b", Token: 2}}); each != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, %v, want nothing and %v", c.name, each, err, c.want)
		}
	}
}

func TestBadValuesNeverLeave(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &backend{
		acquire: func(context.Context, leases.Claim) (leases.Grant, error) {
			t.Error("an acquire has arrived")
			return leases.Grant{}, nil
		},
		reclaim: func(context.Context, uint32, []leases.Claimed) ([]error, error) {
			t.Error("a reclaim has arrived")
			return nil, nil
		},
	}
	s := open(t, nil, serve(t, b).addr)
	bad := claim("\xff")
	_, e1 := s.Acquire(ctx, bad)
	bad = claim("a")
	bad.Wait = 50 * 24 * time.Hour
	_, e2 := s.Acquire(ctx, bad)
	_, e3 := s.Renew(ctx, []leases.Held{{Name: "@a", Token: 1}})
	e4 := s.Withdraw(ctx, "a", leases.ID{})
	e5 := s.Release(ctx, leases.Held{Name: "a"})
	_, e6 := s.Transfer(ctx, leases.Held{Name: "a"}, leases.NewID())
	_, e7 := s.Transfer(ctx, leases.Held{Name: "a", Token: 1}, leases.ID{})
	lease := leases.Claimed{Held: leases.Held{Name: "a", Token: 1}, TTL: time.Second}
	reclaim := func(epoch uint32, change func(*leases.Claimed)) error {
		bad := lease
		change(&bad)
		_, err := s.Reclaim(ctx, epoch, []leases.Claimed{lease, bad})
		return err
	}
	e8 := reclaim(0, func(*leases.Claimed) {})
	e9 := reclaim(tokens.MaxEpoch+1, func(*leases.Claimed) {})
	e10 := reclaim(2, func(c *leases.Claimed) { c.Token = 0 })
	e11 := reclaim(2, func(c *leases.Claimed) { c.TTL = time.Second + 1 })
	e12 := reclaim(2, func(c *leases.Claimed) { c.Owner.Site = "\xff" })
	e13 := reclaim(2, func(c *leases.Claimed) { c.AcquiredAt = time.UnixMilli(-1) })
	for i, err := range []error{e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13} {
		if invalid := (*leases.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Bounds == "" {
			t.Errorf("case %d: got %v, want an invalid error with its bounds", i+1, err)
		}
	}
	if _, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}}); err != nil {
		t.Errorf("the session afterwards: %v", err)
	}
}

func TestContextEndsACall(t *testing.T) {
	b := &backend{}
	s := open(t, nil, serve(t, b).addr)
	waitFor(t, 1, b, s)
	arrived := make(chan struct{}, 1)
	b.acquire = func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		arrived <- struct{}{}
		return waiting(ctx, c)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		cancel(cause)
	}()
	_, err := s.Acquire(ctx, claim("b"))
	if !errors.Is(err, leases.ErrUnknownOutcome) || !errors.Is(err, cause) || errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("Acquire: got %v, want an unknown outcome with the context's cause", err)
	}
	if _, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}}); !errors.Is(err, leases.ErrUnknownOutcome) || !errors.Is(err, cause) {
		t.Errorf("Renew under an ended context: got %v, want an unknown outcome with the cause", err)
	}
	late, cancelLate := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancelLate()
	if _, err := s.Acquire(late, claim("c")); !errors.Is(err, context.DeadlineExceeded) || err.Error() == context.DeadlineExceeded.Error() {
		t.Errorf("Acquire beyond its deadline: got %v, want it joined with the deadline", err)
	}
}

func TestEndOfTheConversation(t *testing.T) {
	for name, end := range map[string]func(n *node, c *transport.Conn, s leases.Session, b *backendSession){
		"the session is closed":    func(_ *node, _ *transport.Conn, s leases.Session, _ *backendSession) { s.Close() },
		"the connection is closed": func(_ *node, c *transport.Conn, _ leases.Session, _ *backendSession) { c.Close() },
		"the server is closed":     func(n *node, _ *transport.Conn, _ leases.Session, _ *backendSession) { n.stop() },
		"the node stops serving": func(_ *node, _ *transport.Conn, _ leases.Session, b *backendSession) {
			b.lose(&leases.NotLeaderError{Node: "n1", Leader: "127.0.0.1:1"})
		},
		"the node stops serving without a word": func(_ *node, _ *transport.Conn, _ leases.Session, b *backendSession) { b.lose(nil) },
		"the node is closed":                    func(_ *node, _ *transport.Conn, _ leases.Session, b *backendSession) { b.lose(leases.ErrClosed) },
	} {
		t.Run(name, func(t *testing.T) {
			b := &backend{}
			n := serve(t, b)
			c := dial(t, transport.DialConfig{Addrs: []string{n.addr}})
			s, err := c.Open(timeout(t, 10*time.Second), leases.NewID(), nil)
			if err != nil {
				t.Fatal(err)
			}
			answers := waitFor(t, 5, b, s)
			end(n, c, s, b.last())
			within(t, "Done", s.Done())
			for range 5 {
				if err := within(t, "an answer", answers); !errors.Is(err, leases.ErrUnknownOutcome) {
					t.Errorf("an acquire that was waiting: got %v, want an unknown outcome", err)
				}
			}
			within(t, "the end of the backend's session", b.last().closed)
			want := leases.ErrUnavailable
			switch {
			case strings.HasSuffix(name, "the session is closed"), name == "the connection is closed":
				want = leases.ErrClosed
			case name == "the node stops serving":
				want = leases.ErrNotLeader
			}
			if !errors.Is(s.Err(), want) {
				t.Errorf("Err: got %v, want %v", s.Err(), want)
			}
			if _, err := s.Acquire(timeout(t, time.Second), claim("a")); !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("an acquire afterwards: got %v, want unavailable", err)
			}
			if _, err := s.Renew(timeout(t, time.Second), []leases.Held{{Name: "a", Token: 1}}); !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("a renewal afterwards: got %v, want unavailable", err)
			}
			s.Close()
		})
	}
}

// What the backend says of its calls when it stops serving reaches the client.
func TestLastAnswersArrive(t *testing.T) {
	b := &backend{}
	s := open(t, nil, serve(t, b).addr)
	arrived := make(chan struct{})
	b.acquire = func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		arrived <- struct{}{}
		<-b.last().done
		return leases.Grant{}, &leases.UnavailableError{Reason: "never proposed"}
	}
	answer := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), claim("a"))
		answer <- err
	}()
	within(t, "the acquire's arrival", arrived)
	b.last().lose(leases.ErrNoQuorum)
	if err := within(t, "the answer", answer); !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "never proposed") {
		t.Errorf("got %v, want the backend's word", err)
	}
	within(t, "Done", s.Done())
	if !errors.Is(s.Err(), leases.ErrNoQuorum) {
		t.Errorf("Err: got %v, want no quorum", s.Err())
	}
}

func TestPanicsAreAnswers(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &backend{acquire: func(context.Context, leases.Claim) (leases.Grant, error) { panic("ouch") }}
	n := serve(t, b)
	s := open(t, nil, n.addr)
	var internal *transport.InternalError
	if _, err := s.Acquire(ctx, claim("a")); !errors.As(err, &internal) || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("Acquire: got %v, want an internal error that says ouch", err)
	}
	if _, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}}); err != nil {
		t.Errorf("the session afterwards: %v", err)
	}
	n.stop()
	if !strings.Contains(n.log.String(), "ouch") {
		t.Errorf("the log says nothing of the panic: %s", n.log)
	}
	b.open = func(context.Context) error { panic("ouch") }
	_, err := dial(t, transport.DialConfig{Addrs: []string{serve(t, b).addr}}).Open(ctx, leases.NewID(), nil)
	if !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("Open: got %v, want an error that says ouch", err)
	}
}
