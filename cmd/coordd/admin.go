package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/transport"
	adminv1 "github.com/coordd/coordd/transport/api/coordd/admin/v1"
)

// operation has the flags of the commands that speak to a node over the socket
// in its data folder.
type operation struct {
	data, socket string
	timeout      time.Duration
	patient      bool // waits for a leader that does not serve yet, too
}

// operationTimeout is how long most operations may take.
const operationTimeout = 15 * time.Second

func (o *operation) register(fs *pflag.FlagSet, timeout time.Duration) {
	fs.StringVar(&o.data, "data", "", "data `folder` of a node on this machine; any member's will do")
	fs.StringVar(&o.socket, "socket", "", "that node's socket, a `file`, instead of --data (default: "+node.AdminSocket+" in the folder of --data)")
	fs.DurationVar(&o.timeout, "timeout", timeout, "how long to wait for it to be done")
}

// run makes one call to the node, again while there is no leader to carry it out.
func (o *operation) run(ctx context.Context, call func(context.Context, adminv1.AdminClient) error) error {
	if o.timeout <= 0 {
		return usagef("invalid --timeout %v: want more than 0s", o.timeout)
	}
	path := o.socket
	if path == "" {
		if o.data == "" {
			return usagef("--data (or %s) is missing: want the data folder of a node on this machine, or its socket by --socket", envName("data"))
		}
		path = filepath.Join(o.data, node.AdminSocket)
	}
	conn, err := transport.NewClientConn("coordd", nil, socket(path))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := call(ctx, adminv1.NewAdminClient(conn))
		late := ctx.Err() != nil
		switch {
		case late && errors.Is(err, leases.ErrUnknownOutcome):
			return &exit{exitUnavailable, fmt.Errorf("%w: no answer within %v (--timeout)", leases.ErrUnknownOutcome, o.timeout)}
		case errors.Is(err, leases.ErrNoQuorum) || errors.Is(err, leases.ErrNotLeader) || errors.Is(err, leases.ErrUnavailable) && (o.patient || late):
			if !sleep(ctx, pause) {
				return &exit{exitUnavailable, fmt.Errorf("%w (tried for %v, --timeout)", err, o.timeout)}
			}
		default:
			return err
		}
	}
}

// socket is the network of one node: the path of its Unix socket.
type socket string

var _ transport.Network = socket("")

// Listen implements transport.Network.
func (s socket) Listen(ctx context.Context, _ string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "unix", string(s))
}

// Dial implements transport.Network. Its errors say what to look for.
func (s socket) Dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", string(s))
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no socket %s: is a node running with that data folder?", string(s))
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("nobody listens on %s: the node with that data folder has ended", string(s))
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("no permission for %s: run this as the user that the node runs as, or as root", string(s))
	default:
		return nil, fmt.Errorf("socket %s: %w", string(s), err)
	}
}

func newRemove() *cobra.Command {
	var (
		op    operation
		out   output
		force bool
	)
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a member out of the cluster for good",
		Long: `Takes the member NAME out of the cluster, so that it counts no more for the
majority. It is for a member that will not come back: one that is only down stays
a member, and one that has lost its data takes its own place again by itself.

Stop the member first. One that the leader still hears is refused without --force;
removed by force it ends by itself, with code 70. It can join again, under the
same name too, with an empty data folder. A member without which the others would
have no majority is refused always, and so is the leader: transfer the leadership
first.

It speaks to a node on this machine over the socket in its data folder, which only
that node's user and root may open. The node passes the call on to the leader.

With -o json the fields are removed, server_id.`,
		Example: `  coordd remove n3 --data /var/lib/coordd
  sudo -u coordd coordd remove n3 --data /var/lib/coordd --force`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			view := removedView{Removed: args[0]}
			err := op.run(cmd.Context(), func(ctx context.Context, c adminv1.AdminClient) error {
				resp, err := c.Remove(ctx, &adminv1.RemoveRequest{Name: view.Removed, Force: force})
				view.ServerID = resp.GetServerId()
				return err
			})
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove it although it is alive")
	op.register(cmd.Flags(), operationTimeout)
	out.register(cmd)
	return cmd
}

type removedView struct {
	Removed  string `json:"removed"`
	ServerID string `json:"server_id"`
}

func (v removedView) writeText(w io.Writer) {
	fmt.Fprintf(w, "%s is no member any more (server id %s)\n", v.Removed, v.ServerID)
}

func newTransferLeadership() *cobra.Command {
	var (
		op  operation
		out output
	)
	cmd := &cobra.Command{
		Use:   "transfer-leadership [NAME]",
		Short: "Make another member the leader",
		Long: `Makes the voter NAME the leader; without NAME the one that is most up to date.
Leases go on, and so do clients: they find the new leader by themselves. No lease
is granted until it serves, mostly well under a second. It is done when the new
leader is known.

A leader that is asked to stop by SIGTERM hands leadership over by itself.

It speaks to a node on this machine over the socket in its data folder, which only
that node's user and root may open. The node passes the call on to the leader.

With -o json the field is leader.`,
		Example: `  coordd transfer-leadership --data /var/lib/coordd
  coordd transfer-leadership n2 --data /var/lib/coordd`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &adminv1.TransferLeadershipRequest{}
			if len(args) == 1 {
				req.To = args[0]
			}
			var view leaderView
			err := op.run(cmd.Context(), func(ctx context.Context, c adminv1.AdminClient) error {
				resp, err := c.TransferLeadership(ctx, req)
				view.Leader = resp.GetLeader()
				return err
			})
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
	}
	op.register(cmd.Flags(), operationTimeout)
	out.register(cmd)
	return cmd
}

type leaderView struct {
	Leader string `json:"leader"`
}

func (v leaderView) writeText(w io.Writer) { fmt.Fprintf(w, "%s leads\n", v.Leader) }
