package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/cmd/coordd/internal/warden"
	"github.com/coordd/coordd/leases"
)

// nowhere is an address at which nobody listens.
const nowhere = "127.0.0.1:1"

func TestSplitArgs(t *testing.T) {
	for _, c := range []struct {
		args string
		name string
		argv []string
		ttl  time.Duration
		fail string
	}{
		{args: "job cmd", name: "job", argv: []string{"cmd"}, ttl: 15 * time.Second},
		{args: "--ttl 5s job cmd", name: "job", argv: []string{"cmd"}, ttl: 5 * time.Second},
		{args: "job --ttl 5s cmd", name: "job", argv: []string{"cmd"}, ttl: 5 * time.Second},
		{args: "--ttl 9s job --ttl 5s cmd", name: "job", argv: []string{"cmd"}, ttl: 5 * time.Second},
		{args: "job cmd --ttl 5s", name: "job", argv: []string{"cmd", "--ttl", "5s"}, ttl: 15 * time.Second},
		{args: "job --ttl 5s -- cmd -x", name: "job", argv: []string{"cmd", "-x"}, ttl: 5 * time.Second},
		{args: "job -- --odd", name: "job", argv: []string{"--odd"}, ttl: 15 * time.Second},
		{args: "job -- cmd -- x", name: "job", argv: []string{"cmd", "--", "x"}, ttl: 15 * time.Second},
		{args: "job cmd -- x", name: "job", argv: []string{"cmd", "--", "x"}, ttl: 15 * time.Second},
		{args: "--ttl 5s -- job cmd --ttl 9s", name: "job", argv: []string{"cmd", "--ttl", "9s"}, ttl: 5 * time.Second},
		{args: "-- job -- cmd", name: "job", argv: []string{"cmd"}, ttl: 15 * time.Second},
		{args: "-q job cmd -q", name: "job", argv: []string{"cmd", "-q"}, ttl: 15 * time.Second},
		{args: "", fail: "NAME"},
		{args: "job", fail: "COMMAND"},
		{args: "job --", fail: "COMMAND"},
		{args: "job --ttl 5s", fail: "COMMAND"},
		{args: "job --nonsense cmd", fail: "nonsense"},
	} {
		cmd := newRun()
		fs := cmd.Flags()
		if err := fs.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		name, argv, err := splitArgs(fs, fs.Args())
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%q: got %v, want an error about %s", c.args, err, c.fail)
			}
			continue
		}
		ttl, _ := fs.GetDuration("ttl")
		if err != nil || name != c.name || !slices.Equal(argv, c.argv) || ttl != c.ttl {
			t.Errorf("%q: got %q, %q, %v, %v, want %q, %q, %v", c.args, name, argv, ttl, err, c.name, c.argv, c.ttl)
		}
	}
}

func TestRunUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"run", "NAME"},
		{"run job", "COMMAND"},
		{"run job --tll 5s true", "did you mean --ttl?"},
		{"run @job true", `invalid name "@job"`},
		{"run --ttl 2s job true", "invalid --ttl 2s: want from 3s to 5m0s"},
		{"run --ttl 6m job true", "invalid --ttl 6m0s: want from 3s to 5m0s"},
		{"run --ttl 3.0005s job true", "whole milliseconds"},
		{"run --ttl 9s --grace 4s job true", "invalid --grace 4s: want from 0s to a third of --ttl, 3s"},
		{"run --grace -1s job true", "invalid --grace -1s"},
		{"run --wait soon job true", "forever"},
		{"run --wait -1s job true", "forever"},
		{"run --held-exit 256 job true", "want from 0 to 255"},
		{"run --at-least -1s job true", "invalid --at-least -1s: want more than 0s"},
		{"run --at-most -1s job true", "invalid --at-most -1s: want more than 0s"},
		{"run --at-least 2h --at-most 1h job true", "invalid --at-least 2h0m0s: want at most what --at-most says, 1h0m0s"},
		{"run --elect --wait 0 job true", "leave out --wait and --held-exit"},
		{"run job --elect --wait forever true", "leave out --wait and --held-exit"},
		{"run --elect --held-exit 75 job true", "leave out --wait and --held-exit"},
		{"run --timeout 0s job true", "--timeout"},
		{"run --addr nowhere job true", "host:port"},
	} {
		got := inProcess(t, strings.Fields(c.args)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, c.want) || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: got %+v, want code %d and one line with %q", c.args, got, exitUsage, c.want)
		}
	}
	got := inProcess(t, "run", "job", "--help")
	for _, want := range []string{"COORDD_FENCING_TOKEN", "--at-least", "--at-most", "--elect", "COORDD_AT_LEAST", "[COORDD_ELECT]"} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("--help: got %+v, want it to say %s", got, want)
		}
	}
	t.Setenv("COORDD_WAIT", "1m")
	if got := inProcess(t, "run", "--elect", "job", "true"); got.code != exitUsage || !strings.Contains(got.stderr, "--wait is from COORDD_WAIT") {
		t.Errorf("got %+v, want code %d and where --wait comes from", got, exitUsage)
	}
}

func TestWaitFlag(t *testing.T) {
	for in, want := range map[string]string{"0": "0s", "0s": "0s", "30s": "30s", "forever": "forever"} {
		var w waitFlag
		if err := w.Set(in); err != nil || w.String() != want {
			t.Errorf("%s: got %v, %v, want %s", in, &w, err, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	exited := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	for _, c := range []struct {
		name   string
		result warden.Result
		want   int
	}{
		{"success", warden.Result{Status: exited(0)}, 0},
		{"the command's code", warden.Result{Status: exited(3)}, 3},
		{"the command's code, like one of ours", warden.Result{Status: exited(76)}, 76},
		{"a signal", warden.Result{Status: syscall.WaitStatus(unix.SIGTERM)}, 143},
		{"lost", warden.Result{Status: syscall.WaitStatus(unix.SIGKILL), Lost: true}, exitLost},
		{"lost, and ended well when told", warden.Result{Status: exited(0), Lost: true}, exitLost},
		{"deserted", warden.Result{Deserted: true}, 137},
		{"deserted and lost", warden.Result{Deserted: true, Lost: true}, exitLost},
		{"overtime", warden.Result{Status: syscall.WaitStatus(unix.SIGTERM), Overtime: true}, exitLost},
		{"overtime, and ended well when told", warden.Result{Status: exited(0), Overtime: true}, exitLost},
		{"overtime, and the warden did not see to it", warden.Result{Deserted: true, Overtime: true}, exitLost},
	} {
		if got, _ := new(job).verdict(c.result); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEnded(t *testing.T) {
	for _, c := range []struct {
		name   string
		quiet  bool
		result warden.Result
		lost   error
		code   int
		says   string // "": nothing
	}{
		{name: "success"},
		{name: "a code", result: warden.Result{Status: 3 << 8}, code: 3, says: "code 3"},
		{name: "a code, quietly", quiet: true, result: warden.Result{Status: 3 << 8}, code: 3},
		{name: "a signal", result: warden.Result{Status: 15}, code: 143, says: "SIGTERM"},
		{name: "a signal, quietly", quiet: true, result: warden.Result{Status: 15}, code: 143},
		{name: "lost", quiet: true, result: warden.Result{Lost: true}, lost: leases.ErrExpired, code: exitLost, says: "expired"},
		{name: "given up in time", quiet: true, result: warden.Result{Lost: true}, code: exitLost, says: "not renewed"},
		{name: "deserted", quiet: true, result: warden.Result{Deserted: true}, code: 137, says: "warden"},
		{name: "overtime", quiet: true, result: warden.Result{Overtime: true}, code: exitLost, says: "ran longer than --at-most 2h0m0s"},
	} {
		j := &job{name: "job", runOptions: runOptions{quiet: c.quiet, atMost: 2 * time.Hour}}
		err := j.ended(c.result, c.lost)
		if got := exitCode(err); got != c.code {
			t.Errorf("%s: got code %d, want %d", c.name, got, c.code)
		}
		e, _ := errors.AsType[*exit](err)
		switch says := e != nil && e.err != nil; {
		case says != (c.says != ""):
			t.Errorf("%s: got %v, want it to say %q", c.name, err, c.says)
		case says && !strings.Contains(e.Error(), c.says):
			t.Errorf("%s: got %q, want it to say %q", c.name, e, c.says)
		}
	}
}

// The command is looked up before the lease is asked for: nobody is there to ask.
func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, c := range []struct {
		command string
		want    int
	}{
		{"no-such-command", exitNotFound},
		{"plain", exitNotExecutable},
		{plain, exitNotExecutable},
		{dir, exitNotExecutable},
		{filepath.Join(dir, "missing"), exitNotFound},
		{filepath.Join(plain, "missing"), exitNotFound},
	} {
		got := inProcess(t, "run", "--addr", nowhere, "job", "--", c.command)
		if got.code != c.want || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, filepath.Base(c.command)) {
			t.Errorf("%s: got %+v, want code %d and one line", c.command, got, c.want)
		}
	}
}

func TestNotStarted(t *testing.T) {
	j := &job{name: "job"}
	for _, c := range []struct {
		err  error
		want int
		says string
	}{
		{warden.ErrTooLate, exitLost, "too little is left"},
		{&exec.Error{Name: "/x", Err: unix.ENOENT}, exitNotFound, "the interpreter"},
		{&exec.Error{Name: "/x", Err: unix.ENOEXEC}, exitNotExecutable, "#!/bin/sh"},
		{&exec.Error{Name: "/x", Err: unix.E2BIG}, exitNotExecutable, "too long"},
		{fmt.Errorf("start the warden: %w", &os.PathError{Op: "fork/exec", Path: "/x", Err: unix.ENOENT}), exitInternal, "start the warden"},
	} {
		err := j.notStarted(c.err)
		if got := exitCode(err); got != c.want || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: got code %d and %q, want %d and that it says %q", c.err, got, err, c.want, c.says)
		}
	}
}
