package warden

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/clock"
)

// The test binary plays the wrapper and the warden as well.
func TestMain(m *testing.M) {
	Hook()
	if len(os.Args) > 1 && os.Args[1] == "wrap" {
		os.Exit(playWrapper(os.Args[2:]))
	}
	if signal.Ignored(syscall.SIGHUP) { // as under nohup: what the tests start would ignore it too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	dir, err := buildVictim()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// What gets away from a warden falls to this process, and not to the
	// machine: it is swept at the end, whatever the tests did about it.
	if err := adopt(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// The tests mostly wait.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		new(tree).kill()
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// What the wrapper that the tests start ends with, where the command's own
// code does not count.
const (
	codeFailed   = 90
	codeLost     = 91
	codeDeserted = 92
	codeLate     = 93
	codeOvertime = 94
)

const (
	markVar     = "WARDEN_TEST_MARK"     // finds all processes of one test
	firstVar    = "WARDEN_TEST_FIRST"    // how far the first deadline is away
	ttlVar      = "WARDEN_TEST_TTL"      // how far the later ones are
	renewVar    = "WARDEN_TEST_RENEW"    // "no": there is only one of them
	atMostVar   = "WARDEN_TEST_AT_MOST"  // how long the command may run
	deadlineVar = "WARDEN_TEST_DEADLINE" // a file that has the last deadline, once there is one
)

// The margin is wide: the machine may be busy with the other tests.
var limits = Limits{Margin: 3 * time.Second, Grace: 500 * time.Millisecond}

// playWrapper runs a command under a lease of its own making. It forwards TERM
// and USR1; USR2 tells it that the lease is lost, HUP that it is broken.
func playWrapper(argv []string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGHUP)
	ttl, err := time.ParseDuration(os.Getenv(ttlVar))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return codeFailed
	}
	first, err := time.ParseDuration(os.Getenv(firstVar))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return codeFailed
	}
	limits := limits
	if limits.AtMost, err = time.ParseDuration(os.Getenv(atMostVar)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return codeFailed
	}
	t, err := Start(Command{Path: argv[0], Args: argv, Env: os.Environ(), Limits: limits, Deadline: clock.System().Now().Add(first)})
	switch {
	case errors.Is(err, ErrTooLate):
		return codeLate
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return codeFailed
	}
	unix.Close(3) // see wrapped.held
	file := os.Getenv(deadlineVar)
	renew := func() {
		at := clock.System().Now().Add(ttl)
		os.WriteFile(file+".new", fmt.Append(nil, int64(at)), 0o600)
		os.Rename(file+".new", file)
		t.Extend(at)
	}
	renew()
	for tick := time.Tick(200 * time.Millisecond); ; {
		select {
		case <-tick:
			if os.Getenv(renewVar) != "no" {
				renew()
			}
		case sig := <-signals:
			switch sig {
			case unix.SIGUSR2:
				t.Kill()
			case unix.SIGHUP:
				t.End()
			default:
				t.Signal(sig.(syscall.Signal))
			}
		case <-t.Done():
			return wrapperCode(t.Wait())
		}
	}
}

func wrapperCode(r Result) int {
	switch {
	case r.Lost:
		return codeLost
	case r.Overtime:
		return codeOvertime
	case r.Deserted:
		return codeDeserted
	case r.Status.Signaled():
		return 128 + int(r.Status.Signal())
	default:
		return r.Status.ExitStatus()
	}
}

// wrapped is a wrapper in a process of its own, with all that it runs.
type wrapped struct {
	t       *testing.T
	cmd     *exec.Cmd
	mark    string
	file    string // has the last deadline
	out     *bufio.Reader
	outPipe *os.File
	held    *os.File // a pipe whose other end every process but the wrapper has
}

// wrap starts a wrapper in a process group of its own.
func wrap(t *testing.T, env []string, argv ...string) *wrapped {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	r, w := pipe(t)
	held, hold := pipe(t)
	x := &wrapped{t: t, mark: rand.Text(), file: filepath.Join(t.TempDir(), "deadline"), out: bufio.NewReader(r), outPipe: r, held: held}
	x.cmd = exec.Command(self(t), append([]string{"wrap", path}, argv[1:]...)...)
	x.cmd.Env = append(os.Environ(), markVar+"="+x.mark, deadlineVar+"="+x.file, firstVar+"=60s", ttlVar+"=7s", atMostVar+"=0s",
		"GORACE=atexit_sleep_ms=0") // otherwise the race detector keeps a process for a second
	x.cmd.Env = append(x.cmd.Env, env...)
	stderr, err := os.Create(filepath.Join(filepath.Dir(x.file), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	x.cmd.Stdout, x.cmd.Stderr = w, stderr
	x.cmd.ExtraFiles = []*os.File{hold} // file 3
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	defer w.Close()
	defer hold.Close()
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.sweep)
	return x
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, w
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// sweep ends whatever is left of a test that failed.
func (x *wrapped) sweep() {
	x.cmd.Process.Kill()
	x.cmd.Wait()
	if text, _ := os.ReadFile(filepath.Join(filepath.Dir(x.file), "stderr")); x.t.Failed() && len(text) > 0 {
		x.t.Logf("stderr:\n%s", text)
	}
	for range 1000 {
		pids := x.alive()
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// line reads a line from the command.
func (x *wrapped) line() string {
	x.t.Helper()
	x.outPipe.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := x.out.ReadString('\n')
	if err != nil {
		x.t.Fatalf("the command said %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

// ready waits until the command has said that it has set itself up, and the
// wrapper has renewed its lease once.
func (x *wrapped) ready() {
	x.t.Helper()
	if got := x.line(); got != "ready" {
		x.t.Fatalf("the command said %q, want ready", got)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 20*time.Second; <-tick.C {
		if _, err := os.Stat(x.file); err == nil {
			return
		}
	}
	x.t.Fatal("the wrapper does not renew its lease")
}

// code is what the wrapper ends with.
func (x *wrapped) code() int {
	x.t.Helper()
	timer := time.AfterFunc(20*time.Second, func() { x.cmd.Process.Kill() })
	defer timer.Stop()
	x.cmd.Wait()
	return x.cmd.ProcessState.ExitCode()
}

// alive lists the processes that have this test's mark in their environment,
// in whatever session, without zombies (whose environment is empty).
func (x *wrapped) alive() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err == nil && bytes.Contains(env, []byte(markVar+"="+x.mark)) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// warden is the process id of the warden.
func (x *wrapped) warden() int {
	x.t.Helper()
	for pid := range children(x.cmd.Process.Pid) {
		return pid
	}
	x.t.Fatal("the wrapper has no warden")
	return 0
}

// gone waits until no process with the mark is left, the wrapper excepted, and
// returns when that was.
func (x *wrapped) gone() clock.Instant {
	x.t.Helper()
	x.held.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := x.held.Read(make([]byte, 1))
	at := clock.System().Now()
	left := slices.DeleteFunc(x.alive(), func(pid int) bool { return pid == x.cmd.Process.Pid })
	if err != io.EOF || len(left) > 0 {
		x.t.Fatalf("processes %v are left (%v)", left, err)
	}
	return at
}

func (x *wrapped) deadline() clock.Instant {
	x.t.Helper()
	text, err := os.ReadFile(x.file)
	if err != nil {
		x.t.Fatal(err)
	}
	at, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		x.t.Fatal(err)
	}
	return clock.Instant(at)
}

// victims are modes of testdata/victim.c.
var victims = []string{"plain", "child", "deaf", "sessions", "daemon", "stopped", "many", "comet", "session comet"}

// victimPath is the built program, a fixed name in a folder of its own.
var victimPath string

func buildVictim() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "warden-test-"); err != nil {
		return "", err
	}
	victimPath = filepath.Join(dir, "victim")
	if out, err := exec.Command("gcc", "-O1", "-o", victimPath, "testdata/victim.c").CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build the victim: %w\n%s", err, out)
	}
	return dir, nil
}

func TestNothingIsLeft(t *testing.T) {
	ways := map[string]func(*wrapped){
		"wrapper killed": func(x *wrapped) {
			unix.Kill(x.cmd.Process.Pid, unix.SIGKILL)
			x.gone()
		},
		"wrapper's group killed": func(x *wrapped) {
			unix.Kill(-x.cmd.Process.Pid, unix.SIGKILL)
			x.gone()
		},
		"warden killed": func(x *wrapped) {
			unix.Kill(x.warden(), unix.SIGKILL)
			if got := x.code(); got != codeDeserted {
				x.t.Errorf("the wrapper ended with %d, want %d (deserted)", got, codeDeserted)
			}
			if left := x.alive(); len(left) > 0 {
				x.t.Errorf("processes %v are left when the wrapper ends", left)
			}
		},
		"wrapper stopped": func(x *wrapped) {
			unix.Kill(x.cmd.Process.Pid, unix.SIGSTOP)
			if late := x.gone().Sub(x.deadline()); late >= 0 {
				x.t.Errorf("the last was gone %v after the deadline", late)
			}
			unix.Kill(x.cmd.Process.Pid, unix.SIGCONT)
			if got := x.code(); got != codeLost {
				x.t.Errorf("the woken wrapper ended with %d, want %d (lost)", got, codeLost)
			}
		},
	}
	for way, end := range ways {
		for _, victim := range victims {
			t.Run(way+"/"+victim, func(t *testing.T) {
				t.Parallel()
				x := wrap(t, nil, victimPath, victim)
				x.ready()
				end(x)
			})
		}
	}
}

func TestResult(t *testing.T) {
	for name, c := range map[string]struct {
		script string // $0 is the victim
		want   int
	}{
		"success":          {`exit 0`, 0},
		"a code":           {`exit 7`, 7},
		"a signal":         {`kill -TERM $$`, 128 + 15},
		"killed":           {`kill -KILL $$`, 128 + 9},
		"some left":        {`"$0" child & "$0" sessions & exit 3`, 3},
		"stopped ones":     {`"$0" stopped & exit 4`, 4},
		"deaf ones":        {`"$0" deaf & "$0" session "$0" deaf; exit 5`, 5},
		"kills its warden": {`kill -KILL $PPID; exec "$0" plain`, codeDeserted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := wrap(t, nil, "sh", "-c", c.script, victimPath)
			if got := x.code(); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
			if left := x.alive(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

// What a command leaves running is told to end, and killed when it has not.
func TestLeftRunning(t *testing.T) {
	t.Parallel()
	x := wrap(t, nil, "sh", "-c", `
		"$0" session sh -c 'trap "echo told; exit" TERM; echo ready; while :; do sleep 0.05; done'
		"$0" session "$0" deaf
		trap "exit 6" USR1; while :; do sleep 0.05; done`, victimPath)
	x.ready()
	x.ready()
	began := time.Now()
	unix.Kill(x.cmd.Process.Pid, unix.SIGUSR1)
	if got := x.line(); got != "told" {
		t.Errorf("got %q, want the word of the one that was told to end", got)
	}
	if got := x.code(); got != 6 {
		t.Errorf("got code %d, want 6", got)
	}
	if took := time.Since(began); took < linger {
		t.Errorf("the one that does not listen was killed after %v, want %v at the earliest", took, linger)
	}
	x.gone()
}

// A wrapper that fails to renew, but runs: TERM first, and KILL before the
// deadline.
func TestDanger(t *testing.T) {
	for name, c := range map[string]struct{ script, word string }{
		"ends when told":         {`trap "echo told; exit 0" TERM; echo ready; while :; do sleep 0.05; done`, "told"},
		"stopped":                {`trap "echo told; exit 0" TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done`, "told"},
		"is told and goes on":    {`trap "echo told" TERM; echo ready; while :; do sleep 0.05; done`, "told"},
		"ends, and leaves a few": {`(trap "echo told; exit" TERM; while :; do sleep 0.05; done) & echo ready; sleep 300`, "told"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := wrap(t, []string{renewVar + "=no"}, "sh", "-c", c.script)
			x.ready()
			if got := x.line(); got != c.word {
				t.Errorf("the command said %q, want %q", got, c.word)
			}
			if early := x.deadline().Add(-limits.Margin - limits.Grace).Sub(clock.System().Now()); early > 0 {
				t.Errorf("it was told %v too early", early)
			}
			if got := x.code(); got != codeLost {
				t.Errorf("got code %d, want %d (lost)", got, codeLost)
			}
			if late := clock.System().Now().Sub(x.deadline()); late >= 0 {
				t.Errorf("the wrapper ended %v after the deadline", late)
			}
			if left := x.alive(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

// A command that has run for long enough: TERM first, then KILL to everything,
// although its lease is renewed.
func TestOvertime(t *testing.T) {
	const atMost = 3 * time.Second
	for name, c := range map[string]struct {
		script string // $0 is the victim
		words  []string
		least  time.Duration // how long it takes at least
	}{
		"ends when told":         {`trap "echo told; exit 0" TERM; echo ready; while :; do sleep 0.05; done`, []string{"told"}, atMost},
		"is told and goes on":    {`trap "echo told" TERM; echo ready; while :; do sleep 0.05; done`, []string{"told"}, atMost + limits.Grace},
		"deaf":                   {`exec "$0" deaf`, nil, atMost + limits.Grace},
		"stopped":                {`exec "$0" stopped`, nil, atMost},
		"grandchildren":          {`exec "$0" sessions`, nil, atMost},
		"ends, and leaves a few": {`(trap "echo told; exit" TERM; while :; do sleep 0.05; done) & echo ready; sleep 300`, []string{"told"}, atMost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := clock.System().Now()
			x := wrap(t, []string{atMostVar + "=" + atMost.String(), ttlVar + "=60s"}, "sh", "-c", c.script, victimPath)
			x.ready()
			for _, want := range c.words {
				if got := x.line(); got != want {
					t.Errorf("the command said %q, want %q", got, want)
				}
			}
			if got := x.code(); got != codeOvertime {
				t.Errorf("got code %d, want %d (overtime)", got, codeOvertime)
			}
			if took := clock.System().Now().Sub(began); took < c.least {
				t.Errorf("it took %v, want at least %v", took, c.least)
			}
			if left := x.alive(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

// The lease's deadline comes before the command has run for long enough.
func TestDangerBeforeOvertime(t *testing.T) {
	t.Parallel()
	x := wrap(t, []string{atMostVar + "=60s", renewVar + "=no"}, victimPath, "plain")
	x.ready()
	if got := x.code(); got != codeLost {
		t.Errorf("got code %d, want %d (lost)", got, codeLost)
	}
}

// A command that ends by itself in time has its own code, whoever it leaves.
func TestNoOvertime(t *testing.T) {
	t.Parallel()
	x := wrap(t, []string{atMostVar + "=60s"}, "sh", "-c", `"$0" session "$0" deaf; exit 5`, victimPath)
	if got := x.code(); got != 5 {
		t.Errorf("got code %d, want 5", got)
	}
}

func TestLostAtOnce(t *testing.T) {
	t.Parallel()
	x := wrap(t, []string{ttlVar + "=100s"}, victimPath, "deaf")
	x.ready()
	began := time.Now()
	unix.Kill(x.cmd.Process.Pid, unix.SIGUSR2)
	if got := x.code(); got != codeLost {
		t.Errorf("got code %d, want %d (lost)", got, codeLost)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	x.gone()
}

// The wrapper takes over from a warden that is stopped when it should act.
func TestStoppedWarden(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		want int
	}{
		"danger":   {renewVar + "=no", codeLost},
		"overtime": {atMostVar + "=3s", codeOvertime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := wrap(t, []string{c.env}, victimPath, "sessions")
			x.ready()
			unix.Kill(x.warden(), unix.SIGSTOP)
			if got := x.code(); got != c.want {
				t.Errorf("got code %d, want %d", got, c.want)
			}
			if late := clock.System().Now().Sub(x.deadline()); late >= 0 {
				t.Errorf("the last was gone %v after the deadline", late)
			}
			x.gone()
		})
	}
}

// A broken lease leaves the command its grace, although it is renewed no more.
func TestEnd(t *testing.T) {
	for name, script := range map[string]string{
		"ends when told":      `trap "echo told; exit 0" TERM; echo ready; while :; do sleep 0.05; done`,
		"is told and goes on": `trap "echo told" TERM; echo ready; while :; do sleep 0.05; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := wrap(t, []string{ttlVar + "=100s"}, "sh", "-c", script)
			x.ready()
			unix.Kill(x.cmd.Process.Pid, unix.SIGHUP)
			if got := x.line(); got != "told" {
				t.Errorf("the command said %q, want that it was told to end", got)
			}
			if got := x.code(); got != codeLost {
				t.Errorf("got code %d, want %d (lost)", got, codeLost)
			}
			if left := x.alive(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	// The command's child, in its group, gets the signal as well.
	x := wrap(t, nil, "sh", "-c", `
		sh -c 'trap "echo child; exit" USR1; echo ready; while :; do sleep 0.05; done' &
		trap "wait; exit 8" USR1; echo ready; while :; do sleep 0.05; done`)
	x.ready()
	x.ready()
	// What reaches the warden from outside does nothing.
	for _, sig := range []syscall.Signal{
		unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGINT, unix.SIGTSTP,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM,
	} {
		unix.Kill(x.warden(), sig)
	}
	unix.Kill(x.cmd.Process.Pid, unix.SIGUSR1)
	if got := x.line(); got != "child" {
		t.Errorf("got %q, want the child's word", got)
	}
	if got := x.code(); got != 8 {
		t.Errorf("got code %d, want 8", got)
	}
}

// The command's signals are at their defaults, although the warden catches them.
func TestSignalDefaults(t *testing.T) {
	t.Parallel()
	x := wrap(t, nil, "cat", "/proc/self/status")
	x.code()
	status, err := io.ReadAll(x.out)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(status)) {
		name, mask, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "SigIgn" && name != "SigCgt" && name != "SigBlk" {
			continue
		}
		seen++
		if n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err != nil || n&0x7fffffff != 0 {
			t.Errorf("%s: got %s, want no classic signal", name, mask)
		}
	}
	if seen != 3 {
		t.Errorf("got %q, want three lines about signals", status)
	}
}

func TestNotStarted(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  []string
		path string
		want int
	}{
		"no program": {nil, text, codeFailed},
		"too late":   {[]string{firstVar + "=1400ms"}, "/bin/true", codeLate},
		"past":       {[]string{firstVar + "=-1s"}, "/bin/true", codeLate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := wrap(t, c.env, c.path)
			if got := x.code(); got != c.want {
				t.Errorf("got code %d, want %d", got, c.want)
			}
		})
	}
}

// A wrapper may have children that it did not start (sh -c 'sleep 9 & exec
// coordd run …'): they are no business of the warden's.
func TestSpare(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	x := wrap(t, nil, "/bin/true") // for its mark and its sweep
	x.code()
	cmd := exec.Command("sh", "-c", `sleep 300 & echo $!; exec "$0" wrap "$1" sessions`, self(t), victimPath)
	cmd.Env, cmd.Stdout, cmd.Stderr = x.cmd.Env, w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	out := bufio.NewReader(r)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	spare, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if line, err = out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v, want ready", line, err)
	}
	for pid := range children(cmd.Process.Pid) {
		if pid != spare {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != codeDeserted {
		t.Errorf("got code %d, want %d (deserted)", got, codeDeserted)
	}
	if left := x.alive(); len(left) != 1 || left[0] != spare {
		t.Errorf("processes %v are left, want only %d", left, spare)
	}
}

// The command gets the files that the wrapper has inherited, under their
// numbers, and nothing of the warden's own.
func TestFiles(t *testing.T) {
	t.Parallel()
	x := wrap(t, nil, "/bin/true")
	x.code()
	list := func(command string) map[string]string {
		cmd := exec.Command("sh", "-c", `exec 5</etc/passwd 7</etc/hosts; exec `+command+` /bin/sh -c 'for f in /proc/$$/fd/*; do echo ${f##*/}=$(readlink $f); done'`, self(t))
		cmd.Env = x.cmd.Env
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for line := range strings.Lines(string(out)) {
			fd, name, _ := strings.Cut(strings.TrimSpace(line), "=")
			if strings.HasPrefix(name, "pipe:") {
				name = "pipe" // another one each time
			}
			files[fd] = name
		}
		return files
	}
	want, got := list(""), list(`"$0" wrap`)
	if got["5"] != "/etc/passwd" || !maps.Equal(got, want) {
		t.Errorf("got files %v, want them as without a warden: %v", got, want)
	}
}

func TestHookRefusesPeople(t *testing.T) {
	for _, args := range [][]string{{}, {"1000", "1001", "1s", "1s", "0s", "/bin/true", "true"}, {"a", "b", "c", "d", "e", "f", "g"}} {
		out, err := exec.Command(self(t), append([]string{subcommand}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "own use") {
			t.Errorf("%v: got %q, %v, want a refusal", args, out, err)
		}
	}
}
