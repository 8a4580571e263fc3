package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func newLeaseWatch() *cobra.Command {
	var (
		conn   connection
		out    output
		from   positionFlag
		listed bool
	)
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Follow every change of leases",
		Long: `Prints every change to a lease whose name begins with PREFIX, or to all, one line
each, in order, from now on or from a place in their history, until it is stopped.
With --list it prints the leases that are held first, and follows from there on.

It goes on over failures of nodes, and misses nothing: any node tells the changes.
Each remembers at most the last 10,000, fewer after a restart; where none remembers
all after --from, or after the last line, it ends with code 66. Then list the leases
anew, and follow from there: start it with --list. --timeout bounds the search for a
node at the beginning; later it tries on. From a node that is cut off from the others
it goes on to another.

--from takes a place that lease list or this command has printed. One that the
history has not reached yet is not refused: after "watching from" nothing is printed
until it has been, which may be never.

The kinds are granted, released, expired, withdrawn, broken (by an operator; the
name is free when the line says so) and transferred; with --list at first held;
and once watching, when it begins to follow.

With -o json each line is an object with the fields at (EPOCH/REVISION, with which
--from goes on after this line; some lines may come once more), kind, revision,
name, token, next_token (of the new lease, where it was transferred), free, owner
{label, site, host, pid}, acquired_at, ttl_ms, attributes (base64).`,
		Example: `  coordd lease watch
  coordd lease watch billing/ --list -o json
  coordd lease watch --from 1/1234 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if listed && from != (positionFlag{}) {
				return usagef("--list and --from exclude each other: a list tells where to go on from")
			}
			backend, err := conn.dial()
			if err != nil {
				return err
			}
			defer backend.Close()
			c := client.New(&watched{Backend: backend, stderr: cmd.ErrOrStderr()})
			defer c.Close(cmd.Context())
			f := &follower{
				timeout: conn.timeout, prefix: prefixOf(args), at: leases.Position(from),
				print: printLines(cmd.OutOrStdout(), out.json()),
			}
			return f.run(cmd.Context(), c, listed)
		},
		ValidArgsFunction: completeLease,
	}
	cmd.Flags().BoolVar(&listed, "list", false, "print the leases that are held first")
	cmd.Flags().Var(&from, "from", "where in the history to begin (default: now)")
	conn.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

// follower prints the changes of leases. One goroutine has it.
type follower struct {
	timeout time.Duration // bounds the search for a node at the beginning
	prefix  string
	at      leases.Position // everything up to here has been printed; zero: begin now
	print   func(changeView) error

	begun bool // a node has told where the watch begins
}

// run never returns nil.
func (f *follower) run(ctx context.Context, c *client.Client, listed bool) error {
	if listed {
		if err := f.list(ctx, c); err != nil {
			return err
		}
	}
	ctx, search, end := untilFound(ctx, f.timeout)
	defer end()
	for batch, err := range c.Watch(ctx, f.prefix, client.From(f.at)) {
		if errors.Is(err, leases.ErrMissed) {
			err = fmt.Errorf("%w (coordd lease watch --list)", err)
		}
		if err == nil {
			search.Stop()
			err = f.take(batch)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// list prints what is held, and lets the watch begin there.
func (f *follower) list(ctx context.Context, c *client.Client) error {
	page, err := list(ctx, c, f.timeout, f.prefix, "", 0)
	if err != nil {
		return err
	}
	f.at = page.At
	for _, s := range page.Leases {
		err := f.print(changeView{
			Kind: "held", Name: s.Name, Token: s.Token, Owner: &s.Owner,
			TTLMS: uint32(s.TTL / time.Millisecond), Attributes: s.Attributes, AcquiredAt: timeOfDay(s.AcquiredAt),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// take prints a batch.
func (f *follower) take(b leases.Batch) error {
	if !f.begun {
		f.begun = true
		if err := f.print(changeView{At: b.At.String(), Kind: "watching"}); err != nil {
			return err
		}
		f.at = b.At
	}
	for i, c := range b.Changes {
		at := f.at // the epoch of a place within the batch is not told
		if i == len(b.Changes)-1 {
			at = b.At
		}
		if err := f.print(viewChange(c, at)); err != nil {
			return err
		}
	}
	f.at = b.At
	return nil
}

// watched is a backend that says once how long nothing has been heard of a watch
// that has begun.
type watched struct {
	leases.Backend
	stderr io.Writer

	mu      sync.Mutex // guards what follows: a watch that is given up may end beside the next one
	begun   bool
	silence silence
}

// Watch implements leases.Directory.
func (w *watched) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	err := w.Backend.Watch(ctx, prefix, from, func(b leases.Batch) error {
		w.heard(nil)
		return on(b)
	})
	if ctx.Err() != nil {
		err = &leases.UnavailableError{Reason: "no node has told changes in time"}
	}
	w.heard(err)
	return err
}

// heard takes what was heard of a watch; nil: a batch.
func (w *watched) heard(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = w.begun || err == nil
	if w.silence.breaks(err) && w.begun {
		fmt.Fprintf(w.stderr, "coordd: %v; trying on\n", err)
	}
}

// changeView is a line of lease watch.
type changeView struct {
	At         string        `json:"at,omitempty"`
	Kind       string        `json:"kind"`
	Revision   uint64        `json:"revision,omitempty"`
	Name       string        `json:"name,omitempty"`
	Token      tokens.Token  `json:"token,omitzero"`
	NextToken  tokens.Token  `json:"next_token,omitzero"`
	Free       bool          `json:"free,omitempty"`
	Owner      *leases.Owner `json:"owner,omitempty"`
	AcquiredAt *time.Time    `json:"acquired_at,omitempty"`
	TTLMS      uint32        `json:"ttl_ms,omitempty"`
	Attributes []byte        `json:"attributes,omitempty"`
}

func viewChange(c leases.Change, at leases.Position) changeView {
	return changeView{
		At: at.String(), Kind: c.Kind.String(), Revision: c.Revision, Name: c.Name, Token: c.Token, NextToken: c.Next, Free: c.Free,
		Owner: &c.Owner, TTLMS: uint32(c.TTL / time.Millisecond), Attributes: c.Attributes, AcquiredAt: timeOfDay(c.AcquiredAt),
	}
}

func (v changeView) writeText(w io.Writer) {
	if v.Name == "" {
		fmt.Fprintf(w, "%s from %s on\n", v.Kind, v.At)
		return
	}
	token := v.Token.String()
	if v.NextToken != 0 {
		token += " to " + v.NextToken.String()
	}
	free := ""
	if v.Free {
		free = ", free"
	}
	fmt.Fprintf(w, "%-11s  %s  token %s  %v%s\n", v.Kind, v.Name, token, v.Owner, free)
}

// printLines prints each line as soon as it is there.
func printLines(w io.Writer, asJSON bool) func(changeView) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return func(v changeView) (err error) {
		if asJSON {
			err = enc.Encode(v)
		} else {
			var b bytes.Buffer
			v.writeText(&b)
			_, err = w.Write(b.Bytes())
		}
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
}
