package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/clock"
)

// keeps is what a wrapper says when only --at-least goes on.
const keeps = "the command has ended; keeping the lease for "

// noted is a command that writes a line into its journal, and fails.
func noted(t *testing.T) (journal string, command []string) {
	t.Helper()
	journal = filepath.Join(t.TempDir(), "journal")
	return journal, []string{"sh", "-c", `echo $COORDD_FENCING_TOKEN >> "$0"; sleep 0.2; exit 3`, journal}
}

// entries is what has been written into the journal, a line each.
func entries(t *testing.T, journal string) []string {
	t.Helper()
	text, err := os.ReadFile(journal)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

func TestRunAtLeast(t *testing.T) {
	addr := devCluster(t)
	for name, f := range map[string]func(*testing.T, string){
		"skewed":    testAtLeastSkewed,
		"over":      testAtLeastOver,
		"longer":    testAtLeastLonger,
		"signals":   testAtLeastSignals,
		"told":      testAtLeastTold,
		"not begun": testAtLeastNotStarted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, addr)
		})
	}
}

// Of two schedulers that are a little apart one runs the job, although it is
// over when the other looks.
func testAtLeastSkewed(t *testing.T, addr string) {
	journal, job := noted(t)
	args := append([]string{"skewed", "--at-least", "5m", "--"}, job...)
	first := hold(t, addr, args...)
	eventually(t, 20*time.Second, "the first keeps the lease", func() bool { return strings.Contains(first.stderr.String(), keeps) })
	if got := hold(t, addr, args...).code(); got != exitHeld {
		t.Errorf("the second ended with %d, want %d", got, exitHeld)
	}
	if got := entries(t, journal); len(got) != 1 {
		t.Errorf("the job has run under the tokens %v, want once", got)
	}
}

// When the time is over the lease is given back, and the command's code too.
func testAtLeastOver(t *testing.T, addr string) {
	journal, job := noted(t)
	for _, quiet := range []bool{false, true} {
		began := clock.System().Now()
		h := hold(t, addr, slices.Concat([]string{"over", "--at-least", "2s", "--at-most", "1h", "--quiet=" + strconv.FormatBool(quiet), "--"}, job)...)
		if got := h.code(); got != 3 {
			t.Errorf("got code %d, want the command's, 3", got)
		}
		if took := clock.System().Now().Sub(began); took < 2*time.Second {
			t.Errorf("it ended after %v, want 2s at least", took)
		}
		if got := leaseStatus(t, addr, "over"); got.Held || got.Last == nil || got.Last.Why != "released" {
			t.Errorf("got %+v, want that the lease was released", got)
		}
		switch got := h.stderr.String(); {
		case quiet && got != "":
			t.Errorf("with -q: got %q, want no word", got)
		case !quiet && (strings.Count(got, keeps) != 1 || !strings.Contains(got, "(--at-least 2s)\n") || strings.Count(got, "\n") != 2):
			t.Errorf("got %q, want a line that says that the lease is kept, and one with the code", got)
		}
	}
	if got := entries(t, journal); len(got) != 2 || got[0] == got[1] {
		t.Errorf("the job has run under the tokens %v, want two", got)
	}
}

// A command that takes longer is not waited for.
func testAtLeastLonger(t *testing.T, addr string) {
	if got := command(t, "run", "--addr", addr, "--at-least", "100ms", "longer", "sleep", "0.3"); got != (result{}) {
		t.Errorf("got %+v, want success without a word", got)
	}
}

// A signal ends the holding, not the lease: that lapses.
func testAtLeastSignals(t *testing.T, addr string) {
	for sig, want := range map[syscall.Signal]int{unix.SIGTERM: 3, unix.SIGHUP: 3, unix.SIGQUIT: 3, unix.SIGINT: 128 + 2} {
		name := "kept-" + unix.SignalName(sig)
		h := hold(t, addr, "--at-least", "5m", name, "--", "sh", "-c", "echo $COORDD_FENCING_TOKEN; exit 3")
		token := h.line()
		eventually(t, 20*time.Second, "the lease is kept", func() bool { return strings.Contains(h.stderr.String(), keeps) })
		h.signal(unix.SIGUSR1) // for a command that does not run any more
		h.signal(sig)
		if got := h.code(); got != want {
			t.Errorf("%v: got code %d, want %d", sig, got, want)
		}
		if got := leaseStatus(t, addr, name); !got.Held || got.Token.String() != token {
			t.Errorf("%v: got %+v, want that the lease is left to lapse", sig, got)
		}
		if got := h.stderr.String(); !strings.Contains(got, "is not released, as --at-least 5m0s is not over: it is free after 15s at the latest") || strings.Count(got, "\n") != 3 {
			t.Errorf("%v: got %q, want that it says so", sig, got)
		}
	}
}

// A signal that ended the command is not followed by a holding.
func testAtLeastTold(t *testing.T, addr string) {
	h := hold(t, addr, "--at-least", "5m", "--ttl", "3s", "-q", "told", "--", "sh", "-c", `trap "exit 4" TERM; echo ready; while :; do sleep 0.05; done`)
	h.line()
	h.signal(unix.SIGTERM)
	if got := h.code(); got != 4 {
		t.Errorf("got code %d, want the command's, 4", got)
	}
	if got := leaseStatus(t, addr, "told"); got.Last != nil && got.Last.Why == "released" {
		t.Errorf("got %+v, want that the lease is left to lapse", got)
	}
	if got := command(t, "run", "--addr", addr, "--wait", "60s", "-q", "told", "true"); got != (result{}) {
		t.Errorf("got %+v, want that the lease is free after its TTL", got)
	}
}

// What has not started is not kept for anybody.
func testAtLeastNotStarted(t *testing.T, addr string) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := command(t, "run", "--addr", addr, "--at-least", "5m", "not-begun", script); got.code != exitNotFound {
		t.Errorf("got %+v, want code %d", got, exitNotFound)
	}
	if got := leaseStatus(t, addr, "not-begun"); got.Held {
		t.Error("the lease is still held")
	}
}

// A lease that is lost while it is only kept changes nothing of the code.
func TestRunAtLeastLosesCluster(t *testing.T) {
	addr := loopbackAddr(freePorts(t, devNodes))
	dev := launch(t, "dev", "--listen", addr)
	dev.says("Type this", 30*time.Second)
	h := hold(t, addr, "kept", "--ttl", "3s", "--at-least", "5m", "--", "sh", "-c", "exit 3")
	eventually(t, 20*time.Second, "the lease is kept", func() bool { return strings.Contains(h.stderr.String(), keeps) })
	dev.signal(unix.SIGKILL)
	if got := h.code(); got != 3 {
		t.Errorf("got code %d, want the command's, 3", got)
	}
	if got := h.stderr.String(); !strings.Contains(got, "run kept: the lease was lost before --at-least 5m0s was over: lease expired: ") {
		t.Errorf("got %q, want that it says that the lease was lost, and why", got)
	}
}

// A command that runs too long is ended with all that it has started.
func TestRunAtMost(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if out, err := exec.Command("gcc", "-O1", "-o", victim, "internal/warden/testdata/victim.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	addr := devCluster(t)
	written := filepath.Join(t.TempDir(), "written")
	for name, c := range map[string]struct {
		grace   string
		command []string
		says    []string
	}{
		"ends when told":       {"5s", []string{"sh", "-c", `trap "echo told; exit 0" TERM; echo ready; while :; do sleep 0.05; done`}, []string{"ready", "told"}},
		"deaf":                 {"500ms", []string{victim, "deaf"}, []string{"ready"}},
		"a daemon that writes": {"500ms", []string{victim, "writer", written}, []string{"ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := clock.System().Now()
			h := hold(t, addr, slices.Concat([]string{"-q", "--at-most", "3s", "--ttl", "1m", "--grace", c.grace, name}, c.command)...)
			for _, want := range c.says {
				if got := h.line(); got != want {
					t.Errorf("the command says %q, want %q", got, want)
				}
			}
			if got := h.code(); got != exitLost {
				t.Errorf("got code %d, want %d", got, exitLost)
			}
			ended := clock.System().Now()
			if took := ended.Sub(began); took < 3*time.Second {
				t.Errorf("it ended after %v, want 3s at least", took)
			}
			want := "coordd: run " + name + ": the command ran longer than --at-most 3s, and has been ended\n"
			if got := h.stderr.String(); !strings.HasSuffix(got, want) || strings.Count(got, "coordd: ") != 1 {
				t.Errorf("got %q, want %q, in spite of -q", got, want)
			}
			if got := leaseStatus(t, addr, name); got.Held || got.Last == nil || got.Last.Why != "released" {
				t.Errorf("got %+v, want that the lease was released", got)
			}
			if slices.Contains(c.command, written) && clock.Instant(instant(t, written)) >= ended {
				t.Error("the daemon still writes")
			}
		})
	}
	if got := command(t, "run", "--addr", addr, "--at-most", "1h", "short", "sh", "-c", "exit 5"); got.code != 5 {
		t.Errorf("got %+v, want the code of a command that ends in time, 5", got)
	}
}
