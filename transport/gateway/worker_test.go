package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport/gateway/gatewaytest"
)

// worker is a run of the manual's worker.
type worker struct {
	cmd    *exec.Cmd
	stdout lockedBuffer
	stderr bytes.Buffer
}

// work starts the worker, for a lease of 10 s unless the flags say otherwise.
func work(t *testing.T, urls string, flags ...string) *worker {
	t.Helper()
	gatewaytest.Need(t, "python3")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w := new(worker)
	w.cmd = exec.CommandContext(ctx, "python3", slices.Concat([]string{"../../docs/examples/worker.py", "nightly", "--ttl", "10", "--seconds", "0.05"}, flags)...)
	w.cmd.Env = append(os.Environ(), "COORDD_URL="+urls, "PYTHONDONTWRITEBYTECODE=1", "http_proxy=http://127.0.0.1:1")
	w.cmd.Stdout, w.cmd.Stderr = &w.stdout, &w.stderr
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// ends waits for the worker, and checks its exit code and its last words.
func (w *worker) ends(t *testing.T, code int, says string) {
	t.Helper()
	err := w.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := w.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(w.stderr.String(), says) || (says == "") != (w.stderr.Len() == 0) {
		t.Errorf("got the exit code %d and %q, want %d and %q; it has printed\n%s", got, w.stderr.String(), code, says, &w.stdout)
	}
}

// holder takes the lease from within the process.
func (b *toy) holder(t *testing.T) (leases.Session, leases.Held) {
	t.Helper()
	s, err := b.Open(t.Context(), leases.NewID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Acquire(t.Context(), leases.Claim{Name: "nightly", Attempt: leases.NewID(), TTL: time.Minute, Owner: leases.Owner{Label: "the test"}})
	if err != nil {
		t.Fatal(err)
	}
	return s, leases.Held{Name: "nightly", Token: g.Token}
}

// await waits until f, called with b.mu held, is true.
func (b *toy) await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		b.mu.Lock()
		ok, news := f(), b.news
		b.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
		select {
		case <-news:
		case <-time.After(10 * time.Millisecond): // not all is told
		}
	}
}

// renewals is how many renewals were answered with yes.
func (b *toy) renewals() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.renewed
}

// gone reports how the newest lease has ended.
func (b *toy) gone(t *testing.T, want leases.Why) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	_, held := b.table.Get("nightly")
	if last, _ := b.table.Last("nightly"); held || last.Why != want || len(b.waiting) != 0 {
		t.Errorf("afterwards: got held %v, the last one %v, %d waiting; want it free and %v", held, last.Why, len(b.waiting), want)
	}
}

func TestWorkerWorks(t *testing.T) {
	b := newToy()
	w := work(t, serveToy(t, b).url, "--steps", "3")
	w.ends(t, 0, "")
	const want = "step 0 under token 4294967297\nstep 1 under token 4294967297\nstep 2 under token 4294967297\n"
	if got := w.stdout.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	b.gone(t, leases.WhyReleased)
}

func TestWorkerRenews(t *testing.T) {
	b := newToy()
	w := work(t, serveToy(t, b).url, "--ttl", "4", "--steps", "100") // longer than its lease
	w.ends(t, 0, "")
	if n := b.renewals(); n < 2 {
		t.Errorf("got %d renewals, want at least 2", n)
	}
	b.gone(t, leases.WhyReleased)
}

// A grant that has waited is confirmed before the first step.
func TestWorkerWaits(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	first, held := b.holder(t)
	w := work(t, s.url, "--steps", "1", "--wait", "50")
	b.await(t, "the worker waits", func() bool { return len(b.waiting) == 1 })
	if err := first.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	w.ends(t, 0, "")
	if got := w.stdout.String(); got != "step 0 under token 4294967298\n" || b.renewals() < 1 {
		t.Errorf("got %q after %d renewals, want a step under the next token, after one", got, b.renewals())
	}
	b.gone(t, leases.WhyReleased)
}

// One that was granted to a waiter, but is over before it is confirmed, is not
// used.
func TestWorkerIsNotConfirmed(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	first, held := b.holder(t)
	w := work(t, s.url, "--wait", "50")
	b.await(t, "the worker waits", func() bool { return len(b.waiting) == 1 })
	b.mu.Lock()
	b.broken = &leases.NotHeldError{Name: "nightly", Token: held.Token + 1, Why: leases.WhyExpired}
	b.mu.Unlock()
	if err := first.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	w.ends(t, 76, "it has expired")
	if got := w.stdout.String(); got != "" {
		t.Errorf("got %q, want no step", got)
	}
}

func TestWorkerFindsItHeld(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	_, held := b.holder(t)
	work(t, s.url, "--wait", "0.2").ends(t, 75, "is held by the test")
	b.mu.Lock()
	defer b.mu.Unlock()
	if l, ok := b.table.Get("nightly"); !ok || l.Token != held.Token || len(b.waiting) != 0 {
		t.Errorf("afterwards: got %v and %d waiting, want the same holder and nobody", l, len(b.waiting))
	}
}

// With nobody to answer it stops by its own clock.
func TestWorkerAlone(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	w := work(t, s.url, "--ttl", "1.5", "--steps", "100000")
	b.await(t, "the worker has the lease", func() bool { return b.table.Len() == 1 })
	s.stop()
	w.ends(t, 76, "worker: ")
	if steps := strings.Count(w.stdout.String(), "\n"); steps > 30*(b.renewals()+1) {
		t.Errorf("got %d steps of 0.05 s each, want no more than fit into 1.5 s after each of %d answers", steps, b.renewals()+1)
	}
	if said := w.stderr.String(); !strings.Contains(said, "it was not renewed in time") && !strings.Contains(said, "too little of it is left") {
		t.Errorf("got %q, want why it stopped", said)
	}
}

// takesOver begins the grace of a takeover.
func (b *toy) takesOver(epoch uint32, freshIn time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grace, b.reclaimed = &leases.GraceError{Epoch: epoch, FreshIn: freshIn}, nil
}

// Through a takeover, and another one, it keeps its lease under the same token.
func TestWorkerReclaims(t *testing.T) {
	b := newToy()
	w := work(t, serveToy(t, b).url, "--ttl", "4", "--steps", "150") // for longer than its lease
	b.await(t, "the worker has the lease", func() bool { return b.table.Len() == 1 })
	for epoch := range uint32(2) {
		b.takesOver(epoch+2, time.Minute)
		b.await(t, "the lease is reclaimed", func() bool { return len(b.reclaimed) > 0 })
	}
	b.mu.Lock()
	held, _ := b.table.Get("nightly")
	got := b.reclaimed[0]
	b.mu.Unlock()
	if got.Name != held.Name || got.Token != held.Token || got.TTL != held.TTL || got.AcquiredAt.UnixMilli() != held.AcquiredAt.UnixMilli() {
		t.Errorf("got %+v reclaimed, want what was granted: %+v", got, held)
	}
	w.ends(t, 0, "")
	if said := w.stdout.String(); strings.Count(said, " under token 4294967297\n") != 150 {
		t.Errorf("got %q, want 150 steps under one token", said)
	}
	b.gone(t, leases.WhyReleased)
}

// What was granted to a waiter, and is not confirmed yet, is not reclaimed.
func TestWorkerInAGrace(t *testing.T) {
	b := newToy()
	first, held := b.holder(t)
	w := work(t, serveToy(t, b).url, "--ttl", "1.5", "--wait", "50")
	b.await(t, "the worker waits", func() bool { return len(b.waiting) == 1 })
	b.takesOver(2, time.Minute)
	if err := first.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	w.ends(t, 76, "it was not renewed in time")
	if got := w.stdout.String(); got != "" || len(b.reclaimed) != 0 {
		t.Errorf("got %q and %v reclaimed, want no step, and nothing", got, b.reclaimed)
	}
	b.gone(t, leases.WhyReleased)
}

// Where nothing is granted anew it waits for as long as it was told to.
func TestWorkerWaitsForTheEndOfAGrace(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	b.takesOver(2, time.Minute)
	work(t, s.url, "--wait", "0.2").ends(t, 69, "the arbiter has taken over in epoch 2")
	b.takesOver(2, 100*time.Millisecond)
	refused := b.refused
	w := work(t, s.url, "--wait", "50", "--steps", "1")
	b.await(t, "the worker is refused", func() bool { return b.refused > refused })
	b.mu.Lock()
	b.grace = nil
	b.mu.Unlock()
	w.ends(t, 0, "")
	b.gone(t, leases.WhyReleased)
}

// A certain refusal is the end at once, and what an operator has broken is given
// back.
func TestWorkerIsRefused(t *testing.T) {
	b := newToy()
	w := work(t, serveToy(t, b).url, "--steps", "100000")
	b.await(t, "the worker has the lease", func() bool { return b.table.Len() == 1 })
	b.mu.Lock()
	b.broken = &leases.NotHeldError{Name: "nightly", Token: 1, Why: leases.WhyBroken}
	b.mu.Unlock()
	w.ends(t, 76, "an operator has broken it")
	b.gone(t, leases.WhyReleased)
}

func TestWorkerIsStopped(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	w := work(t, s.url, "--steps", "100000")
	b.await(t, "the worker works", func() bool { return w.stdout.String() != "" })
	w.cmd.Process.Signal(os.Interrupt)
	w.cmd.Wait()
	if !strings.Contains(w.stderr.String(), "KeyboardInterrupt") {
		t.Errorf("got %q, want that it was interrupted", &w.stderr)
	}
	b.gone(t, leases.WhyReleased)

	_, held := b.holder(t) // and while it waits
	w = work(t, s.url, "--wait", "50")
	b.await(t, "the worker waits", func() bool { return len(b.waiting) == 1 })
	w.cmd.Process.Signal(os.Interrupt)
	w.cmd.Wait()
	b.await(t, "nobody waits", func() bool { return len(b.waiting) == 0 })
	if l, ok := b.table.Get("nightly"); !ok || l.Token != held.Token {
		t.Errorf("got %v, want the same holder", l)
	}
}

func TestWorkerFindsANode(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	rude, err := net.Listen("tcp", "127.0.0.1:0") // hangs up on everybody
	if err != nil {
		t.Fatal(err)
	}
	defer rude.Close()
	go func() {
		for {
			c, err := rude.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	work(t, "http://"+rude.Addr().String()+",http://127.0.0.1:1,"+s.url, "--steps", "1").ends(t, 0, "")
	b.gone(t, leases.WhyReleased)
	work(t, "http://"+rude.Addr().String(), "--wait", "0.5").ends(t, 69, "worker: ")
	work(t, s.url, "--ttl", "0.5").ends(t, 64, "ttl_ms")
}
