package history

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manual is a clock that a test sets.
type manual struct{ now clock.Instant }

func (m *manual) Now() clock.Instant { return m.now }

// op is a planted request: who, what, from when to when, and its answer. Times
// are in seconds, no two of a history alike.
type op struct {
	from, to float64
	client   byte
	kind     Kind
	attempt  byte // of Acquire and Withdraw
	token    tokens.Token
	now      bool   // of Break
	epoch    uint32 // of Reclaim
	outcome  Outcome
	name     string // "x" where empty
}

// rely is a planted belief.
type rely struct {
	from, until, deadline float64
	client                byte
	token                 tokens.Token
}

func instant(s float64) clock.Instant { return clock.Instant(s * float64(time.Second)) }

// plant records a history as a Recorder would have.
func plant(ops []op, relies []rely) History {
	var now manual
	r := NewRecorder(&now)
	type moment struct {
		at float64
		do func()
	}
	var moments []moment
	for _, o := range ops {
		e := Event{Kind: o.kind, Client: string(o.client), Session: leases.ID{o.client}, Name: cmp.Or(o.name, "x"), Now: o.now, Epoch: o.epoch}
		if o.attempt != 0 {
			e.Attempt = leases.ID{o.client, o.attempt}
		}
		if o.kind != Acquire && o.kind != Withdraw {
			e.Token = o.token
		}
		var end func(Outcome, tokens.Token, error)
		moments = append(moments, moment{o.from, func() { end = r.Begin(e) }},
			moment{o.to, func() { end(o.outcome, o.token, nil) }})
	}
	for _, b := range relies {
		var h *Holding
		deadline := func() clock.Instant { return instant(b.deadline) }
		moments = append(moments, moment{b.from, func() { h = r.Believe(string(b.client), "x", b.token, deadline) }},
			moment{b.until, func() { h.End() }})
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	for _, m := range moments {
		now.now = instant(m.at)
		m.do()
	}
	return r.History()
}

func TestCheck(t *testing.T) {
	// A is granted 5 at once and relies on it to its deadline at 10.
	aHas5 := []op{{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done}}
	aRelies := rely{from: 1, until: 10, deadline: 10, client: 'A', token: 5}
	// A stops at 3 to release.
	aStops := rely{from: 1, until: 3, deadline: 10, client: 'A', token: 5}
	aReleases := op{from: 3, to: 3.5, client: 'A', kind: Release, token: 5, outcome: Done}
	// A stops at 3 and passes its lease on to B, which waits.
	aTransfers := op{from: 3, to: 3.5, client: 'A', kind: Transfer, token: 5, outcome: Done}
	bWaits := op{from: 2, to: 4, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}
	// An operator breaks A's lease, and A is told so at its next renewal.
	marked := op{from: 2, to: 3, client: 'O', kind: Break, token: 5, outcome: Done}
	brokenNow := op{from: 2, to: 3, client: 'O', kind: Break, token: 5, now: true, outcome: Done}
	aIsRefused := op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: NotHeld}
	// The arbiter takes over, and A reclaims its lease.
	aReclaims := op{from: 2, to: 3, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done}
	aReliesOn := rely{from: 1, until: 12, deadline: 12, client: 'A', token: 5}
	bHas6 := op{from: 3.2, to: 3.8, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}

	for _, test := range []struct {
		name   string
		ops    []op
		relies []rely
		want   string // part of the error; empty: none
	}{
		{name: "nothing"},
		{
			name:   "one after the other",
			ops:    append(aHas5, aReleases, op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aStops, {from: 5, until: 14, deadline: 14, client: 'B', token: 6}},
		},
		{
			name:   "a waiter is granted what was released meanwhile",
			ops:    append(aHas5, aReleases, op{from: 2, to: 3.2, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aStops, {from: 3.2, until: 12, deadline: 12, client: 'B', token: 6}},
		},
		{
			name: "refused, renewed, expired, granted anew",
			ops: append(aHas5,
				op{from: 2, to: 3, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done},
				op{from: 11, to: 14.5, client: 'B', kind: Acquire, attempt: 2, token: 6, outcome: Done},
				op{from: 15, to: 16, client: 'A', kind: Renew, token: 5, outcome: NotHeld},
				op{from: 17, to: 18, client: 'A', kind: Release, token: 5, outcome: NotHeld}),
			relies: []rely{{from: 1, until: 14, deadline: 14, client: 'A', token: 5}, {from: 14.5, until: 20, deadline: 20, client: 'B', token: 6}},
		},
		{
			name: "a repeat gets the same token",
			ops: []op{
				{from: 0, to: 2, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
				{from: 3, to: 4, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done},
				{from: 3.1, to: 4.1, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done},
			},
			relies: []rely{{from: 4, until: 10, deadline: 10, client: 'A', token: 5}},
		},
		{
			name: "an unanswered acquire may hold the name, late too",
			ops: []op{
				{from: 0, to: 2, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
				{from: 3, to: 4, client: 'B', kind: Acquire, attempt: 1, token: 5, outcome: Done},
				{from: 5, to: 6, client: 'B', kind: Release, token: 5, outcome: Done},
				{from: 7, to: 8, client: 'B', kind: Acquire, attempt: 2, outcome: Held},
				{from: 9, to: 9.5, client: 'B', kind: Acquire, attempt: 3, token: 7, outcome: Done},
			},
		},
		{
			name: "refused while another's grant is under way",
			ops: []op{
				{from: 0, to: 4, client: 'A', kind: Acquire, attempt: 1, outcome: Nothing},
				{from: 1, to: 2, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
			},
		},
		{
			name: "an unanswered release takes effect later, and only once",
			ops: append(aHas5,
				op{from: 3, to: 4, client: 'A', kind: Release, token: 5, outcome: Unknown},
				op{from: 5, to: 6, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 7, to: 8, client: 'B', kind: Acquire, attempt: 2, token: 6, outcome: Done},
				op{from: 8.5, to: 9, client: 'A', kind: Release, token: 5, outcome: NotHeld}),
			relies: []rely{aStops, {from: 8, until: 20, deadline: 20, client: 'B', token: 6}},
		},
		{
			name: "an unanswered release never takes effect",
			ops: append(aHas5,
				op{from: 3, to: 4, client: 'A', kind: Release, token: 5, outcome: Unknown},
				op{from: 5, to: 9, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops},
		},
		{
			name: "a withdrawn grant frees the name",
			ops: append(aHas5,
				op{from: 2, to: 3, client: 'A', kind: Withdraw, attempt: 1, outcome: Unknown},
				op{from: 4, to: 5, client: 'A', kind: Withdraw, attempt: 1, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{{from: 1, until: 2, deadline: 10, client: 'A', token: 5}},
		},
		{
			name: "an orphan that nobody relied on is granted over",
			ops:  append(aHas5, op{from: 2, to: 3, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
		},
		{
			name: "names are apart",
			ops: append(aHas5,
				op{name: "y", from: 0.1, to: 1.1, client: 'A', kind: Acquire, attempt: 2, token: 4, outcome: Done},
				op{name: "y", from: 2, to: 3, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aRelies},
		},
		{
			name:   "a transfer to who waits, while a third asks",
			ops:    append(aHas5, aTransfers, bWaits, op{from: 3.1, to: 3.9, client: 'C', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops, {from: 4, until: 14, deadline: 14, client: 'B', token: 6}},
		},
		{
			name: "an unanswered transfer takes effect, and its repeat finds nothing",
			ops: append(aHas5, op{from: 3, to: 3.5, client: 'A', kind: Transfer, token: 5, outcome: Unknown}, bWaits,
				op{from: 4.5, to: 5, client: 'A', kind: Transfer, token: 5, outcome: NotHeld},
				op{from: 6, to: 7, client: 'A', kind: Renew, token: 5, outcome: NotHeld}),
			relies: []rely{aStops, {from: 4, until: 14, deadline: 14, client: 'B', token: 6}},
		},
		{
			name: "an unanswered transfer never takes effect",
			ops: append(aHas5, op{from: 3, to: 3.5, client: 'A', kind: Transfer, token: 5, outcome: Unknown},
				op{from: 5, to: 9, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops},
		},

		{
			name: "broken, refused, released, granted to another",
			ops: append(aHas5, marked, aIsRefused, op{from: 6, to: 7, client: 'A', kind: Release, token: 5, outcome: Done},
				op{from: 3.5, to: 7.5, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{{from: 1, until: 6, deadline: 10, client: 'A', token: 5}, {from: 7.5, until: 17, deadline: 17, client: 'B', token: 6}},
		},
		{
			name: "broken, and relied on up to the deadline",
			ops: append(aHas5, marked, aIsRefused,
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 8, to: 11, client: 'B', kind: Acquire, attempt: 2, token: 6, outcome: Done}),
			relies: []rely{aRelies, {from: 11, until: 21, deadline: 21, client: 'B', token: 6}},
		},
		{
			name:   "renewed while it is being broken",
			ops:    append(aHas5, marked, op{from: 2.5, to: 4, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 12, deadline: 12, client: 'A', token: 5}},
		},
		{
			name: "broken twice, then now, then in vain",
			ops: append(aHas5, marked, op{from: 3.1, to: 3.2, client: 'O', kind: Break, token: 5, outcome: Done},
				op{from: 3.3, to: 3.4, client: 'O', kind: Break, token: 5, now: true, outcome: Done},
				op{from: 3.5, to: 3.6, client: 'O', kind: Break, token: 5, outcome: NotHeld},
				op{from: 5, to: 6, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aStops},
		},
		{
			name:   "broken now, granted to another while its holder still relies on it",
			ops:    append(aHas5, brokenNow, bHas6, aIsRefused, op{from: 6, to: 7, client: 'A', kind: Release, token: 5, outcome: NotHeld}),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}, {from: 3.8, until: 13, deadline: 13, client: 'B', token: 6}},
		},
		{
			name: "an unanswered break takes effect",
			ops: append(aHas5, op{from: 2, to: 3, client: 'O', kind: Break, token: 5, now: true, outcome: Unknown},
				op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aRelies, {from: 7, until: 17, deadline: 17, client: 'B', token: 6}},
		},
		{
			name: "an unanswered break never takes effect",
			ops: append(aHas5, op{from: 2, to: 3, client: 'O', kind: Break, token: 5, outcome: Unknown},
				op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done},
				op{from: 6, to: 7, client: 'A', kind: Release, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 6, deadline: 14, client: 'A', token: 5}},
		},
		{
			name: "broken before its holder knew of the grant",
			ops: []op{
				{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
				marked,
				{from: 3.5, to: 3.6, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done},
				aIsRefused,
			},
			relies: []rely{{from: 3.6, until: 5, deadline: 10, client: 'A', token: 5}},
		},
		{
			name: "broken, and nobody ever knew of the grant",
			ops: []op{
				{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
				marked, bHas6,
				{from: 4, to: 5, client: 'B', kind: Renew, token: 6, outcome: Done},
			},
			relies: []rely{{from: 3.8, until: 14, deadline: 14, client: 'B', token: 6}},
		},
		{
			name: "a break of an older lease",
			ops: append(aHas5, aReleases, op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 6, to: 7, client: 'O', kind: Break, token: 5, now: true, outcome: NotHeld},
				op{from: 8, to: 9, client: 'B', kind: Renew, token: 6, outcome: Done}),
			relies: []rely{aStops, {from: 5, until: 18, deadline: 18, client: 'B', token: 6}},
		},

		{
			name: "reclaimed, renewed, released, granted anew",
			ops: append(aHas5, aReclaims, op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done},
				op{from: 6, to: 7, client: 'A', kind: Release, token: 5, outcome: Done},
				op{from: 6.5, to: 8, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{{from: 1, until: 6, deadline: 14, client: 'A', token: 5}, {from: 8, until: 18, deadline: 18, client: 'B', token: 6}},
		},
		{
			name: "reclaimed twice, in two epochs",
			ops: append(aHas5, aReclaims, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 4, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aReliesOn},
		},
		{
			name: "an unanswered reclaim takes effect",
			ops: append(aHas5, op{from: 2, to: 3, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Unknown},
				op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 14, deadline: 14, client: 'A', token: 5}},
		},
		{
			name: "not reclaimed, it goes to another when its holder's deadline has passed",
			ops: append(aHas5, op{from: 9, to: 10.5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Unknown},
				op{from: 11, to: 12, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 13, to: 14, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: NotHeld}),
			relies: []rely{aRelies, {from: 12, until: 21, deadline: 21, client: 'B', token: 6}},
		},
		{
			name: "a takeover forgets the mark",
			ops: append(aHas5, marked, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done},
				op{from: 6, to: 7, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 16, deadline: 16, client: 'A', token: 5}},
		},
		{
			name: "a planned one hands it over",
			ops: append(aHas5, marked, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: NotHeld},
				op{from: 5.5, to: 6, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 6.5, to: 7, client: 'A', kind: Release, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}},
		},
		{
			name: "broken after it was reclaimed, it is not reclaimed again",
			ops: append(aHas5, aReclaims, op{from: 4, to: 5, client: 'O', kind: Break, token: 5, outcome: Done},
				op{from: 6, to: 7, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: NotHeld}),
			relies: []rely{{from: 1, until: 7, deadline: 12, client: 'A', token: 5}},
		},
		{
			name: "broken now, and reclaimed since nobody knows that any more",
			ops: append(aHas5, brokenNow, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{{from: 1, until: 14, deadline: 14, client: 'A', token: 5}},
		},
		{
			name: "broken now, granted anew, and both are reclaimed",
			ops: append(aHas5, brokenNow, bHas6, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Reclaim, token: 6, epoch: 2, outcome: Done},
				op{from: 7.5, to: 8, client: 'A', kind: Renew, token: 5, outcome: NotHeld},
				op{from: 8.5, to: 9, client: 'B', kind: Renew, token: 6, outcome: Done}),
			relies: []rely{{from: 1, until: 8, deadline: 14, client: 'A', token: 5}, {from: 3.8, until: 18, deadline: 18, client: 'B', token: 6}},
		},
		{
			name: "a reclaim that arrives after the release leaves an orphan",
			ops: append(aHas5, op{from: 2, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done}, aReleases,
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 8, to: 12, client: 'B', kind: Acquire, attempt: 2, token: 6, outcome: Done}),
			relies: []rely{aStops, {from: 12, until: 18, deadline: 18, client: 'B', token: 6}},
		},
		{
			name: "one without an answer too",
			ops: append(aHas5, op{from: 2, to: 3, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Unknown},
				op{from: 3.1, to: 3.5, client: 'A', kind: Release, token: 5, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 8, to: 12, client: 'B', kind: Acquire, attempt: 2, token: 6, outcome: Done}),
			relies: []rely{aStops, {from: 12, until: 18, deadline: 18, client: 'B', token: 6}},
		},
		{
			name: "what was reclaimed is held under no attempt",
			ops: append(aHas5, aReclaims, op{from: 4, to: 5, client: 'A', kind: Acquire, attempt: 1, outcome: Held},
				op{from: 5.5, to: 6, client: 'A', kind: Withdraw, attempt: 1, outcome: Done},
				op{from: 7, to: 8, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aReliesOn},
		},

		{
			name: "a lease comes back after another grant",
			ops: append(aHas5, aReleases, op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 6, to: 7, client: 'B', kind: Release, token: 6, outcome: Done},
				op{from: 8, to: 9, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done}),
			relies: []rely{aStops, {from: 5, until: 6, deadline: 15, client: 'B', token: 6}},
			want:   "a lease came back that had been granted anew",
		},
		{
			name: "a reclaim during another grant",
			ops: append(aHas5, aReleases, op{from: 4, to: 6, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 5, to: 7, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done}),
			relies: []rely{aStops, {from: 6, until: 15, deadline: 15, client: 'B', token: 6}},
			want:   "not linearizable",
		},
		{
			name: "a grant of another while a lease is reclaimed",
			ops: append(aHas5, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done},
				op{from: 8, to: 11, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{{from: 1, until: 14, deadline: 14, client: 'A', token: 5}, {from: 11, until: 18, deadline: 18, client: 'B', token: 6}},
			want:   "two relied on one lease at a time",
		},
		{
			name: "a grant before the deadline of a reclaim, whose holder does not rely on it any more",
			ops: append(aHas5, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done},
				op{from: 8, to: 11, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{{from: 1, until: 7, deadline: 14, client: 'A', token: 5}},
			want:   "not linearizable",
		},
		{
			name:   "a reclaim of what was never granted",
			ops:    append(aHas5, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 6, epoch: 2, outcome: Done}),
			relies: []rely{aRelies},
			want:   "a lease was reclaimed that was not granted",
		},
		{
			name:   "a forged reclaim",
			ops:    append(aHas5, aReleases, op{from: 4, to: 5, client: 'B', kind: Reclaim, token: 5, epoch: 2, outcome: Done}),
			relies: []rely{aStops},
			want:   "a lease was reclaimed that was not granted",
		},
		{
			name:   "a reclaim in the token's own epoch",
			ops:    append(aHas5, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, outcome: Done}),
			relies: []rely{aRelies},
			want:   "a lease of epoch 0 was reclaimed in epoch 0",
		},
		{
			name:   "a reclaim refused before the holder's own deadline",
			ops:    append(aHas5, op{from: 4, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: NotHeld}),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}},
			want:   "a lease was lost although its holder's own deadline had not passed",
		},
		{
			name: "a reclaim in the epoch in which it was broken",
			ops: append(aHas5, aReclaims, op{from: 4, to: 5, client: 'O', kind: Break, token: 5, outcome: Done},
				op{from: 6, to: 7, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done}),
			relies: []rely{{from: 1, until: 16, deadline: 16, client: 'A', token: 5}},
			want:   "not linearizable",
		},
		{
			name: "broken now, granted anew, and both are reclaimed in the wrong order",
			ops: append(aHas5, brokenNow, bHas6, op{from: 4, to: 5, client: 'B', kind: Reclaim, token: 6, epoch: 2, outcome: Done},
				op{from: 6, to: 7, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done}),
			relies: []rely{{from: 1, until: 7, deadline: 14, client: 'A', token: 5}, {from: 3.8, until: 18, deadline: 18, client: 'B', token: 6}},
			want:   "not linearizable",
		},
		{
			name: "a refusal that no refused reclaim explains",
			ops: append(aHas5, op{from: 2, to: 5, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: NotHeld}, aReleases,
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name: "nor one of another's",
			ops: append(aHas5, op{from: 2, to: 5, client: 'C', kind: Reclaim, token: 5, epoch: 2, outcome: Unknown}, aReleases,
				op{from: 6, to: 7, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "a renewal of what was released before an unanswered reclaim of another epoch",
			ops:    append(aHas5, aReleases, op{from: 5, to: 6, client: 'A', kind: Renew, token: 5, outcome: Done}, op{from: 6.5, to: 7, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Unknown}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},

		{
			name:   "a transfer while its giver goes on",
			ops:    append(aHas5, aTransfers, bWaits),
			relies: []rely{aRelies, {from: 4, until: 14, deadline: 14, client: 'B', token: 6}},
			want:   "two relied on one lease at a time",
		},
		{
			name:   "a renewal of what was transferred",
			ops:    append(aHas5, aTransfers, op{from: 5, to: 6, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "refused although the transfer has freed the name",
			ops:    append(aHas5, aTransfers, op{from: 5, to: 6, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "a forged transfer",
			ops:    append(aHas5, op{from: 3, to: 3.5, client: 'C', kind: Transfer, token: 5, outcome: Done}, bWaits),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "a transfer without effect",
			ops:    append(aHas5, op{from: 3, to: 3.5, client: 'A', kind: Transfer, token: 5, outcome: Nothing}, bWaits),
			relies: []rely{aStops},
			want:   "not linearizable",
		},

		{
			name:   "a mark ends nothing",
			ops:    append(aHas5, marked, bHas6),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "a mark excuses no overlap",
			ops:    append(aHas5, marked, bHas6),
			relies: []rely{aRelies, {from: 3.8, until: 13, deadline: 13, client: 'B', token: 6}},
			want:   "two relied on one lease at a time",
		},
		{
			name:   "a renewal after the mark",
			ops:    append(aHas5, marked, op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 14, deadline: 14, client: 'A', token: 5}},
			want:   "not linearizable",
		},
		{
			name: "a renewal after the mark that came before the grant was known",
			ops: []op{
				{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
				marked,
				{from: 3.5, to: 3.6, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done},
				{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done},
			},
			want: "not linearizable",
		},
		{
			name:   "a renewal after the break that freed the name",
			ops:    append(aHas5, brokenNow, op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{{from: 1, until: 14, deadline: 14, client: 'A', token: 5}},
			want:   "not linearizable",
		},
		{
			name:   "a release that was refused although the mark ended nothing",
			ops:    append(aHas5, marked, op{from: 4, to: 5, client: 'A', kind: Release, token: 5, outcome: NotHeld}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "refused before it was broken",
			ops:    append(aHas5, op{from: 6, to: 7, client: 'O', kind: Break, token: 5, outcome: Done}, aIsRefused),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}},
			want:   "a lease was lost although its holder's own deadline had not passed",
		},
		{
			name:   "refused although another lease was broken",
			ops:    append(aHas5, op{from: 2, to: 3, client: 'O', kind: Break, token: 4, outcome: Done}, aIsRefused),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}},
			want:   "a lease was lost although its holder's own deadline had not passed",
		},
		{
			name:   "refused although the break was",
			ops:    append(aHas5, op{from: 2, to: 3, client: 'O', kind: Break, token: 5, outcome: Nothing}, aIsRefused),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}},
			want:   "a lease was lost although its holder's own deadline had not passed",
		},
		{
			name:   "a break that found nothing although the lease was held",
			ops:    append(aHas5, op{from: 2, to: 3, client: 'O', kind: Break, token: 5, outcome: NotHeld}),
			relies: []rely{aRelies},
			want:   "not linearizable",
		},
		{
			name:   "an overlap from before the break",
			ops:    append(aHas5, bWaits, op{from: 5, to: 6, client: 'O', kind: Break, token: 5, now: true, outcome: Done}),
			relies: []rely{aRelies, {from: 4, until: 14, deadline: 14, client: 'B', token: 6}},
			want:   "two relied on one lease at a time",
		},
		{
			name: "an overlap of those who came after the broken one",
			ops:  append(aHas5, brokenNow, bHas6, op{from: 5, to: 6, client: 'C', kind: Acquire, attempt: 1, token: 7, outcome: Done}),
			relies: []rely{
				aRelies,
				{from: 3.8, until: 13, deadline: 13, client: 'B', token: 6},
				{from: 6, until: 16, deadline: 16, client: 'C', token: 7},
			},
			want: "two relied on one lease at a time",
		},
		{
			name: "a break of an older lease frees nothing",
			ops: append(aHas5, aReleases, op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 6, to: 7, client: 'O', kind: Break, token: 5, now: true, outcome: Done},
				op{from: 8, to: 9, client: 'C', kind: Acquire, attempt: 1, token: 7, outcome: Done}),
			relies: []rely{aStops, {from: 5, until: 5.5, deadline: 15, client: 'B', token: 6}},
			want:   "not linearizable",
		},

		{
			name:   "overlap",
			ops:    append(aHas5, op{from: 2, to: 3, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aRelies, {from: 3, until: 12, deadline: 12, client: 'B', token: 6}},
			want:   "two relied on one lease at a time",
		},
		{
			name: "overlap with one that lasts long, others between",
			ops: append(aHas5, op{from: 2, to: 3, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 5, to: 6, client: 'C', kind: Acquire, attempt: 1, token: 7, outcome: Done}),
			relies: []rely{aRelies, {from: 3, until: 4, deadline: 12, client: 'B', token: 6}, {from: 6, until: 8, deadline: 14, client: 'C', token: 7}},
			want:   "C relied on",
		},
		{
			name:   "a grant over an unreleased lease whose deadline has not passed",
			ops:    append(aHas5, op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aStops},
			want:   `the answers about "x" are not linearizable`,
		},
		{
			name: "a token goes back",
			ops: append(aHas5, aReleases,
				op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 4, outcome: Done}),
			relies: []rely{aStops},
			want:   "a token went back",
		},
		{
			name: "a token twice, under one name",
			ops: append(aHas5, aReleases,
				op{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 5, outcome: Done}),
			want: "a token was granted twice",
		},
		{
			name: "a token twice, under two names",
			ops: append(aHas5,
				op{name: "y", from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, token: 5, outcome: Done}),
			want: "a token was granted twice",
		},
		{
			name: "no token",
			ops:  []op{{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, outcome: Done}},
			want: "a grant without a token",
		},
		{
			name: "a released attempt is granted again under its old token",
			ops: append(aHas5, aReleases,
				op{from: 4, to: 5, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done}),
			want: "not linearizable",
		},
		{
			name:   "a lost grant",
			ops:    append(aHas5, op{from: 4, to: 5, client: 'A', kind: Renew, token: 5, outcome: NotHeld}),
			relies: []rely{{from: 1, until: 5, deadline: 10, client: 'A', token: 5}},
			want:   "a lease was lost although its holder's own deadline had not passed",
		},
		{
			name: "a release that was refused while the lease was held",
			ops: append(aHas5,
				op{from: 3, to: 4, client: 'A', kind: Release, token: 5, outcome: NotHeld}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name: "a forged release",
			ops: append(aHas5,
				op{from: 3, to: 4, client: 'B', kind: Release, token: 5, outcome: Done},
				op{from: 11, to: 12, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aRelies},
			want:   "not linearizable",
		},
		{
			name: "a forged release without an answer frees nothing",
			ops: append(aHas5,
				op{from: 3, to: 4, client: 'B', kind: Release, token: 5, outcome: Unknown},
				op{from: 5, to: 6, client: 'C', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aRelies},
			want:   "not linearizable",
		},
		{
			name: "a forged withdrawal",
			ops: append(aHas5,
				op{from: 3, to: 4, client: 'B', kind: Withdraw, attempt: 1, outcome: Done},
				op{from: 5, to: 6, client: 'C', kind: Acquire, attempt: 1, token: 6, outcome: Done}),
			relies: []rely{aRelies},
			want:   "not linearizable",
		},
		{
			name: "a release of an older lease does not free the next",
			ops: append(aHas5, op{from: 3, to: 4, client: 'A', kind: Release, token: 5, outcome: Unknown},
				op{from: 5, to: 6, client: 'B', kind: Acquire, attempt: 1, token: 6, outcome: Done},
				op{from: 7, to: 8, client: 'C', kind: Acquire, attempt: 1, token: 7, outcome: Done}),
			relies: []rely{aStops, {from: 6, until: 6.5, deadline: 15, client: 'B', token: 6}},
			want:   "not linearizable",
		},
		{
			name: "refused although the name is free",
			ops: append(aHas5, aReleases,
				op{from: 5, to: 6, client: 'B', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name: "refused for its own lease",
			ops: append(aHas5,
				op{from: 5, to: 6, client: 'A', kind: Acquire, attempt: 1, outcome: Held}),
			relies: []rely{aRelies},
			want:   "not linearizable",
		},
		{
			name:   "a renewal of what was released",
			ops:    append(aHas5, aReleases, op{from: 5, to: 6, client: 'A', kind: Renew, token: 5, outcome: Done}),
			relies: []rely{aStops},
			want:   "not linearizable",
		},
		{
			name:   "a belief without a grant",
			ops:    aHas5,
			relies: []rely{{from: 1, until: 10, deadline: 10, client: 'B', token: 5}},
			want:   "a lease was relied on that was not granted",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := plant(test.ops, test.relies).Check(time.Minute)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got %v, want nil", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestViolationNamesTheEvents(t *testing.T) {
	err := plant([]op{
		{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done},
		{from: 2, to: 3, client: 'B', kind: Acquire, attempt: 2, token: 6, outcome: Done},
	}, []rely{{from: 1, until: 10, deadline: 10, client: 'A', token: 5}}).Check(time.Minute)
	const want = `the answers about "x" are not linearizable
	explained in this order, the last few:
	[0s–1s] A: acquire "x" attempt 41010000 token 5: done
	none of these can come next:
	[2s–3s] B: acquire "x" attempt 42020000 token 6: done`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%v", err, want)
	}
	var v *Violation
	if !errors.As(err, &v) {
		t.Error("the error is no *Violation")
	}
}

func TestCheckThatTimesOutFails(t *testing.T) {
	h := simulate(1, 4000, 1)
	if err := h.Check(time.Nanosecond); err == nil || !strings.Contains(err.Error(), "not through after 1ns") {
		t.Errorf("got %v, want an error about the time", err)
	}
}

func TestCounts(t *testing.T) {
	h := plant([]op{
		{from: 0, to: 1, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
		{from: 2, to: 3, client: 'A', kind: Acquire, attempt: 1, token: 5, outcome: Done},
		{from: 3.1, to: 3.2, client: 'A', kind: Acquire, attempt: 1, outcome: Unknown},
		{from: 4, to: 5, client: 'B', kind: Acquire, attempt: 1, outcome: Held},
		{from: 6, to: 7, client: 'A', kind: Renew, token: 5, outcome: Done},
		{from: 8, to: 9, client: 'A', kind: Release, token: 5, outcome: Done},
		{from: 10, to: 11, client: 'A', kind: Transfer, token: 6, outcome: Done},
		{from: 12, to: 13, client: 'O', kind: Break, token: 7, outcome: Done},
		{from: 14, to: 15, client: 'O', kind: Break, token: 8, now: true, outcome: NotHeld},
		{from: 16, to: 17, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: Done},
		{from: 18, to: 19, client: 'A', kind: Reclaim, token: 5, epoch: 2, outcome: NotHeld},
	}, nil)
	want := Counts{Events: 11, Grants: 1, Refusals: 1, Renewals: 1, Releases: 1, Transfers: 1, Breaks: 1, Reclaims: 1, Unanswered: 1}
	if got := h.Counts(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// answers is a leases.Backend, and its session, that answer as they are told.
type answers struct {
	leases.Directory
	leases.Session
	grant  leases.Grant
	err    error
	renews []error
	on     func(leases.Event)
}

func (a *answers) Open(_ context.Context, _ leases.ID, on func(leases.Event)) (leases.Session, error) {
	a.on = on
	return a, nil
}

func (a *answers) Acquire(context.Context, leases.Claim) (leases.Grant, error) { return a.grant, a.err }
func (a *answers) Withdraw(context.Context, string, leases.ID) error           { return a.err }
func (a *answers) Release(context.Context, leases.Held) error                  { return a.err }
func (a *answers) Transfer(context.Context, leases.Held, leases.ID) (bool, error) {
	return a.err == nil, a.err
}

func (a *answers) Renew(context.Context, []leases.Held) ([]error, error) { return a.renews, a.err }

func (a *answers) Reclaim(context.Context, uint32, []leases.Claimed) ([]error, error) {
	return a.renews, a.err
}

func TestBackendRecords(t *testing.T) {
	var now manual
	r := NewRecorder(&now)
	a := &answers{grant: leases.Grant{Token: 7}}
	told := 0
	s, err := r.Backend("A", a).Open(t.Context(), leases.ID{1}, func(leases.Event) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	now.now = instant(1)
	s.Acquire(t.Context(), leases.Claim{Name: "x", Attempt: leases.ID{2}, TTL: time.Second})
	if passed, err := s.Transfer(t.Context(), leases.Held{Name: "z", Token: 9}, leases.ID{4}); !passed || err != nil {
		t.Errorf("transfer: got %v, %v", passed, err)
	}
	a.renews = []error{nil, &leases.NotHeldError{Name: "y"}}
	s.Renew(t.Context(), []leases.Held{{Name: "x", Token: 7}, {Name: "y", Token: 8}})
	reclaimed := []leases.Claimed{{Held: leases.Held{Name: "x", Token: 7}}, {Held: leases.Held{Name: "y", Token: 8}}}
	s.Reclaim(t.Context(), 3, reclaimed)
	a.renews = []error{&leases.GraceError{Epoch: 5}, leases.ErrUnavailable}
	s.Renew(t.Context(), []leases.Held{{Name: "x", Token: 7}, {Name: "y", Token: 8}})
	s.Reclaim(t.Context(), 3, reclaimed)
	a.err = errors.Join(leases.ErrUnknownOutcome, context.Canceled)
	s.Reclaim(t.Context(), 3, reclaimed[:1])
	s.Renew(t.Context(), []leases.Held{{Name: "x", Token: 7}})
	s.Release(t.Context(), leases.Held{Name: "x", Token: 7})
	if passed, err := s.Transfer(t.Context(), leases.Held{Name: "x", Token: 7}, leases.ID{3}); passed || err != a.err {
		t.Errorf("transfer: got %v, %v, want %v", passed, err, a.err)
	}
	a.err = &leases.UnavailableError{Reason: "testing"}
	s.Withdraw(t.Context(), "x", leases.ID{2})
	a.err = &leases.HeldError{Name: "x"}
	s.Acquire(t.Context(), leases.Claim{Name: "x", Attempt: leases.ID{3}})
	a.on(leases.Queued{Name: "x", Attempt: leases.ID{3}, Position: 1})
	a.on(leases.Ended{Held: leases.Held{Name: "x", Token: 7}, Err: &leases.NotHeldError{Name: "x"}})
	a.on(leases.Breaking{Held: leases.Held{Name: "x", Token: 7}})
	if told != 3 {
		t.Errorf("told of %d events, want 3", told)
	}

	type row struct {
		kind    Kind
		name    string
		token   tokens.Token
		outcome Outcome
	}
	want := []row{
		{Acquire, "x", 7, Done},
		{Transfer, "z", 9, Done},
		{Renew, "x", 7, Done},
		{Renew, "y", 8, NotHeld},
		{Reclaim, "x", 7, Done},
		{Reclaim, "y", 8, NotHeld},
		{Renew, "x", 7, Nothing},
		{Renew, "y", 8, Nothing},
		{Reclaim, "x", 7, Nothing},
		{Reclaim, "y", 8, Unknown},
		{Reclaim, "x", 7, Unknown},
		{Renew, "x", 7, Unknown},
		{Release, "x", 7, Unknown},
		{Transfer, "x", 7, Unknown},
		{Withdraw, "x", 0, Nothing},
		{Acquire, "x", 0, Held},
		{Renew, "x", 7, NotHeld},
	}
	var got []row
	for _, e := range r.History().Events {
		got = append(got, row{e.Kind, e.Name, e.Token, e.Outcome})
		if e.Client != "A" || e.Session != (leases.ID{1}) || e.Invoke != instant(1) {
			t.Errorf("%v: got session %v", e, e.Session)
		}
		if (e.Kind == Reclaim) != (e.Epoch == 3) {
			t.Errorf("%v: got epoch %d, want 3 of a reclaim alone", e, e.Epoch)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBreakIsRecorded(t *testing.T) {
	var now manual
	r := NewRecorder(&now)
	refused := &leases.NotHeldError{Name: "x", Token: 7}
	for i, answer := range []error{nil, refused, leases.ErrUnknownOutcome} {
		now.now = instant(float64(i))
		err := r.Break("x", 7, i == 0, func() error {
			now.now = instant(float64(i) + 0.5)
			return answer
		})
		if err != answer {
			t.Errorf("got %v, want %v", err, answer)
		}
	}
	for i, e := range r.History().Events {
		want := Event{
			Kind: Break, Client: "operator", Name: "x", Token: 7, Now: i == 0, Outcome: []Outcome{Done, NotHeld, Unknown}[i],
			Invoke: instant(float64(i)), Return: instant(float64(i) + 0.5), Err: []error{nil, refused, leases.ErrUnknownOutcome}[i],
			invoked: 2*i + 1, returned: 2*i + 2,
		}
		if *e != want {
			t.Errorf("got %+v, want %+v", *e, want)
		}
	}
	first := r.History().Events[0]
	if got, want := first.String(), `[0s–500ms] operator: break "x" token 7 now: done`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
