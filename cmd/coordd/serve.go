package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/version"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// stopTimeout bounds the orderly end of a node, so that a whole process is gone
// within 10 s of a SIGTERM.
const stopTimeout = 8 * time.Second

func newServe() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one member of a cluster",
		Long: `Runs one member, with its log in the folder that --data names.

To found a cluster, start all members with --bootstrap and with all addresses in
--join; the same flags but --name, --data and --listen on each are fine. Exactly
one of them founds, the others join it. A member that comes back with its data
needs no --bootstrap; one that has lost its data joins anew. No two processes
may run under one name at the same time.

With --arbiter dynamodb the registers in one DynamoDB table decide who has
authority: a majority of the members, or, when it is lost, the registers themselves,
from which every member that is left then grants leases. The members find each
other, and the one that begins the cluster, by it: --bootstrap is refused, --data is
not needed, since a cluster survives the loss of all memory, and neither is --join,
with which a member that has no data waits for a cluster that has no arbiter yet, see
coordd arbiter adopt. coordd arbiter create-table makes the table, and coordd arbiter
check tells whether this machine may use it. --authority-lease, --shards, --shard-bytes
and --ttl-ceiling-floor are fixed at a cluster's birth.

A takeover begins when nobody has led for --authority-lease and a little; then
nothing is granted anew for the longest TTL that was granted, at least
--ttl-ceiling-floor, while holders keep what they have.

On SIGTERM or SIGINT a leader hands leadership over, and the process ends in
under 10 s; it stays a member. A second signal ends it at once. It ends with
code 70 where its disk stalls or it was removed from the cluster.

--config names a file in YAML, whose keys are the names of the other flags:
"election-timeout: 500ms", and for --join a list too. The command line comes first,
then the environment, then the file. A key that is not known is refused. --check
only says whether all of that is right. A file with every key and its default is in
the source: docs/examples/coordd.yaml.

Clients and members use the one TCP port of --listen. The next port, on loopback,
is for HTTP: the same calls as JSON, metrics and health; another address by --http,
beyond loopback only with --insecure, since it asks nobody who they are. The port
after that is reserved for gossip. Without TLS anybody who reaches the port
can take every lease: plaintext is refused beyond loopback unless --insecure is
given.`,
		Example: `  coordd serve --name n1 --data /var/lib/coordd --listen 10.0.0.1:7420 --bootstrap \
    --join 10.0.0.1:7420,10.0.0.2:7420,10.0.0.3:7420 \
    --cert node.pem --key node.key --ca ca.pem
  coordd serve --config /etc/coordd/coordd.yaml
  coordd serve --name n1 --listen 10.0.0.1:7420 --arbiter dynamodb --arbiter-region eu-central-1 \
    --cert node.pem --key node.key --ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.config(cmd.Context(), cmd.Flags(), cmd.ErrOrStderr())
			defer closeStore(config.Arbiter)
			if err != nil || o.check {
				return err
			}
			return serve(cmd.Context(), config)
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// serveOptions has the flags.
type serveOptions struct {
	node              node.Config // what its fields and the flags have in common
	file              string
	check             bool
	listen, advertise address
	http              httpFlag
	join              addresses
	arbiter           storeFlags
	tls               tlsFiles
	log               logFlags
}

func (o *serveOptions) register(fs *pflag.FlagSet) {
	c := &o.node
	o.listen = address(defaultAddr)
	fs.StringVar(&o.file, configFlag, "", "YAML `file` with the values of the other flags")
	fs.BoolVar(&o.check, "check", false, "do not run: only check the flags, the environment, the file and the certificates")
	fs.StringVar(&c.Name, "name", "", "the member's `name`, unlike all others (required)")
	fs.StringVar(&c.Site, "site", "", "where it runs, for people, such as aws or azure-west")
	fs.StringVar(&c.Data, "data", "", "`folder` for its log, made if it is missing (required, unless there is an arbiter)")
	fs.BoolVar(&c.InMemory, "memory", false, "keep the log in memory, which needs an arbiter (default: with one, and without --data)")
	fs.Var(&o.listen, "listen", "where it listens for clients and members")
	fs.Var(&o.advertise, "advertise", "the address that the others are told (default: where it listens)")
	fs.Var(&o.http, "http", "address for HTTP, or off (default: the port after --listen's, on loopback)")
	fs.BoolVar(&c.Reflection, "reflection", false, "let gRPC clients such as grpcurl ask which calls there are")
	fs.Var(&o.join, "join", "addresses of the members; its own may be among them")
	fs.BoolVar(&c.Bootstrap, "bootstrap", false, "found a cluster if there is none yet")
	fs.Uint32Var(&c.FirstEpoch, "first-epoch", 1, "epoch of a cluster founded anew, greater than any of an earlier one's")
	fs.DurationVar(&c.ElectionTimeout, "election-timeout", node.DefaultElectionTimeout, "how long without a leader until an election; the same on all members")
	o.arbiter.register(fs, defaultCluster, noArbiter, dynamoDBArbiter)
	a := &c.Authority
	fs.DurationVar(&a.Lease, "authority-lease", authority.DefaultLease, "how long a leader that reaches nobody may go on: most of what a takeover takes")
	fs.Uint32Var(&a.Shards.Count, "shards", leases.DefaultShards, "how many registers the leases are shared out among")
	fs.Uint32Var(&a.Shards.Bytes, "shard-bytes", leases.DefaultShardBytes, "how many bytes the leases of one register may take up")
	fs.DurationVar(&a.CeilingFloor, "ttl-ceiling-floor", authority.DefaultCeiling, "how long nothing is granted anew after a takeover, at least; longer where a longer TTL was granted")
	fs.DurationVar(&c.ReformAfter, "reform-after", node.DefaultReformAfter, "how long nobody leads, after a takeover, until the members that are left form another group")
	fs.StringVar(&c.AdminSocket, "admin-socket", "", "socket for operators, a `file` (default: "+node.AdminSocket+" in --data, or none)")
	o.tls.register(fs)
	fs.BoolVar(&c.Insecure, "insecure", false, "speak plaintext beyond loopback: anybody who reaches the port can take every lease")
	fs.IntVar(&c.MaxClaims, "max-claims", node.DefaultMaxClaims, "how many claims are dealt with at a time")
	fs.IntVar(&c.MaxWaiters, "max-waiters", node.DefaultMaxWaiters, "how many claims wait for names that are held")
	fs.IntVar(&c.MaxWaitersPerName, "max-waiters-per-name", node.DefaultMaxWaitersPerName, "how many claims wait for one name")
	o.log.register(fs)
}

// config is what the flags, and the file if there is one, come to. It is valid,
// and logs to stderr. Its arbiter, if it has one, is to be closed.
func (o *serveOptions) config(ctx context.Context, fs *pflag.FlagSet, stderr io.Writer) (c node.Config, err error) {
	if o.file != "" {
		if err := applyConfig(fs, o.file); err != nil {
			return c, err
		}
	}
	c = o.node
	if err := nonZero(c); err != nil {
		return c, err
	}
	if c.TLS, err = o.tls.load(); err != nil {
		return c, err
	}
	c.Listen, c.Advertise, c.Join = string(o.listen), string(o.advertise), o.join
	c.HTTP = o.http.address(c.Listen)
	withMetrics(&c)
	c.Log = o.log.logger(stderr)
	if err := o.arbitrate(ctx, fs, &c); err != nil {
		return c, err
	}
	err = validate(&c)
	return c, err
}

// arbitrate gives c its arbiter, and looks at the flags that go, or do not go, with one.
func (o *serveOptions) arbitrate(ctx context.Context, fs *pflag.FlagSet, c *node.Config) (err error) {
	if strays := o.arbiter.strays(fs); len(strays) > 0 {
		return usagef("%s without --arbiter: say --arbiter %s, or --arbiter %s", strings.Join(strays, ", "), dynamoDBArbiter, noArbiter)
	}
	arbiter := o.arbiter.given()
	switch {
	case c.InMemory && !arbiter:
		return usagef("--memory needs --arbiter %s: without one a member that forgets its log must never come back under its name; give --data", dynamoDBArbiter)
	case c.InMemory && c.Data != "":
		return usagef("--memory and --data exclude each other")
	case arbiter && c.Bootstrap:
		return usagef("--bootstrap and --arbiter exclude each other: by the arbiter's root register the members find out who begins the cluster")
	case arbiter && c.FirstEpoch != 1:
		return usagef("--first-epoch and --arbiter exclude each other: a cluster that an arbiter brings forth begins with epoch 1; one with greater tokens gets it by coordd arbiter adopt")
	case !arbiter:
		return nil
	}
	c.InMemory = c.Data == ""
	c.ArbiterName = o.arbiter.name
	c.Arbiter, err = o.arbiter.open(ctx, c.Log)
	return err
}

// serve runs a node until a signal or its own fatal end.
func serve(ctx context.Context, config node.Config) error {
	if config.TLS == nil && config.Insecure {
		config.Log.Warn("INSECURE: no TLS, by --insecure: anybody who reaches this port can take every lease; use --cert, --key and --ca",
			"listen", config.Listen)
	}
	if host, _, err := splitAddress(config.HTTP); err == nil && !onLoopback(host) {
		config.Log.Warn("INSECURE: HTTP beyond loopback, by --insecure: anybody who reaches this port can take every lease", "http", config.HTTP)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := node.New(config)
	if err != nil {
		return err
	}
	config.Log.Info("coordd "+version.String(), "node", config.Name, "listen", config.Listen, "http", cmp.Or(config.HTTP, httpOff), "data", cmp.Or(config.Data, "in memory"))
	if err := n.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a signal came first
		}
		return startError(err, "--listen or --http")
	}
	select {
	case <-n.Done():
	case <-ctx.Done():
	}
	stop() // from here on a signal does what it does by default
	if err = n.Err(); err == nil {
		config.Log.Info("stopping; a second signal ends this process at once", "why", context.Cause(ctx))
	}
	closing, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopTimeout, fmt.Errorf("not done after %v", stopTimeout))
	defer cancel()
	if closed := n.Close(closing); err == nil && closed != nil {
		err = fmt.Errorf("not stopped in order: %w", closed)
	}
	if err != nil {
		return &exit{code: exitInternal, err: err}
	}
	config.Log.Info("stopped", "node", config.Name)
	return nil
}

// validate is the config's own check, in words of the command line.
func validate(config *node.Config) error {
	var problems []string
	for _, problem := range allOf(config.Validate()) {
		problems = append(problems, inFlags(problem))
	}
	if len(problems) > 0 {
		return usagef("%s", strings.Join(problems, "; "))
	}
	return nil
}

// nonZero refuses the zeros that a Config takes for its defaults.
func nonZero(config node.Config) error {
	for _, f := range []struct {
		flag  string
		zero  bool
		least any
	}{
		{"first-epoch", config.FirstEpoch == 0, 1},
		{"election-timeout", config.ElectionTimeout == 0, node.MinElectionTimeout},
		{"authority-lease", config.Authority.Lease == 0, authority.MinLease},
		{"shards", config.Authority.Shards.Count == 0, 1},
		{"shard-bytes", config.Authority.Shards.Bytes == 0, leases.MinShardBytes},
		{"ttl-ceiling-floor", config.Authority.CeilingFloor == 0, leases.MinTTL},
		{"reform-after", config.ReformAfter == 0, time.Second},
		{"max-claims", config.MaxClaims == 0, 1},
		{"max-waiters", config.MaxWaiters == 0, 1},
		{"max-waiters-per-name", config.MaxWaitersPerName == 0, 1},
	} {
		if f.zero {
			return usagef("invalid --%s 0: want at least %v", f.flag, f.least)
		}
	}
	return nil
}

// inFlags says what is wrong with a field of a config in terms of its flag.
func inFlags(problem error) string {
	invalid, ok := errors.AsType[*leases.InvalidError](problem)
	if !ok {
		return problem.Error()
	}
	switch invalid.Field {
	case "listen address":
		return fmt.Sprintf("--listen %s can be reached from other machines, and without TLS anybody who reaches it can take every lease: "+
			"give --cert, --key and --ca, or say --insecure", invalid.Value)
	case "http":
		return fmt.Sprintf("--http %s can be reached from other machines, and it asks nobody who they are: anybody who reaches it can take every lease: "+
			"give an address of loopback, or say --insecure", invalid.Value)
	case "advertised address":
		return fmt.Sprintf("--advertise (or %s) is missing: want %s", envName("advertise"), invalid.Bounds)
	case "data":
		return fmt.Sprintf("--data (or %s) is missing: want a folder, which is made where it is not there", envName("data"))
	case "join":
		if invalid.Value == "no addresses" {
			return fmt.Sprintf("--join (or %s) is missing: want the addresses of other members, or --bootstrap for a cluster that begins with this one", envName("join"))
		}
	}
	flag := strings.ReplaceAll(invalid.Field, " ", "-")
	if invalid.Value == "" {
		return fmt.Sprintf("--%s (or %s) is missing: want %s", flag, envName(flag), invalid.Bounds)
	}
	return fmt.Sprintf("invalid --%s %q: want %s", flag, invalid.Value, invalid.Bounds)
}

// allOf is every error that errors.Join made one of.
func allOf(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// logFlags say what is logged, and how.
type logFlags struct{ format, level choice }

func (l *logFlags) register(fs *pflag.FlagSet) {
	l.format = newChoice("text", "json")
	l.level = choice{value: "info", among: []string{"debug", "info", "warn", "error"}}
	fs.Var(&l.format, "log-format", "in which form to log to stderr")
	fs.Var(&l.level, "log-level", "what to log at least")
}

func (l *logFlags) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	// The flag takes no word that a level does not read.
	_ = level.UnmarshalText([]byte(l.level.value))
	options := &slog.HandlerOptions{Level: level}
	if l.format.value == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
