package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// The shape of the cluster of coordd dev. The port after each node's is for HTTP,
// the one after that is reserved for gossip.
const (
	devNodes           = 3
	devPortStep        = 10
	devElectionTimeout = 300 * time.Millisecond
	devStartTimeout    = 15 * time.Second
	devStopTimeout     = 5 * time.Second
)

func newDev() *cobra.Command {
	var (
		listen  = address(defaultAddr)
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, to play with",
		Long: `Runs three members in one process, which speak to each other and to clients over
real sockets on loopback: 127.0.0.1:7420, 7430 and 7440, or from the port of
--listen on. The port after each is for HTTP (docs/http.md), the one after that is
reserved for gossip.

Everything is in memory and gone at the end (Ctrl-C). Leader elections take 0.3 s.`,
		Example: `  coordd dev
  coordd dev --listen 127.0.0.1:9420 -v`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addrs, err := devAddresses(string(listen))
			if err != nil {
				return err
			}
			level := new(slog.LevelVar) // at first Info
			var handler slog.Handler = slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level})
			ending := func() {}
			if !verbose {
				level.Set(slog.LevelWarn)
				handler = withoutRaft{handler}
				// Those that are left have nobody to hand leadership to.
				ending = func() { level.Set(slog.LevelError) }
			}
			return dev(cmd.Context(), addrs, slog.New(handler), ending, cmd.OutOrStdout())
		},
	}
	cmd.Flags().Var(&listen, "listen", "address of the first member; the others listen 10 and 20 ports above")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log what the members do, not only what goes wrong")
	return cmd
}

// devAddresses are the addresses of the members, the first of which is given.
func devAddresses(first string) ([]string, error) {
	host, portText, err := net.SplitHostPort(first)
	if err != nil {
		return nil, usagef("invalid --listen %q: %w", first, err)
	}
	if !onLoopback(host) {
		return nil, usagef("invalid --listen %q: want a loopback address: this cluster is for this machine alone, see coordd serve", first)
	}
	port, err := strconv.Atoi(portText)
	const most = 1<<16 - 1 - devNodes*devPortStep
	if err != nil || port < 1 || port > most {
		return nil, usagef("invalid --listen %q: want a port from 1 to %d, since the members listen on three, %d apart", first, most, devPortStep)
	}
	var addrs []string
	for i := range devNodes {
		addrs = append(addrs, net.JoinHostPort(host, strconv.Itoa(port+i*devPortStep)))
	}
	return addrs, nil
}

// dev runs a member at each address until a signal or the fatal end of one. It
// calls ending before it closes them.
func dev(ctx context.Context, addrs []string, log *slog.Logger, ending func(), stdout io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now() // for people only
	var nodes []*node.Node
	defer func() {
		stop() // a second signal ends the process at once
		ending()
		err = errors.Join(err, closeAll(nodes))
	}()
	for i := range addrs {
		config := devConfig(i, addrs, log)
		if err := validate(&config); err != nil {
			return err
		}
		n, err := node.New(config)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
		if err := n.Start(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // a signal came first
			}
			return startError(err, "--listen")
		}
	}
	leader, err := devReady(ctx, addrs)
	if ctx.Err() != nil {
		return nil // the signal came before the cluster was there
	}
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, devGreeting(os.Args[0], addrs, leader, time.Since(began)))
	return watch(ctx, nodes)
}

// devConfig is the config of member i.
func devConfig(i int, addrs []string, log *slog.Logger) node.Config {
	config := node.Config{
		Name:            fmt.Sprintf("n%d", i+1),
		Site:            "dev",
		InMemory:        true,
		Listen:          addrs[i],
		HTTP:            besides(addrs[i]),
		Join:            addrs,
		Bootstrap:       true,
		ElectionTimeout: devElectionTimeout,
		Log:             log,
	}
	withMetrics(&config)
	return config
}

// watch waits until ctx ends, which is as it should be, or a node does.
func watch(ctx context.Context, nodes []*node.Node) error {
	ended := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() {
			select {
			case <-ctx.Done():
			case <-n.Done():
				ended <- n.Err()
			}
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return &exit{code: exitInternal, err: err}
	}
}

// closeAll closes one node after the other, so that each that leads finds
// another to hand leadership to.
func closeAll(nodes []*node.Node) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), devStopTimeout, fmt.Errorf("not done after %v", devStopTimeout))
	defer cancel()
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.Close(ctx))
	}
	return errors.Join(errs...)
}

// devReady waits until leases are granted and returns who grants them.
func devReady(ctx context.Context, addrs []string) (leader string, err error) {
	c := connection{addrs: addrs, timeout: devStartTimeout}
	answer, err := c.status(ctx, func(r *coorddv1.StatusResponse) bool { return r.GetCluster().GetServing() })
	if err == nil && !answer.GetCluster().GetServing() {
		err = fmt.Errorf("the members chose no leader within %v; -v shows what they do", devStartTimeout)
	}
	if err != nil {
		return "", &exit{code: exitInternal, err: err}
	}
	return answer.GetCluster().GetLeader(), nil
}

// devGreeting tells what there is and what to type next. self is how coordd
// was called.
func devGreeting(self string, addrs []string, leader string, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Three members on %s; %s leads, ready after %.1f s.\n", strings.Join(addrs, ", "), leader, took.Seconds())
	fmt.Fprintf(&b, "Everything is in memory and gone when this process ends (Ctrl-C).\n\n")
	fmt.Fprintf(&b, "Type this in two other terminals; the second waits until the first is done:\n\n")
	if addrs[0] != defaultAddr {
		fmt.Fprintf(&b, "  export COORDD_ADDR=%s\n", strings.Join(addrs, ","))
	}
	fmt.Fprintf(&b, "  %s run nightly --wait forever -- sh -c 'echo \"my token is $COORDD_FENCING_TOKEN\"; sleep 10'\n\n", self)
	fmt.Fprintf(&b, "And look at it meanwhile:\n\n")
	fmt.Fprintf(&b, "  %s status\n", self)
	fmt.Fprintf(&b, "  %s status nightly\n", self)
	fmt.Fprintf(&b, "  curl '%s/v1/lease?name=nightly'\n", besides(addrs[0]))
	return b.String()
}

// startError says why a node did not start, in words of the command line. flags
// are those that say where it listens.
func startError(err error, flags string) error {
	if errors.Is(err, leases.ErrInvalid) {
		return usagef("%s", inFlags(err))
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "listen" {
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			err = fmt.Errorf("%v is in use by another process: end that one, or choose another address by %s", op.Addr, flags)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			err = fmt.Errorf("%v is no address of this machine: give one that is by %s, and the one that others reach by --advertise", op.Addr, flags)
		}
	}
	return &exit{code: exitInternal, err: err}
}

// withoutRaft leaves out what the Raft library itself logs: it warns of each
// election and of each connection that ends, which here is the order of things.
type withoutRaft struct{ slog.Handler }

func (h withoutRaft) Handle(ctx context.Context, r slog.Record) error {
	raft := false
	r.Attrs(func(a slog.Attr) bool {
		raft = a.Key == "component" && a.Value.String() == "raft"
		return !raft
	})
	if raft {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h withoutRaft) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withoutRaft{h.Handler.WithAttrs(attrs)}
}

func (h withoutRaft) WithGroup(name string) slog.Handler {
	return withoutRaft{h.Handler.WithGroup(name)}
}
