package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// member is a coordd process of a test, ended with it.
type member struct {
	t     *testing.T
	args  []string // of the command line
	cmd   *exec.Cmd
	out   lines         // stdout and stderr
	ended chan struct{} // closed when the process has ended
}

// lines is what a process has written so far.
type lines struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// launch starts the built binary.
func launch(t *testing.T, args ...string) *member {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	if args[0] == "dev" { // killed, it leaves the folder of its sockets behind
		dir, err := os.MkdirTemp("", "coordd-") // a socket's path must be short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	}
	return begin(t, cmd)
}

// begin starts a command that is coordd.
func begin(t *testing.T, cmd *exec.Cmd) *member {
	t.Helper()
	m := &member{t: t, args: cmd.Args[1:], cmd: cmd, ended: make(chan struct{})}
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = m.cmd.Wait() // its exit code is in ProcessState
		close(m.ended)
	}()
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill() // it has ended already, mostly
		<-m.ended
		if strings.Contains(m.out.String(), "WARNING: DATA RACE") {
			t.Error("a process found a data race")
		}
		if t.Failed() {
			t.Logf("coordd %s wrote:\n%s", strings.Join(m.args, " "), m.out.String())
		}
	})
	return m
}

func (m *member) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatalf("signal %v to %v: %v", s, m.args, err)
	}
}

// wait returns the exit code, and fails the test if the process takes longer.
func (m *member) wait(atMost time.Duration) int {
	m.t.Helper()
	select {
	case <-m.ended:
		return m.cmd.ProcessState.ExitCode()
	case <-time.After(atMost):
		m.t.Fatalf("coordd %v has not ended within %v", m.args, atMost)
		return -1
	}
}

// says waits until the process has written the text.
func (m *member) says(text string, atMost time.Duration) {
	m.t.Helper()
	eventually(m.t, atMost, fmt.Sprintf("coordd %v says %q", m.args, text), func() bool {
		return strings.Contains(m.out.String(), text)
	})
}

// eventually looks again and again until what has come true.
func eventually(t *testing.T, atMost time.Duration, what string, isTrue func() bool) {
	t.Helper()
	deadline := time.After(atMost)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !isTrue() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", atMost, what)
		}
	}
}

// command runs the built binary to its end.
func command(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), binary(t), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// cluster is what status tells about the cluster at addr; ok says that leases
// are granted.
func cluster(t *testing.T, addr string) (view clusterView, ok bool) {
	t.Helper()
	got := command(t, "status", "--addr", addr, "--timeout", "2s", "-o", "json")
	if got.stdout != "" {
		if err := json.Unmarshal([]byte(got.stdout), &view); err != nil {
			t.Fatalf("status -o json: %v in %s", err, got.stdout)
		}
	}
	return view, got.code == 0
}

func (v clusterView) voters() int {
	n := 0
	for _, m := range v.Members {
		if m.Voter {
			n++
		}
	}
	return n
}

// freePorts returns the first of n free ports of loopback, devPortStep apart,
// below the range from which the system takes ports by itself.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		first := 10000 + rand.IntN(20000)
		if portsFree(first, n) {
			return first
		}
	}
	t.Fatal("no free ports found")
	return 0
}

func portsFree(first, n int) bool {
	for i := range n {
		for _, port := range []int{first + i*devPortStep, first + i*devPortStep + 1} { // a member's own, and its HTTP's
			l, err := net.Listen("tcp", loopbackAddr(port))
			if err != nil {
				return false
			}
			l.Close()
		}
	}
	return true
}

func loopbackAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
