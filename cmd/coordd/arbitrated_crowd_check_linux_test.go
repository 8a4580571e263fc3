package main

import (
	"testing"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// ticking is a clock that goes on by one with each reading.
type ticking struct{ now clock.Instant }

func (c *ticking) Now() clock.Instant {
	c.now++
	return c.now
}

// tokenOf is the first of an epoch.
func tokenOf(epoch uint32) tokens.Token { return tokens.Token(uint64(epoch)<<32 + 1) }

// What these tests look for is found: an earlier epoch that goes on granting. A repeat that
// is answered late is none.
func TestOvertaken(t *testing.T) {
	type copied struct {
		attempt byte
		epoch   uint32 // of the answer; 0: there was none
	}
	for name, c := range map[string]struct {
		copies []copied
		want   int
	}{
		"in order":                  {[]copied{{1, 2}, {2, 2}, {3, 3}, {4, 3}}, 0},
		"a repeat":                  {[]copied{{1, 0}, {2, 3}, {1, 2}}, 0},
		"an attempt that comes new": {[]copied{{1, 2}, {2, 3}, {3, 2}}, 1},
		"its repeat":                {[]copied{{2, 3}, {3, 0}, {3, 2}}, 1},
	} {
		r := history.NewRecorder(&ticking{})
		for _, one := range c.copies {
			end := r.Begin(history.Event{Kind: history.Acquire, Name: "x", Attempt: leases.ID{one.attempt}})
			if one.epoch == 0 {
				end(history.Unknown, 0, leases.ErrUnknownOutcome)
			} else {
				end(history.Done, tokenOf(one.epoch), nil)
			}
		}
		if got := overtaken(r.History()); len(got) != c.want {
			t.Errorf("%s: got %v, want %d", name, got, c.want)
		}
	}
}

// A register that is written to under a token refuses lower ones from then on, and tells of
// a token that two use.
func TestGuarded(t *testing.T) {
	g := guarded{greatest: map[string]tokens.Token{}, users: map[tokens.Token]string{}}
	for _, w := range []struct {
		by    string
		token tokens.Token
		want  bool
	}{{"a", 5, true}, {"a", 5, true}, {"b", 7, true}, {"a", 5, false}, {"b", 7, true}} {
		if got := g.write(w.by, "x", w.token); got != w.want {
			t.Errorf("%s under %v: got %v, want %v", w.by, w.token, got, w.want)
		}
	}
	if g.refused != 1 || len(g.wrong) != 0 {
		t.Errorf("got %d refused and %q, want one and none", g.refused, g.wrong)
	}
	if g.write("c", "x", 7); len(g.wrong) != 1 {
		t.Errorf("got %q, want that two use token 7", g.wrong)
	}
}
