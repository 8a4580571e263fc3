package transport_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
)

// starting is a backend whose sessions can begin calls. What they have begun
// they answer at their end as of unknown outcome, as a node does.
type starting struct {
	backend
	start   func(c leases.Claim, done func(leases.Grant, error)) bool // nil: begun, and not answered
	release func(h leases.Held, done func(error)) bool                // nil: as nil

	mu      sync.Mutex // guards pending
	pending []func(error)
}

func (b *starting) Open(ctx context.Context, id leases.ID, on func(leases.Event)) (leases.Session, error) {
	s, err := b.backend.Open(ctx, id, on)
	if err != nil {
		return nil, err
	}
	return &startingSession{s.(*backendSession), b}, nil
}

// take takes over the answers that are due.
func (b *starting) take() []func(error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pending := b.pending
	b.pending = nil
	return pending
}

func (b *starting) begin(done func(error)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, done)
	return true
}

type startingSession struct {
	*backendSession
	b *starting
}

func (s *startingSession) StartAcquire(c leases.Claim, done func(leases.Grant, error)) bool {
	if s.b.start != nil {
		return s.b.start(c, done)
	}
	return s.b.begin(func(err error) { done(leases.Grant{}, err) })
}

func (s *startingSession) StartRelease(h leases.Held, done func(error)) bool {
	if s.b.release != nil {
		return s.b.release(h, done)
	}
	return s.b.begin(done)
}

func (s *startingSession) Close() error {
	for _, answer := range s.b.take() {
		answer(leases.ErrUnknownOutcome)
	}
	return s.backendSession.Close()
}

// serveStarting is serve for b.
func serveStarting(t *testing.T, b *starting, changes ...func(*transport.ServerConfig)) *node {
	return serve(t, nil, append(changes, func(cfg *transport.ServerConfig) { cfg.Sessions = b })...)
}

// begun starts n acquires and n releases, and returns when all have been begun.
func (b *starting) begun(t *testing.T, n int, s leases.Session) <-chan error {
	t.Helper()
	answers := make(chan error, 2*n+1)
	for range n {
		go func() {
			_, err := s.Acquire(context.Background(), claim("a"))
			answers <- err
		}()
		go func() { answers <- s.Release(context.Background(), leases.Held{Name: "a", Token: 1}) }()
	}
	until(t, "all have been begun", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.pending) == 2*n
	})
	return answers
}

// until waits until ok says so.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.After(20 * time.Second)
	for tick := time.Tick(time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-end:
			t.Fatalf("%s: it did not happen within 20 s", what)
		}
	}
}

func TestStartedCalls(t *testing.T) {
	ctx := timeout(t, 30*time.Second)
	refused := &leases.NotHeldError{Name: "refused", Why: leases.WhyWithdrawn}
	b := &starting{
		start: func(c leases.Claim, done func(leases.Grant, error)) bool {
			switch c.Name {
			case "at once":
				done(leases.Grant{Token: tokens.New(1, 2), Waited: true}, nil)
			case "later":
				go done(leases.Grant{Token: tokens.New(1, 3)}, nil)
			case "refused":
				done(leases.Grant{}, refused)
			}
			return c.Name != "not begun"
		},
		release: func(h leases.Held, done func(error)) bool {
			switch h.Name {
			case "at once":
				done(nil)
			case "refused":
				go done(refused)
			}
			return h.Name != "not begun"
		},
	}
	n := launch(t, nil, func(cfg *transport.ServerConfig) { cfg.Sessions = b })
	n.LimitAcquires(1) // each has to leave its place to the next
	n.Start()
	s := open(t, nil, n.addr)
	for range 3 {
		for _, c := range []struct {
			name string
			want tokens.Token
		}{{"at once", tokens.New(1, 2)}, {"later", tokens.New(1, 3)}, {"not begun", tokens.New(1, 7)}} {
			if g, err := s.Acquire(ctx, claim(c.name)); err != nil || g.Token != c.want || g.Waited != (c.name == "at once") {
				t.Errorf("acquire, %s: got %+v, %v, want %v", c.name, g, err, c.want)
			}
		}
		if _, err := s.Acquire(ctx, claim("refused")); !errors.Is(err, leases.ErrNotHeld) {
			t.Errorf("acquire: got %v, want %v", err, refused)
		}
		for _, name := range []string{"at once", "not begun"} {
			if err := s.Release(ctx, leases.Held{Name: name, Token: 1}); err != nil {
				t.Errorf("release, %s: %v", name, err)
			}
		}
		if err := s.Release(ctx, leases.Held{Name: "refused", Token: 1}); !errors.Is(err, leases.ErrNotHeld) {
			t.Errorf("release: got %v, want %v", err, refused)
		}
	}
}

func TestStartedAcquiresAreBounded(t *testing.T) {
	b := &starting{}
	n := launch(t, nil, func(cfg *transport.ServerConfig) { cfg.Sessions = b })
	n.LimitAcquires(10)
	n.Start()
	s := open(t, nil, n.addr)
	answers := b.begun(t, 10, s)
	if _, err := s.Acquire(timeout(t, 20*time.Second), claim("a")); !errors.Is(err, leases.ErrExhausted) {
		t.Errorf("one acquire too many: got %v, want exhausted", err)
	}
	for _, answer := range b.take() {
		answer(leases.ErrHeld)
	}
	for range 20 {
		if err := within(t, "an answer", answers); !errors.Is(err, leases.ErrHeld) {
			t.Errorf("got %v, want %v", err, leases.ErrHeld)
		}
	}
	b.begun(t, 10, s)
}

// However a conversation ends, what was started is answered, by the backend if it
// can, and nothing is left of the conversation.
func TestStartedCallsAtTheEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(n *node, s leases.Session, b *starting)
		want error
	}{
		{"the session is closed", func(_ *node, s leases.Session, _ *starting) { s.Close() }, leases.ErrUnknownOutcome},
		{"the server is closed", func(n *node, _ leases.Session, _ *starting) { n.stop() }, leases.ErrUnknownOutcome},
		{"the node stops serving", func(_ *node, _ leases.Session, b *starting) { b.last().lose(leases.ErrNoQuorum) }, leases.ErrUnknownOutcome},
		{"the node stops serving, and knows", func(_ *node, _ leases.Session, b *starting) {
			pending := b.take()
			b.last().lose(leases.ErrNoQuorum)
			for _, answer := range pending {
				answer(&leases.UnavailableError{Reason: "never proposed"})
			}
		}, leases.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &starting{}
			n := serveStarting(t, b)
			s := open(t, nil, n.addr)
			answers := b.begun(t, 5, s)
			c.end(n, s, b)
			for range 10 {
				if err := within(t, "an answer", answers); !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			}
			within(t, "Done", s.Done())
			within(t, "the end of the backend's session", b.last().closed)
			n.stop() // which waits for all calls
		})
	}
}

func TestStartedPanicsAreAnswers(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &starting{start: func(c leases.Claim, done func(leases.Grant, error)) bool {
		if c.Name == "answered" {
			done(leases.Grant{Token: 7}, nil)
		}
		panic("ouch")
	}}
	n := serveStarting(t, b)
	s := open(t, nil, n.addr)
	if _, err := s.Acquire(ctx, claim("a")); err == nil || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("got %v, want an error that says ouch", err)
	}
	if g, err := s.Acquire(ctx, claim("answered")); err != nil || g.Token != 7 {
		t.Errorf("got %+v, %v, want the answer that came before the panic", g, err)
	}
	if _, err := s.Renew(ctx, []leases.Held{{Name: "a", Token: 1}}); err != nil {
		t.Errorf("the session afterwards: %v", err)
	}
	n.stop()
	if got := strings.Count(n.log.String(), "ouch"); got < 2 {
		t.Errorf("the log tells of %d panics, want both: %s", got, n.log)
	}
}

// The client's end of a conversation begins an acquire without a goroutine that
// waits in it: it is answered once, whatever ends first.
func TestStartedAcquireIsAnswered(t *testing.T) {
	type starter interface {
		StartAcquire(leases.Claim, func(leases.Grant, error)) bool
	}
	b := &backend{}
	n := serve(t, b)
	relay := newCutter(t, n.addr)
	s := open(t, nil, relay.addr)
	got := make(chan error, 2)
	start := func(c leases.Claim) bool {
		return s.(starter).StartAcquire(c, func(_ leases.Grant, err error) { got <- err })
	}
	if start(leases.Claim{Name: "a"}) {
		t.Error("a claim that is invalid was begun")
	}
	if !start(claim("a")) {
		t.Fatal("a claim was not begun")
	}
	if err := within(t, "the grant", got); err != nil {
		t.Errorf("got %v, want a grant", err)
	}
	there := make(chan struct{}, 1)
	b.acquire = func(ctx context.Context, c leases.Claim) (leases.Grant, error) {
		there <- struct{}{}
		return waiting(ctx, c)
	}
	if !start(claim("b")) {
		t.Fatal("a claim was not begun")
	}
	within(t, "the claim's arrival", there)
	relay.cut()
	if err := within(t, "the answer", got); !errors.Is(err, leases.ErrUnknownOutcome) {
		t.Errorf("when the connection breaks: got %v, want %v", err, leases.ErrUnknownOutcome)
	}
	within(t, "the end", s.Done())
	if start(claim("c")) {
		t.Error("a claim was begun after the end")
	}
	if len(got) != 0 {
		t.Errorf("%d answers too many", len(got))
	}
}
