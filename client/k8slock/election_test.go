package k8slock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/nodetest"
	"github.com/coordd/coordd/tokens"
)

// arena is where leaders meet: it sees when two lead, and has a register that
// refuses old tokens.
type arena struct {
	byClock bool // timers may be late: who knows that its lease has ended does not lead

	mu       sync.Mutex // guards what follows
	leading  map[*leadership]bool
	newest   tokens.Token // that was written under
	began    []*leadership
	problems []string
}

// leadership is one call of OnStartedLeading.
type leadership struct {
	ctx   context.Context
	lock  *Lock
	lease *client.Lease
	by    string
	token tokens.Token
}

func newArena() *arena { return &arena{leading: map[*leadership]bool{}} }

// lead is a leader's work.
func (a *arena) lead(ctx context.Context, lock *Lock) {
	lease, _ := client.FromContext(lock.Context())
	l := &leadership{ctx, lock, lease, lock.Identity(), lock.Token()}
	a.enter(l)
	defer a.leave(l)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		a.write(l)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (a *arena) enter(l *leadership) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leads(l) {
		return // it began late, when all was over
	}
	a.leading[l] = true
	a.began = append(a.began, l)
}

// leads reports whether l does. It is called with mu held.
func (a *arena) leads(l *leadership) bool {
	return l.ctx.Err() == nil && (!a.byClock || l.lease.Err() == nil)
}

func (a *arena) leave(l *leadership) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.leading, l)
}

// write checks that l leads alone, and writes to the register.
func (a *arena) write(l *leadership) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for other := range a.leading {
		// l is looked at last: so both lead at the time of the first look.
		if other != l && a.leads(other) && a.leads(l) {
			a.problem("%s leads under %v while %s does under %v", l.by, l.token, other.by, other.token)
		}
	}
	if now := l.lock.Token(); now != l.token && a.leads(l) {
		a.problem("%s leads under %v, and its lock has %v", l.by, l.token, now)
	}
	if l.token < a.newest {
		if a.leads(l) {
			a.problem("%s leads under %v, and the register has seen %v", l.by, l.token, a.newest)
		}
		return
	}
	a.newest = l.token
}

// problem is called with mu held.
func (a *arena) problem(format string, args ...any) {
	a.problems = append(a.problems, fmt.Sprintf(format, args...))
}

// stopped is told that OnStoppedLeading was called for a candidate: its leader's
// context must have ended before.
func (a *arena) stopped(by string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.leading {
		if l.by == by && l.ctx.Err() == nil {
			a.problem("%s stopped leading while its leader goes on under %v", by, l.token)
		}
	}
}

// leader returns who leads; nil: nobody.
func (a *arena) leader() *leadership {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.leading {
		if a.leads(l) {
			return l
		}
	}
	return nil
}

// check fails the test if two have led.
func (a *arena) check(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.problems {
		t.Error(p)
	}
	for i := 1; i < len(a.began); i++ {
		if before, after := a.began[i-1], a.began[i]; after.token <= before.token {
			t.Errorf("%s led under %v after %s had under %v", after.by, after.token, before.by, before.token)
		}
	}
}

func (a *arena) terms() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.began)
}

// runner stands for election again and again.
type runner struct {
	lock  *Lock
	arena *arena
	bind  bool // the lease ends the election
	leaderelection.LeaderElectionConfig

	mu       sync.Mutex // guards what follows
	resign   context.CancelFunc
	resigned bool
}

// run stands for election until ctx ends.
func (r *runner) run(ctx context.Context) {
	r.Lock = r.lock
	r.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) { r.arena.lead(ctx, r.lock) },
		OnStoppedLeading: func() { r.arena.stopped(r.lock.Identity()) },
	}
	ctx = klog.NewContext(ctx, logr.Discard())
	for ctx.Err() == nil {
		if r.once(ctx); r.gaveUp() {
			select {
			case <-time.After(3 * r.RetryPeriod): // it lets others go first
			case <-ctx.Done():
			}
		}
	}
}

func (r *runner) once(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.resign, r.resigned = cancel, false
	r.mu.Unlock()
	if r.bind {
		bound, done := r.lock.Bind(ctx)
		defer done()
		ctx = bound
	}
	leaderelection.RunOrDie(ctx, r.LeaderElectionConfig)
}

// giveUp cancels the present Run.
func (r *runner) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resigned = true
	r.resign()
}

func (r *runner) gaveUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resigned
}

// usual are the times that Kubernetes' own components use.
func usual() leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod}
}

// electorate is three candidates over a cluster of three nodes, in virtual time.
type electorate struct {
	*nodetest.Cluster
	*arena
	t       *testing.T
	clients []*nodetest.Client
	runners []*runner
	running sync.WaitGroup
	stop    context.CancelFunc
}

// elect begins an election.
func elect(t *testing.T, seed uint64, configure func(i int, r *runner)) *electorate {
	e := &electorate{Cluster: nodetest.New(t, nodetest.Config{Seed: seed}), arena: newArena(), t: t}
	ctx, cancel := context.WithCancel(t.Context())
	e.stop = cancel
	for i, name := range []string{"a", "b", "c"} {
		k := e.Client(name, nodetest.ClientConfig{})
		lock, err := New(k.Client, "x", Identity(name))
		if err != nil {
			t.Fatal(err)
		}
		lock.clock = k.Clock
		r := &runner{lock: lock, arena: e.arena, resign: func() {}, LeaderElectionConfig: usual()}
		configure(i, r)
		e.clients, e.runners = append(e.clients, k), append(e.runners, r)
		e.running.Go(func() { r.run(ctx) })
	}
	return e
}

// end ends the election, and checks it.
func (e *electorate) end() {
	e.t.Helper()
	e.stop()
	e.HealAll()
	e.running.Wait()
	e.arena.check(e.t)
	if e.t.Failed() {
		e.t.Log(e.Schedule())
	}
}

// led waits until somebody leads under another token than before, and returns
// who.
func (e *electorate) led(before tokens.Token, atMost time.Duration) *leadership {
	e.t.Helper()
	for began := time.Now(); time.Since(began) < atMost; time.Sleep(10 * time.Millisecond) {
		if l := e.leader(); l != nil && l.token != before {
			return l
		}
	}
	e.t.Fatalf("nobody leads within %v\n%s", atMost, e.Schedule())
	return nil
}

// of is the runner that leads.
func (e *electorate) of(l *leadership) *runner {
	return e.runners[slices.IndexFunc(e.runners, func(r *runner) bool { return r.lock == l.lock })]
}

// cutOff separates a candidate from all nodes.
func (e *electorate) cutOff(name string) {
	var hosts []string
	for i := range e.Size() {
		hosts = append(hosts, e.Host(i))
	}
	e.Partition([]string{name}, hosts)
}

// takeover is how long it takes at most until another candidate leads after one
// has died: its lease lapses, and a candidate looks.
const (
	jittered = retryPeriod + retryPeriod*12/10 // leaderelection's RetryPeriod, at most
	takeover = leaseDuration*101/100 + jittered + time.Second
	election = 10 * time.Second // of a leader of the cluster's own
)

// Whatever dies, one candidate leads again in time, and never two.
func TestAnotherLeadsInTime(t *testing.T) {
	for _, tt := range []struct {
		what   string
		happen func(e *electorate, leader *leadership)
		atMost time.Duration
	}{
		{"the leader dies", func(e *electorate, leader *leadership) { e.cutOff(leader.by) }, takeover},
		{"the leader and that of the cluster die", func(e *electorate, leader *leadership) {
			e.Crash(e.Leader())
			e.cutOff(leader.by)
		}, takeover + election},
		{"the leader resigns", func(e *electorate, leader *leadership) { e.of(leader).giveUp() }, jittered + time.Second},
	} {
		for _, bind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bound %v", tt.what, bind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := elect(t, 1, func(_ int, r *runner) { r.bind, r.ReleaseOnCancel = bind, true })
					defer e.end()
					first := e.led(0, time.Minute)
					time.Sleep(time.Minute)
					if l := e.leader(); l != first {
						t.Fatalf("the leader changed without a reason: got %+v after %+v", l, first)
					}
					began := time.Now()
					tt.happen(e, first)
					if l := e.led(first.token, tt.atMost); l.by == first.by {
						t.Errorf("%s leads again, want another", l.by)
					}
					t.Logf("another led after %v", time.Since(began))
				})
			})
		}
	}
}

// A change of the cluster's own leader goes unnoticed.
func TestLeaderOutlivesTheClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := elect(t, 1, func(int, *runner) {})
		defer e.end()
		first := e.led(0, time.Minute)
		for range 5 {
			i := e.Leader()
			e.Crash(i)
			time.Sleep(20 * time.Second)
			e.Restart(i)
			time.Sleep(20 * time.Second)
		}
		if l := e.leader(); l != first {
			t.Errorf("got leader %+v, want still %+v", l, first)
		}
	})
}

// An operator can take the leadership from whoever has it, who stops before it,
// or another, leads anew.
func TestBreak(t *testing.T) {
	for _, bind := range []bool{false, true} {
		t.Run(fmt.Sprintf("bound %v", bind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := elect(t, 1, func(_ int, r *runner) { r.bind = bind })
				defer e.end()
				operator, before := e.Operator("o"), tokens.Token(0)
				for range 4 {
					l := e.led(before, time.Minute)
					if _, err := operator.Break(t.Context(), e.Leader(), leases.Held{Name: "x", Token: l.token}, false, 0); err != nil {
						t.Fatal(err)
					}
					before = l.token
				}
			})
		})
	}
}

// A leader whose lease is free all of a sudden, and whom nobody else wants to
// follow, stops before it leads anew.
func TestBreakAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := elect(t, 1, func(int, *runner) {})
		defer e.end()
		operator, l := e.Operator("o"), e.led(0, time.Minute)
		for _, k := range e.clients {
			if k.Name != l.by {
				e.cutOff(k.Name)
			}
		}
		for range 4 {
			if _, err := operator.Break(t.Context(), e.Leader(), leases.Held{Name: "x", Token: l.token}, true, 0); err != nil {
				t.Fatal(err)
			}
			l = e.led(l.token, time.Minute)
		}
	})
}

// All see who leads, and how often that has changed.
func TestTransitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := elect(t, 1, func(_ int, r *runner) { r.ReleaseOnCancel = true })
		defer e.end()
		onlooker, err := New(e.Client("d", nodetest.ClientConfig{}).Client, "x")
		if err != nil {
			t.Fatal(err)
		}
		var before tokens.Token
		for n := range 5 {
			l := e.led(before, time.Minute)
			if r, _, err := onlooker.Get(t.Context()); err != nil || r.HolderIdentity != l.by || r.LeaderTransitions != n {
				t.Errorf("got %+v, %v, want %s as the leader after %d transitions", r, err, l.by, n)
			}
			time.Sleep(time.Minute) // all have looked
			e.of(l).giveUp()
			before = l.token
		}
	})
}

// Through crashes, partitions, pauses and resignations never two lead, with and
// without Bind and ReleaseOnCancel; and one leads when it is over.
func TestNeverTwoLead(t *testing.T) {
	terms := 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			e := elect(t, seed, func(i int, r *runner) {
				r.bind, r.ReleaseOnCancel = (seed>>i)&1 == 0, (seed>>(i+1))&1 == 0
			})
			defer e.end()
			for range 20 {
				e.trouble()
			}
			e.HealAll()
			e.led(0, time.Minute)
			terms += e.terms()
		})
	}
	t.Logf("%d terms", terms)
	if terms < 4*seeds {
		t.Errorf("%d terms in %d elections: that shows too little", terms, seeds)
	}
}

const seeds = 8

// trouble is some trouble for a while.
func (e *electorate) trouble() {
	i, k := e.Rand.IntN(e.Size()), e.Rand.IntN(len(e.clients))
	if serving, ok := e.Serving(); ok && e.Rand.IntN(2) == 0 {
		i = serving
	}
	if l := e.leader(); l != nil && e.Rand.IntN(4) > 0 {
		k = slices.Index(e.runners, e.of(l))
	}
	lasts := time.Duration(e.Rand.Int64N(int64(2 * leaseDuration)))
	switch e.Rand.IntN(6) {
	case 0:
		e.Crash(i)
		time.Sleep(lasts)
		e.Restart(i)
	case 1:
		e.Pause(i)
		time.Sleep(lasts)
		e.Resume(i)
	case 2, 3:
		e.cutOff(e.clients[k].Name)
		time.Sleep(lasts)
		e.HealAll()
	case 4:
		e.Cut(e.Host(i), e.clients[k].Name) // no answers
		time.Sleep(lasts)
		e.HealAll()
	case 5:
		e.Note("%s resigns", e.clients[k].Name)
		e.runners[k].giveUp()
	}
	time.Sleep(time.Duration(e.Rand.Int64N(int64(leaseDuration))))
}
