package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/node"
)

func (s *serving) name(i int) string { return fmt.Sprintf("n%d", i+1) }
func (s *serving) data(i int) string { return filepath.Join(s.dir, s.name(i)) }

// failed checks that a command ended with the code, and one line that says all
// that it should.
func failed(t *testing.T, got result, code int, says ...string) {
	t.Helper()
	if got.code != code || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || strings.Contains(got.stderr, "context deadline") {
		t.Errorf("got %+v, want code %d and one line on stderr", got, code)
	}
	for _, want := range says {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("got %q, want it to say %q", got.stderr, want)
		}
	}
}

// An operator moves the leadership to where it should be, and takes out a
// member that has died, over the socket of any member.
func TestOperators(t *testing.T) {
	s := newServing(t)
	for i := range s.members {
		s.start(i)
	}
	leader := slices.Index(s.addrs, s.ready(20*time.Second).LeaderAddress)
	next, gone := (leader+1)%3, (leader+2)%3

	var (
		got result
		led leaderView
	)
	eventually(t, 20*time.Second, "the leadership is transferred", func() bool { // a busy machine is too slow for it now and then
		got = command(t, "transfer-leadership", s.name(next), "--data", s.data(gone), "-o", "json")
		return got.code != exitUnavailable
	})
	if err := json.Unmarshal([]byte(got.stdout), &led); got.code != 0 || err != nil || led.Leader != s.name(next) {
		t.Fatalf("got %+v (%v), want that %s leads", got, err, s.name(next))
	}
	eventually(t, 10*time.Second, "the new leader serves", func() bool {
		view, ok := cluster(t, s.all())
		return ok && view.Leader == s.name(next)
	})
	failed(t, command(t, "transfer-leadership", "n9", "--data", s.data(gone)), exitUsage, `"n9"`, "[n1 n2 n3]")
	failed(t, command(t, "remove", s.name(gone), "--socket", filepath.Join(s.data(leader), node.AdminSocket)),
		exitUsage, s.name(gone), s.addrs[gone], "force")
	failed(t, command(t, "remove", s.name(next), "--data", s.data(next), "--force"), exitUsage, "transfer the leadership first")

	s.members[gone].signal(syscall.SIGKILL)
	s.members[gone].wait(5 * time.Second)
	failed(t, command(t, "remove", s.name(gone), "--data", s.data(gone)), exitUnavailable, "nobody listens on "+s.data(gone))
	t.Setenv("COORDD_DATA", s.data(leader))
	eventually(t, 10*time.Second, "the member that has died is removed", func() bool {
		got = command(t, "remove", s.name(gone))
		return got.code == 0
	})
	if want := s.name(gone) + " is no member any more (server id " + s.name(gone) + "."; !strings.HasPrefix(got.stdout, want) {
		t.Errorf("got %q, want %q", got.stdout, want)
	}
	if view, ok := cluster(t, s.all()); !ok || len(view.Members) != 2 || view.voters() != 2 {
		t.Errorf("got %+v, want a cluster of two", view)
	}
	eventually(t, 20*time.Second, "the only other leads", func() bool {
		got = command(t, "transfer-leadership")
		return got.code == 0 && got.stdout == s.name(leader)+" leads\n"
	})

	s.start(gone)
	if got := s.members[gone].wait(20 * time.Second); got != exitInternal {
		t.Errorf("a removed member with its old data: got code %d, want %d", got, exitInternal)
	}
	s.members[gone].says("removed from the cluster", time.Second)
	s.members[gone].says("empty the data folder first", time.Second)
	if err := os.RemoveAll(s.data(gone)); err != nil {
		t.Fatal(err)
	}
	s.start(gone)
	s.ready(20 * time.Second)
}

// A call that finds no leader waits for one.
func TestOperatorsWaitForALeader(t *testing.T) {
	s := newServing(t)
	for i := range s.members {
		s.start(i)
	}
	leader := slices.Index(s.addrs, s.ready(20*time.Second).LeaderAddress)
	by := (leader + 1) % 3
	for i := range s.members {
		if i != by {
			s.members[i].signal(syscall.SIGKILL)
			s.members[i].wait(5 * time.Second)
		}
	}
	eventually(t, 10*time.Second, "it misses its leader", func() bool {
		view, _ := cluster(t, s.addrs[by])
		return view.AnsweredBy == s.name(by) && view.Leader == ""
	})
	began := time.Now()
	failed(t, command(t, "remove", s.name(leader), "--data", s.data(by), "--timeout", "1s"), exitUnavailable, "no quorum", "tried for 1s, --timeout")
	if took := time.Since(began); took < time.Second {
		t.Errorf("took %v, want the --timeout", took)
	}
}

func TestOperatorsWithoutNode(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"remove", "n3"}, {"transfer-leadership"}, {"failover", "--to", "raft"}, {"takeover", "--force"}, {"arbiter", "adopt"},
	} {
		failed(t, inProcess(t, args...), exitUsage, "--data (or COORDD_DATA)", "--socket")
		failed(t, inProcess(t, append(args, "--data", dir)...), exitUnavailable,
			filepath.Join(dir, node.AdminSocket), "is a node running with that data folder?")
		failed(t, inProcess(t, append(args, "--data", dir, "--timeout", "0s")...), exitUsage, "--timeout")
	}
	failed(t, inProcess(t, "remove"), exitUsage, "an argument is missing: want coordd remove NAME")
	if os.Geteuid() == 0 {
		return // whom no folder is closed to
	}
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	failed(t, inProcess(t, "remove", "n3", "--data", dir), exitUnavailable, "no permission for "+dir, "as root")
}

func TestCopyTo(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "coordd")
	for range 2 { // the second time over the first
		got := command(t, "copy-to", dir)
		if got.code != 0 || !strings.HasPrefix(got.stdout, "copied coordd 0.1.0 to "+target+" (") {
			t.Fatalf("got %+v, want it to say what was copied where", got)
		}
		info, err := os.Stat(target)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode(); got != 0o755 {
			t.Errorf("got mode %v, want a file for everybody to execute", got)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("got %v (%v) in the folder, want the program alone", entries, err)
		}
	}
	want, err := os.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(target); err != nil || !slices.Equal(got, want) {
		t.Errorf("got another file of %d bytes (%v), want the program of %d", len(got), err, len(want))
	}
	var view copiedView
	got := command(t, "copy-to", dir, "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &view); err != nil || view.Path != target || view.Bytes != int64(len(want)) || view.Release != "0.1.0" {
		t.Errorf("got %+v (%v), want %s of %d bytes", got, err, target, len(want))
	}

	missing := filepath.Join(dir, "missing")
	failed(t, command(t, "copy-to", missing), exitUsage, missing+" is not there", "mount the volume")
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the folder is not made", err)
	}
	failed(t, command(t, "copy-to", target), exitUsage, target+" is not a folder")
}
