package k8slock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
)

// The times of the tests are the usual ones.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// write is the record of a candidate that leads or is about to.
func (k *candidate) write(transitions int) resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	return resourcelock.LeaderElectionRecord{
		HolderIdentity: k.Identity(), LeaseDurationSeconds: int(leaseDuration / time.Second),
		AcquireTime: now, RenewTime: now, LeaderTransitions: transitions,
	}
}

// lead takes the lease.
func (k *candidate) lead(transitions int) {
	k.t.Helper()
	if err := k.Create(k.t.Context(), k.write(transitions)); err != nil {
		k.t.Fatalf("%s is not granted the lease: %v", k.identity, err)
	}
	k.RecordEvent("became leader")
}

// update is Update within the time that leaderelection gives it.
func (k *candidate) update(r resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(k.t.Context(), renewDeadline)
	defer cancel()
	return k.Update(ctx, r)
}

// sees is what the candidate gets.
func (k *candidate) sees() (*resourcelock.LeaderElectionRecord, []byte) {
	k.t.Helper()
	r, raw, err := k.Get(k.t.Context())
	if err != nil {
		k.t.Fatalf("%s gets: %v", k.identity, err)
	}
	return r, raw
}

// left is how long the candidate's newest lease lasts.
func (k *candidate) left() time.Duration { return k.newest.Deadline().Sub(k.clock.Now()) }

// isFree reports whether a name is.
func (c *cluster) isFree(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.get(name) == nil
}

func TestNewRefuses(t *testing.T) {
	c := client.New(&site{cluster: newCluster()})
	for _, tt := range []struct{ name, identity, field string }{
		{"", "a", "name"},
		{"@x", "a", "name"},
		{"x", "", "identity"},
		{"x", strings.Repeat("a", leases.MaxLabel+1), "owner label"},
		{"x", "a\n", "owner label"},
	} {
		_, err := New(c, tt.name, Identity(tt.identity))
		var invalid *leases.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != tt.field {
			t.Errorf("New(%q, %q): got %v, want the %s refused", tt.name, tt.identity, err, tt.field)
		}
	}
}

func TestIdentity(t *testing.T) {
	c := client.New(&site{cluster: newCluster()})
	a, err := New(c, "x")
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(c, "x")
	if err != nil {
		t.Fatal(err)
	}
	if a.Identity() == "" || a.Identity() == b.Identity() {
		t.Errorf("got the identities %q and %q, want two", a.Identity(), b.Identity())
	}
	if got, want := a.Describe(), "coordd/x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGet(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		if _, _, err := b.Get(t.Context()); !apierrors.IsNotFound(err) {
			t.Errorf("a name that was never held: got %v, want not found", err)
		}
		began := time.Now()
		a.lead(6)
		r, raw := b.sees()
		if r.HolderIdentity != "a" || r.LeaseDurationSeconds != 15 || r.LeaderTransitions != 6 || !r.AcquireTime.Time.Equal(began) {
			t.Errorf("of a leader: got %+v", r)
		}
		time.Sleep(leaseDuration / 2)
		later, again := b.sees()
		if bytes.Equal(raw, again) || !later.RenewTime.After(r.RenewTime.Time) || later.RenewTime.After(time.Now()) {
			t.Errorf("after renewals: got %s after %s, want a change in the time of renewal", again, raw)
		}
		if own, _ := a.sees(); own.HolderIdentity != "a" || own.LeaderTransitions != 6 {
			t.Errorf("of itself: got %+v", own)
		}
		if err := a.update(resourcelock.LeaderElectionRecord{}); err != nil {
			t.Fatal(err)
		}
		if r, _ := b.sees(); r.HolderIdentity != "" || r.LeaderTransitions != 6 {
			t.Errorf("once it is given back: got %+v, want no holder, and the same transitions", r)
		}
		if r, _ := c.candidate(t, "c").sees(); r.HolderIdentity != "" || r.LeaderTransitions != 0 {
			t.Errorf("where the transitions are not known: got %+v", r)
		}
		b.lead(7)
		if r, _ := c.candidate(t, "d").sees(); r.HolderIdentity != "b" || r.LeaderTransitions != 7 {
			t.Errorf("of the next leader: got %+v", r)
		}
	})
}

// Whoever holds the lease leads, as far as candidates are concerned.
func TestGetOfAnotherHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		owner := leases.Owner{Label: "by hand", Host: "h", PID: 7}
		for _, attributes := range []string{"", "anything", "{}", `{"leaderTransitions":"x"}`} {
			lease, err := a.client.TryAcquire(t.Context(), "x", client.TTL(1500*time.Millisecond), client.Owner(owner), client.Attributes([]byte(attributes)))
			if err != nil {
				t.Fatal(err)
			}
			if r, _ := b.sees(); r.HolderIdentity != "by hand on h (pid 7)" || r.LeaseDurationSeconds != 2 {
				t.Errorf("with attributes %q: got %+v", attributes, r)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestGetWithoutAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.candidate(t, "a")
		a.site.set(true)
		began := time.Now()
		if _, _, err := a.Get(t.Context()); err == nil || apierrors.IsNotFound(err) {
			t.Errorf("got %v, want an error that does not say it is free", err)
		}
		if took := time.Since(began); took != patience {
			t.Errorf("it took %v, want %v", took, patience)
		}
		if err := a.Create(t.Context(), a.write(0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("create: got %v, want the deadline", err)
		}
		a.site.set(false)
		time.Sleep(time.Second)
		if !c.isFree("x") {
			t.Error("an attempt that failed holds the lease")
		}
	})
}

func TestUpdateTakesTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		a.lead(0)
		s, err := b.client.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if s.Owner.Label != "a" || s.TTL != leaseDuration || s.Token != a.Token() || s.Token == 0 {
			t.Errorf("got %+v under token %v", s, a.Token())
		}
		for what, write := range map[string]func(context.Context, resourcelock.LeaderElectionRecord) error{"create": b.Create, "update": b.Update} {
			var held *leases.HeldError
			if err := write(t.Context(), b.write(1)); !apierrors.IsConflict(err) || !errors.As(err, &held) || held.By.Label != "a" {
				t.Errorf("%s by another: got %v, want a conflict that says who holds the lease", what, err)
			}
		}
		if err := b.Update(t.Context(), a.write(1)); !errors.Is(err, leases.ErrInvalid) {
			t.Errorf("under another's identity: got %v, want %v", err, leases.ErrInvalid)
		}
		if err := b.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil || c.isFree("x") {
			t.Errorf("what b does not hold is given back: %v", err)
		}
		short := b.write(1)
		short.LeaseDurationSeconds = 0
		if err := b.Update(t.Context(), short); !errors.Is(err, leases.ErrInvalid) {
			t.Errorf("for less than a second: got %v, want %v", err, leases.ErrInvalid)
		}
	})
}

// Two candidates of one identity are not one leader.
func TestUpdateUnderTheSameIdentity(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "a")
		a.lead(0)
		if err := b.Update(t.Context(), b.write(0)); !errors.Is(err, leases.ErrHeld) {
			t.Errorf("got %v, want %v", err, leases.ErrHeld)
		}
	})
}

// An Update that succeeds allows leaderelection to go on without asking for
// RetryPeriod plus RenewDeadline.
func TestUpdateOutlastsTheElection(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.candidate(t, "a")
		a.lead(0)
		for range 20 {
			if err := a.update(a.write(0)); err != nil {
				t.Fatal(err)
			}
			if left := a.left(); left < retryPeriod+renewDeadline {
				t.Errorf("after a renewal: the lease lasts %v, want more than %v", left, retryPeriod+renewDeadline)
			}
			time.Sleep(retryPeriod)
		}
		// Where leaderelection gives up sooner nothing is waited for.
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), leaseDuration/5)
			began := time.Now()
			err := a.Update(ctx, a.write(0))
			if took := time.Since(began); err != nil || took != 0 {
				t.Errorf("got %v after %v, want nil at once", err, took)
			}
			cancel()
			time.Sleep(retryPeriod)
		}
	})
}

// A renewal that fails fails for good, also where leaderelection asks twice, and
// the lease is not given back before its leader is told to stop.
func TestUpdateWithoutAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		a.lead(0)
		ctx, cancel := context.WithTimeout(t.Context(), renewDeadline)
		defer cancel()
		time.AfterFunc(time.Second, func() { a.site.set(true) })
		time.Sleep(2 * time.Second)
		for range 2 {
			if err := a.Update(ctx, a.write(0)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the deadline", err)
			}
			a.sees()
		}
		if a.left() <= 0 {
			t.Fatal("the lease has ended, so the test shows nothing")
		}
		a.site.set(false)
		if err := a.update(resourcelock.LeaderElectionRecord{}); !errors.Is(err, errUnwarned) || c.isFree("x") {
			t.Errorf("it is given back: %v", err)
		}
		a.RecordEvent(stoppedLeading)
		time.Sleep(a.left() - time.Millisecond)
		if err := b.Update(t.Context(), b.write(1)); !errors.Is(err, leases.ErrHeld) {
			t.Errorf("before the deadline: got %v, want %v", err, leases.ErrHeld)
		}
		time.Sleep(time.Second)
		b.lead(1)
	})
}

// loses is how a leader may lose its lease.
var loses = map[string]func(*cluster, *candidate){
	"broken by an operator":         func(c *cluster, _ *candidate) { c.breakLease("x", false) },
	"broken by an operator at once": func(c *cluster, _ *candidate) { c.breakLease("x", true) },
	"not renewed": func(_ *cluster, k *candidate) {
		k.site.set(true)
		time.Sleep(2 * leaseDuration)
		k.site.set(false)
	},
	"given back by hand": func(_ *cluster, k *candidate) {
		lease, _ := client.FromContext(k.Context())
		if err := lease.Release(k.t.Context()); err != nil {
			k.t.Error(err)
		}
	},
}

// A lease that was lost is not taken anew as if nothing had happened.
func TestUpdateAfterALoss(t *testing.T) {
	for how, lose := range loses {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.candidate(t, "a")
				a.lead(0)
				before := a.Token()
				lose(c, a)
				time.Sleep(2 * leaseDuration)
				synctest.Wait()
				if !c.isFree("x") || a.Context().Err() == nil {
					t.Fatal("the lease is held, so the test shows nothing")
				}
				for range 3 {
					if _, _, err := a.Get(t.Context()); err == nil || apierrors.IsNotFound(err) {
						t.Errorf("get: got %v, want that the lease was lost", err)
					}
					for _, write := range []func(context.Context, resourcelock.LeaderElectionRecord) error{a.Update, a.Create} {
						if err := write(t.Context(), a.write(1)); err == nil || errors.Is(err, leases.ErrHeld) {
							t.Errorf("got %v, want that the lease was lost", err)
						}
					}
				}
				if !c.isFree("x") {
					t.Error("the lease was taken")
				}
				if got := a.Token(); got != before {
					t.Errorf("token: got %v, want %v", got, before)
				}
				a.RecordEvent(stoppedLeading)
				if err := a.Update(t.Context(), a.write(1)); err != nil && !errors.Is(err, leases.ErrLost) { // a first try
					t.Error(err)
				}
				a.RecordEvent(stoppedLeading)
				a.lead(1)
				if got := a.Token(); got <= before {
					t.Errorf("the next term: got token %v, want more than %v", got, before)
				}
			})
		})
	}
}

// Whose lease an operator has broken gives it back before the next term, and lets
// others take it.
func TestUpdateAfterABreak(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		a.lead(0)
		c.breakLease("x", false)
		a.RecordEvent(stoppedLeading)
		time.Sleep(time.Second)
		if c.isFree("x") {
			t.Error("it was given back although its leader may be at work")
		}
		if err := a.Update(t.Context(), a.write(1)); !errors.Is(err, leases.ErrLost) {
			t.Errorf("the first try of the next term: got %v, want %v", err, leases.ErrLost)
		}
		b.lead(1)
		if err := a.Update(t.Context(), a.write(1)); !errors.Is(err, leases.ErrHeld) {
			t.Errorf("the second try: got %v, want %v", err, leases.ErrHeld)
		}
	})
}

func TestUpdateGivesTheLeaseBack(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		a.lead(0)
		if err := a.update(resourcelock.LeaderElectionRecord{}); err != nil {
			t.Fatal(err)
		}
		if err := context.Cause(a.Context()); !errors.Is(err, leases.ErrReleased) {
			t.Errorf("the lease ended by %v, want %v", err, leases.ErrReleased)
		}
		b.lead(1)
		if err := a.update(a.write(0)); !errors.Is(err, leases.ErrReleased) {
			t.Errorf("a renewal after that: got %v, want %v", err, leases.ErrReleased)
		}
		a.RecordEvent(stoppedLeading)
		if err := a.update(a.write(2)); !errors.Is(err, leases.ErrHeld) {
			t.Errorf("the next term: got %v, want %v", err, leases.ErrHeld)
		}
	})
}

// A lease that is not given back does not stay with a client that goes on.
func TestStopWithoutRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.candidate(t, "a"), c.candidate(t, "b")
		a.lead(0)
		time.Sleep(leaseDuration)
		a.RecordEvent(stoppedLeading)
		time.Sleep(a.left() - time.Millisecond) // its deadline moves
		if c.isFree("x") {
			t.Error("the lease is free before its deadline")
		}
		time.Sleep(time.Second)
		if !c.isFree("x") {
			t.Error("the lease is still held after its deadline")
		}
		b.lead(1)
	})
}

func TestStopThenClose(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.candidate(t, "a")
		a.lead(0)
		a.RecordEvent(stoppedLeading)
		began := time.Now()
		a.close()
		if took := time.Since(began); !c.isFree("x") || took > time.Second {
			t.Errorf("after the client was closed for %v the lease is free: %v", took, c.isFree("x"))
		}
	})
}

// A client that is closed under a leader gives the lease back when the leader
// has had the time to stop.
func TestCloseThenStop(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.candidate(t, "a")
		a.lead(0)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			a.close()
		}()
		<-a.Context().Done()
		if err := a.update(a.write(0)); !errors.Is(err, leases.ErrClosed) {
			t.Errorf("got %v, want %v", err, leases.ErrClosed)
		}
		a.RecordEvent(stoppedLeading)
		time.Sleep(a.left() - time.Millisecond)
		if c.isFree("x") {
			t.Error("the lease is free before its deadline")
		}
		<-closed
		if !c.isFree("x") {
			t.Error("the lease is still held after its client was closed")
		}
	})
}

func TestEachTermHasATokenOfItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.candidate(t, "a")
		if got := a.Token(); got != 0 {
			t.Errorf("at first: got token %v, want none", got)
		}
		if err := context.Cause(a.Context()); !errors.Is(err, leases.ErrNotHeld) {
			t.Errorf("at first: got a context that has ended by %v, want %v", err, leases.ErrNotHeld)
		}
		a.lead(0)
		first, ctx := a.Token(), a.Context()
		a.RecordEvent(stoppedLeading) // without a release
		a.lead(0)
		if got := a.Token(); got <= first {
			t.Errorf("the next term: got token %v, want more than %v", got, first)
		}
		if ctx.Err() == nil || a.Context().Err() != nil {
			t.Errorf("the terms' contexts: got %v and %v, want only the first to have ended", ctx.Err(), a.Context().Err())
		}
		if lease, ok := client.FromContext(a.Context()); !ok || lease.Token() != a.Token() {
			t.Error("the lease is not found in its context")
		}
	})
}

func TestBind(t *testing.T) {
	for how, lose := range loses {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.candidate(t, "a")
				ctx, cancel := a.Bind(t.Context())
				defer cancel()
				a.lead(0)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Fatalf("it has ended under a lease that is held: %v", context.Cause(ctx))
				}
				context.AfterFunc(ctx, func() {
					if a.left() < 0 {
						t.Errorf("it ended %v after the deadline", -a.left())
					}
				})
				lose(c, a)
				synctest.Wait()
				if cause, want := context.Cause(ctx), context.Cause(a.Context()); want == nil || !errors.Is(cause, want) {
					t.Errorf("it has ended with %v, want the lease's %v", cause, want)
				}
				a.RecordEvent(stoppedLeading)
				next, cancel := a.Bind(t.Context())
				defer cancel()
				if next.Err() != nil {
					t.Errorf("the next one has ended: %v", context.Cause(next))
				}
			})
		})
	}
}

func TestBindEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.candidate(t, "a")
		parent, end := context.WithCancelCause(t.Context())
		ctx, cancel := a.Bind(parent)
		defer cancel()
		reason := errors.New("enough")
		end(reason)
		if cause := context.Cause(ctx); cause != reason {
			t.Errorf("got %v, want %v", cause, reason)
		}
		ctx, cancel = a.Bind(t.Context())
		cancel()
		if ctx.Err() == nil {
			t.Error("it goes on after its cancel")
		}
	})
}

// recorder is an EventRecorder.
type recorder struct{ events []string }

func (r *recorder) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	pod, _ := about.(*corev1.Pod)
	r.events = append(r.events, fmt.Sprintf("%s %s %s: "+format, append([]any{pod.Name, kind, reason}, args...)...))
}

func TestRecordEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		r := &recorder{}
		a := c.candidate(t, "a", Events(r, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}))
		a.lead(0)
		a.RecordEvent(stoppedLeading)
		want := []string{"p Normal LeaderElection: a became leader", "p Normal LeaderElection: a stopped leading"}
		if !slices.Equal(r.events, want) {
			t.Errorf("got %q, want %q", r.events, want)
		}
	})
}
