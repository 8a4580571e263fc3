package client

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// DefaultTTL is how long a lease outlives its last renewal unless TTL says
// otherwise.
const DefaultTTL = 15 * time.Second

// Option configures a Client.
type Option func(*options)

type options struct {
	tls     *transport.TLS
	network transport.Network
	clock   clock.Clock
	log     *slog.Logger
	owner   leases.Owner
	rules   rules.Set
	session leases.ID
}

// WithTLS lets Dial speak mutual TLS. Without it, or with nil, it is plaintext.
// New ignores it.
func WithTLS(t *transport.TLS) Option { return func(o *options) { o.tls = t } }

// WithNetwork lets Dial reach nodes over n instead of TCP. New ignores it.
func WithNetwork(n transport.Network) Option { return func(o *options) { o.network = n } }

// WithClock sets the clock that deadlines are counted in; by default it is
// clock.System, which goes on while the machine is suspended.
func WithClock(c clock.Clock) Option { return func(o *options) { o.clock = c } }

// WithLog sets where the client tells what it does; by default, and with nil, it
// is silent.
func WithLog(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithOwner sets who the leases of this client are shown to belong to. By
// default that is the program's name, the host's and the process id.
func WithOwner(owner leases.Owner) Option { return func(o *options) { o.owner = owner } }

// WithRules switches rules of the protocol off, for this module's own tests.
func WithRules(r rules.Set) Option { return func(o *options) { o.rules = r } }

// WithSession sets the session id, for this module's own tests; by default it
// is drawn at random.
func WithSession(id leases.ID) Option { return func(o *options) { o.session = id } }

func newOptions(opts []Option) options {
	o := options{
		clock:   clock.System(),
		owner:   process(),
		session: leases.NewID(),
	}
	for _, opt := range opts {
		opt(&o)
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	return o
}

// process describes this process, as far as its words can be shown.
func process() leases.Owner {
	host, _ := os.Hostname() // for people only: a made up one would mislead them
	o := leases.Owner{Label: filepath.Base(os.Args[0]), Host: host, PID: uint32(os.Getpid())}
	c := leases.Claim{Name: "any", Attempt: leases.NewID(), TTL: DefaultTTL, Owner: o}
	if c.Validate() != nil {
		return leases.Owner{PID: o.PID}
	}
	return o
}

// LeaseOption configures one lease.
type LeaseOption func(*wish)

// wish is what the caller of Acquire asks for.
type wish struct {
	ttl        time.Duration
	attributes []byte
	owner      leases.Owner
	onQueued   func(position int)
}

// TTL sets how long the lease outlives its last renewal: from leases.MinTTL to
// leases.MaxTTL, in whole milliseconds; DefaultTTL if not given. The shorter it
// is, the sooner a dead holder's name is free, and the shorter the outage that
// a living holder survives: it should be several election timeouts.
func TTL(d time.Duration) LeaseOption { return func(w *wish) { w.ttl = d } }

// Attributes keeps a copy of b, at most leases.MaxAttributes bytes, with the
// lease for people and tools.
func Attributes(b []byte) LeaseOption {
	b = bytes.Clone(b)
	return func(w *wish) { w.attributes = b }
}

// Owner says who this one lease is shown to belong to.
func Owner(o leases.Owner) LeaseOption { return func(w *wish) { w.owner = o } }

// Label says what the owner of this one lease is called; where it runs is told
// as without it.
func Label(s string) LeaseOption { return func(w *wish) { w.owner.Label = s } }

// OnQueued calls f whenever the place in the queue for the lease becomes known
// or changes; 1 is the next in turn. f is called in Acquire's own goroutine,
// before Acquire returns.
func OnQueued(f func(position int)) LeaseOption { return func(w *wish) { w.onQueued = f } }
