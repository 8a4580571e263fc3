package drill

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func tokenOf(n int) tokens.Token { return tokens.Token(n) }

// past is a history that is made up, request by request. Each takes a second.
type past struct {
	clock    *hand
	recorder *history.Recorder
	register *register
}

func newPast() *past {
	c := &hand{now: clock.Instant(time.Second)}
	return &past{c, history.NewRecorder(c), newRegister(c)}
}

func (p *past) ask(e history.Event, o history.Outcome, t tokens.Token) {
	end := p.recorder.Begin(e)
	p.clock.pass(time.Second)
	end(o, t, nil)
}

// grant is a lease that a client is granted and relies on for so long, unless it ends
// that before.
func (p *past) grant(client, name string, t tokens.Token, d time.Duration) *history.Holding {
	p.ask(history.Event{Kind: history.Acquire, Client: client, Session: session(client), Name: name, Attempt: leases.NewID(), TTL: d}, history.Done, t)
	deadline := p.clock.Now().Add(d)
	return p.recorder.Believe(client, name, t, func() clock.Instant { return deadline })
}

// session is one for each client.
func session(client string) (id leases.ID) {
	copy(id[:], client)
	return id
}

func (p *past) release(client, name string, t tokens.Token, h *history.Holding) {
	h.End()
	p.ask(history.Event{Kind: history.Release, Client: client, Session: session(client), Name: name, Token: t}, history.Done, 0)
}

// judge is what the record comes to.
func (p *past) judge(notPromised map[Invariant]string) map[Invariant]Verdict {
	f, h := newFindings(), p.recorder.History()
	f.history(h)
	f.register(p.register.all(), h)
	verdicts := map[Invariant]Verdict{}
	for _, v := range f.verdicts(notPromised) {
		verdicts[v.Invariant] = v
	}
	return verdicts
}

// Every kind of bad history breaks the promise that it is about, and no other.
func TestPlantedHistories(t *testing.T) {
	const first, second = tokens.Token(1<<32 + 1), tokens.Token(1<<32 + 2)
	for _, tt := range []struct {
		what   string
		broken []Invariant
		do     func(*past)
	}{
		{"one after the other", nil, func(p *past) {
			h := p.grant("a", "x", first, 10*time.Second)
			p.register.write("a", "x", first)
			p.release("a", "x", first, h)
			p.grant("b", "x", second, 10*time.Second)
			p.register.write("b", "x", second)
		}},
		{"two at a time", []Invariant{Exclusion}, func(p *past) {
			p.grant("a", "x", first, 10*time.Second)
			p.grant("b", "x", second, 10*time.Second)
		}},
		{"a refusal of a free name", []Invariant{Exclusion}, func(p *past) {
			p.ask(history.Event{Kind: history.Acquire, Client: "a", Session: session("a"), Name: "x", Attempt: leases.NewID(), TTL: time.Second}, history.Held, 0)
		}},
		{"a token granted twice", []Invariant{Tokens}, func(p *past) {
			p.grant("a", "x", first, time.Second)
			p.grant("b", "y", first, time.Second)
		}},
		{"a token that goes back", []Invariant{Tokens, Exclusion}, func(p *past) {
			h := p.grant("a", "x", second, time.Second)
			p.release("a", "x", second, h)
			p.grant("b", "x", first, time.Second)
		}},
		{"two write under one token", []Invariant{Tokens}, func(p *past) {
			p.grant("a", "x", first, time.Second)
			p.register.write("a", "x", first)
			p.register.write("b", "x", first)
		}},
		{"the rightful holder is refused", []Invariant{Tokens, Exclusion}, func(p *past) {
			h := p.grant("a", "x", second, time.Second)
			p.register.write("a", "x", second)
			p.release("a", "x", second, h)
			p.grant("b", "x", first, time.Second)
			p.register.write("b", "x", first)
		}},
		{"a late write is refused", nil, func(p *past) {
			h := p.grant("a", "x", first, time.Second)
			p.release("a", "x", first, h)
			p.grant("b", "x", second, time.Second)
			p.register.write("b", "x", second)
			p.register.write("a", "x", first)
		}},
		{"a refused renewal before the deadline", []Invariant{Continuity, Exclusion}, func(p *past) {
			p.grant("a", "x", first, 10*time.Second)
			p.ask(history.Event{Kind: history.Renew, Client: "a", Session: session("a"), Name: "x", Token: first}, history.NotHeld, 0)
		}},
		{"an older epoch grants after a newer", []Invariant{Authority}, func(p *past) {
			p.grant("a", "x", 2<<32+1, time.Second)
			p.clock.pass(time.Millisecond)
			p.grant("b", "y", first, time.Second)
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := newPast()
			tt.do(p)
			want := map[Invariant]bool{}
			for _, i := range tt.broken {
				want[i] = true
			}
			for i, v := range p.judge(nil) {
				if (v.Outcome == Broken) != want[i] || v.Outcome == Broken && len(v.Evidence) == 0 {
					t.Errorf("%s: got %s (%s, %q), want broken %v", i, v.Outcome, v.Detail, v.Evidence, want[i])
				}
			}
		})
	}
}

func TestLostKeeper(t *testing.T) {
	for _, lost := range []error{nil, leases.ErrExpired} {
		f := newFindings()
		f.keeper(7, lost)
		v := f.verdicts(nil)[3]
		if want := lost != nil; v.Invariant != Continuity || (v.Outcome == Broken) != want {
			t.Errorf("lost: %v: got %+v", lost, v)
		}
	}
}

// What is not promised is not broken, and what was seen is said all the same.
func TestNotPromised(t *testing.T) {
	p := newPast()
	p.grant("a", "x", 1, 10*time.Second)
	p.grant("b", "x", 2, 10*time.Second)
	v := p.judge(map[Invariant]string{Exclusion: "clocks are wrong"})[Exclusion]
	if v.Outcome != NotPromised || !strings.Contains(v.Detail, "clocks are wrong; broken") || len(v.Evidence) == 0 {
		t.Errorf("got %+v", v)
	}
}

// A check that is not through is no success.
func TestNotKnown(t *testing.T) {
	f := newFindings()
	f.unknown[Exclusion] = "not through"
	r := Result{Verdicts: f.verdicts(nil)}
	if got := r.Verdicts[1].Outcome; got != NotKnown || !r.Bad() {
		t.Errorf("got %s, bad %v", got, r.Bad())
	}
}

func TestLeaves(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	if got := leaves(errors.Join(errors.Join(a, nil), errors.Join(b, c))); len(got) != 3 {
		t.Errorf("got %v, want all three", got)
	}
	if got := leaves(nil); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}
