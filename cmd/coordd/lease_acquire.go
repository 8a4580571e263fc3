package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// defaultLabel says of a script's lease who holds it.
const defaultLabel = "a script"

const (
	// lastWord is how long after its wait a claim's answer is waited for: it says
	// who holds the lease.
	lastWord = time.Second
	// undoTimeout bounds the withdrawal of an attempt, which lapses anyhow.
	undoTimeout = 5 * time.Second
)

func newLeaseAcquire() *cobra.Command {
	var (
		conn       connection
		out        output
		wait       waitFlag
		ttl        time.Duration
		session    idFlag
		attempt    idFlag
		label      string
		attributes string
	)
	cmd := &cobra.Command{
		Use:   "acquire NAME",
		Short: "Acquire a lease, and print what renews and releases it",
		Long: `Acquires the lease NAME and prints the session and the token with which later
calls renew and release it. It lasts for --ttl, counted from before this call,
unless coordd lease renew prolongs it; valid_ms is how much of that is left. The
exit code is

   0  it is held
  69  no node that serves leases was reached, it did not answer, or it is at a bound,
      such as --max-waiters; or the arbiter has taken over, and grants nothing anew yet
  75  somebody else holds it, also after --wait
  76  that --attempt was withdrawn, or its lease is over: draw another one
  128+n  signal n came first: INT (this process then ends by it), TERM, HUP or QUIT

With any other code than 0 nothing is held: an attempt whose answer is not known,
because of a timeout or a signal, is withdrawn (where that fails too it is said:
what may be held then lapses). Only one that --attempt names is not: repeated on
the same host with the same flags it gets the same token, so that a caller who has
crashed can go on. Draw 16 random bytes for each attempt, and use them for no other.

--timeout bounds the search for a node that serves leases. With --wait the claim
then stands in the queue for so long, also while no node is heard.

With -o shell it prints lines for eval that export COORDD_LEASE, COORDD_SESSION
and COORDD_FENCING_TOKEN, from which the other lease commands take --session and
--token. With -o json the fields are name, session, attempt, token, ttl_ms,
valid_ms, waited, acquired_at.`,
		Example: `  vars=$(coordd lease acquire nightly --ttl 1m --wait 10m -o shell) || exit
  eval "$vars"
  coordd lease acquire nightly --label backup -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			owner := caller(label)
			if attempt.String() != "" { // a repeat, by whichever process, has to say the same
				owner.PID = 0
			}
			c := &claimant{
				session: leases.ID(session), attempt: leases.ID(attempt),
				claim:   leases.Claim{Name: args[0], TTL: ttl, Owner: owner, Attributes: []byte(attributes)},
				timeout: conn.timeout, wait: time.Duration(wait), stderr: cmd.ErrOrStderr(),
			}
			if err := c.validate(); err != nil {
				return err
			}
			backend, err := conn.dial()
			if err != nil {
				return err
			}
			defer backend.Close()
			c.backend = backend
			return c.run(cmd.Context(), func(v acquiredView) error { return out.print(cmd.OutOrStdout(), v) })
		},
		ValidArgsFunction: completeLease,
	}
	fs := cmd.Flags()
	fs.DurationVar(&ttl, "ttl", client.DefaultTTL, "how long the lease outlives its last renewal, from 1s to 5m")
	fs.Var(&wait, "wait", "how long to wait for the lease if somebody holds it, or forever")
	fs.Var(&session, "session", "acquire it for this session (default: a new one)")
	fs.Var(&attempt, "attempt", "acquire it under this attempt, and do not withdraw it (default: a new one)")
	fs.StringVar(&label, "label", defaultLabel, "`text` that says who holds it, for people")
	fs.StringVar(&attributes, "attributes", "", "`text` to keep with the lease, for people and tools, at most 512 bytes")
	conn.register(fs)
	out.registerForms(cmd, "text", "json", "shell")
	return cmd
}

// caller is whom others see as the lease's holder: the process that runs this one.
func caller(label string) leases.Owner {
	owner := leases.Owner{Label: label, PID: uint32(os.Getppid())}
	owner.Host, _ = os.Hostname() // for people only
	if len(owner.Host) > leases.MaxLabel {
		owner.Host = ""
	}
	return owner
}

// claimant acquires one lease. One goroutine has it, but for hear.
type claimant struct {
	backend leases.Backend
	session leases.ID
	attempt leases.ID     // that the caller has drawn; zero: this process draws them
	claim   leases.Claim  // under the present attempt
	timeout time.Duration // bounds the search for a node that serves
	wait    time.Duration

	talk     leases.Session // with the node that serves; nil: none
	unsure   bool           // a copy of the claim may have been granted, or may yet be
	sent     clock.Instant  // the first copy; 0: none was
	deadline clock.Instant  // of the lease, as its holder may count it
	silence  silence

	mu     sync.Mutex // guards stderr and queued
	stderr io.Writer
	queued bool // the caller was told so
}

// validate checks the claim and completes the ids.
func (c *claimant) validate() error {
	if !c.attempt.IsZero() && c.session.IsZero() {
		return usagef("--session (or %s) is missing: an --attempt belongs to the session that it was drawn for", envName("session"))
	}
	if c.session.IsZero() {
		c.session = leases.NewID()
	}
	c.begin()
	return c.claim.Validate()
}

// begin begins an attempt.
func (c *claimant) begin() {
	c.claim.Attempt, c.sent, c.unsure = c.attempt, 0, false
	if c.attempt.IsZero() {
		c.claim.Attempt = leases.NewID()
	}
}

// run acquires the lease and prints it. Unless both succeed nothing is left behind.
func (c *claimant) run(ctx context.Context, print func(acquiredView) error) error {
	ctx, stop := untilSignalled(ctx)
	defer stop()
	defer c.hangUp()
	grant, err := c.acquire(ctx)
	if ctx.Err() != nil { // perhaps too late to keep the lease from being granted
		err = context.Cause(ctx)
	}
	if err == nil {
		err = print(c.view(grant))
	}
	if err == nil {
		return nil
	}
	sig, signal := errors.AsType[*signalled](err)
	if signal {
		err = &exit{128 + int(sig.Signal), fmt.Errorf("ended by %s before lease %q was acquired", unix.SignalName(sig.Signal), c.claim.Name)}
	}
	if left := c.undo(ctx); left != nil {
		err = fmt.Errorf("%w; %w", err, left)
	}
	if signal && sig.Signal == unix.SIGINT {
		return &interrupted{err}
	}
	return err
}

// acquire looks for a node that serves, and then claims the lease, again as long
// as nothing is known.
func (c *claimant) acquire(ctx context.Context) (grant leases.Grant, err error) {
	search, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err = untilAnswered(search, c.timeout, "--timeout", func(ctx context.Context) error {
		_, err := c.conversation(ctx)
		return err
	})
	if err != nil {
		return grant, err
	}
	if c.wait == 0 {
		ctx = search
	}
	limit, flag, end := c.timeout, "--timeout", clock.System().Now()
	if c.wait > 0 {
		limit, flag, end = c.wait, "--wait", end.Add(c.wait)
		limit = max(limit, limit+lastWord) // unless there is no limit
	}
	err = untilAnswered(ctx, limit, flag, func(ctx context.Context) error {
		s, err := c.conversation(ctx)
		if err == nil {
			grant, err = c.ask(ctx, s, end)
		}
		if again(err) {
			c.hangUp() // the next try is made in another conversation
		}
		if c.silence.breaks(err) {
			c.note("%v; trying on", err)
		}
		return err
	})
	return grant, err
}

// conversation is the present one, or another one.
func (c *claimant) conversation(ctx context.Context) (s leases.Session, err error) {
	if c.talk == nil {
		c.talk, err = c.backend.Open(ctx, c.session, c.hear)
	}
	return c.talk, err
}

func (c *claimant) hangUp() {
	if c.talk != nil {
		c.talk.Close()
		c.talk = nil
	}
}

// ask sends a copy of the claim, to wait until end at most.
func (c *claimant) ask(ctx context.Context, s leases.Session, end clock.Instant) (leases.Grant, error) {
	now := clock.System().Now()
	if c.sent == 0 {
		c.sent = now
	}
	claim := c.claim
	switch left := end.Sub(now); {
	case c.wait == leases.Forever:
		claim.Wait = leases.Forever
	case left > 0:
		claim.Wait = max(left.Truncate(time.Millisecond), time.Millisecond)
	default:
		var cancel func()
		ctx, cancel = patiently(ctx)
		defer cancel()
	}
	grant, err := s.Acquire(ctx, claim)
	c.unsure = c.unsure || err == nil || errors.Is(err, leases.ErrUnknownOutcome)
	if err != nil {
		return grant, err
	}
	return grant, c.confirm(ctx, s, grant)
}

// confirm returns nil if the lease is held for at least half of its TTL, and
// renews it before where that is not certain. It counts from the first copy of
// the claim, and nobody knows when the caller sent that of its own attempt.
func (c *claimant) confirm(ctx context.Context, s leases.Session, grant leases.Grant) error {
	valid, now := leases.Shrink(c.claim.TTL), clock.System().Now()
	c.deadline = c.sent.Add(valid)
	if !grant.Waited && c.attempt.IsZero() && c.deadline.Sub(now) >= valid/2 {
		return nil
	}
	ctx, cancel := patiently(ctx)
	defer cancel()
	err := renew(ctx, s, leases.Held{Name: c.claim.Name, Token: grant.Token})
	c.deadline = now.Add(valid)
	switch {
	case errors.Is(err, leases.ErrNotHeld) && c.attempt.IsZero():
		_ = s.Withdraw(ctx, c.claim.Name, c.claim.Attempt) // in case an early copy of the claim is still under way
		c.begin()
		return &leases.UnavailableError{Reason: fmt.Sprintf("the lease was granted and has ended before it was confirmed: %v", err)}
	case err == nil && !clock.System().Now().Before(c.deadline):
		return fmt.Errorf("%w: the lease was confirmed too late", leases.ErrUnknownOutcome)
	}
	return err
}

// hear takes what the cluster tells of the claim.
func (c *claimant) hear(e leases.Event) {
	q, ok := e.(leases.Queued)
	if !ok {
		return
	}
	c.mu.Lock()
	told := c.queued
	c.queued = true
	c.mu.Unlock()
	if !told {
		c.note("waiting for lease %q, at place %d in the queue", q.Name, q.Position)
	}
}

func (c *claimant) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.stderr, "coordd: "+format+"\n", args...)
}

// undo withdraws the attempt, if it may have been granted and is this process's
// own. The error says what may be left.
func (c *claimant) undo(ctx context.Context) error {
	switch {
	case !c.unsure:
		return nil
	case !c.attempt.IsZero():
		return errors.New("it may be held under --attempt: repeat it with the same --session to learn that, or let it lapse")
	}
	err := untilAnswered(context.WithoutCancel(ctx), undoTimeout, "", func(ctx context.Context) error {
		s, err := c.conversation(ctx)
		if err != nil {
			return err
		}
		one, cancel := patiently(ctx)
		defer cancel()
		if err = s.Withdraw(one, c.claim.Name, c.claim.Attempt); again(err) {
			c.hangUp()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("it could not be withdrawn: it may be held, until it lapses after %v at most", leases.Stretch(c.claim.TTL))
	}
	return nil
}

func (c *claimant) view(g leases.Grant) acquiredView {
	return acquiredView{
		Held:       leases.Held{Name: c.claim.Name, Token: g.Token},
		Session:    c.session,
		Attempt:    c.claim.Attempt,
		TTLMS:      uint32(c.claim.TTL / time.Millisecond),
		ValidMS:    max(c.deadline.Sub(clock.System().Now()), 0).Milliseconds(),
		Waited:     g.Waited,
		AcquiredAt: timeOfDay(g.AcquiredAt),
	}
}

// acquiredView is what lease acquire prints.
type acquiredView struct {
	leases.Held
	Session    leases.ID  `json:"session"`
	Attempt    leases.ID  `json:"attempt"`
	TTLMS      uint32     `json:"ttl_ms"`
	ValidMS    int64      `json:"valid_ms"`
	Waited     bool       `json:"waited"`
	AcquiredAt *time.Time `json:"acquired_at,omitempty"`
}

func (v acquiredView) writeText(w io.Writer) {
	writeFields(w,
		"lease", v.Name,
		"session", v.Session.String(),
		"token", v.Token.String(),
		"attempt", v.Attempt.String(),
		"valid for", fmt.Sprintf("%v unless renewed (TTL %v)", time.Duration(v.ValidMS)*time.Millisecond, milliseconds(v.TTLMS)))
}

// writeShell leaves the attempt out: from the environment the next acquire would
// take it for its own.
func (v acquiredView) writeShell(w io.Writer) {
	fmt.Fprintf(w, "export COORDD_LEASE=%s\n", quoted(v.Name))
	fmt.Fprintf(w, "export %s=%v\n", envName("session"), v.Session)
	fmt.Fprintf(w, "export %s=%v\n", envName("token"), v.Token)
}

// quoted is s as one word of a POSIX shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
