package fallback

import (
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// sighting is a lease, and since when its stamp was seen.
type sighting struct {
	lease *leases.Lease
	first clock.Instant // the end of the first action that showed the stamp
}

// show takes a new view of the shard, which an action that ended at now has given. t
// is the table that was written, if this node has written it. It returns what
// happened to the leases of the view before.
func (s *Shard) show(now clock.Instant, view leases.Shard, t *leases.Table) []Event {
	known := make(map[string]sighting, len(view.Leases))
	for _, l := range view.Leases {
		seen := sighting{l, now}
		if was, ok := s.known[l.Name]; ok && s.rests(was.lease, l) {
			seen.first = was.first
		}
		known[l.Name] = seen
	}
	var events []Event
	for _, l := range s.view.Leases {
		switch next := known[l.Name].lease; {
		case next == nil || next.Token != l.Token:
			events = append(events, Gone{Lease: l, Why: ended(t, l), Next: next})
		case next.Broken && !l.Broken:
			events = append(events, Broke{next})
		}
	}
	s.view, s.known = view, known
	s.setDue()
	return events
}

// rests reports whether a lease has not been granted, renewed or reclaimed since.
func (s *Shard) rests(was, l *leases.Lease) bool {
	return was.Token == l.Token && (was.Stamp == l.Stamp || !s.rules.On(rules.Observation))
}

// ended is how l ended by this node's own doing.
func ended(t *leases.Table, l *leases.Lease) leases.Why {
	if t == nil {
		return leases.WhyUnknown
	}
	e, _ := t.Ended(l.Name, l.Token)
	return e.Why
}

func (s *Shard) setDue() {
	s.due = never
	for _, seen := range s.known {
		s.due = min(s.due, seen.until())
	}
}

// until is when a lease that nobody renews may be expired: its stamp was then seen for
// TTL(1+ρ), from the end of the first reading to the beginning of the last.
func (s sighting) until() clock.Instant { return s.first.Add(leases.Stretch(s.lease.TTL)) }

// expire ends the leases in t that have been seen to rest for long enough by now. The
// last reading is the write itself, which begins after now: if it succeeds, the
// register has held this very version, and so these stamps, from the first sighting
// until after now. Like a Raft leader's, the decision comes before the requests that
// are in the same write: from its deadline on a lease is not renewed.
func (s *Shard) expire(t *leases.Table, now clock.Instant) {
	if now.Before(s.due) {
		return
	}
	for _, l := range s.view.Leases {
		if !now.Before(s.known[l.Name].until()) {
			t.Apply(leases.Op{Kind: leases.KindExpire, Epoch: t.Epoch(), Name: l.Name, Token: l.Token, Stamp: l.Stamp})
		}
	}
}

// Fill is how many bytes the leases that this node knows of take up in the register.
func (s *Shard) Fill() uint32 {
	return leases.OpenShard(s.view, s.index, s.shards, 0).Fill()[0]
}
