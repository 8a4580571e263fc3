package k8slock

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// patience bounds each request of a candidate, so that leaderelection can log
// that no answer came, and try again.
const patience = 5 * time.Second

// stoppedLeading is what leaderelection records at the end of each term, before
// it calls OnStoppedLeading. Nothing else tells it from a failed renewal.
const stoppedLeading = "stopped leading"

// Lock is a resourcelock.Interface over a coordd lease. It stands for one
// candidate, and is one LeaderElector's at a time: that calls Get, Create,
// Update and RecordEvent. The other methods are safe for concurrent use.
type Lock struct {
	client         *client.Client
	name, identity string
	events         resourcelock.EventRecorder // nil: nobody is told
	about          runtime.Object
	clock          clock.Clock // the client's

	mu          sync.Mutex    // guards what follows
	term        *term         // that leaderelection is in; nil: none
	newest      *client.Lease // the newest term's; nil: there was none
	lingering   *client.Lease // of a term that is over, and not given back then; nil: none
	transitions int           // of leaders, the most that this lock has heard of
	loss        context.Context
	lose        context.CancelCauseFunc // ends loss, when the lease of this or the next term ends
}

var _ resourcelock.Interface = (*Lock)(nil)

// Option configures a Lock.
type Option func(*Lock)

// Identity sets what the candidate is called, such as its pod's name: 1 to
// leases.MaxLabel bytes of printable UTF-8. It is shown as the owner of the
// lease. By default it is the host's name and a random id. Unlike with a Lease
// object, two candidates of the same identity never lead at once: each lease is
// held by the one that was granted it.
func Identity(id string) Option { return func(l *Lock) { l.identity = id } }

// Events tells r when the candidate begins and stops to lead, as events about
// the object: its pod, say.
func Events(r resourcelock.EventRecorder, about runtime.Object) Option {
	return func(l *Lock) { l.events, l.about = r, about }
}

// New returns the lock of one candidate for the lease of that name; all of its
// candidates name the same one. c stays the caller's, who closes it after the
// election. It must count in clock.System, as it does by default.
//
// Errors: leases.ErrInvalid, if the name or the identity is outside of its bounds.
func New(c *client.Client, name string, opts ...Option) (*Lock, error) {
	l := &Lock{client: c, name: name, identity: anyIdentity(), clock: clock.System()}
	for _, opt := range opts {
		opt(l)
	}
	if l.identity == "" {
		return nil, &leases.InvalidError{Field: "identity", Value: "", Bounds: fmt.Sprintf("1 to %d bytes of printable UTF-8", leases.MaxLabel)}
	}
	claim := leases.Claim{Name: name, Attempt: leases.NewID(), TTL: client.DefaultTTL, Owner: leases.Owner{Label: l.identity}}
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	l.loss, l.lose = context.WithCancelCause(context.Background())
	return l, nil
}

// anyIdentity is one that nobody else has.
func anyIdentity() string {
	host, _ := os.Hostname() // for people: the id alone tells it from others
	return fmt.Sprintf("%s_%v", host, leases.NewID())
}

// Get returns what leaderelection is to believe about the leader. While the lock
// leads that is what it wrote last. Once it has lost its lease that is an error,
// until leaderelection has stopped leading. Else it is what the cluster tells.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if t := l.current(); t != nil {
		if err := t.err(); err != nil {
			return nil, nil, err
		}
		return encode(t.record)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := l.client.Get(ctx, l.name)
	if err != nil {
		return nil, nil, err
	}
	r, err := l.observe(s)
	if err != nil {
		return nil, nil, err
	}
	return encode(r)
}

// Create is Update.
func (l *Lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, r)
}

// Update tries to take the lease for the record's LeaseDurationSeconds, if the
// lock does not lead. If it leads, Update waits until the lease is renewed for
// long enough for leaderelection to give up before it ends, which may take a
// third of the LeaseDuration; it fails at once if the lease is lost. With an
// empty HolderIdentity it gives the lease back.
//
// The error matches leases.ErrHeld, and is a conflict to client-go, if somebody
// else holds the lease; leases.ErrLost, ErrExpired, ErrReleased or ErrClosed if
// this lock no longer does; else it is TryAcquire's, Release's or ctx's.
func (l *Lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	t := l.current()
	switch {
	case r.HolderIdentity == "":
		return t.release(ctx)
	case r.HolderIdentity != l.identity:
		return &leases.InvalidError{Field: "holder identity", Value: r.HolderIdentity, Bounds: "that of the lock, " + l.identity}
	case t == nil:
		return l.acquire(ctx, r)
	default:
		return l.renew(ctx, t, r)
	}
}

// RecordEvent takes note of what leaderelection does.
func (l *Lock) RecordEvent(event string) {
	if event == stoppedLeading {
		l.stop()
	}
	if l.events != nil {
		l.events.Eventf(l.about, corev1.EventTypeNormal, "LeaderElection", "%s %s", l.identity, event)
	}
}

// Identity is what the candidate is called.
func (l *Lock) Identity() string { return l.identity }

// Describe names the lock in logs.
func (l *Lock) Describe() string { return "coordd/" + l.name }

// Token is the fencing token of the newest lease that the lock was granted; 0 if
// there was none. Read it once, where OnStartedLeading begins, and pass it to
// every store that is written to: a later term has another one.
func (l *Lock) Token() tokens.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil {
		return 0
	}
	return l.newest.Token()
}

// Context is that of the newest lease that the lock was granted: it ends when
// the lease does, with the causes of client.Lease.Context, mostly before
// leaderelection notices. client.FromContext finds the lease in it. If there was
// none it has ended, with leases.ErrNotHeld.
func (l *Lock) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(&leases.NotHeldError{Name: l.name})
		return ctx
	}
	return l.newest.Context()
}

// Bind returns ctx for one Run of leaderelection. It ends also as soon as the
// lease that was granted in this Run ends, with the cause of that: so Run returns
// and the leader's own context has ended. The caller calls the function that is
// returned when Run has.
func (l *Lock) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	loss := l.loss
	l.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(loss, func() { cancel(context.Cause(loss)) })
	return ctx, func() { stop(); cancel(nil) }
}

// current is the term that leaderelection is in; nil: none.
func (l *Lock) current() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}
