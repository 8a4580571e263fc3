package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

const (
	arbitratedClients = 32
	arbitratedNames   = 12
	arbitratedTTL     = 3 * time.Second
	keptTTL           = 8 * time.Second // of the lease that is to outlive everything
	leastArbitrated   = 50              // grants that a history must hold to show anything
)

// guarded is a resource with a register for each name, which remembers the greatest token
// that it was written to under and refuses lower ones.
type guarded struct {
	mu       sync.Mutex // guards what follows
	greatest map[string]tokens.Token
	users    map[tokens.Token]string
	refused  int
	wrong    []string
}

// write reports whether the register took it.
func (g *guarded) write(by, name string, token tokens.Token) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	use := by + " for " + name
	if before, ok := g.users[token]; ok && before != use {
		g.wrong = append(g.wrong, fmt.Sprintf("token %v is used by %s, and by %s", token, before, use))
	}
	g.users[token] = use
	if token < g.greatest[name] {
		g.refused++
		return false
	}
	g.greatest[name] = token
	return true
}

// busy is many clients that want a few names and write to what these protect, one that
// keeps a lease throughout, and the record of all that they were told.
type busy struct {
	*crowd
	resource guarded
	writes   atomic.Int32
	keeper   *keeper
}

// newBusy lets them come.
func newBusy(q *quartet) *busy {
	t := q.t
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := history.NewRecorder(clock.System())
	b := &busy{
		crowd: &crowd{
			t: t, history: h, names: arbitratedNames, ttl: arbitratedTTL, seed: seed,
			stays: pace{every: time.Second}, deaths: pace{every: 2 * time.Second},
		},
		resource: guarded{greatest: map[string]tokens.Token{}, users: map[tokens.Token]string{}},
	}
	b.connect(arbitratedClients, q.doors, nil)
	b.keeper = newKeeper(&crowd{t: t, conns: b.conns, history: h, ttl: keptTTL}, "kept")

	ctx, stop := context.WithCancel(t.Context())
	b.stop = stop
	for i := range arbitratedClients {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		b.workers.Go(func() { b.work(ctx, i, r) })
	}
	t.Cleanup(b.end)
	return b
}

// work is one client after the other.
func (b *busy) work(ctx context.Context, i int, r *rand.Rand) {
	w := &writer{busy: b, stale: func() {}}
	for life := 0; ctx.Err() == nil; life++ {
		w.guest = b.enter(i, fmt.Sprintf("c%d.%d", i, life))
		alive := true
		for alive && ctx.Err() == nil {
			alive = w.visit(ctx, r)
		}
		if alive {
			w.leave()
		}
	}
}

// writer is a client that works, under one name after the other.
type writer struct {
	*guest
	busy  *busy
	stale func() // writes once more under the lease before, which is over
}

// visit wants a lease once, and writes under it for a while. false: the client has died.
func (w *writer) visit(ctx context.Context, r *rand.Rand) bool {
	sleep(ctx, upTo(r, rest))
	w.stale()
	patience, cancel := w.patience(ctx, r)
	l, held, err := w.hold(patience, w.crowd.name(r.IntN(w.crowd.names)), r.IntN(4) > 0)
	cancel()
	if err != nil {
		w.expect(err)
		return true
	}
	while := upTo(r, 60*time.Millisecond)
	if w.crowd.stays.due() {
		while += w.crowd.ttl / 2 // longer than until the first renewal
	}
	for end := time.Now().Add(while); l.Err() == nil; sleep(l.Context(), upTo(r, 20*time.Millisecond)) {
		if w.write(l); time.Now().After(end) {
			break
		}
	}
	by := w.name
	w.stale = func() { w.busy.resource.write(by, l.Name(), l.Token()) }
	if w.crowd.deaths.due() {
		w.die()
		held.End()
		return false
	}
	held.End()
	soon, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.Release(soon) // whatever it says, it is in the history
	return true
}

// write writes under a lease. It is refused only where the client has lost it.
func (w *writer) write(l *client.Lease) {
	believed := w.busy.believes(l)
	taken := w.busy.resource.write(w.name, l.Name(), l.Token())
	if believed && !taken && w.busy.believes(l) {
		w.crowd.t.Errorf("%s relies on %q under token %v, and yet somebody has used a greater one", w.name, l.Name(), l.Token())
	}
	w.busy.writes.Add(1)
}

func (b *busy) believes(l *client.Lease) bool {
	return l.Err() == nil && clock.System().Now().Before(l.Deadline())
}

// expect fails the test for an error that says nothing, or something wrong.
func (w *writer) expect(err error) {
	if !errors.Is(err, leases.ErrGrace) {
		w.guest.expect(err)
	}
}

// pause is the longest time without a grant from an instant on.
func (b *busy) pause(since clock.Instant) (longest time.Duration) {
	at := []clock.Instant{clock.System().Now()}
	for _, e := range granted(b.history.History()) {
		if since.Before(e.Return) {
			at = append(at, e.Return)
		}
	}
	slices.Sort(at)
	for _, next := range at {
		longest, since = max(longest, next.Sub(since)), next
	}
	return longest
}

// grantsBetween are the grants that were asked for, and answered, between two instants.
func (b *busy) grantsBetween(from, to clock.Instant) (all []*history.Event) {
	for _, e := range granted(b.history.History()) {
		if from.Before(e.Invoke) && e.Return.Before(to) {
			all = append(all, e)
		}
	}
	return all
}

// granted are the grants of a history.
func granted(h history.History) (all []*history.Event) {
	for _, e := range h.Events {
		if e.Kind == history.Acquire && e.Outcome == history.Done {
			all = append(all, e)
		}
	}
	return all
}

// grantsAnew waits until leases are granted anew.
func (b *busy) grantsAnew(what string) {
	b.t.Helper()
	const some = 20
	before := b.crowd.grants.Load()
	eventually(b.t, arbitratedWithin, what, func() bool { return b.crowd.grants.Load() > before+some })
}

// goOn lets the clients work for a while.
func (b *busy) goOn(d time.Duration) { sleep(b.t.Context(), d) }

// home lets all clients leave, and looks at what they were told: the keeper has its lease,
// and no promise is broken.
func (b *busy) home(q *quartet) {
	t := b.t
	t.Helper()
	b.end()
	b.checkKeeper()
	_, c := q.leader()
	b.history.Epoch(c.GetEpoch())
	h := b.history.History()
	began := time.Now()
	if err := h.Check(20 * time.Second); err != nil {
		t.Error(err)
	}
	for _, err := range overtaken(h) {
		t.Error(err)
	}
	counts := h.Counts()
	t.Logf("checked in %v: %+v; %d writes, of which %d under an old token were refused", time.Since(began).Round(time.Millisecond), counts, b.writes.Load(), b.resource.refused)
	for _, wrong := range b.resource.wrong {
		t.Error(wrong)
	}
	if b.resource.refused == 0 || counts.Grants < leastArbitrated {
		t.Errorf("got %d grants, and %d old tokens that were refused: that shows too little", counts.Grants, b.resource.refused)
	}
}

// overtaken finds grants of an epoch whose attempt was first sent after a grant of a later
// epoch had been answered: whoever gave them had no authority any more. A repeat may be
// answered later: what its first copy was granted is taken over with its token.
func overtaken(h history.History) (errs []error) {
	sent := map[leases.ID]clock.Instant{} // the first copy
	for _, e := range h.Events {
		if _, ok := sent[e.Attempt]; !ok && e.Kind == history.Acquire {
			sent[e.Attempt] = e.Invoke
		}
	}
	grants := granted(h)
	slices.SortFunc(grants, func(a, b *history.Event) int { return cmp.Compare(a.Return, b.Return) })
	first := map[uint32]*history.Event{} // of an epoch, the one that was answered first
	for _, e := range grants {
		if first[e.Token.Epoch()] == nil {
			first[e.Token.Epoch()] = e
		}
	}
	for _, e := range grants {
		for epoch, f := range first {
			if e.Token.Epoch() < epoch && f.Return.Before(sent[e.Attempt]) {
				errs = append(errs, fmt.Errorf("an earlier epoch grants after a later one:\n%v\n%v", f, e))
			}
		}
	}
	return errs
}

// checkKeeper lets the keeper give its lease back, which is the same as it was.
func (b *busy) checkKeeper() {
	k := b.keeper
	b.t.Helper()
	if err := k.lease.Err(); err != nil {
		b.t.Errorf("a lease that was renewed all the time has ended: %v", err)
		b.tellKeeper()
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	switch state, err := b.conns[0].Get(ctx, k.lease.Name()); {
	case err != nil:
		b.t.Errorf("get %q: %v", k.lease.Name(), err)
	case state.Token != k.token || state.Owner.Label != k.name:
		b.t.Errorf("got %+v, want token %v throughout", state, k.token)
	}
	k.held.End()
	if err := k.lease.Release(ctx); err != nil {
		b.t.Error(err)
	}
	k.leave()
}

// keeps fails the test if the keeper has lost its lease.
func (b *busy) keeps(what string) {
	b.t.Helper()
	if err := b.keeper.lease.Err(); err != nil {
		b.tellKeeper()
		b.t.Fatalf("%s: the keeper has lost its lease: %v", what, err)
	}
}

// tellKeeper logs what the keeper was told last.
func (b *busy) tellKeeper() {
	const last = 20
	var told []*history.Event
	for _, e := range b.history.History().Events {
		if e.Client == b.keeper.name {
			told = append(told, e)
		}
	}
	for _, e := range told[max(0, len(told)-last):] {
		b.t.Log(e)
	}
}
