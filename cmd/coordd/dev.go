package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// The shape of the cluster of coordd dev. The port after each node's is for HTTP,
// the one after that is reserved for gossip. Its times are short, so that what they
// bound can be seen.
const (
	devNodes           = 3
	devPortStep        = 10
	devElectionTimeout = 300 * time.Millisecond
	devAuthorityLease  = 2 * time.Second
	devCeilingFloor    = 5 * time.Second
	devReformAfter     = 5 * time.Second
	devStartTimeout    = 15 * time.Second
	devStopTimeout     = 5 * time.Second
	devPrefix          = "dev-" // of its name in a store
)

func newDev() *cobra.Command {
	var (
		listen  = address(defaultAddr)
		store   storeFlags
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, to play with",
		Long: `Runs three members in one process, which speak to each other and to clients over
real sockets on loopback: 127.0.0.1:7420, 7430 and 7440, or from the port of
--listen on. The port after each is for HTTP (docs/http.md), the one after that is
reserved for gossip.

Everything is in memory and gone at the end (Ctrl-C). Leader elections take 0.3 s.

The cluster has an arbiter, in memory too, so that a hand-over to it and back can be
tried: the commands are printed. --arbiter dynamodb keeps its registers in a DynamoDB
table, or in an emulator of it (--arbiter-endpoint), made by coordd arbiter create-table;
the cluster gets a name of its own there, unless --arbiter-name gives it one: started
again with that name, soon, it goes on, and holders reclaim their leases. The
authority lease is 2 s, nothing is granted anew for at least 5 s after a takeover,
and a new group forms when nobody has led for 5 s. --arbiter none does without.`,
		Example: `  coordd dev
  coordd dev --listen 127.0.0.1:9420 -v
  coordd dev --arbiter dynamodb --arbiter-endpoint http://127.0.0.1:8000 --arbiter-region local`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addrs, err := devAddresses(string(listen))
			if err != nil {
				return err
			}
			if store.name == "" {
				store.name = devPrefix + strings.ToLower(rand.Text()[:8])
			}
			if !strings.HasPrefix(store.name, devPrefix) {
				return usagef("invalid --arbiter-name %q: want one that begins with %s, so that this cluster takes no part in one that matters", store.name, devPrefix)
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
			log := slog.New(handler)
			registers, err := store.open(cmd.Context(), log)
			if err != nil {
				return err
			}
			defer closeStore(registers)
			sockets, err := os.MkdirTemp("", "coordd-dev-") // of mode 0700
			if err != nil {
				return fmt.Errorf("folder for the members' sockets: %w", err)
			}
			defer os.RemoveAll(sockets)
			members := devMembers(addrs, sockets, registers, store.name, log)
			greet := func(who string, took time.Duration) {
				fmt.Fprint(cmd.OutOrStdout(), devGreeting(os.Args[0], members, store.look(), who, took))
			}
			return dev(cmd.Context(), members, greet, ending)
		},
	}
	cmd.Flags().Var(&listen, "listen", "address of the first member; the others listen 10 and 20 ports above")
	store.register(cmd.Flags(), "", memoryArbiter, noArbiter, dynamoDBArbiter)
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

// dev runs the members until a signal or the fatal end of one. It calls greet when they
// are ready, and ending before it closes them.
func dev(ctx context.Context, members []node.Config, greet func(who string, took time.Duration), ending func()) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now() // for people only
	var nodes []*node.Node
	defer func() {
		stop() // a second signal ends the process at once
		ending()
		err = errors.Join(err, closeAll(nodes))
	}()
	for _, config := range members {
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
	who, err := devReady(ctx, members)
	if ctx.Err() != nil {
		return nil // the signal came before the cluster was there
	}
	if err != nil {
		return err
	}
	greet(who, time.Since(began))
	return watch(ctx, nodes)
}

// devMembers are the configs of the members at addrs. Their sockets are in a folder of
// that name; store is nil where they have no arbiter.
func devMembers(addrs []string, sockets string, store arbiter.Store, cluster string, log *slog.Logger) (members []node.Config) {
	for i, addr := range addrs {
		name := fmt.Sprintf("n%d", i+1)
		config := node.Config{
			Name:            name,
			Site:            "dev",
			InMemory:        true,
			Listen:          addr,
			HTTP:            besides(addr),
			ElectionTimeout: devElectionTimeout,
			Arbiter:         store,
			ArbiterName:     cluster,
			Authority:       node.Authority{Lease: devAuthorityLease, CeilingFloor: devCeilingFloor},
			ReformAfter:     devReformAfter,
			AdminSocket:     filepath.Join(sockets, name+".sock"),
			Log:             log,
		}
		if store == nil { // otherwise they find each other by it
			config.Join, config.Bootstrap = addrs, true
		}
		withMetrics(&config)
		members = append(members, config)
	}
	return members
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

// listening is where the members listen.
func listening(members []node.Config) (addrs []string) {
	for _, m := range members {
		addrs = append(addrs, m.Listen)
	}
	return addrs
}

// devReady waits until leases are granted, or the arbiter has taken over from a former
// cluster of that name, and says who serves.
func devReady(ctx context.Context, members []node.Config) (who string, err error) {
	c := connection{addrs: listening(members), timeout: devStartTimeout}
	fallback := func(c *coorddv1.ClusterStatus) bool { return c.GetAuthority().GetMode() == string(authority.Fallback) }
	ready := func(r *coorddv1.StatusResponse) bool { return r.GetCluster().GetServing() || fallback(r.GetCluster()) }
	answer, err := c.status(ctx, ready)
	if err == nil && !ready(answer) {
		err = fmt.Errorf("the members chose no leader within %v; -v shows what they do", devStartTimeout)
	}
	switch {
	case err != nil:
		return "", &exit{code: exitInternal, err: err}
	case fallback(answer.GetCluster()):
		return "the arbiter has taken over from an earlier run", nil
	}
	return answer.GetCluster().GetLeader() + " leads", nil
}

// devGreeting tells what there is and what to type next. self is how coordd was
// called; look is the command that shows the registers, where another process can.
func devGreeting(self string, members []node.Config, look, who string, took time.Duration) string {
	var b strings.Builder
	addrs := listening(members)
	fmt.Fprintf(&b, "Three members on %s; %s, ready after %.1f s.\n", strings.Join(addrs, ", "), who, took.Seconds())
	if look == "" {
		fmt.Fprintf(&b, "Everything is in memory and gone when this process ends (Ctrl-C).\n\n")
	} else {
		fmt.Fprintf(&b, "They keep everything in memory; the arbiter's registers outlive this process (Ctrl-C).\n\n")
	}
	fmt.Fprintf(&b, "Type this in two other terminals; the second waits until the first is done:\n\n")
	if addrs[0] != defaultAddr {
		fmt.Fprintf(&b, "  export COORDD_ADDR=%s\n", strings.Join(addrs, ","))
	}
	fmt.Fprintf(&b, "  %s run nightly --wait forever -- sh -c 'echo \"my token is $COORDD_FENCING_TOKEN\"; sleep 10'\n\n", self)
	fmt.Fprintf(&b, "And look at it meanwhile:\n\n")
	fmt.Fprintf(&b, "  %s status\n", self)
	fmt.Fprintf(&b, "  %s status nightly\n", self)
	fmt.Fprintf(&b, "  curl '%s/v1/lease?name=nightly'\n", besides(addrs[0]))
	if members[0].Arbiter == nil {
		return b.String()
	}
	fmt.Fprintf(&b, "\nHand the leases over to the arbiter, and back; whoever holds one keeps it:\n\n")
	for _, to := range []string{toFallback, toRaft} {
		fmt.Fprintf(&b, "  %s failover --to %s --socket %s\n", self, to, members[0].AdminSocket)
	}
	fmt.Fprintf(&b, "  %s authority history\n", self)
	if look != "" {
		fmt.Fprintf(&b, "  %s %s\n", self, look)
	}
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
