package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/leases"
)

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		env  [2]string
		args string
		want []string
	}{
		{name: "unknown command", args: "stats", want: []string{`unknown command "stats"`, "did you mean status?", "coordd --help"}},
		{name: "unknown flag", args: "status --adr x", want: []string{"unknown flag: --adr", "did you mean --addr?", "coordd status --help"}},
		{name: "unknown flag unlike any", args: "status --zzzzzzzz", want: []string{"unknown flag: --zzzzzzzz ("}},
		{name: "unknown short flag", args: "status -z", want: []string{"unknown shorthand flag: 'z'"}},
		{name: "bad duration", args: "status --timeout soon", want: []string{`invalid --timeout "soon": want a duration such as 500ms, 15s or 2m (see`}},
		{name: "duration without a unit", args: "run --ttl 5 job true", want: []string{`invalid --ttl "5": want a duration such as`}},
		{name: "no number", args: "run --held-exit x job true", want: []string{`invalid --held-exit "x": want a whole number`}},
		{name: "no number that fits", args: "serve --max-waiters 99999999999999999999", want: []string{"want a number that is not so large"}},
		{name: "no positive number", args: "serve --first-epoch -1", want: []string{"want a whole number that is not negative"}},
		{name: "no truth value", env: [2]string{"COORDD_QUIET", "maybe"}, args: "run job true", want: []string{`COORDD_QUIET="maybe": want true or false`}},
		{name: "zero duration", args: "status --timeout 0s", want: []string{"--timeout"}},
		{name: "bad address", args: "status --addr 127.0.0.1", want: []string{"--addr", "host:port", "a port from 1 to 65535"}},
		{name: "bad address among others", args: "status --addr a:1,b:0", want: []string{`invalid --addr "a:1,b:0": "b:0": want host:port`}},
		{name: "bad output", args: "status -o xml", want: []string{"text or json"}},
		{name: "too many arguments", args: "status a b", want: []string{`wrong arguments ["a" "b"]: want coordd status [NAME]`}},
		{name: "too few arguments", args: "remove", want: []string{"an argument is missing: want coordd remove NAME"}},
		{name: "help about nothing", args: "help stats", want: []string{`unknown command "stats"`, "did you mean status?"}},
		{name: "arguments where none belong", args: "version now", want: []string{`wrong arguments ["now"]: want coordd version`}},
		{name: "bad lease name", args: "status @eu", want: []string{`invalid name "@eu"`}},
		{name: "bad environment", env: [2]string{"COORDD_TIMEOUT", "soon"}, args: "status", want: []string{`COORDD_TIMEOUT="soon"`}},
		{name: "bad address in the environment", env: [2]string{"COORDD_ADDR", "nowhere"}, args: "status", want: []string{"COORDD_ADDR", "host:port"}},
		{name: "a bound, by the environment", env: [2]string{"COORDD_TTL", "1s"}, args: "run job true", want: []string{"invalid --ttl 1s: want from 3s", "(--ttl is from COORDD_TTL)"}},
		{name: "half of TLS by the environment", env: [2]string{"COORDD_CERT", "c.pem"}, args: "status", want: []string{"(--cert is from COORDD_CERT)"}},
		{name: "half of TLS", args: "status --cert c.pem", want: []string{"--cert, --key and --ca belong together"}},
		{name: "certificate missing", args: "status --cert /nowhere/c --key /nowhere/k --ca /nowhere/a", want: []string{"/nowhere/"}},
		{name: "serve without a name", args: "serve", want: []string{"--name (or COORDD_NAME)", "--data (or COORDD_DATA)"}},
		{name: "serve with a zero", args: "serve --name n1 --data d --first-epoch 0", want: []string{"--first-epoch 0: want at least 1"}},
		{name: "serve without an election timeout", args: "serve --name n1 --data d --election-timeout 0", want: []string{"want at least 100ms"}},
		{name: "serve everywhere", args: "serve --name n1 --data d --insecure --listen :7420", want: []string{"--advertise (or COORDD_ADVERTISE) is missing"}},
		{name: "serve in the open", args: "serve --name n1 --data d --listen 0.0.0.0:0", want: []string{"0.0.0.0:0", "--cert, --key and --ca", "--insecure"}},
		{name: "serve with a wrong log level", args: "serve --log-level loud", want: []string{"debug or info or warn or error"}},
		{name: "serve in memory alone", args: "serve --name n1 --memory", want: []string{"--memory needs --arbiter dynamodb", "give --data"}},
		{name: "serve in memory and on disk", args: "serve --name n1 --memory --data d --arbiter dynamodb", want: []string{"--memory and --data exclude each other"}},
		{name: "serve that founds by an arbiter", args: "serve --name n1 --bootstrap --arbiter dynamodb", want: []string{"--bootstrap and --arbiter exclude each other", "who begins the cluster"}},
		{name: "serve from a later epoch by an arbiter", args: "serve --name n1 --first-epoch 7 --arbiter dynamodb", want: []string{"--first-epoch and --arbiter exclude each other", "coordd arbiter adopt"}},
		{name: "serve with a table and no arbiter", args: "serve --name n1 --data d --arbiter-table leases --arbiter-region x", want: []string{"--arbiter-table, --arbiter-region without --arbiter: say --arbiter dynamodb, or --arbiter none"}},
		{name: "the same by the environment", env: [2]string{"COORDD_ARBITER_TABLE", "leases"}, args: "serve --name n1 --data d", want: []string{"(--arbiter-table is from COORDD_ARBITER_TABLE)"}},
		{name: "serve with an unknown arbiter", args: "serve --arbiter etcd", want: []string{`invalid --arbiter "etcd": want none or dynamodb`}},
		{name: "serve with an arbiter in memory", args: "serve --arbiter memory", want: []string{"want none or dynamodb"}},
		{name: "serve with a bad endpoint", args: "serve --name n1 --arbiter dynamodb --arbiter-region local --arbiter-endpoint nowhere", want: []string{"the arbiter's store cannot be used", `"nowhere"`}},
		{name: "serve with a bad cluster name", args: "serve --name n1 --arbiter dynamodb --arbiter-region local --arbiter-name a/b", want: []string{`invalid --arbiter-name "a/b": want 1 to 63 letters`}},
		{name: "serve with a short authority lease", args: "serve --name n1 --data d --authority-lease 10ms", want: []string{`invalid --authority-lease "10ms": want 1s to 1m0s`}},
		{name: "serve without an authority lease", args: "serve --name n1 --data d --authority-lease 0s", want: []string{"invalid --authority-lease 0: want at least 1s"}},
		{name: "serve without shards", args: "serve --name n1 --data d --shards 0", want: []string{"invalid --shards 0: want at least 1"}},
		{name: "serve with too many shards", args: "serve --name n1 --data d --shards 4097", want: []string{`invalid --shards "4097": want 1 to 4096`}},
		{name: "serve with small shards", args: "serve --name n1 --data d --shard-bytes 10", want: []string{`invalid --shard-bytes "10": want 1024 to`}},
		{name: "serve with no ceiling of TTLs", args: "serve --name n1 --data d --ttl-ceiling-floor 10m", want: []string{`invalid --ttl-ceiling-floor "10m0s": want 1s to 5m0s`}},
		{name: "serve that reforms at once", args: "serve --name n1 --data d --reform-after 1ms", want: []string{`invalid --reform-after "1ms": want 1s to 1h`}},
		{name: "dev in a real cluster", args: "dev --arbiter dynamodb --arbiter-name billing", want: []string{`invalid --arbiter-name "billing": want one that begins with dev-`}},
		{name: "failover to nowhere", args: "failover --data d", want: []string{"--to (or COORDD_TO) is missing: want fallback", "or raft"}},
		{name: "failover elsewhere", args: "failover --to etcd --data d", want: []string{`invalid --to "etcd": want fallback or raft`}},
		{name: "takeover without force", args: "takeover --data d", want: []string{"--force is missing", "coordd arbiter show"}},
		{name: "adopt with too many shards", args: "arbiter adopt --data d --shards 5000", want: []string{"invalid --shards 5000: want 1 to 4096"}},
		{name: "adopt with small shards", args: "arbiter adopt --data d --shard-bytes 1", want: []string{"invalid --shard-bytes 1: want 1024 to"}},
		{name: "adopt with a long lease", args: "arbiter adopt --data d --authority-lease 1h", want: []string{"invalid --authority-lease 1h0m0s: want 1s to 1m0s"}},
		{name: "renew with a TTL out of bounds", args: "lease renew a --session 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f --token 1 --reclaim 1ms", want: []string{"1ms"}},
		{name: "dev too high", args: "dev --listen 127.0.0.1:65530", want: []string{"--listen"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.env[0] != "" {
				t.Setenv(c.env[0], c.env[1])
			}
			got := inProcess(t, strings.Fields(c.args)...)
			if got.code != exitUsage {
				t.Errorf("got code %d, want %d", got.code, exitUsage)
			}
			for _, want := range c.want {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("got %q, want it to say %q", got.stderr, want)
				}
			}
			if !strings.HasPrefix(got.stderr, "coordd: ") || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("got %q, want one line", got.stderr)
			}
			if got.stdout != "" {
				t.Errorf("got %q on stdout, want nothing", got.stdout)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything else"), exitInternal},
		{usagef("wrong"), exitUsage},
		{fmt.Errorf("run: %w", &exit{code: 3}), 3},
		{&exit{code: 3, err: leases.ErrHeld}, 3},
		{&leases.InvalidError{}, exitUsage},
		{&leases.HeldError{}, exitHeld},
		{errors.Join(&leases.HeldError{}, context.DeadlineExceeded), exitHeld},
		{leases.ErrLost, exitLost},
		{leases.ErrExpired, exitLost},
		{&leases.NotHeldError{}, exitLost},
		{leases.ErrNoQuorum, exitUnavailable},
		{&leases.NotLeaderError{}, exitUnavailable},
		{&leases.UnavailableError{}, exitUnavailable},
		{leases.ErrUnknownOutcome, exitUnavailable},
		{&leases.WrongClusterError{}, exitUnavailable},
		{&leases.ExhaustedError{}, exitUnavailable},
		{&leases.GraceError{}, exitUnavailable},
		{arbiter.Unreachable("k", errors.New("no route")), exitUnavailable},
		{context.DeadlineExceeded, exitUnavailable},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"--help"}} {
		got := inProcess(t, args...)
		if got.code != 0 || !strings.Contains(got.stdout, exitTable) {
			t.Errorf("coordd %v: got code %d and %q, want 0 and the exit codes", args, got.code, got.stdout)
		}
	}
	if got := inProcess(t, "help", "status"); got.code != 0 || got.stdout != inProcess(t, "status", "--help").stdout {
		t.Errorf("coordd help status: got code %d and %q, want what --help says", got.code, got.stdout)
	}
	got := inProcess(t, "status", "--help")
	for _, want := range []string{"[COORDD_ADDR]", "(default 127.0.0.1:7420)", "(default 15s)", "Examples:", "text|json"} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("got code %d and %q, want it to say %s", got.code, got.stdout, want)
		}
	}
}

func TestVersion(t *testing.T) {
	if got := inProcess(t, "version"); got.code != 0 || !strings.HasPrefix(got.stdout, "coordd    0.1.0\n") || !strings.Contains(got.stdout, "ops up to version") {
		t.Errorf("got %d and %q, want 0 and the release", got.code, got.stdout)
	}
	if got := inProcess(t, "--version"); got.code != 0 || !strings.HasPrefix(got.stdout, "coordd 0.1.0") {
		t.Errorf("got %d and %q, want 0 and the release", got.code, got.stdout)
	}
	var view versionView
	got := inProcess(t, "version", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &view); got.code != 0 || err != nil || view.Release != "0.1.0" || view.Reads.Op == 0 || view.Reads.Snapshot == 0 {
		t.Errorf("got %d, %q (%v), want 0 and the release as JSON", got.code, got.stdout, err)
	}
}

// Text that could not be written is a failure, as JSON is.
func TestOutputNotWritten(t *testing.T) {
	for _, form := range []string{"text", "json"} {
		var stderr strings.Builder
		code := run(t.Context(), []string{"version", "-o", form}, nil, full{}, &stderr)
		if code != exitInternal || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%s: got code %d and %q, want %d and why", form, code, stderr.String(), exitInternal)
		}
	}
}

// full is a file on a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputFromEnvironment(t *testing.T) {
	t.Setenv("COORDD_OUTPUT", "json")
	if got := inProcess(t, "version"); got.code != 0 || !strings.HasPrefix(got.stdout, "{") {
		t.Errorf("got %d and %q, want JSON", got.code, got.stdout)
	}
}
