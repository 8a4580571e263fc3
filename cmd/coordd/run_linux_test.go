package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/tokens"
)

// wrapper is a coordd run of a test.
type wrapper struct {
	*exec.Cmd
	t      *testing.T
	out    *bufio.Reader // the command's
	stderr *lines
	ended  chan struct{}
}

// hold starts coordd run. What it runs ends with the test: as this process's
// child, or by the warden's hand.
func hold(t *testing.T, addr string, args ...string) *wrapper {
	t.Helper()
	h := &wrapper{t: t, stderr: new(lines), ended: make(chan struct{})}
	h.Cmd = exec.Command(binary(t), append([]string{"run"}, args...)...)
	h.Env = append(os.Environ(), "COORDD_ADDR="+addr)
	h.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // away from the terminal that the tests have
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.out, h.Stdout, h.Stderr = bufio.NewReader(r), w, h.stderr
	err = h.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = h.Cmd.Wait() // its exit code is in ProcessState
		close(h.ended)
	}()
	t.Cleanup(func() {
		_ = h.Process.Kill() // it has ended already, mostly
		<-h.ended
		r.Close()
		if t.Failed() {
			t.Logf("coordd run %s wrote:\n%s", strings.Join(args, " "), h.stderr)
		}
	})
	return h
}

// line is the next line that the command writes.
func (h *wrapper) line() string {
	h.t.Helper()
	got := make(chan string, 1)
	go func() {
		line, _ := h.out.ReadString('\n')
		got <- strings.TrimSpace(line)
	}()
	select {
	case line := <-got:
		return line
	case <-time.After(60 * time.Second):
		h.t.Fatal("the command has written nothing for a minute")
		return ""
	}
}

// code is what the wrapper ends with, as a shell counts it.
func (h *wrapper) code() int {
	h.t.Helper()
	select {
	case <-h.ended:
		if status := h.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
			return 128 + int(status.Signal())
		}
		return h.ProcessState.ExitCode()
	case <-time.After(90 * time.Second):
		h.t.Fatal("coordd run has not ended")
		return 0
	}
}

func (h *wrapper) signal(sig syscall.Signal) { _ = h.Process.Signal(sig) }

// child is the oldest child process of pid's; there has to be one.
func child(t *testing.T, pid int) int {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		list, _ := os.ReadFile(task)
		for field := range strings.FieldsSeq(string(list)) {
			child, _ := strconv.Atoi(field)
			return child
		}
	}
	t.Fatalf("process %d has no child", pid)
	return 0
}

// devCluster starts a cluster of coordd dev and returns its address.
func devCluster(t *testing.T) string {
	t.Helper()
	addr := loopbackAddr(freePorts(t, devNodes))
	launch(t, "dev", "--listen", addr).says("Type this", 30*time.Second)
	return addr
}

// untilRemoved is a command that runs until its file is removed, or for some
// minutes at most.
func untilRemoved(t *testing.T) (file string, command []string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "running")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, []string{"sh", "-c", `echo $COORDD_FENCING_TOKEN; i=0; while [ -e "$0" ] && [ $i -lt 3000 ]; do i=$((i+1)); sleep 0.05; done`, file}
}

func TestRun(t *testing.T) {
	addr := devCluster(t)
	for name, f := range map[string]func(*testing.T, string){
		"command":   testRunCommand,
		"held":      testRunHeld,
		"queue":     testRunQueue,
		"signals":   testRunSignals,
		"waiting":   testRunSignalsWhileWaiting,
		"no script": testRunNoInterpreter,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, addr)
		})
	}
}

// The command's environment, files, arguments and exit code.
func testRunCommand(t *testing.T, addr string) {
	cmd := exec.Command(binary(t), "run", "--addr", addr, "command", "--", "sh", "-c",
		`echo "$COORDD_LEASE $COORDD_FENCING_TOKEN $COORDD_ADDR $1"; cat; echo oops >&2; exit 7`, "sh", "--an argument")
	cmd.Env = append(os.Environ(), "COORDD_LEASE=another")
	cmd.Stdin = strings.NewReader("input\n")
	var stderr lines
	cmd.Stderr = &stderr
	out, _ := cmd.Output()
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("got code %d, want 7", got)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 6 || fields[0] != "command" || fields[2] != addr || fields[3]+" "+fields[4] != "--an argument" || fields[5] != "input" {
		t.Fatalf("got %q, want lease, token, address, argument and input", out)
	}
	if _, err := tokens.Parse(fields[1]); err != nil {
		t.Errorf("got token %q: %v", fields[1], err)
	}
	if got := stderr.String(); !strings.HasPrefix(got, "oops\ncoordd: ") || !strings.Contains(got, "code 7") || strings.Count(got, "\n") != 2 {
		t.Errorf("got %q, want the command's line and ours", got)
	}
	if got := command(t, "run", "--addr", addr, "command", "true"); got != (result{}) {
		t.Errorf("got %+v, want success without a word", got)
	}
	if got := command(t, "run", "--addr", addr, "-q", "command", "false"); got != (result{code: 1}) {
		t.Errorf("got %+v, want code 1 without a word", got)
	}
}

// Two at once without a wait: one runs, the other leaves.
func testRunHeld(t *testing.T, addr string) {
	file, held := untilRemoved(t)
	h := hold(t, addr, append([]string{"held"}, held...)...)
	h.line()
	got := command(t, "run", "--addr", addr, "--wait", "0", "held", "true")
	if got.code != exitHeld || !strings.Contains(got.stderr, `lease "held" is held by sh on `) || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("got %+v, want code %d and one line that says who holds it", got, exitHeld)
	}
	if got := command(t, "run", "--addr", addr, "--held-exit", "0", "held", "-q", "false"); got != (result{}) {
		t.Errorf("with --held-exit 0 -q: got %+v, want nothing", got)
	}
	if got := command(t, "run", "--addr", addr, "--wait", "1s", "held", "-q", "false"); got.code != exitHeld {
		t.Errorf("with --wait 1s: got %+v, want code %d", got, exitHeld)
	}
	os.Remove(file)
	if got := h.code(); got != 0 {
		t.Errorf("the holder ended with %d, want 0", got)
	}
}

// With a wait one runs after the other, under a greater token.
func testRunQueue(t *testing.T, addr string) {
	file, held := untilRemoved(t)
	first := hold(t, addr, append([]string{"queue"}, held...)...)
	before, err := tokens.Parse(first.line())
	if err != nil {
		t.Fatal(err)
	}
	second := hold(t, addr, "queue", "--wait", "30s", "--", "sh", "-c", `[ -e "$0" ] && echo overlap; echo $COORDD_FENCING_TOKEN`, file)
	eventually(t, 20*time.Second, "the second waits", func() bool { return strings.Contains(second.stderr.String(), "waiting for lease") })
	os.Remove(file)
	after, err := tokens.Parse(second.line())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("got token %v after %v, want a greater one", after, before)
	}
	for _, h := range []*wrapper{first, second} {
		if got := h.code(); got != 0 {
			t.Errorf("got code %d, want 0", got)
		}
	}
}

// Signals to the wrapper reach the command's process group.
func testRunSignals(t *testing.T, addr string) {
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		name := "signal-" + strings.ToLower(strings.TrimPrefix(unix.SignalName(sig), "SIG"))
		h := hold(t, addr, name, "--", "sh", "-c", "echo ready; exec sleep 300")
		h.line()
		command := child(t, child(t, h.Process.Pid))
		h.signal(sig)
		if got := h.code(); got != 128+int(sig) {
			t.Errorf("%v: got code %d, want %d", sig, got, 128+int(sig))
		}
		if err := unix.Kill(command, 0); err != unix.ESRCH {
			t.Errorf("%v: the command is left: %v", sig, err)
		}
		if got := h.stderr.String(); !strings.Contains(got, unix.SignalName(sig)) || strings.Count(got, "\n") != 1 {
			t.Errorf("%v: got %q, want one line that names it", sig, got)
		}
		if got := leaseStatus(t, addr, name); got.Held {
			t.Errorf("%v: the lease is still held: %+v", sig, got)
		}
	}
}

// A signal ends the wait at once, and leaves no waiter.
func testRunSignalsWhileWaiting(t *testing.T, addr string) {
	_, held := untilRemoved(t)
	hold(t, addr, append([]string{"waiting"}, held...)...).line()
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		h := hold(t, addr, "--wait", "forever", "waiting", "false")
		eventually(t, 20*time.Second, "it waits", func() bool { return strings.Contains(h.stderr.String(), "waiting for lease") })
		h.signal(unix.SIGUSR1) // for a command that does not run yet
		h.signal(sig)
		if got := h.code(); got != 128+int(sig) {
			t.Errorf("%v: got code %d, want %d", sig, got, 128+int(sig))
		}
		if got := leaseStatus(t, addr, "waiting"); got.Waiters != 0 {
			t.Errorf("%v: %d waiters are left", sig, got.Waiters)
		}
	}
}

// leaseStatus is what status tells of a lease.
func leaseStatus(t *testing.T, addr, name string) (view leaseView) {
	t.Helper()
	got := command(t, "status", name, "--addr", addr, "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &view); got.code != 0 || err != nil {
		t.Fatalf("status %s: got %+v (%v)", name, got, err)
	}
	return view
}

// What only the attempt to execute it shows: the lease is released.
func testRunNoInterpreter(t *testing.T, addr string) {
	script := filepath.Join(t.TempDir(), "script")
	for text, want := range map[string]int{"#!/no/such/interpreter\n": exitNotFound, "neither script nor program": exitNotExecutable} {
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := command(t, "run", "--addr", addr, "script", script); got.code != want || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%q: got %+v, want code %d and one line", text, got, want)
		}
		if got := command(t, "run", "--addr", addr, "-q", "--elect", "script", script); got.code != want || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%q, with --elect: got %+v, want code %d and one line", text, got, want)
		}
		if got := leaseStatus(t, addr, "script"); got.Held {
			t.Errorf("%q: the lease is still held", text)
		}
	}
}

func TestRunWithoutCluster(t *testing.T) {
	got := command(t, "run", "--addr", nowhere, "--timeout", "500ms", "--wait", "forever", "job", "true")
	if got.code != exitUnavailable || strings.Count(got.stderr, "\n") != 1 ||
		!strings.Contains(got.stderr, nowhere) || !strings.Contains(got.stderr, "--timeout") {
		t.Errorf("got %+v, want code %d and one line that says where it looked, and for how long", got, exitUnavailable)
	}
	h := hold(t, nowhere, "--timeout", "60s", "job", "true")
	eventually(t, 30*time.Second, "it says that it looks on", func() bool { return strings.Contains(h.stderr.String(), "connection refused; trying on\n") })
	h.signal(unix.SIGTERM)
	if got := h.code(); got != 128+15 {
		t.Errorf("ended while it looks for a node: got code %d, want %d", got, 128+15)
	}
}

// A TTL that is short for the cluster's elections is said to be.
func TestRunShortTTL(t *testing.T) {
	addr := loopbackAddr(freePorts(t, 1))
	launch(t, "serve", "--name", "n1", "--data", t.TempDir(), "--listen", addr, "--bootstrap", "--election-timeout", "400ms")
	got := command(t, "run", "--addr", addr, "--timeout", "60s", "--ttl", "3s", "job", "true")
	if got.code != 0 || !strings.Contains(got.stderr, "--ttl 3s is short") || !strings.Contains(got.stderr, "3.2s") || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("got %+v, want success and a warning that names 3.2s", got)
	}
	if got := command(t, "run", "--addr", addr, "-q", "--ttl", "3s", "job", "true"); got != (result{}) {
		t.Errorf("with -q: got %+v, want no word", got)
	}
	if got := command(t, "run", "--addr", addr, "--ttl", "4s", "job", "true"); got != (result{}) {
		t.Errorf("with --ttl 4s: got %+v, want no word", got)
	}
}

// A cluster that is gone: the command is told to end, and has, before the
// lease's deadline.
func TestRunLosesCluster(t *testing.T) {
	addr := loopbackAddr(freePorts(t, devNodes))
	dev := launch(t, "dev", "--listen", addr)
	dev.says("Type this", 30*time.Second)
	h := hold(t, addr, "lost", "--ttl", "5s", "-q", "--", "sh", "-c", `trap "echo told; exit 0" TERM; echo ready; while :; do sleep 0.05; done`)
	if got := h.line(); got != "ready" {
		t.Fatalf("the command says %q", got)
	}
	dev.signal(unix.SIGKILL)
	if got := h.line(); got != "told" {
		t.Errorf("the command says %q, want that it was told to end", got)
	}
	if got := h.code(); got != exitLost {
		t.Errorf("got code %d, want %d", got, exitLost)
	}
	if got := h.stderr.String(); !strings.Contains(got, `run lost: the lease was lost`) || !strings.Contains(got, "connection refused") || strings.Count(got, "coordd: ") != 1 {
		t.Errorf("got %q, want one line of ours that says so and why, in spite of -q", got)
	}
}

// A lease that an operator breaks: the command is told to end, and the next has
// the lease as soon as it has.
func TestRunBroken(t *testing.T) {
	addr, data := loopbackAddr(freePorts(t, 1)), t.TempDir()
	launch(t, "serve", "--name", "n1", "--data", data, "--listen", addr, "--bootstrap", "--election-timeout", "300ms")
	h := hold(t, addr, "--timeout", "60s", "--ttl", "5m", "broken", "-q", "--", "sh", "-c",
		`trap "echo told; exit 0" TERM; echo $COORDD_FENCING_TOKEN; while :; do sleep 0.05; done`)
	token := h.line()
	if got := command(t, "lease", "break", "broken", "--token", token, "--data", data); got.code != 0 {
		t.Fatalf("got %+v, want it broken", got)
	}
	if got := h.line(); got != "told" {
		t.Errorf("the command says %q, want that it was told to end", got)
	}
	if got := h.code(); got != exitLost {
		t.Errorf("got code %d, want %d", got, exitLost)
	}
	if got := h.stderr.String(); !strings.Contains(got, "an operator has broken it") {
		t.Errorf("got %q, want it to say who has ended the lease", got)
	}
	if got := command(t, "run", "--addr", addr, "broken", "true"); got != (result{}) {
		t.Errorf("got %+v, want that the lease is free", got)
	}
}

// A tree with a daemon that writes the time into a file, over and over: however
// its holder goes down, the last write comes before the next holder's start.
func TestRunLeavesNoWriter(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if out, err := exec.Command("gcc", "-O1", "-o", victim, "internal/warden/testdata/victim.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	addr := devCluster(t)
	for name, c := range map[string]struct {
		ttl   string
		harm  func(t *testing.T, h *wrapper)
		code  int
		lines int // on stderr
	}{
		"wrapper killed": {"5s", func(t *testing.T, h *wrapper) { h.signal(unix.SIGKILL) }, 128 + 9, 0},
		"warden killed": {"15s", func(t *testing.T, h *wrapper) {
			unix.Kill(child(t, h.Process.Pid), unix.SIGKILL)
		}, 128 + 9, 1},
		"wrapper and command stopped": {"15s", func(t *testing.T, h *wrapper) {
			command := child(t, child(t, h.Process.Pid))
			h.signal(unix.SIGSTOP)
			unix.Kill(command, unix.SIGSTOP)
		}, exitLost, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written, started := filepath.Join(t.TempDir(), "written"), filepath.Join(t.TempDir(), "started")
			first := hold(t, addr, "--ttl", c.ttl, name, victim, "writer", written)
			if got := first.line(); got != "ready" {
				t.Fatalf("the writer says %q", got)
			}
			second := hold(t, addr, "--wait", "80s", name, victim, "stamp", started)
			eventually(t, 20*time.Second, "the second waits", func() bool { return strings.Contains(second.stderr.String(), "waiting for lease") })
			before := instant(t, written)
			eventually(t, 20*time.Second, "the writer writes", func() bool { return instant(t, written) > before })
			c.harm(t, first)
			if got := second.code(); got != 0 {
				t.Fatalf("the second ended with %d", got)
			}
			if last, start := instant(t, written), instant(t, started); last >= start {
				t.Errorf("the last write came %v after the second's start", last-start)
			} else {
				t.Logf("the last write came %v before the second's start", start-last)
			}
			first.signal(unix.SIGCONT)
			if got := first.code(); got != c.code {
				t.Errorf("the first ended with %d, want %d", got, c.code)
			}
			if got := first.stderr.String(); strings.Count(got, "\n") != c.lines {
				t.Errorf("got %q, want %d lines", got, c.lines)
			}
		})
	}
}

// instant is the time that the victim wrote.
func instant(t *testing.T, file string) time.Duration {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}
