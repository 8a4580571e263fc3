package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

const defaultAddr = "127.0.0.1:7420"

// connection has the flags of every command that talks to a cluster.
type connection struct {
	addrs   addresses
	timeout time.Duration // bounds the search for a node that serves
	tls     tlsFiles
}

func (c *connection) register(fs *pflag.FlagSet) {
	c.addrs = addresses{defaultAddr}
	fs.Var(&c.addrs, "addr", "nodes of the cluster; any that answers will do")
	fs.DurationVar(&c.timeout, "timeout", 15*time.Second, "how long to look for a node that serves leases")
	c.tls.register(fs)
}

// dial makes a connection to the cluster, without any I/O yet.
func (c *connection) dial() (*transport.Conn, error) {
	if c.timeout <= 0 {
		return nil, usagef("invalid --timeout %v: want more than 0s", c.timeout)
	}
	tls, err := c.tls.load()
	if err != nil {
		return nil, err
	}
	return transport.Dial(transport.DialConfig{Addrs: c.addrs, TLS: tls})
}

// Bounds of the pause between two questions to the cluster.
const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// consult has a client of the cluster asked, for at most the time of --timeout.
func (c *connection) consult(ctx context.Context, ask func(context.Context, *client.Client) error) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	asked := client.New(conn)
	defer asked.Close(ctx)
	ctx, cancel := giveUp(ctx, c.timeout, "--timeout")
	defer cancel()
	return ask(ctx, asked)
}

// giveUp bounds ctx by the value of a flag. Unless somebody holds the lease,
// no node that serves was found then.
func giveUp(ctx context.Context, after time.Duration, flag string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, after, gaveUp(after, flag))
}

func gaveUp(after time.Duration, flag string) error {
	return &exit{exitUnavailable, fmt.Errorf("gave up after %v (%s)", after, flag)}
}

// untilFound is giveUp by --timeout for what goes on once something is found: the
// timer is stopped then, or begins anew.
func untilFound(ctx context.Context, timeout time.Duration) (context.Context, *time.Timer, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(timeout, func() { cancel(gaveUp(timeout, "--timeout")) })
	return ctx, timer, func() {
		timer.Stop()
		cancel(nil)
	}
}

// status asks the cluster about itself until the answer is enough, and at most for
// the time of --timeout. Where that ends first the last answer is returned, or an
// error if there was none.
func (c *connection) status(ctx context.Context, enough func(*coorddv1.StatusResponse) bool) (*coorddv1.StatusResponse, error) {
	var last *coorddv1.StatusResponse
	err := c.ask(ctx, func(ctx context.Context, conn *transport.Conn) error {
		answer, err := conn.Status(ctx, "")
		if err != nil {
			return err
		}
		if last = answer; !enough(answer) {
			return leases.ErrUnavailable
		}
		return nil
	})
	if last != nil && (err == nil || again(err)) {
		return last, nil
	}
	return nil, err
}

// ask makes a call that the client has none for until it is answered for good,
// and at most for the time of --timeout.
func (c *connection) ask(ctx context.Context, call func(context.Context, *transport.Conn) error) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return untilAnswered(ctx, c.timeout, "--timeout", func(ctx context.Context) error { return call(ctx, conn) })
}

// converse is ask for a call that belongs to a session.
func (c *connection) converse(ctx context.Context, session leases.ID, call func(context.Context, leases.Session) error) error {
	return c.ask(ctx, func(ctx context.Context, conn *transport.Conn) error { return converse(ctx, conn, session, call) })
}

// patience is how long one call may go unanswered before it is made to another
// node: one that hangs may still hold its connections.
const patience = 2 * time.Second

// converse makes one call in a conversation of its own with the node that serves
// now. Its leases outlive it.
func converse(ctx context.Context, b leases.Backend, session leases.ID, call func(context.Context, leases.Session) error) error {
	s, err := b.Open(ctx, session, func(leases.Event) {})
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := patiently(ctx)
	defer cancel()
	return call(ctx, s)
}

// patiently bounds one call.
func patiently(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
}

// untilAnswered makes a call until it is answered for good, and at most for that
// time, which is the flag's. The call must be one that may be repeated.
func untilAnswered(ctx context.Context, timeout time.Duration, flag string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var said error // why there was no answer, by the last try that was not cut short
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := call(ctx)
		if !again(err) {
			return err
		}
		if said == nil || ctx.Err() == nil {
			said = err
		}
		if !sleep(ctx, pause) {
			return fmt.Errorf("%w: %w", said, gaveUp(timeout, flag))
		}
	}
}

// again reports whether err says that nothing is known so far.
func again(err error) bool {
	return exitCode(err) == exitUnavailable && !errors.Is(err, leases.ErrExhausted)
}

// silence is how long nothing has been known.
type silence struct {
	since clock.Instant // 0: something is
	told  bool
}

// breaks takes what became of a try and reports, once, that nothing has been
// known for long enough to say so: longer than an election takes.
func (s *silence) breaks(err error) bool {
	now := clock.System().Now()
	switch {
	case !again(err):
		*s = silence{}
	case s.since == 0:
		s.since = now
	case !s.told && now.Sub(s.since) > 2*lookEvery:
		s.told = true
		return true
	}
	return false
}

// sleep reports whether ctx lasted so long.
func sleep(ctx context.Context, d time.Duration) bool {
	c := clock.System()
	return clock.Wait(ctx, c, c.Now().Add(d)) == nil
}

// tlsFiles has the flags for mutual TLS.
type tlsFiles struct{ cert, key, ca string }

func (f *tlsFiles) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.cert, "cert", "", "own certificate, a PEM `file`; with --key and --ca for TLS on both sides")
	fs.StringVar(&f.key, "key", "", "own certificate's key, a PEM `file`")
	fs.StringVar(&f.ca, "ca", "", "certificate authority that the other side's certificate must come from, a PEM `file`")
}

// load returns nil where no file was given: plaintext.
func (f *tlsFiles) load() (*transport.TLS, error) {
	if *f == (tlsFiles{}) {
		return nil, nil
	}
	if f.cert == "" || f.key == "" || f.ca == "" {
		return nil, usagef("--cert, --key and --ca belong together: give all three, or none for plaintext")
	}
	tls, err := transport.LoadTLS(f.cert, f.key, f.ca)
	if err != nil {
		return nil, &exit{code: exitUsage, err: err}
	}
	return tls, nil
}
