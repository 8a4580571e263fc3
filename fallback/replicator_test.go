package fallback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func config(store *testStore, shards uint32) Config {
	return Config{
		Store: store, Key: func(k uint32) string { return fmt.Sprint("shard/", k) }, Clock: clock.NewRuntime(), By: "n1",
		Shards: leases.Shards{Count: shards, Bytes: leases.DefaultShardBytes}, Timeout: time.Second,
	}
}

// do carries an op out and waits for its answer.
func do(r *Replicator, op leases.Op) (leases.Result, error) {
	type answer struct {
		leases.Result
		error
	}
	done := make(chan answer, 1)
	if err := r.Propose(op, func(res leases.Result, err error) { done <- answer{res, err} }); err != nil {
		return leases.Result{}, err
	}
	a := <-done
	return a.Result, a.error
}

func acquireOf(name string, by leases.ID) leases.Op {
	op := acquire(by, leases.NewID())
	op.Name = name
	return op
}

func TestReplicator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(5 * time.Millisecond)
		cfg := config(store, 64)
		var mu sync.Mutex
		var events []Event
		cfg.Changed = func(e []Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e...)
		}
		r := New(cfg)
		defer r.Close()
		if _, err := do(r, acquireOf("a", alice)); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("not serving: got %v", err)
		}
		if err := r.Confirm(t.Context(), "a"); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("not serving: got %v", err)
		}
		r.Serve(fresh(2, 1))
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprintf("job%03d", i))
			if res, err := do(r, acquireOf(names[i], alice)); err != nil || res.Outcome != leases.Granted {
				t.Fatalf("got %v, %v", res.Outcome, err)
			}
		}
		l := r.Find("job007")
		if l == nil || l.Session != alice || r.Find("nothing") != nil {
			t.Fatalf("got %+v", l)
		}
		other := New(cfg)
		defer other.Close()
		other.Serve(fresh(2, 1))
		all, err := other.ConfirmAll(t.Context())
		if err != nil || len(all) != len(names) {
			t.Fatalf("got %d leases, %v", len(all), err)
		}
		for i, l := range all {
			if l.Name != names[i] {
				t.Fatalf("lease %d is %q", i, l.Name)
			}
		}
		if store.atOnce > 2*atOnce { // those that poll are among them
			t.Errorf("%d requests at once, want about %d", store.atOnce, atOnce)
		}
		if res, err := do(other, releaseOf(l)); err != nil || res.Outcome != leases.Freed {
			t.Fatalf("got %v, %v", res.Outcome, err)
		}
		if r.Find(l.Name) == nil {
			t.Error("it knows what it cannot know")
		}
		if err := r.Confirm(t.Context(), l.Name); err != nil || r.Find(l.Name) != nil {
			t.Errorf("got %v, %v", err, r.Find(l.Name))
		}
		if r.Len() != 199 {
			t.Errorf("it knows of %d leases", r.Len())
		}
		sum := uint32(0)
		for _, n := range r.Fill() {
			sum += n
		}
		if sum < 199*300 || sum > 199*1000 {
			t.Errorf("fill %d", sum)
		}

		time.Sleep(leases.Stretch(ttl) + 2*time.Second)
		mu.Lock()
		expired := map[string]bool{}
		for _, e := range events {
			if g, ok := e.(Gone); ok && g.Why == leases.WhyExpired {
				expired[g.Lease.Name] = true
			}
		}
		mu.Unlock()
		if len(expired) != 199 || len(r.Fill()) != 64 || r.Queued() != 0 {
			t.Errorf("%d expired", len(expired))
		}
		if all, err := r.ConfirmAll(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("got %d leases, %v", len(all), err)
		}
	})
}

func releaseOf(l *leases.Lease) leases.Op {
	return leases.Op{Kind: leases.KindRelease, Name: l.Name, Session: l.Session, Token: l.Token}
}

// Ten thousand leases are renewed with one write for each shard.
func TestRenewalsShareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(5 * time.Millisecond)
		cfg := config(store, leases.DefaultShards)
		r := New(cfg)
		defer r.Close()
		r.Serve(fresh(2, 1))
		wave := func(ops []leases.Op, want leases.Outcome) (held []*leases.Lease) {
			var mu sync.Mutex
			var answered sync.WaitGroup
			answered.Add(len(ops))
			for _, op := range ops {
				if err := r.Propose(op, func(res leases.Result, err error) {
					defer answered.Done()
					mu.Lock()
					defer mu.Unlock()
					if err != nil || res.Outcome != want {
						t.Errorf("got %v, %v", res.Outcome, err)
					}
					held = append(held, res.Lease)
				}); err != nil {
					t.Fatal(err)
				}
			}
			answered.Wait()
			return held
		}
		const n = 10_000
		var ops []leases.Op
		for i := range n {
			ops = append(ops, acquireOf(fmt.Sprint("job", i), alice))
		}
		held := wave(ops, leases.Granted)
		seen := map[tokens.Token]bool{}
		for _, l := range held {
			seen[l.Token] = true
		}
		if len(seen) != n {
			t.Fatalf("%d tokens for %d leases", len(seen), n)
		}
		for i := range 5 {
			_, before := store.counts()
			ops = ops[:0]
			for _, l := range held {
				ops = append(ops, leases.Op{Kind: leases.KindRenew, Name: l.Name, Session: l.Session, Token: l.Token})
			}
			held = wave(ops, leases.Renewed)
			if _, swaps := store.counts(); swaps-before != leases.DefaultShards {
				t.Errorf("wave %d: %d writes, want one for each of %d shards", i, swaps-before, leases.DefaultShards)
			}
			time.Sleep(ttl / 3)
		}
	})
}

// Clients of three nodes compete for a few names, while requests and answers are lost.
func TestReplicatorsWithFaults(t *testing.T) {
	var h history.History
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(20 * time.Millisecond)
		store.lose = 0.1
		cfg := config(store, 2)
		rec := history.NewRecorder(cfg.Clock)
		var nodes []*Replicator
		for range 3 {
			r := New(cfg)
			defer r.Close()
			r.Serve(fresh(2, 1))
			nodes = append(nodes, r)
		}
		var working sync.WaitGroup
		for c := range 6 {
			working.Go(func() {
				w := &worker{
					name: fmt.Sprint("c", c), session: leases.NewID(), rec: rec, clock: cfg.Clock, nodes: nodes,
					rand: rand.New(rand.NewPCG(uint64(c), 1)),
				}
				for range 60 {
					w.work(fmt.Sprint("job", w.rand.IntN(2)))
				}
			})
		}
		working.Wait()
		h = rec.History()
	})
	if err := h.Check(time.Minute); err != nil {
		t.Fatal(err)
	}
	if n := h.Counts(); n.Grants < 20 || n.Renewals < 20 || n.Refusals < 20 {
		t.Errorf("too little has happened: %+v", n)
	}
}

// worker is a client that asks any node.
type worker struct {
	name    string
	session leases.ID
	rec     *history.Recorder
	clock   clock.Clock
	nodes   []*Replicator
	rand    *rand.Rand
}

func (w *worker) ask(kind history.Kind, op leases.Op) (leases.Result, history.Outcome) {
	op.Session = w.session
	end := w.rec.Begin(history.Event{Kind: kind, Client: w.name, Session: w.session, Name: op.Name, Attempt: op.Attempt, Token: op.Token, TTL: op.TTL})
	res, err := do(w.nodes[w.rand.IntN(len(w.nodes))], op)
	outcome := history.OutcomeOf(err)
	if err == nil {
		switch res.Outcome {
		case leases.Granted, leases.Repeated, leases.Renewed, leases.Freed:
		case leases.Refused:
			outcome = history.Held
		default:
			outcome = history.NotHeld
		}
	}
	var token tokens.Token
	if res.Lease != nil {
		token = res.Lease.Token
	}
	end(outcome, token, err)
	return res, outcome
}

// work acquires a name, renews it a few times and releases it.
func (w *worker) work(name string) {
	op, first := acquireOf(name, w.session), w.clock.Now()
	var token tokens.Token
	for token == 0 {
		res, outcome := w.ask(history.Acquire, op)
		switch {
		case outcome == history.Held:
			time.Sleep(time.Duration(w.rand.IntN(2000)) * time.Millisecond)
			return
		case outcome == history.Done:
			token = res.Lease.Token
		case w.clock.Now() > first.Add(ttl/2):
			return
		}
	}
	deadline := first.Add(leases.Shrink(ttl))
	holding := w.rec.Believe(w.name, name, token, func() clock.Instant { return deadline })
	for range w.rand.IntN(5) {
		time.Sleep(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
		sent := w.clock.Now()
		_, outcome := w.ask(history.Renew, leases.Op{Kind: leases.KindRenew, Name: name, Token: token})
		if w.clock.Now() >= deadline || outcome == history.NotHeld {
			holding.End()
			return
		}
		if outcome == history.Done {
			deadline = sent.Add(leases.Shrink(ttl))
		}
	}
	holding.End()
	w.ask(history.Release, leases.Op{Kind: leases.KindRelease, Name: name, Token: token})
}

func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(5 * time.Millisecond)
		cfg := config(store, 4)
		var log bytes.Buffer
		var mu sync.Mutex
		cfg.Log = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(p)
		}), nil))
		r := New(cfg)
		defer r.Close()
		r.Serve(fresh(2, 1))
		res, err := do(r, acquireOf(job, alice))
		if err != nil {
			t.Fatal(err)
		}
		store.set(func() { store.hang = true })
		start := time.Now()
		if _, err := do(r, renew(alice, res.Lease.Token)); !errors.Is(err, leases.ErrUnknownOutcome) {
			t.Errorf("a write that is not answered: got %v", err)
		}
		if _, err := do(r, renew(alice, res.Lease.Token)); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("a load that is not answered: got %v", err)
		}
		if d := time.Since(start); d > 3*cfg.Timeout {
			t.Errorf("answered after %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := r.Confirm(ctx, job); !errors.Is(err, leases.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if _, err := r.ConfirmAll(ctx); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		time.Sleep(5 * time.Second)
		store.set(func() { store.hang = false })
		if err := r.Confirm(t.Context(), job); err != nil {
			if err = r.Confirm(t.Context(), job); err != nil {
				t.Errorf("got %v", err)
			}
		}
		if _, err := do(r, renew(alice, res.Lease.Token)); err != nil {
			t.Errorf("got %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if strings.Count(log.String(), "does not answer") != 1 || strings.Count(log.String(), "answers again") != 1 {
			t.Errorf("it logged %s", &log)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Whatever is under way when it is closed is answered, once.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(50 * time.Millisecond)
		cfg := config(store, 8)
		r := New(cfg)
		r.Serve(fresh(2, 1))
		var mu sync.Mutex
		asked, answered := 0, map[int]int{}
		var asking sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			asking.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(7 * time.Millisecond):
					}
					mu.Lock()
					asked++
					n := asked
					mu.Unlock()
					err := r.Propose(acquireOf(fmt.Sprint("job", n), alice), func(res leases.Result, err error) {
						if err == nil && res.Outcome != leases.Granted ||
							err != nil && !errors.Is(err, leases.ErrUnavailable) && !errors.Is(err, leases.ErrUnknownOutcome) {
							t.Errorf("got %v, %v", res.Outcome, err)
						}
						mu.Lock()
						defer mu.Unlock()
						answered[n]++
					})
					if err != nil {
						if !errors.Is(err, leases.ErrUnavailable) {
							t.Errorf("got %v", err)
						}
						mu.Lock()
						answered[n]++
						mu.Unlock()
					}
				}
			})
		}
		time.Sleep(time.Second)
		r.Close()
		r.Close()
		mu.Lock()
		if store.under != 0 {
			t.Errorf("%d requests are under way", store.under)
		}
		mu.Unlock()
		close(stop)
		asking.Wait()
		r.Interest(job, true)
		r.Serve(fresh(4, 1))
		if err := r.Confirm(t.Context(), job); !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("closed: got %v", err)
		}
		for n := 1; n <= asked; n++ {
			if answered[n] != 1 {
				t.Errorf("op %d was answered %d times", n, answered[n])
			}
		}
		loads, swaps := store.counts()
		time.Sleep(time.Minute)
		if l, s := store.counts(); l != loads || s != swaps {
			t.Error("it goes on after Close")
		}
	})
}

// An answer may ask for more, and be given while the asker holds a lock of its own.
func TestAnswersHoldNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(config(newTestStore(time.Millisecond), 1))
		defer r.Close()
		r.Serve(fresh(2, 1))
		var mu sync.Mutex
		done := make(chan struct{})
		mu.Lock()
		err := r.Propose(acquire(alice, try1), func(res leases.Result, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err := r.Propose(release(alice, res.Lease.Token), func(leases.Result, error) { close(done) }); err != nil {
				t.Error(err)
			}
			r.Find(job)
			r.Interest(job, true)
		})
		mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		<-done
	})
}

func TestInterest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(time.Millisecond)
		r := New(config(store, 4))
		defer r.Close()
		r.Serve(fresh(2, 1))
		time.Sleep(pollHeld + time.Second)
		loads := func(d time.Duration) int {
			before, _ := store.counts()
			time.Sleep(d)
			after, _ := store.counts()
			return after - before
		}
		if n := loads(time.Hour); n != 0 {
			t.Errorf("nobody waits: %d loads", n)
		}
		r.Interest("a", true)
		r.Interest("a", true)
		r.Interest("a", false)
		if n := loads(time.Minute); n < 29 || n > 31 {
			t.Errorf("one waits: %d loads a minute", n)
		}
		r.Interest("a", false)
		if n := loads(time.Hour); n != 0 {
			t.Errorf("nobody waits any more: %d loads", n)
		}
	})
}

func TestSealAllWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(10 * time.Millisecond)
		store.lose = 0.1
		cfg := config(store, 32)
		r := New(cfg)
		defer r.Close()
		r.Serve(fresh(2, 1))
		var asking sync.WaitGroup
		var mu sync.Mutex
		held := map[string]*leases.Lease{}
		for c := range 8 {
			asking.Go(func() {
				for i := range 100 {
					res, err := do(r, acquireOf(fmt.Sprintf("job%d-%d", c, i), alice))
					if err == nil && res.Outcome == leases.Granted {
						mu.Lock()
						held[res.Lease.Name] = res.Lease
						mu.Unlock()
					}
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		var told []int
		found, err := SealAll(t.Context(), cfg, 3, 1, func(done, of int) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, done)
			if of != 32 {
				t.Errorf("of %d", of)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if epoch := <-r.Superseded(); epoch != 3 {
			t.Errorf("superseded by %d", epoch)
		}
		asking.Wait()
		if len(told) != 32 {
			t.Errorf("progress was told %d times", len(told))
		}
		exported := map[string]*leases.Lease{}
		for i, l := range found {
			exported[l.Name] = l
			if i > 0 && found[i-1].Name >= l.Name {
				t.Fatalf("%q after %q", l.Name, found[i-1].Name)
			}
		}
		if len(held) < 100 {
			t.Errorf("only %d grants", len(held))
		}
		for name, l := range held { // each grant that was answered came before the seal
			if e := exported[name]; e == nil || e.Token != l.Token {
				t.Errorf("%s was granted, and exported as %+v", name, e)
			}
		}
		again, err := SealAll(t.Context(), cfg, 3, 1, nil)
		if err != nil || len(again) != len(found) {
			t.Errorf("a repeat exports %d of %d, %v", len(again), len(found), err)
		}
		if _, err := SealAll(t.Context(), cfg, 2, 1, nil); !errors.As(err, new(*SupersededError)) {
			t.Errorf("an older one: got %v", err)
		}
	})
}

func TestInstallAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(10 * time.Millisecond)
		store.lose = 0.1
		cfg := config(store, 64)
		var held []*leases.Lease
		for i := range 1000 {
			held = append(held, named(fmt.Sprintf("job%03d", i), raftLease(alice, leases.NewID(), uint32(i+1))))
		}
		r := New(cfg)
		defer r.Close()
		r.Serve(Regime{Epoch: 2, RaftEpoch: 1, Ceiling: ttl})
		var reclaiming sync.WaitGroup
		for i := range 100 { // holders that are faster
			reclaiming.Go(func() {
				op := reclaim(2, alice, held[10*i].Token)
				op.Name = held[10*i].Name
				do(r, op)
			})
		}
		if err := InstallAll(t.Context(), cfg, 2, 1, held); err != nil {
			t.Fatal(err)
		}
		reclaiming.Wait()
		if store.atOnce > 64+atOnce {
			t.Errorf("%d requests at once", store.atOnce)
		}
		store.set(func() { store.lose = 0 })
		r.Serve(fresh(2, 1))
		all, err := r.ConfirmAll(t.Context())
		if err != nil || len(all) != len(held) {
			t.Fatalf("got %d leases, %v", len(all), err)
		}
		for i, l := range all {
			if l.Token != held[i].Token || l.Attempt != held[i].Attempt && !l.Attempt.IsZero() {
				t.Errorf("got %+v, want %+v", l, held[i])
			}
		}
	})
}

func TestAllShardsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(time.Millisecond)
		store.down = true
		cfg := config(store, 64)
		gone := errors.New("the term is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, gone)
		defer cancel()
		if _, err := SealAll(ctx, cfg, 3, 1, nil); !errors.Is(err, leases.ErrUnavailable) || !errors.Is(err, gone) || !errors.Is(err, errLost) {
			t.Errorf("got %v", err)
		}
		if err := InstallAll(ctx, cfg, 2, 1, []*leases.Lease{raftLease(alice, try1, 1)}); !errors.Is(err, leases.ErrUnavailable) || !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
		if _, swaps := store.counts(); swaps != 0 {
			t.Errorf("%d writes", swaps)
		}
	})
}

func TestUnreadableIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTestStore(time.Millisecond)
		cfg := config(store, 1)
		var log bytes.Buffer
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		r := New(cfg)
		r.Serve(fresh(2, 1))
		if err := store.Memory.CompareAndSwap(t.Context(), "shard/0", 0, arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte("rubbish")}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := do(r, acquireOf(job, alice)); !errors.Is(err, leases.ErrCorrupt) {
				t.Errorf("got %v", err)
			}
		}
		r.Close()
		if strings.Count(log.String(), "level=ERROR") != 1 || !strings.Contains(log.String(), "shard/0") {
			t.Errorf("it logged %s", &log)
		}
	})
}
