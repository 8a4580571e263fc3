package drill

import (
	"slices"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/tokens"
)

// noticeable is how long nothing has to be granted for it to be drawn and told of.
const noticeable = 500 * time.Millisecond

// freshGrants is when each token was first told to whom it was granted, in order. A
// repeat of a claim, which gets the same token again, is no fresh grant.
func freshGrants(h history.History) (times []clock.Instant) {
	first := map[tokens.Token]clock.Instant{}
	for _, e := range h.Events {
		if e.Kind != history.Acquire || e.Outcome != history.Done {
			continue
		}
		if at, ok := first[e.Token]; !ok || e.Return.Before(at) {
			first[e.Token] = e.Return
		}
	}
	for _, at := range first {
		times = append(times, at)
	}
	slices.Sort(times)
	return times
}

// interval is a time without fresh grants.
type interval struct{ from, to clock.Instant }

func (i interval) length() time.Duration { return i.to.Sub(i.from) }

// gaps returns the intervals between from and to that the grants, which are sorted, leave.
func gaps(grants []clock.Instant, from, to clock.Instant) (all []interval) {
	last := from
	for _, at := range grants {
		if at.Before(from) || to.Before(at) {
			continue
		}
		all = append(all, interval{last, at})
		last = at
	}
	return append(all, interval{last, to})
}

// longest is the length of the longest of the gaps.
func longest(all []interval) (d time.Duration) {
	for _, i := range all {
		d = max(d, i.length())
	}
	return d
}
