package transport_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/faults"
)

// book notes which attempts a backend has granted, and which were withdrawn.
type book struct {
	mu        sync.Mutex // guards what follows
	granted   map[leases.ID]bool
	withdrawn map[leases.ID]int
}

// errUnheard is the error of an acquire that is granted all the same.
var errUnheard = fmt.Errorf("%w: the term is over", leases.ErrUnknownOutcome)

// keep lets b note in a book what it is asked. acquire decides what becomes of
// an attempt; granted, it is so in the book.
func keep(b *backend, acquire func(context.Context) error) *book {
	k := &book{granted: map[leases.ID]bool{}, withdrawn: map[leases.ID]int{}}
	b.acquire = func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		err := acquire(ctx)
		if err != nil && err != errUnheard {
			return leases.Grant{}, err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.granted[c.Attempt] = true
		return leases.Grant{Token: tokens.New(1, 7)}, err
	}
	b.withdraw = func(_ context.Context, name string, attempt leases.ID) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.withdrawn[attempt]++
		delete(k.granted, attempt)
		return nil
	}
	return k
}

func (k *book) counts() (granted, withdrawn int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.granted), len(k.withdrawn)
}

// A caller hangs up, in every phase. No lease is left of an attempt that the
// node drew; one that the client drew is never withdrawn (S54).
func TestHangingUp(t *testing.T) {
	type phase struct {
		name               string
		open               bool // hung up while the backend's session is opened
		acquire            func(context.Context) error
		granted, withdrawn int // of an attempt that the client drew, of one that the node drew
	}
	for _, p := range []phase{
		{name: "before a session is open", open: true},
		{name: "while it waits", acquire: func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("%w: no answer so far", leases.ErrUnknownOutcome)
		}, withdrawn: 1},
		{name: "while it waits, and the waiter has certainly gone", acquire: func(ctx context.Context) error {
			<-ctx.Done()
			return &leases.UnavailableError{Reason: "never proposed"}
		}},
		{name: "while it is granted, unheard", acquire: func(ctx context.Context) error { <-ctx.Done(); return errUnheard }, granted: 1, withdrawn: 1},
		{name: "between the grant and the answer", acquire: func(ctx context.Context) error { <-ctx.Done(); return nil }, granted: 1, withdrawn: 1},
	} {
		for _, drawn := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, drawn by the node: %v", p.name, drawn), func(t *testing.T) {
				b, there := &backend{}, make(chan struct{})
				if p.open {
					b.open = func(ctx context.Context) error {
						close(there)
						<-ctx.Done()
						return &leases.UnavailableError{Reason: "given up"}
					}
				}
				k := keep(b, func(ctx context.Context) error {
					close(there)
					return p.acquire(ctx)
				})
				n := serve(t, b)
				ctx, hangUp := context.WithCancel(t.Context())
				r := &coorddv1.AcquireRequest{Name: "a", Session: leases.NewID().String(), TtlMs: 5000, WaitMs: 1<<32 - 1}
				if !drawn {
					r.Session, r.Attempt = leases.NewID().String(), leases.NewID().String()
				}
				ended := make(chan error, 1)
				go func() {
					_, err := client(t, n).Acquire(ctx, r)
					ended <- err
				}()
				within(t, "the call's arrival", there)
				hangUp()
				if err := within(t, "the call's end", ended); !errors.Is(err, leases.ErrUnknownOutcome) {
					t.Errorf("got %v, want an unknown outcome", err)
				}
				if drawn && p.withdrawn > 0 {
					eventually(t, "it is withdrawn", func() bool { _, withdrawn := k.counts(); return withdrawn == p.withdrawn })
				}
				n.stop() // which waits for all that runs
				granted, withdrawn := k.counts()
				switch {
				case drawn && (granted != 0 || withdrawn != p.withdrawn):
					t.Errorf("%d leases are left and %d attempts withdrawn, want none and %d", granted, withdrawn, p.withdrawn)
				case !drawn && (granted != p.granted || withdrawn != 0):
					t.Errorf("%d leases are left and %d attempts withdrawn, want %d and none", granted, withdrawn, p.granted)
				}
				for _, s := range b.opened() {
					within(t, "the end of the backend's session", s.closed)
					if s.id.String() != r.Session {
						t.Errorf("the backend was asked in the name of %v, want %v", s.id, r.Session)
					}
				}
			})
		}
	}
}

// eventually waits until ok, for a few seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not happen within 20 s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func TestAnAnswerIsNotWithdrawn(t *testing.T) {
	b := &backend{}
	k := keep(b, func(context.Context) error { return nil })
	n := serve(t, b)
	ctx, hangUp := context.WithCancel(t.Context())
	if _, err := client(t, n).Acquire(ctx, &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000}); err != nil {
		t.Fatal(err)
	}
	hangUp()
	n.stop()
	if granted, withdrawn := k.counts(); granted != 1 || withdrawn != 0 {
		t.Errorf("%d leases are left and %d attempts withdrawn, want one and none", granted, withdrawn)
	}
}

// Whose outcome is not known, is withdrawn if the node drew it: nobody can
// repeat it. Who was certainly granted nothing, is not.
func TestUnknownOutcomesAreWithdrawn(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	unknown := fmt.Errorf("%w: the term is over", leases.ErrUnknownOutcome)
	for _, c := range []struct {
		err       error
		withdrawn bool
	}{
		{unknown, true},
		{fmt.Errorf("%w: %w", unknown, leases.ErrUnavailable), true},
		{context.Canceled, true},
		{errors.New("what nobody thought of"), true},
		{leases.ErrClosed, true},
		{nil, false},
		{&leases.HeldError{Name: "a"}, false},
		{&leases.NotHeldError{Name: "a"}, false},
		{&leases.UnavailableError{Reason: "no longer leads"}, false},
		{&leases.NotLeaderError{Node: "n1"}, false},
		{&leases.InvalidError{Field: "ttl"}, false},
		{&leases.ExhaustedError{What: "claims"}, false},
		{leases.ErrNoQuorum, false},
		{&leases.GraceError{Epoch: 2}, false},
	} {
		for _, drawn := range []bool{true, false} {
			b := &backend{}
			k := keep(b, func(context.Context) error { return c.err })
			n := serve(t, b)
			r := &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000}
			if !drawn {
				r.Session, r.Attempt = leases.NewID().String(), leases.NewID().String()
			}
			if _, err := client(t, n).Acquire(ctx, r); (err == nil) != (c.err == nil) {
				t.Errorf("%v: got %v", c.err, err)
			}
			n.stop()
			if _, withdrawn := k.counts(); (withdrawn == 1) != (drawn && c.withdrawn) {
				t.Errorf("%v, drawn by the node: %v: %d attempts were withdrawn", c.err, drawn, withdrawn)
			}
		}
	}
}

func TestPanicsOfAcquiresAreWithdrawn(t *testing.T) {
	b := &backend{}
	k := keep(b, func(context.Context) error { panic("ouch") })
	n := serve(t, b)
	_, err := client(t, n).Acquire(timeout(t, 20*time.Second), &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000})
	var internal *transport.InternalError
	if !errors.As(err, &internal) || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("got %v, want an internal error that says ouch", err)
	}
	n.stop()
	if _, withdrawn := k.counts(); withdrawn != 1 {
		t.Errorf("%d attempts were withdrawn, want one", withdrawn)
	}
}

// A withdrawal looks for whichever node serves, as often as it takes, over
// sessions of its own.
func TestWithdrawalsFollowTheLeader(t *testing.T) {
	here, elsewhere := &backend{}, &backend{}
	unknown := fmt.Errorf("%w: the term is over", leases.ErrUnknownOutcome)
	here.acquire = func(context.Context, leases.Claim) (leases.Grant, error) { return leases.Grant{}, unknown }
	here.withdraw = func(context.Context, string, leases.ID) error {
		t.Error("it was withdrawn where nothing is served any more")
		return nil
	}
	var mu sync.Mutex
	opens, tries := 0, 0
	elsewhere.open = func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if opens++; opens == 1 {
			return &leases.NotLeaderError{Node: "n1"}
		}
		return nil
	}
	done := make(chan leases.ID, 1)
	elsewhere.withdraw = func(_ context.Context, name string, attempt leases.ID) error {
		mu.Lock()
		defer mu.Unlock()
		switch tries++; {
		case tries == 1:
			return unknown
		case tries == 2:
			panic("ouch")
		}
		done <- attempt
		return nil
	}
	n := serve(t, here, func(cfg *transport.ServerConfig) { cfg.Anywhere = elsewhere })
	r := &coorddv1.AcquireRequest{Name: "a", Session: leases.NewID().String(), TtlMs: 5000}
	if _, err := client(t, n).Acquire(timeout(t, 20*time.Second), r); !errors.Is(err, leases.ErrUnknownOutcome) {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	within(t, "the withdrawal", done)
	n.stop()
	sessions := elsewhere.opened()
	if len(sessions) != 3 {
		t.Errorf("%d sessions were opened, want one for each of 3 tries", len(sessions))
	}
	for _, s := range sessions {
		within(t, "the end of a session", s.closed)
		if s.id.String() != r.Session {
			t.Errorf("it was withdrawn in the name of %v, want %v", s.id, r.Session)
		}
	}
}

// A withdrawal that cannot be made keeps nobody from closing, and is told of.
func TestWithdrawalsThatFail(t *testing.T) {
	for name, withdraw := range map[string]func(context.Context, string, leases.ID) error{
		"refused": func(context.Context, string, leases.ID) error { return &leases.UnavailableError{Reason: "starting"} },
		"hanging": func(ctx context.Context, _ string, _ leases.ID) error { <-ctx.Done(); return leases.ErrUnknownOutcome },
		"closed":  func(context.Context, string, leases.ID) error { return leases.ErrClosed },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{withdraw: withdraw, acquire: func(context.Context, leases.Claim) (leases.Grant, error) {
				return leases.Grant{}, leases.ErrUnknownOutcome
			}}
			for _, closing := range []bool{true, false} {
				f, log := faults.New(1), new(lockedBuffer)
				stop := serveOn(t, f.Host("n1"), b, logTo(log))
				cc, err := transport.NewClientConn("n1:7420", nil, f.Host("client"))
				if err != nil {
					t.Fatal(err)
				}
				defer cc.Close()
				start := time.Now()
				if _, err := coorddv1.NewCoorddClient(cc).Acquire(t.Context(), &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000}); !errors.Is(err, leases.ErrUnknownOutcome) {
					t.Errorf("%s: got %v, want an unknown outcome", name, err)
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("%s: the answer came after %v, want it at once", name, took)
				}
				if !closing {
					time.Sleep(10 * time.Second)
				}
				start = time.Now()
				stop()
				limit := 3 * time.Second
				if !closing { // it has been given up long ago
					limit = 500 * time.Millisecond
				}
				if took := time.Since(start); took > limit {
					t.Errorf("%s: closing took %v, want at most %v", name, took, limit)
				}
				if !strings.Contains(log.String(), "could not be withdrawn") {
					t.Errorf("%s: the log does not say so: %s", name, log)
				}
			}
		})
	}
}

// A caller that vanishes without a word is noticed like one that hangs up.
func TestSilentCallersAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := faults.New(1), &backend{}
		k := keep(b, func(ctx context.Context) error { <-ctx.Done(); return nil })
		stop := serveOn(t, f.Host("n1"), b)
		cc, err := transport.NewClientConn("n1:7420", nil, f.Host("client"))
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Close()
		ended := make(chan error, 1)
		go func() {
			_, err := coorddv1.NewCoorddClient(cc).Acquire(t.Context(), &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000, WaitMs: 1<<32 - 1})
			ended <- err
		}()
		time.Sleep(10 * time.Minute) // it waits, and is kept
		select {
		case err := <-ended:
			t.Fatalf("the acquire has ended: %v", err)
		default:
		}
		f.Partition([]string{"client"}, []string{"n1"})
		start := time.Now()
		<-b.last().closed
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it was noticed after %v, want at most 10s", took)
		}
		if err := <-ended; !errors.Is(err, leases.ErrUnknownOutcome) {
			t.Errorf("got %v, want an unknown outcome", err)
		}
		stop()
		if granted, withdrawn := k.counts(); granted != 0 || withdrawn != 1 {
			t.Errorf("%d leases are left and %d attempts withdrawn, want none and one", granted, withdrawn)
		}
	})
}

func TestUnaryAcquiresAreBounded(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	b := &backend{}
	n := launch(t, b)
	n.LimitUnary(3, 1)
	n.Start()
	arrived := make(chan struct{})
	withdrawing, release := make(chan struct{}, 3), make(chan struct{})
	b.acquire = func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		arrived <- struct{}{}
		return waiting(ctx, c)
	}
	b.withdraw = func(context.Context, string, leases.ID) error {
		withdrawing <- struct{}{}
		<-release
		return nil
	}
	calling, hangUp := context.WithCancel(ctx)
	c := client(t, n)
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() { c.Acquire(calling, &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000, WaitMs: 1000}) })
	}
	for range 3 {
		within(t, "the acquires' arrival", arrived)
	}
	full := func() bool {
		_, err := c.Acquire(ctx, &coorddv1.AcquireRequest{Name: "b", TtlMs: 5000})
		var exhausted *leases.ExhaustedError
		if err != nil && (!errors.As(err, &exhausted) || exhausted.Bound != 3 || exhausted.What == "") {
			t.Fatalf("one acquire too many: got %v, want an error that names the bound of 3", err)
		}
		return err != nil
	}
	if !full() {
		t.Error("one acquire too many was let through")
	}
	if _, err := c.Renew(ctx, &coorddv1.RenewRequest{Name: "a", Session: leases.NewID().String(), Token: 1}); err != nil {
		t.Errorf("Renew with the bound full: %v", err)
	}
	hangUp()
	callers.Wait()
	for range 3 {
		within(t, "the withdrawals", withdrawing)
	}
	if !full() { // or a client could pile them up by hanging up
		t.Error("withdrawals under way do not count")
	}
	b.acquire = func(context.Context, leases.Claim) (leases.Grant, error) { return leases.Grant{Token: 1}, nil }
	close(release)
	eventually(t, "there is room again", func() bool { return !full() })
}
