package drill

import (
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
)

// seconds are instants.
func seconds(all ...float64) (times []clock.Instant) {
	for _, s := range all {
		times = append(times, clock.Instant(s*float64(time.Second)))
	}
	return times
}

func TestGaps(t *testing.T) {
	grants := seconds(1, 2, 5, 5.5, 9)
	for _, tt := range []struct {
		what     string
		from, to float64
		want     time.Duration
	}{
		{"all of it", 0, 10, 3500 * time.Millisecond},
		{"between two grants", 2.5, 4.5, 2 * time.Second},
		{"from a fault on", 2.5, 6, 2500 * time.Millisecond},
		{"up to the end", 5, 7, 1500 * time.Millisecond},
		{"nothing after the last", 9, 20, 11 * time.Second},
	} {
		edges := seconds(tt.from, tt.to)
		if got := longest(gaps(grants, edges[0], edges[1])); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
}

// A fresh grant counts when it is first told of, and once.
func TestFreshGrants(t *testing.T) {
	c := &hand{}
	r := history.NewRecorder(c)
	attempt := leases.NewID()
	ask := func(o history.Outcome, token int) {
		end := r.Begin(history.Event{Kind: history.Acquire, Client: "a", Name: "x", Attempt: attempt})
		c.pass(time.Second)
		end(o, tokenOf(token), nil)
	}
	ask(history.Held, 0)
	ask(history.Done, 7)    // at 2 s
	ask(history.Done, 7)    // a repeat
	ask(history.Unknown, 8) // nobody knows of it
	ask(history.Done, 9)    // at 5 s
	r.Begin(history.Event{Kind: history.Renew, Client: "a", Name: "x", Token: 9})(history.Done, 0, nil)
	if got, want := freshGrants(r.History()), seconds(2, 5); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
