package drill

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/leases"
)

// One drill from end to end, over real sockets.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var told []Event
	r, err := Run(ctx, Config{Seed: 1}, "leader-killed", func(e Event) { told = append(told, e) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Bad() {
		t.Errorf("got %q and %+v, want a drill in which nothing was broken", r.Failure, r.Verdicts)
	}
	if !slices.Equal(told, r.Events) {
		t.Errorf("told of %d events while the drill ran, and of %d at its end", len(told), len(r.Events))
	}
	if c := r.Counts; c.Grants < 20 || c.Renewals == 0 || c.Accepted == 0 || c.Samples < 100 {
		t.Errorf("got %+v: a drill in which so little happens shows nothing", c)
	}
	checkPhases(t, r)
	checkTimeline(t, r)
}

func checkPhases(t *testing.T, r Result) {
	t.Helper()
	if len(r.Phases) != 3 {
		t.Fatalf("got %d phases, want calm, fault and return", len(r.Phases))
	}
	killed := r.Phases[1]
	if killed.WithoutGrantsMS < 100 || killed.Bound == nil || r.WithoutGrantsMS < killed.WithoutGrantsMS {
		t.Errorf("got %+v, and %d ms at the longest: want that nothing is granted while nobody leads", killed, r.WithoutGrantsMS)
	}
	for i, p := range r.Phases {
		if p.ToMS < p.FromMS || i > 0 && p.FromMS != r.Phases[i-1].ToMS {
			t.Errorf("phases are not one after the other: %+v", r.Phases)
		}
	}
}

// checkTimeline looks for the killed leader in it.
func checkTimeline(t *testing.T, r Result) {
	t.Helper()
	down := 0
	for _, l := range r.Timeline.Nodes {
		for _, s := range l.Spans {
			if s.Kind == SpanDown {
				down++
			}
			if s.ToMS < s.FromMS || s.ToMS > r.TookMS {
				t.Errorf("%s: a span is not within the drill: %+v of %d ms", l.Name, s, r.TookMS)
			}
		}
	}
	if down != 1 || len(r.Timeline.Nodes) != nodeCount || len(r.Timeline.Faults) != 1 || len(r.Timeline.Gaps) == 0 {
		t.Errorf("got %+v, want %d nodes, one of which is down once, for one fault", r.Timeline, nodeCount)
	}
	if got, want := len(r.Timeline.Holders), Workers+1; got != want || r.Timeline.Holders[0].Name != "keeper" {
		t.Errorf("got %d lanes of clients, want %d, the keeper's first", got, want)
	}
}

func TestUnknownDrill(t *testing.T) {
	if _, err := Run(t.Context(), Config{}, "nosuch", nil); !errors.Is(err, leases.ErrInvalid) {
		t.Errorf("got %v, want that there is no such drill", err)
	}
}

// Without its arbiter a drill does not begin.
func TestArbiterIsNotReached(t *testing.T) {
	store := faulty.New(arbiter.NewMemory())
	store.SetPlan(unreachable)
	if _, err := Run(t.Context(), Config{Store: store}, "planned", nil); !errors.Is(err, arbiter.ErrUnreachable) {
		t.Errorf("got %v, want that the arbiter was not reached", err)
	}
}

// Whoever ends a drill gets no result, and nothing stays behind.
func TestRunIsEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	_, err := Run(ctx, Config{}, "arbiter-out", func(e Event) {
		if e.Kind == FaultEvent {
			cancel(cause)
		}
	})
	if !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause of the end", err)
	}
}
