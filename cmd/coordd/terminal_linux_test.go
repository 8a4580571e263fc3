package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// person sits at a terminal, in front of a program.
type person struct {
	t      *testing.T
	cmd    *exec.Cmd
	screen *os.File
	shown  lines
	ended  chan struct{}
}

// sitDown starts a program that leads the session of a terminal of its own.
func sitDown(t *testing.T, args ...string) *person {
	t.Helper()
	p := &person{t: t, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	var tty *os.File
	p.screen, tty = openPTY(t)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	go func() {
		_, _ = io.Copy(&p.shown, p.screen) // until nobody has the terminal open
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended already, mostly
		<-p.ended
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", &p.shown)
		}
	})
	return p
}

func (p *person) types(text string) { fmt.Fprint(p.screen, text) }

func (p *person) sees(text string) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, "the terminal shows "+text, func() bool { return strings.Contains(p.shown.String(), text) })
}

// foreground is the process group in the terminal's foreground.
func (p *person) foreground() int {
	p.t.Helper()
	group, err := unix.IoctlGetInt(int(p.screen.Fd()), unix.TIOCGPGRP)
	if err != nil {
		p.t.Fatal(err)
	}
	return group
}

// finds waits until that group is in the foreground.
func (p *person) finds(group int) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, fmt.Sprintf("group %d is in the foreground", group), func() bool { return p.foreground() == group })
}

// suspended waits until the program is stopped.
func (p *person) suspended() {
	p.t.Helper()
	eventually(p.t, 20*time.Second, "the program is stopped", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return strings.Contains(string(stat), ") T ")
	})
}

// leaves waits for the program's end.
func (p *person) leaves() syscall.WaitStatus {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	case <-time.After(60 * time.Second):
		p.t.Fatal("the program has not ended")
		return 0
	}
}

func TestTerminal(t *testing.T) {
	addr := devCluster(t)
	for name, f := range map[string]func(*testing.T, string){
		"command":         testTerminalCommand,
		"foreground":      testTerminalForeground,
		"at least":        testTerminalAtLeast,
		"elected":         testTerminalElected,
		"elected, reads":  testTerminalElectedReads,
		"elected, Ctrl-Z": testTerminalElectedStops,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, addr)
		})
	}
}

// The command has the terminal while it runs: it reads from it, Ctrl-C and
// Ctrl-Z reach it, and a shell sees this process stop with it.
func testTerminalCommand(t *testing.T, addr string) {
	p := sitDown(t, binary(t), "run", "--addr", addr, "terminal", "--", "sh", "-c",
		`echo ready; read x; echo "got $x"; read x; echo "got $x"; exec sleep 300`)
	p.sees("ready")
	p.types("hello\n")
	p.sees("got hello")
	p.types("\x1a") // Ctrl-Z
	p.suspended()
	_ = p.cmd.Process.Signal(unix.SIGCONT) // as fg does
	p.types("again\n")
	p.sees("got again")
	p.types("\x03") // Ctrl-C
	if got := p.leaves(); !got.Signaled() || got.Signal() != unix.SIGINT {
		t.Errorf("got %v, want the wrapper ended by SIGINT, as its command was", p.cmd.ProcessState)
	}
}

// The foreground goes to the command, and back to a script that goes on.
func testTerminalForeground(t *testing.T, addr string) {
	p := sitDown(t, "sh", "-c", `"$0" run --addr "$1" foreground -- sh -c 'echo "command $$"; read x; echo "got $x"; exit 3'
		echo "code $?"; read y; echo "the script got $y"`, binary(t), addr)
	p.sees("command ")
	var command int
	eventually(t, 20*time.Second, "the command's number is there", func() bool {
		_, text, _ := strings.Cut(p.shown.String(), "command ")
		n, _ := fmt.Sscanf(text, "%d\r\n", &command)
		return n == 1
	})
	p.finds(command)
	p.types("one\n")
	p.sees("got one")
	p.sees("code 3")
	p.finds(p.cmd.Process.Pid)
	p.types("two\n")
	p.sees("the script got two")
	if got := p.leaves(); got != 0 {
		t.Errorf("the script ended with %v, want 0", p.cmd.ProcessState)
	}
}

// Ctrl-C ends what only keeps the lease, and the script that it is a line of.
func testTerminalAtLeast(t *testing.T, addr string) {
	p := sitDown(t, binary(t), "run", "--addr", addr, "--at-least", "5m", "kept", "true")
	p.sees("keeping the lease")
	p.finds(p.cmd.Process.Pid)
	p.types("\x03")
	if got := p.leaves(); !got.Signaled() || got.Signal() != unix.SIGINT {
		t.Errorf("got %v, want the wrapper ended by SIGINT", p.cmd.ProcessState)
	}
	if got := leaseStatus(t, addr, "kept"); !got.Held {
		t.Error("the lease is free, want that it lapses")
	}
}

// An elected command does not get the terminal by itself, so Ctrl-C ends the
// campaign with it, even if it ends well.
func testTerminalElected(t *testing.T, addr string) {
	p := sitDown(t, binary(t), "run", "--addr", addr, "--elect", "elected", "--", "sh", "-c",
		`trap "echo bye; exit 0" INT; echo ready; while :; do sleep 0.05; done`)
	p.sees("ready")
	p.finds(p.cmd.Process.Pid)
	p.types("\x03")
	p.sees("bye")
	if got := p.leaves(); got != 0 {
		t.Errorf("got %v, want the command's code 0", p.cmd.ProcessState)
	}
}

// It gets the terminal when it reads from it, in each term, and its signals are
// at their defaults in each.
func testTerminalElectedReads(t *testing.T, addr string) {
	p := sitDown(t, binary(t), "run", "--addr", addr, "--elect", "elected-reads", "--", "sh", "-c",
		`grep SigIgn: /proc/self/status; read x; echo "got $x"; exit 1`)
	for _, text := range []string{"one", "two"} {
		p.types(text + "\n")
		p.sees("got " + text)
		p.finds(p.cmd.Process.Pid)
	}
	p.sees("campaigning again in 2s")
	p.types("\x03")
	if got := p.leaves(); !got.Signaled() || got.Signal() != unix.SIGINT {
		t.Errorf("got %v, want it ended by SIGINT between two terms", p.cmd.ProcessState)
	}
	got := p.shown.String()
	masks := regexp.MustCompile(`SigIgn:\t([0-9a-f]{16})`).FindAllStringSubmatch(got, -1)
	if len(masks) < 2 {
		t.Errorf("got %d terms, want two", len(masks))
	}
	for _, m := range masks {
		// What is ignored of the C library's own signals, 32 and 33, it inherits.
		if mask, err := strconv.ParseUint(m[1], 16, 64); err != nil || mask&(1<<31-1) != 0 {
			t.Errorf("the signals %s are ignored, want none", m[1])
		}
	}
}

// Ctrl-Z stops an elected command and its wrapper, and both go on.
func testTerminalElectedStops(t *testing.T, addr string) {
	p := sitDown(t, binary(t), "run", "--addr", addr, "--elect", "elected-stops", "--", "sh", "-c",
		`trap "echo again" USR1; echo ready; while :; do sleep 0.05; done`)
	p.sees("ready")
	p.types("\x1a")
	p.suspended()
	_ = p.cmd.Process.Signal(unix.SIGCONT)
	_ = p.cmd.Process.Signal(unix.SIGUSR1)
	p.sees("again")
	p.types("\x03")
	if got := p.leaves(); !got.Exited() || got.ExitStatus() != 128+2 {
		t.Errorf("got %v, want code %d", p.cmd.ProcessState, 128+2)
	}
}

// openPTY returns a pseudo terminal: what a person sees and types, and what
// programs have.
func openPTY(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return screen, tty
}
