package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// scripted is a cluster that answers each kind of call with what was put down
// for it, in order; then with success. It is a Backend and its only Session.
type scripted struct {
	leases.Backend // whose other methods are not called
	leases.Session

	mu       sync.Mutex // guards what follows
	calls    []string
	opens    []error
	acquires []func(context.Context, leases.Claim) (leases.Grant, error)
	renewals []error
	reclaims []error
	pages    []leases.Page
	watches  []func(leases.Position, func(leases.Batch) error) error
}

func (s *scripted) note(call string, args ...any) {
	s.calls = append(s.calls, strings.TrimSpace(call+" "+fmt.Sprintln(args...)))
}

// next takes the first of a list; ok: there was one.
func next[T any](list *[]T) (first T, ok bool) {
	if len(*list) > 0 {
		first, *list, ok = (*list)[0], (*list)[1:], true
	}
	return first, ok
}

func (s *scripted) Open(context.Context, leases.ID, func(leases.Event)) (leases.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err, ok := next(&s.opens); ok && err != nil {
		return nil, err
	}
	return s, nil
}

func (s *scripted) Close() error { return nil }

func (s *scripted) Acquire(ctx context.Context, c leases.Claim) (leases.Grant, error) {
	s.mu.Lock()
	s.note("acquire", c.Attempt)
	answer, ok := next(&s.acquires)
	s.mu.Unlock()
	if !ok {
		return leases.Grant{Token: 7}, nil
	}
	return answer(ctx, c)
}

func (s *scripted) Renew(_ context.Context, held []leases.Held) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("renew", held[0].Token)
	err, _ := next(&s.renewals)
	if err != nil && !errors.Is(err, leases.ErrNotHeld) && !errors.Is(err, leases.ErrGrace) {
		return nil, err
	}
	return []error{err}, nil
}

func (s *scripted) Reclaim(_ context.Context, epoch uint32, held []leases.Claimed) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("reclaim", epoch, held[0].Token, held[0].TTL)
	err, _ := next(&s.reclaims)
	return []error{err}, nil
}

func (s *scripted) Withdraw(_ context.Context, _ string, attempt leases.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("withdraw", attempt)
	return nil
}

func (s *scripted) List(_ context.Context, prefix, after string, limit int) (leases.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("list", prefix, after, limit)
	page, ok := next(&s.pages)
	if !ok {
		return page, leases.ErrNoQuorum
	}
	return page, nil
}

func (s *scripted) Watch(_ context.Context, _ string, from leases.Position, on func(leases.Batch) error) error {
	s.mu.Lock()
	s.note("watch", from)
	watch, ok := next(&s.watches)
	s.mu.Unlock()
	if ok {
		return watch(from, on)
	}
	return &leases.MissedError{From: from, Newest: leases.Position{Epoch: from.Epoch + 1}}
}

// kinds is the calls that were made, without what they were about.
func (s *scripted) kinds() string {
	var kinds []string
	for _, c := range s.calls {
		kind, _, _ := strings.Cut(c, " ")
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, " ")
}

func answered(g leases.Grant, err error) func(context.Context, leases.Claim) (leases.Grant, error) {
	return func(context.Context, leases.Claim) (leases.Grant, error) { return g, err }
}

func TestAcquire(t *testing.T) {
	var (
		unknown  = fmt.Errorf("%w: the connection broke", leases.ErrUnknownOutcome)
		held     = &leases.HeldError{Name: "job", By: leases.Owner{Label: "other"}}
		gone     = &leases.NotHeldError{Name: "job", Token: 7, Why: leases.WhyExpired}
		granted  = leases.Grant{Token: 7, AcquiredAt: time.UnixMilli(1767323045000)}
		waited   = leases.Grant{Token: 7, Waited: true}
		failedIO = errors.New("no space left")
	)
	type claims = []func(context.Context, leases.Claim) (leases.Grant, error)
	for _, c := range []struct {
		name    string
		cluster *scripted
		change  func(*claimant)
		print   error
		code    int
		says    string
		calls   string // "": one acquire
	}{
		{name: "granted"},
		{name: "after elections", cluster: &scripted{opens: []error{leases.ErrNoQuorum, &leases.NotLeaderError{}}}},
		{name: "waited", cluster: &scripted{acquires: claims{answered(waited, nil)}}, calls: "acquire renew"},
		{
			name: "late", change: func(c *claimant) { c.sent = clock.System().Now().Add(-c.claim.TTL * 3 / 4) },
			calls: "acquire renew",
		},
		{
			name: "waited, and the renewal was not answered", calls: "acquire renew acquire renew",
			cluster: &scripted{acquires: claims{answered(waited, nil), answered(waited, nil)}, renewals: []error{unknown}},
		},
		{
			name: "waited, and had ended when it was to be confirmed", calls: "acquire renew withdraw acquire",
			cluster: &scripted{acquires: claims{answered(waited, nil)}, renewals: []error{gone}},
		},
		{
			name: "the same under the caller's attempt", calls: "acquire renew", code: exitLost, says: "expired",
			cluster: &scripted{acquires: claims{answered(waited, nil)}, renewals: []error{gone}},
			change:  func(c *claimant) { c.attempt = leases.ID{1} },
		},
		{
			name: "under the caller's attempt, which may be old", calls: "acquire renew",
			change: func(c *claimant) { c.attempt = leases.ID{1} },
		},
		{name: "an answer was lost", cluster: &scripted{acquires: claims{answered(granted, unknown)}}, calls: "acquire acquire"},
		{name: "held", cluster: &scripted{acquires: claims{answered(granted, held)}}, code: exitHeld, says: "other"},
		{
			name: "held, after an answer was lost", calls: "acquire acquire withdraw", code: exitHeld,
			cluster: &scripted{acquires: claims{answered(granted, unknown), answered(granted, held)}},
		},
		{name: "a bound is reached", cluster: &scripted{acquires: claims{answered(granted, &leases.ExhaustedError{What: "waiters"})}}, code: exitUnavailable, says: "waiters"},
		{
			name: "in a grace that ends", calls: "acquire acquire",
			cluster: &scripted{acquires: claims{answered(granted, &leases.GraceError{Epoch: 2, FreshIn: time.Second})}},
		},
		{
			name: "in a grace", calls: "acquire", code: exitUnavailable, says: "epoch 2: holders reclaim their leases, fresh grants begin within 1m0s",
			cluster: &scripted{acquires: claims{answered(granted, &leases.GraceError{Epoch: 2, FreshIn: time.Minute})}},
			change:  func(c *claimant) { c.timeout = 10 * time.Millisecond },
		},
		{
			name: "not printed", cluster: &scripted{acquires: claims{answered(granted, nil)}}, print: failedIO,
			calls: "acquire withdraw", code: exitInternal, says: "no space left",
		},
		{
			name: "not printed, under the caller's attempt", print: failedIO, code: exitInternal, says: "repeat it with the same --session",
			calls: "acquire renew", change: func(c *claimant) { c.attempt = leases.ID{1} },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := cmp.Or(c.cluster, &scripted{})
			claimant := &claimant{
				backend: cluster, session: leases.ID{9}, timeout: 20 * time.Second, stderr: new(bytes.Buffer),
				claim: leases.Claim{Name: "job", TTL: time.Minute},
			}
			if err := claimant.validate(); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(claimant)
			}
			var view acquiredView
			err := claimant.run(t.Context(), func(v acquiredView) error { view = v; return c.print })
			if got := exitCode(err); got != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got code %d (%v), want %d and that it says %q", got, err, c.code, c.says)
			}
			if c.calls == "" {
				c.calls = "acquire"
			}
			if got := cluster.kinds(); got != c.calls {
				t.Errorf("got calls %q, want %q", got, c.calls)
			}
			valid := time.Duration(view.ValidMS) * time.Millisecond
			if err == nil && (view.Token != 7 || view.Session != leases.ID{9} || view.Attempt.IsZero() || valid < 29*time.Second || valid >= time.Minute) {
				t.Errorf("got %+v, want a lease that is valid for most of its TTL", view)
			}
		})
	}
}

// A lease that the arbiter does not know is reclaimed by those alone who say that they
// rely on it.
func TestRenewal(t *testing.T) {
	grace := func(epoch uint32) error { return &leases.GraceError{Epoch: epoch, FreshIn: time.Minute} }
	held := leases.Held{Name: "job", Token: 7}
	claimed := &leases.Claimed{Held: held, TTL: time.Minute}
	for _, c := range []struct {
		name    string
		cluster *scripted
		claimed *leases.Claimed
		want    error // nil: renewed
		grace   bool
		calls   string
	}{
		{name: "renewed", claimed: claimed, calls: "renew 7"},
		{name: "lost", claimed: claimed, cluster: &scripted{renewals: []error{&leases.NotHeldError{}}}, want: leases.ErrNotHeld, calls: "renew 7"},
		{name: "not relied on", cluster: &scripted{renewals: []error{grace(2)}}, grace: true, calls: "renew 7"},
		{name: "reclaimed", claimed: claimed, cluster: &scripted{renewals: []error{grace(2)}}, calls: "renew 7, reclaim 2 7 1m0s"},
		{
			name: "lost in the takeover", claimed: claimed, want: leases.ErrNotHeld, calls: "renew 7, reclaim 2 7 1m0s",
			cluster: &scripted{renewals: []error{grace(2)}, reclaims: []error{&leases.NotHeldError{}}},
		},
		{
			name: "another takeover", claimed: claimed, want: leases.ErrGrace, calls: "renew 7, reclaim 2 7 1m0s",
			cluster: &scripted{renewals: []error{grace(2)}, reclaims: []error{grace(4)}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := cmp.Or(c.cluster, &scripted{})
			r := renewal{held: held, claimed: c.claimed}
			err := r.call(t.Context(), cluster)
			if !errors.Is(err, c.want) || (r.grace != nil) != c.grace {
				t.Errorf("got %v and %v, want %v", err, r.grace, c.want)
			}
			got := strings.Join(cluster.calls, ", ")
			if got != c.calls || r.reclaimed != (err == nil && strings.Contains(got, "reclaim")) {
				t.Errorf("got %q and reclaimed %v, want %q", got, r.reclaimed, c.calls)
			}
		})
	}
}

// All copies of a claim have one attempt; a claim that begins anew has another.
func TestAcquireAttempts(t *testing.T) {
	cluster := &scripted{acquires: []func(context.Context, leases.Claim) (leases.Grant, error){
		answered(leases.Grant{}, leases.ErrUnknownOutcome), answered(leases.Grant{Token: 7, Waited: true}, nil),
	}, renewals: []error{&leases.NotHeldError{}}}
	c := &claimant{backend: cluster, timeout: 20 * time.Second, claim: leases.Claim{Name: "job", TTL: time.Minute}}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	if err := c.run(t.Context(), func(acquiredView) error { return nil }); err != nil {
		t.Fatal(err)
	}
	attempt := func(i int) string { _, id, _ := strings.Cut(cluster.calls[i], " "); return id }
	if got, want := cluster.kinds(), "acquire acquire renew withdraw acquire"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	if attempt(0) != attempt(1) || attempt(1) != attempt(3) || attempt(3) == attempt(4) {
		t.Errorf("got %q, want that the attempt which has ended is withdrawn and used no more", cluster.calls)
	}
}

// Whatever ends an acquire before it is answered, its attempt is withdrawn.
func TestAcquireGivenUp(t *testing.T) {
	hang := func(ctx context.Context, _ leases.Claim) (leases.Grant, error) {
		<-ctx.Done()
		return leases.Grant{}, fmt.Errorf("%w: no answer: %w", leases.ErrUnknownOutcome, context.Cause(ctx))
	}
	for _, c := range []struct {
		name string
		sig  syscall.Signal // 0: it takes too long
		wait time.Duration
		code int
		says string
	}{
		{name: "too long", code: exitUnavailable, says: "gave up after 200ms (--timeout)"},
		{name: "waited for too long", wait: 10 * time.Millisecond, code: exitUnavailable, says: "--wait"},
		{name: "TERM", sig: syscall.SIGTERM, wait: leases.Forever, code: 143, says: "SIGTERM before lease \"job\" was acquired"},
		{name: "INT", sig: syscall.SIGINT, wait: leases.Forever, code: 130, says: "SIGINT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			cluster := &scripted{}
			cluster.acquires = append(cluster.acquires, func(ctx context.Context, claim leases.Claim) (leases.Grant, error) {
				if claim.Wait > c.wait || (claim.Wait == leases.Forever) != (c.wait == leases.Forever) {
					t.Errorf("got a claim that waits for %v, want at most %v", claim.Wait, c.wait)
				}
				if c.sig != 0 {
					cancel(&signalled{c.sig})
				}
				return hang(ctx, claim)
			}, hang, hang)
			claimant := &claimant{backend: cluster, timeout: 200 * time.Millisecond, wait: c.wait, claim: leases.Claim{Name: "job", TTL: time.Minute}}
			if err := claimant.validate(); err != nil {
				t.Fatal(err)
			}
			err := claimant.run(ctx, func(acquiredView) error { t.Error("it was printed"); return nil })
			if got := exitCode(err); got != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("got code %d (%v), want %d and that it says %q", got, err, c.code, c.says)
			}
			if _, ok := errors.AsType[*interrupted](err); ok != (c.sig == syscall.SIGINT) {
				t.Errorf("got %T, want that this process ends by SIGINT after SIGINT alone", err)
			}
			if got := cluster.kinds(); !strings.HasSuffix(got, " withdraw") {
				t.Errorf("got %q, want a withdrawal at the end", got)
			}
		})
	}
}

func TestAcquireScript(t *testing.T) {
	var b bytes.Buffer
	acquiredView{Held: leases.Held{Name: "it's $HOME", Token: 4294967297}, Session: leases.ID{1}, Attempt: leases.ID{2}}.writeShell(&b)
	const want = `export COORDD_LEASE='it'\''s $HOME'
export COORDD_SESSION=01000000000000000000000000000000
export COORDD_FENCING_TOKEN=4294967297
`
	if b.String() != want {
		t.Errorf("got %s, want %s", b.String(), want)
	}
}

func TestList(t *testing.T) {
	state := func(name string) leases.State { return leases.State{Name: name, Held: true, Token: 7} }
	pages := func() *scripted {
		return &scripted{pages: []leases.Page{
			{At: leases.Position{Epoch: 1, Revision: 5}, Leases: []leases.State{state("a"), state("b")}, Next: "b"},
			{At: leases.Position{Epoch: 1, Revision: 9}, Leases: []leases.State{state("c")}},
		}}
	}
	read := func(cluster *scripted, timeout time.Duration, after string, limit int) (leases.Page, error) {
		return list(t.Context(), asking(t, cluster), timeout, "p", after, limit)
	}
	all, err := read(pages(), time.Minute, "", 0)
	if err != nil || len(all.Leases) != 3 || all.At.Revision != 5 || all.Next != "" {
		t.Errorf("got %+v, %v, want three leases as of the first page", all, err)
	}
	cluster := pages()
	two, err := read(cluster, time.Minute, "", 2)
	if err != nil || len(two.Leases) != 2 || two.Next != "b" || cluster.calls[0] != "list p  1000" {
		t.Errorf("got %+v, %v by %q, want two leases and where to go on", two, err, cluster.calls)
	}
	last, err := read(pages(), time.Minute, "a", 2)
	if err != nil || len(last.Leases) != 2 || last.Leases[0].Name != "b" || last.Next != "" {
		t.Errorf("got %+v, %v, want the two leases after a, and that there are no more", last, err)
	}
	cut := pages()
	cut.pages = cut.pages[:1]
	if _, err = read(cut, 100*time.Millisecond, "", 0); exitCode(err) != exitUnavailable || !strings.Contains(err.Error(), "no quorum: gave up after 100ms (--timeout)") {
		t.Errorf("got %v, want that there is no quorum", err)
	}
}

// asking is a client over the cluster.
func asking(t *testing.T, b leases.Backend) *client.Client {
	c := client.New(b)
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // it holds nothing
	return c
}

func TestWatch(t *testing.T) {
	at := func(revision uint64) leases.Position { return leases.Position{Epoch: 1, Revision: revision} }
	granted := func(revision uint64) leases.Change {
		return leases.Change{Revision: revision, Kind: leases.ChangeGranted, Name: "job", Token: tokens.Token(revision)}
	}
	broken := func(batches ...leases.Batch) func(leases.Position, func(leases.Batch) error) error {
		return func(_ leases.Position, on func(leases.Batch) error) error {
			for _, b := range batches {
				if err := on(b); err != nil {
					return err
				}
			}
			return leases.ErrUnavailable
		}
	}
	cluster := &scripted{
		pages: []leases.Page{{At: at(3), Leases: []leases.State{{Name: "job", Held: true, Token: 3, TTL: time.Second}}}},
		watches: []func(leases.Position, func(leases.Batch) error) error{
			broken(), // no node yet
			broken(leases.Batch{At: at(3)}, leases.Batch{At: at(5), Changes: []leases.Change{granted(4), granted(5)}}),
			broken(leases.Batch{At: at(5)}, leases.Batch{At: at(8)}),
		},
	}
	var lines []changeView
	f := &follower{timeout: time.Minute, print: func(v changeView) error { lines = append(lines, v); return nil }}
	err := f.run(t.Context(), asking(t, cluster), true)
	if exitCode(err) != exitMissed || !strings.Contains(fmt.Sprint(err), "coordd lease watch --list") {
		t.Errorf("got %v, want that changes were missed and what to do", err)
	}
	want := []string{"held 3 ", "watching 0 1/3", "granted 4 1/3", "granted 5 1/5"}
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprintf("%s %d %s", l.Kind, uint64(l.Token), l.At))
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := strings.Join(cluster.calls[1:], ", "), "watch 1/3, watch 1/3, watch 1/5, watch 1/8"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Where no node is found the watch ends; where it cannot print it does too.
func TestWatchEnds(t *testing.T) {
	nowhere := &scripted{}
	for range 100 {
		nowhere.watches = append(nowhere.watches, func(leases.Position, func(leases.Batch) error) error { return leases.ErrNoQuorum })
	}
	f := &follower{timeout: 100 * time.Millisecond, print: func(changeView) error { return nil }}
	err := f.run(t.Context(), asking(t, nowhere), false)
	if exitCode(err) != exitUnavailable || !strings.Contains(fmt.Sprint(err), "no quorum: gave up after 100ms (--timeout)") {
		t.Errorf("got %v, want that no node was found", err)
	}
	f = &follower{timeout: time.Minute, print: printLines(full{}, true)}
	err = f.run(t.Context(), asking(t, &scripted{watches: []func(leases.Position, func(leases.Batch) error) error{
		func(_ leases.Position, on func(leases.Batch) error) error { return on(leases.Batch{}) },
	}}), false)
	if exitCode(err) != exitInternal || !strings.Contains(fmt.Sprint(err), "no space left") {
		t.Errorf("got %v, want why nothing is printed", err)
	}
}

// A watch that has begun says once that nothing is heard, and again after it was.
func TestWatchSilence(t *testing.T) {
	var (
		stderr  bytes.Buffer
		cluster scripted
	)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	w := &watched{Backend: &cluster, stderr: &stderr}
	for _, c := range []struct {
		name string
		err  error // nil: a batch
		late bool  // nothing was heard for long before
		want string
	}{
		{"not begun", leases.ErrNoQuorum, false, ""},
		{"not begun, for long", leases.ErrNoQuorum, true, ""},
		{"begun", nil, false, ""},
		{"broken", leases.ErrNoQuorum, false, ""},
		{"broken for long", leases.ErrNoQuorum, true, "coordd: no quorum; trying on\n"},
		{"said already", leases.ErrNoQuorum, true, ""},
		{"heard again", nil, false, ""},
		{"given up", context.Canceled, false, ""},
		{"given up for long", context.Canceled, true, "coordd: unavailable: no node has told changes in time; trying on\n"},
	} {
		if c.late {
			w.silence.since = clock.System().Now().Add(-time.Minute)
		}
		ctx := t.Context()
		if errors.Is(c.err, context.Canceled) {
			ctx = over
		}
		cluster.watches = append(cluster.watches, func(_ leases.Position, on func(leases.Batch) error) error {
			if c.err != nil {
				return c.err
			}
			return on(leases.Batch{})
		})
		_ = w.Watch(ctx, "", leases.Position{}, func(leases.Batch) error { return nil }) // what it says is looked at
		if got := stderr.String(); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		stderr.Reset()
	}
}

func TestLeaseOutput(t *testing.T) {
	held := leases.State{
		Name: "nightly", Held: true, Token: 4294967298, Owner: leases.Owner{Label: "backup", Site: "aws", Host: "host7", PID: 12},
		TTL: 15 * time.Second, AtMost: 12345 * time.Millisecond, AcquiredAt: time.UnixMilli(1767323045000), Attributes: []byte("v=1"), Waiters: 2,
		Last: leases.Ending{Name: "nightly", Token: 4294967297, Why: leases.WhyTransferred, Next: 4294967298},
	}
	broken := held
	broken.Broken, broken.Attributes = true, []byte("v=1\n")
	listed := held
	listed.Waiters, listed.Last = 0, leases.Ending{}
	change := leases.Change{
		Revision: 7, Kind: leases.ChangeTransferred, Name: "nightly", Token: 4294967297, Next: 4294967298,
		Owner: held.Owner, TTL: held.TTL, AcquiredAt: held.AcquiredAt, Attributes: held.Attributes,
	}
	released := leases.Change{Revision: 8, Kind: leases.ChangeReleased, Name: "nightly", Token: 4294967298, Free: true, Owner: held.Owner}
	for _, c := range []struct {
		name string
		view document
	}{
		{"get-held", viewState(held)},
		{"get-broken", viewState(broken)},
		{"get-free", viewState(leases.State{Name: "nightly", Last: leases.Ending{Name: "nightly", Token: 4294967298, Why: leases.WhyBroken}})},
		{"get-never-held", viewState(leases.State{Name: "nightly"})},
		{"list", viewPage(leases.Page{At: leases.Position{Epoch: 1, Revision: 42}, Leases: []leases.State{listed}, Next: "nightly"})},
		{"list-empty", viewPage(leases.Page{At: leases.Position{Epoch: 1, Revision: 42}})},
		{"queue", viewQueue("nightly", []leases.Waiter{{Position: 1, Attempt: leases.ID{1}, Owner: held.Owner, Waiting: 1234 * time.Millisecond}})},
		{"queue-empty", viewQueue("nightly", nil)},
		{"acquired", acquiredView{
			Held: leases.Held{Name: "nightly", Token: 4294967298}, Session: leases.ID{1}, Attempt: leases.ID{2},
			TTLMS: 15000, ValidMS: 14850, AcquiredAt: new(held.AcquiredAt.UTC()),
		}},
		{"broken", brokenView{Held: leases.Held{Name: "nightly", Token: 4294967298}, AtMostMS: 12345}},
		{"broken-ended", brokenView{Held: leases.Held{Name: "nightly", Token: 4294967298}, Ended: true}},
		{"watch-begins", changeView{Kind: "watching", At: "1/6"}},
		{"watch-transferred", viewChange(change, leases.Position{Epoch: 1, Revision: 7})},
		{"watch-released", viewChange(released, leases.Position{Epoch: 1, Revision: 8})},
	} {
		for _, form := range []string{"text", "json"} {
			t.Run(c.name+"/"+form, func(t *testing.T) {
				var b bytes.Buffer
				out := output{format: choice{value: form}}
				if err := out.print(&b, c.view); err != nil {
					t.Fatal(err)
				}
				golden(t, filepath.Join("testdata", "lease", c.name+"."+form), b.Bytes())
			})
		}
	}
}

func TestLeaseUsage(t *testing.T) {
	const session, token = "01000000000000000000000000000000", "4294967297"
	for _, c := range []struct{ args, want string }{
		{"lease aquire", "did you mean acquire?"},
		{"lease acquire", "an argument is missing: want coordd lease acquire NAME"},
		{"lease acquire @eu", `invalid name "@eu"`},
		{"lease acquire job --ttl 500ms", `invalid ttl "500ms": want from 1s to 5m0s`},
		{"lease acquire job --attempt " + session, "--session (or COORDD_SESSION) is missing"},
		{"lease acquire job --session 12", `invalid --session "12": want 32 hexadecimal digits`},
		{"lease acquire job --attributes " + strings.Repeat("x", 513), "at most 512 bytes"},
		{"lease acquire job --label " + strings.Repeat("x", 129), "invalid owner label"},
		{"lease acquire job -o xml", "want text or json or shell"},
		{"lease renew job --token " + token, "--session (or COORDD_SESSION) is missing"},
		{"lease release job --session " + session, "--token (or COORDD_FENCING_TOKEN) is missing"},
		{"lease renew job --session " + session + " --token 0", `invalid --token "0": want a decimal number from 1 to`},
		{"lease renew job -o shell", "want text or json"},
		{"lease transfer job --session " + session + " --token " + token, "--to (or COORDD_TO) is missing"},
		{"lease get", "an argument is missing: want coordd lease get NAME"},
		{"lease list --limit -1", "invalid --limit -1"},
		{"lease watch --from 12", `invalid --from "12": want EPOCH/REVISION`},
		{"lease watch --from 1/2 --list", "--list and --from exclude each other"},
		{"lease break job", "--token (or COORDD_FENCING_TOKEN) is missing: want that of the lease that is meant; coordd lease get job shows it"},
		{"lease break job --token " + token, "--data (or COORDD_DATA) is missing"},
		{"lease break job --token " + token + " --now --data x", "say --yes too"},
	} {
		got := inProcess(t, strings.Fields(c.args)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, c.want) || strings.Count(got.stderr, "\n") != 1 || got.stdout != "" {
			t.Errorf("%s: got %+v, want code %d and one line with %q", c.args, got, exitUsage, c.want)
		}
	}
	if got := inProcess(t, "lease"); got.code != 0 || !strings.Contains(got.stdout, "transfer ") {
		t.Errorf("got %+v, want the help", got)
	}
}

// What coordd run and lease acquire hand out is where --token comes from.
func TestTokenFromEnvironment(t *testing.T) {
	t.Setenv("COORDD_FENCING_TOKEN", "0x1")
	t.Setenv("COORDD_SESSION", "01000000000000000000000000000000")
	failed(t, inProcess(t, "lease", "renew", "job"), exitUsage, `COORDD_FENCING_TOKEN="0x1": want a decimal number`)
	t.Setenv("COORDD_FENCING_TOKEN", "4294967297")
	failed(t, inProcess(t, "lease", "renew", "job", "--addr", nowhere, "--timeout", "100ms"), exitUnavailable, nowhere, "gave up after 100ms (--timeout)")
}
