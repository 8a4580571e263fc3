package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
)

func newLeaseGet() *cobra.Command {
	var (
		conn connection
		out  output
	)
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show who holds a lease, or how the last one ended",
		Long: `Shows who holds the lease NAME, under which token, for how long at most, and how
many wait for it; of a free one how the last lease of that name ended, if that is
remembered. The exit code is 0 in both cases, and 69 where nothing certain is
known within --timeout.

With -o json the fields are those of coordd status NAME.`,
		Example: `  coordd lease get nightly
  coordd lease get nightly -o json | jq -r .token`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printLease(cmd, &conn, out, args[0])
		},
		ValidArgsFunction: completeLease,
	}
	conn.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

// printLease prints who holds a lease, or how the last one ended.
func printLease(cmd *cobra.Command, conn *connection, out output, name string) error {
	var state leases.State
	err := conn.consult(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
		state, err = c.Get(ctx, name)
		return err
	})
	if err != nil {
		return err
	}
	return out.print(cmd.OutOrStdout(), viewState(state))
}

func newLeaseList() *cobra.Command {
	var (
		conn  connection
		out   output
		limit int
		after string
	)
	cmd := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "Show which leases are held",
		Long: `Shows the leases that are held and whose names begin with PREFIX, or all, in the
order of their names. They are read in pages of 1000, each of its own moment. The
last line tells the place in the history of all leases, EPOCH/REVISION, from which
coordd lease watch tells all that comes after.

--limit 0 shows all; over HTTP limit is that of one page, and 0 means 100.

With -o json the fields are at (that place), leases (each with the fields of coordd
status NAME but waiters and last), next (where --limit has cut the list: what to go
on --after).`,
		Example: `  coordd lease list
  coordd lease list billing/ --limit 10 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef("invalid --limit %d: want 1 or more, or 0 for all", limit)
			}
			if err := leases.ValidatePart("after", after); err != nil {
				return err
			}
			backend, err := conn.dial()
			if err != nil {
				return err
			}
			defer backend.Close()
			c := client.New(backend)
			defer c.Close(cmd.Context())
			page, err := list(cmd.Context(), c, conn.timeout, prefixOf(args), after, limit)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), viewPage(page))
		},
		ValidArgsFunction: completeLease,
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most so many; 0: all")
	cmd.Flags().StringVar(&after, "after", "", "show those whose names come after this `name`")
	conn.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

// prefixOf is the one argument; without it all names are meant.
func prefixOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// list reads page after page, up to limit leases that come after after; 0: all.
// At is the first page's. The timeout is that of each page.
func list(ctx context.Context, c *client.Client, timeout time.Duration, prefix, after string, limit int) (all leases.Page, err error) {
	ctx, search, end := untilFound(ctx, timeout)
	defer end()
	for page, err := range c.Pages(ctx, prefix) {
		if err != nil {
			return all, err
		}
		search.Reset(timeout)
		if all.At == (leases.Position{}) {
			all.At = page.At
		}
		for _, s := range page.Leases {
			if s.Name <= after {
				continue
			}
			if n := len(all.Leases); limit > 0 && n == limit {
				all.Next = all.Leases[n-1].Name
				return all, nil
			}
			all.Leases = append(all.Leases, s)
		}
	}
	return all, nil
}

// pageView is what lease list prints.
type pageView struct {
	At     string       `json:"at"`
	Leases []listedView `json:"leases"`
	Next   string       `json:"next,omitempty"`
}

// listedView is a lease of which the waiters and the lease before are not told.
type listedView struct {
	leaseView
	Waiters *uint32  `json:"waiters,omitempty"`
	Last    *endView `json:"last,omitempty"`
}

func viewPage(p leases.Page) pageView {
	view := pageView{At: p.At.String(), Leases: []listedView{}, Next: p.Next}
	for _, s := range p.Leases {
		view.Leases = append(view.Leases, listedView{leaseView: viewState(s)})
	}
	return view
}

func (v pageView) writeText(w io.Writer) {
	if len(v.Leases) == 0 {
		fmt.Fprintln(w, "no such lease is held")
	} else {
		writeTable(w, "LEASE\tTOKEN\tHELD BY\tENDS IN AT MOST", len(v.Leases), func(i int) []string {
			l := v.Leases[i]
			return []string{l.Name, l.Token.String(), l.Owner.String(), l.ends()}
		})
	}
	fmt.Fprintln(w)
	if v.Next != "" {
		fmt.Fprintf(w, "There are more: --after %s\n", quoted(v.Next))
	}
	fmt.Fprintf(w, "As of %s: coordd lease watch --from %[1]s tells what follows\n", v.At)
}

// writeTable writes n rows under a head. Cells that are not for a terminal are quoted.
func writeTable(w io.Writer, head string, n int, row func(i int) []string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, head)
	for i := range n {
		cells := row(i)
		for j := range cells {
			cells[j] = printable(cells[j])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
}

func newLeaseQueue() *cobra.Command {
	var (
		conn connection
		out  output
	)
	cmd := &cobra.Command{
		Use:   "queue NAME",
		Short: "Show who waits for a lease",
		Long: `Shows who waits for the lease NAME, the next in turn first. The attempt is what
coordd lease transfer passes a lease on to. "waiting" is the time in the queue of
the present leader, which begins anew when another one leads.

With -o json the fields are name, waiters [{position, attempt, owner {label, site,
host, pid}, waiting_ms}].`,
		Example: `  coordd lease queue nightly
  coordd lease queue nightly -o json | jq -r '.waiters[0].attempt'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var waiters []leases.Waiter
			err := conn.consult(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
				waiters, err = c.Queue(ctx, args[0])
				return err
			})
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), viewQueue(args[0], waiters))
		},
		ValidArgsFunction: completeLease,
	}
	conn.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

// queueView is what lease queue prints.
type queueView struct {
	Name    string       `json:"name"`
	Waiters []waiterView `json:"waiters"`
}

type waiterView struct {
	Position  int          `json:"position"`
	Attempt   leases.ID    `json:"attempt"`
	Owner     leases.Owner `json:"owner"`
	WaitingMS int64        `json:"waiting_ms"`
}

func viewQueue(name string, waiters []leases.Waiter) queueView {
	view := queueView{Name: name, Waiters: []waiterView{}}
	for _, w := range waiters {
		view.Waiters = append(view.Waiters, waiterView{w.Position, w.Attempt, w.Owner, w.Waiting.Milliseconds()})
	}
	return view
}

func (v queueView) writeText(w io.Writer) {
	if len(v.Waiters) == 0 {
		fmt.Fprintf(w, "nobody waits for lease %q\n", v.Name)
		return
	}
	writeTable(w, "PLACE\tWAITER\tWAITING\tATTEMPT", len(v.Waiters), func(i int) []string {
		x := v.Waiters[i]
		return []string{strconv.Itoa(x.Position), x.Owner.String(), (time.Duration(x.WaitingMS) * time.Millisecond).String(), x.Attempt.String()}
	})
}
