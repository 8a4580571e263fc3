package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

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
		{name: "bad duration", args: "status --timeout soon", want: []string{"--timeout", "soon"}},
		{name: "zero duration", args: "status --timeout 0s", want: []string{"--timeout"}},
		{name: "bad address", args: "status --addr 127.0.0.1", want: []string{"--addr", "host:port"}},
		{name: "bad output", args: "status -o xml", want: []string{"text or json"}},
		{name: "too many arguments", args: "status a b", want: []string{"at most 1 arg"}},
		{name: "arguments where none belong", args: "version now", want: []string{"now"}},
		{name: "bad lease name", args: "status @eu", want: []string{`invalid name "@eu"`}},
		{name: "bad environment", env: [2]string{"COORDD_TIMEOUT", "soon"}, args: "status", want: []string{`COORDD_TIMEOUT="soon"`}},
		{name: "bad address in the environment", env: [2]string{"COORDD_ADDR", "nowhere"}, args: "status", want: []string{"COORDD_ADDR", "host:port"}},
		{name: "half of TLS", args: "status --cert c.pem", want: []string{"--cert, --key and --ca belong together"}},
		{name: "certificate missing", args: "status --cert /nowhere/c --key /nowhere/k --ca /nowhere/a", want: []string{"/nowhere/"}},
		{name: "serve without a name", args: "serve", want: []string{"--name (or COORDD_NAME)", "--data (or COORDD_DATA)"}},
		{name: "serve with a zero", args: "serve --name n1 --data d --first-epoch 0", want: []string{"--first-epoch 0"}},
		{name: "serve in the open", args: "serve --name n1 --data d --listen 0.0.0.0:0", want: []string{"0.0.0.0:0", "--cert, --key and --ca", "--insecure"}},
		{name: "serve with a wrong log level", args: "serve --log-level loud", want: []string{"debug or info or warn or error"}},
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

func TestOutputFromEnvironment(t *testing.T) {
	t.Setenv("COORDD_OUTPUT", "json")
	if got := inProcess(t, "version"); got.code != 0 || !strings.HasPrefix(got.stdout, "{") {
		t.Errorf("got %d and %q, want JSON", got.code, got.stdout)
	}
}

func TestCompletion(t *testing.T) {
	if got := inProcess(t, "completion", "bash"); got.code != 0 || !strings.Contains(got.stdout, "__start_coordd") {
		t.Errorf("got %d and %d bytes, want a script", got.code, len(got.stdout))
	}
	if got := inProcess(t, "__complete", "status", "-o", ""); !strings.Contains(got.stdout, "text\njson\n") {
		t.Errorf("got %q, want the forms", got.stdout)
	}
}
