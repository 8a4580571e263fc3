package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
)

// lease runs a lease command against the cluster.
func (s *serving) lease(args ...string) result {
	s.t.Helper()
	return command(s.t, append(append([]string{"lease"}, args...), "--addr", s.all())...)
}

// read is lease with JSON, which must succeed.
func read[T any](s *serving, args ...string) (view T) {
	s.t.Helper()
	got := s.lease(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(got.stdout), &view); got.code != 0 || err != nil {
		s.t.Fatalf("lease %q: got %+v (%v), want its JSON", args, got, err)
	}
	return view
}

// proof is the flags by which a holder proves what it holds.
func (v acquiredView) proof() []string {
	return []string{v.Name, "--session", v.Session.String(), "--token", v.Token.String()}
}

// waiter starts an acquire that waits, and returns when it stands in the queue.
func (s *serving) waiter(name string, args ...string) *member {
	s.t.Helper()
	m := launch(s.t, append([]string{"lease", "acquire", name, "--wait", "forever", "--addr", s.all()}, args...)...)
	m.says(fmt.Sprintf("waiting for lease %q, at place ", name), 20*time.Second)
	return m
}

// started is a cluster of three that serves, and who leads it.
func started(t *testing.T) (s *serving, leader int) {
	t.Helper()
	s = newServing(t)
	for i := range s.members {
		s.start(i)
	}
	return s, slices.Index(s.addrs, s.ready(30*time.Second).LeaderAddress)
}

func TestLeaseCommands(t *testing.T) {
	s, leader := started(t)
	follower := (leader + 1) % 3
	t.Run("in a script", func(t *testing.T) { testLeaseScript(t, s) })
	t.Run("held", func(t *testing.T) { testLeaseHeld(t, s) })
	t.Run("a repeat", func(t *testing.T) { testLeaseRepeat(t, s) })
	t.Run("transfer", func(t *testing.T) { testLeaseTransfer(t, s) })
	t.Run("signals", func(t *testing.T) { testLeaseSignals(t, s) })
	t.Run("not printed", func(t *testing.T) { testLeaseNotPrinted(t, s) })
	t.Run("list", func(t *testing.T) { testLeaseList(t, s) })
	t.Run("break", func(t *testing.T) { testLeaseBreak(t, s, follower) })
}

// A shell goes through the life of a lease, all by the environment.
func testLeaseScript(t *testing.T, s *serving) {
	sh := exec.Command("sh", "-c", `set -e
vars=$("$coordd" lease acquire "it's mine" --ttl 30s --label backup -o shell)
eval "$vars"
"$coordd" lease renew "$COORDD_LEASE"
"$coordd" lease get "$COORDD_LEASE"
"$coordd" lease release "$COORDD_LEASE"
"$coordd" lease release "$COORDD_LEASE"
"$coordd" lease renew "$COORDD_LEASE"`)
	sh.Env = append(os.Environ(), "coordd="+binary(t), "COORDD_ADDR="+s.all())
	out, err := sh.CombinedOutput()
	if sh.ProcessState.ExitCode() != exitLost {
		t.Errorf("got %v, want code %d of the last line", err, exitLost)
	}
	for _, want := range []string{
		`lease "it's mine" is renewed (token `, "backup on ", fmt.Sprintf("(pid %d)", sh.ProcessState.Pid()),
		`lease "it's mine" is released (token `, `lease "it's mine" is not held under token `, ": it was released",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("got %s, want it to say %q", out, want)
		}
	}
	state := read[leaseView](s, "get", "it's mine")
	if state.Held || state.Last == nil || state.Last.Why != "released" {
		t.Errorf("got %+v, want that it was released", state)
	}
}

func testLeaseHeld(t *testing.T, s *serving) {
	held := read[acquiredView](s, "acquire", "held", "--ttl", "1m", "--attributes", "v=1")
	if held.TTLMS != 60000 || held.ValidMS <= 0 || held.ValidMS >= 60000 || held.Waited || held.AcquiredAt == nil {
		t.Errorf("got %+v, want a lease that is valid for a minute at most", held)
	}
	state := read[leaseView](s, "get", "held")
	if !state.Held || state.Token != held.Token || state.Owner.Label != "a script" || string(state.Attributes) != "v=1" {
		t.Errorf("got %+v, want it held under %v", state, held.Token)
	}
	failed(t, s.lease("acquire", "held"), exitHeld, `lease "held" is held by a script on `)
	failed(t, s.lease("acquire", "held", "--session", held.Session.String()), exitHeld) // a session is not the holder, an attempt is
	failed(t, s.lease("renew", "held", "--session", leases.ID{1}.String(), "--token", held.Token.String()), exitLost)
	got := s.lease("acquire", "held", "--wait", "500ms")
	if got.code != exitHeld || !strings.Contains(got.stderr, "waiting for lease") || !strings.Contains(got.stderr, "is held by a script") {
		t.Errorf("got %+v, want that it waited in vain", got)
	}
	if got := s.lease(append([]string{"release"}, held.proof()...)...); got.code != 0 {
		t.Errorf("release: got %+v", got)
	}
}

// A caller who has drawn the attempt gets the same lease by a repeat.
func testLeaseRepeat(t *testing.T, s *serving) {
	args := []string{"acquire", "repeat", "--session", leases.NewID().String(), "--attempt", leases.NewID().String()}
	first := read[acquiredView](s, args...)
	sh := exec.Command("sh", append([]string{"-c", `"$coordd" lease "$@" -o json; exit $?`, "sh"}, args...)...) // another caller
	sh.Env = append(os.Environ(), "coordd="+binary(t), "COORDD_ADDR="+s.all())
	out, err := sh.CombinedOutput()
	var second acquiredView
	if err := errors.Join(err, json.Unmarshal(out, &second)); err != nil || first.Token != second.Token || first.Attempt != second.Attempt {
		t.Errorf("got %+v and %s (%v), want the same lease", first, out, err)
	}
	if state := read[leaseView](s, "get", "repeat"); !state.Held || state.Token != first.Token {
		t.Errorf("got %+v, want it held under %v", state, first.Token)
	}
	failed(t, s.lease(append(args, "--ttl", "20s")...), exitUsage, "ttl")
}

func testLeaseTransfer(t *testing.T, s *serving) {
	held := read[acquiredView](s, "acquire", "transfer", "--ttl", "1m")
	waiters := []*member{s.waiter("transfer", "--label", "first"), s.waiter("transfer", "--label", "second", "-o", "json")}
	queue := read[queueView](s, "queue", "transfer")
	if len(queue.Waiters) != 2 || queue.Waiters[0].Position != 1 || queue.Waiters[0].Owner.Label != "first" || queue.Waiters[1].Owner.Label != "second" {
		t.Fatalf("got %+v, want both waiters in turn", queue)
	}
	transfer := append(append([]string{"transfer"}, held.proof()...), "--to", queue.Waiters[1].Attempt.String())
	if got := read[transferredView](s, transfer...); !got.Transferred || got.Token != held.Token {
		t.Errorf("got %+v, want it passed on", got)
	}
	if got := waiters[1].wait(20 * time.Second); got != 0 {
		t.Errorf("got code %d of the heir, want 0", got)
	}
	state := read[leaseView](s, "get", "transfer")
	if !state.Held || state.Owner.Label != "second" || state.Waiters != 1 || state.Last.Why != "transferred" || state.Last.NextToken != state.Token {
		t.Errorf("got %+v, want the second to hold it before the first", state)
	}
	if got := read[transferredView](s, transfer...); !got.Transferred {
		t.Errorf("got %+v, want the same of a repeat", got)
	}
	failed(t, s.lease(append([]string{"release"}, held.proof()...)...), exitLost, "it was transferred")
	_, lines, _ := strings.Cut(waiters[1].out.String(), "\n") // after the note of the wait
	var heir acquiredView
	if err := json.Unmarshal([]byte(lines), &heir); err != nil || heir.Token != state.Token || !heir.Waited {
		t.Fatalf("got %s (%v), want the token %v", lines, err, state.Token)
	}
	to := []string{"--to", leases.NewID().String()}
	if got := s.lease(append(append([]string{"transfer"}, heir.proof()...), to...)...); got.code != 0 || !strings.Contains(got.stdout, "is released (token") {
		t.Errorf("got %+v, want a plain release, since nobody waits under that attempt", got)
	}
	if got := waiters[0].wait(20 * time.Second); got != 0 {
		t.Errorf("got code %d of the next in turn, want 0", got)
	}
}

// Who is told to stop waiting leaves nothing behind.
func testLeaseSignals(t *testing.T, s *serving) {
	held := read[acquiredView](s, "acquire", "signals", "--ttl", "1m")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		m := s.waiter("signals")
		m.signal(sig)
		m.wait(20 * time.Second)
		status := m.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if sig == syscall.SIGINT && (!status.Signaled() || status.Signal() != sig) || sig == syscall.SIGTERM && status.ExitStatus() != 143 {
			t.Errorf("%v: got %v, want its code", sig, m.cmd.ProcessState)
		}
		m.says(`before lease "signals" was acquired`, time.Second)
		if got := read[queueView](s, "queue", "signals"); len(got.Waiters) != 0 {
			t.Errorf("%v: got %+v, want that nobody waits any more", sig, got)
		}
	}
	if got := s.lease(append([]string{"release"}, held.proof()...)...); got.code != 0 {
		t.Errorf("release: got %+v", got)
	}
	if got := read[leaseView](s, "get", "signals"); got.Held {
		t.Errorf("got %+v, want that nobody has got it", got)
	}
}

// A lease that nobody reads of is given back.
func testLeaseNotPrinted(t *testing.T, s *serving) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	cmd := exec.Command(binary(t), "lease", "acquire", "pipe", "--ttl", "5m", "--addr", s.all())
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = w, &stderr
	_ = cmd.Run() // its code is looked at
	w.Close()
	if got := cmd.ProcessState.ExitCode(); got != exitInternal || !strings.Contains(stderr.String(), "broken pipe") {
		t.Errorf("got code %d and %q, want %d and why", got, stderr.String(), exitInternal)
	}
	if got := read[leaseView](s, "get", "pipe"); got.Held || got.Last == nil || got.Last.Why != "withdrawn" {
		t.Errorf("got %+v, want that it was withdrawn", got)
	}
}

func testLeaseList(t *testing.T, s *serving) {
	for _, name := range []string{"list/b", "list/a", "list/c", "other"} {
		read[acquiredView](s, "acquire", name, "--ttl", "5m")
	}
	names := func(page pageView) string {
		var names []string
		for _, l := range page.Leases {
			names = append(names, l.Name)
		}
		return strings.Join(names, " ")
	}
	if got := read[pageView](s, "list", "list/"); names(got) != "list/a list/b list/c" || got.Next != "" {
		t.Errorf("got %+v, want three leases", got)
	}
	page := read[pageView](s, "list", "list/", "--limit", "2")
	if names(page) != "list/a list/b" || page.Next != "list/b" {
		t.Errorf("got %+v, want the first two and where to go on", page)
	}
	if got := read[pageView](s, "list", "list/", "--after", page.Next); names(got) != "list/c" {
		t.Errorf("got %+v, want the last", got)
	}
	var at positionFlag
	if err := at.Set(page.At); err != nil {
		t.Errorf("got at %q (%v), want a place to watch from", page.At, err)
	}
	for _, words := range [][]string{{"lease", "renew"}, {"lease", "break"}, {"run"}} {
		t.Setenv("COORDD_ADDR", s.all())
		if got := completions(t, append(words, "list/")...); got != "list/a\nlist/b\nlist/c\n:4\n" {
			t.Errorf("completion of %q: got %q, want the names", words, got)
		}
	}
	if got := completions(t, "lease", "get", "--addr", s.all(), "list/c"); got != "list/c\n:4\n" {
		t.Errorf("completion by --addr: got %q, want the name", got)
	}
}

func testLeaseBreak(t *testing.T, s *serving, by int) {
	held := read[acquiredView](s, "acquire", "break", "--ttl", "1m")
	breaks := func(args ...string) result {
		t.Helper()
		return command(t, append([]string{"lease", "break", "break", "--data", s.data(by)}, args...)...)
	}
	failed(t, breaks("--token", "1"), exitLost, "is not held under token 1")
	failed(t, breaks("--token", held.Token.String(), "--now"), exitUsage, "--yes", "fencing")
	var view brokenView
	got := breaks("--token", held.Token.String(), "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &view); got.code != 0 || err != nil || view.Ended || view.AtMostMS == 0 || view.AtMostMS > 61000 {
		t.Errorf("got %+v (%v), want that it is broken and held for a minute at most", got, err)
	}
	failed(t, s.lease(append([]string{"renew"}, held.proof()...)...), exitLost, "an operator has broken it: stop the work, then release it")
	if state := read[leaseView](s, "get", "break"); !state.Held || !state.Broken {
		t.Errorf("got %+v, want it broken", state)
	}
	if got := s.lease("get", "break"); !strings.Contains(got.stdout, "since an operator has broken it") {
		t.Errorf("got %+v, want it to say that it is broken", got)
	}
	if got := breaks("--token", held.Token.String(), "--now", "--yes"); got.code != 0 || !strings.Contains(got.stdout, "is broken and has ended") {
		t.Errorf("got %+v, want that it has ended", got)
	}
	if got := breaks("--token", held.Token.String()); got.code != 0 || !strings.Contains(got.stdout, "is broken and has ended") {
		t.Errorf("got %+v, want the same of a repeat", got)
	}
	if state := read[leaseView](s, "get", "break"); state.Held || state.Last.Why != "broken" {
		t.Errorf("got %+v, want that the name is free", state)
	}
	if got, want := command(t, "status", "break", "--addr", s.all()), s.lease("get", "break"); got != want || !strings.Contains(got.stdout, "broken") {
		t.Errorf("status: got %+v, want the same as of lease get, %+v", got, want)
	}
}

// A watch misses nothing when the node that tells it dies, and a claim waits on.
func TestLeaseWatch(t *testing.T) {
	s, leader := started(t)
	addrs := slices.Concat([]string{s.addrs[leader]}, slices.Delete(slices.Clone(s.addrs), leader, leader+1))
	before := read[acquiredView](s, "acquire", "watch/before", "--ttl", "5m")
	read[acquiredView](s, "acquire", "other", "--ttl", "5m")
	watch := launch(t, "lease", "watch", "watch/", "--list", "-o", "json", "--addr", strings.Join(addrs, ","))
	watch.says(`"kind":"watching"`, 20*time.Second)

	first := read[acquiredView](s, "acquire", "watch/first", "--ttl", "5m")
	other := read[acquiredView](s, "acquire", "wait", "--ttl", "5m")
	waiter := s.waiter("wait", "--label", "patient")
	watch.says(first.Token.String(), 20*time.Second)
	s.members[leader].signal(syscall.SIGKILL)
	s.members[leader].wait(5 * time.Second)
	var got result
	eventually(t, 30*time.Second, "the lease is released at another leader", func() bool {
		got = s.lease(append([]string{"release"}, first.proof()...)...)
		return got.code == 0
	})
	eventually(t, 30*time.Second, "who waited stands in the queue of the new leader", func() bool {
		queue := read[queueView](s, "queue", "wait")
		return len(queue.Waiters) == 1 && queue.Waiters[0].Owner.Label == "patient"
	})
	if got := s.lease(append([]string{"release"}, other.proof()...)...); got.code != 0 {
		t.Errorf("release: got %+v", got)
	}
	if got := waiter.wait(20 * time.Second); got != 0 {
		t.Errorf("got code %d of who waited, want 0", got)
	}
	second := read[acquiredView](s, "acquire", "watch/second", "--ttl", "5m")
	watch.says(second.Token.String(), 30*time.Second)

	var lines []changeView
	for line := range strings.Lines(watch.out.String()) {
		var v changeView
		if strings.HasPrefix(line, "{") {
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			lines = append(lines, v)
		}
	}
	var told []string
	for _, l := range lines {
		told = append(told, fmt.Sprintf("%s %s %v", l.Kind, l.Name, l.Token))
	}
	want := []string{
		fmt.Sprintf("held watch/before %v", before.Token), "watching  ",
		fmt.Sprintf("granted watch/first %v", first.Token), fmt.Sprintf("released watch/first %v", first.Token), fmt.Sprintf("granted watch/second %v", second.Token),
	}
	told = slices.DeleteFunc(told, func(s string) bool { return s == "watching  0" })
	want = slices.DeleteFunc(want, func(s string) bool { return s == "watching  " })
	if !slices.Equal(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}

	// From a place in the middle it tells what comes after.
	again := launch(t, "lease", "watch", "watch/", "--from", lines[2].At, "--addr", strings.Join(addrs, ","))
	again.says("released     watch/first", 20*time.Second)
	again.says(second.Token.String(), 20*time.Second)
	if out := again.out.String(); strings.Contains(out, "granted      watch/first") {
		t.Errorf("got %q, want only what comes after %s", out, lines[2].At)
	}
	failed(t, s.lease("watch", "--from", "7/1"), exitMissed, "cannot be told", "coordd lease watch --list")
}
