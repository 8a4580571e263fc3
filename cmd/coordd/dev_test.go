package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
)

func TestDev(t *testing.T) {
	port := freePorts(t, devNodes)
	addr := loopbackAddr(port)
	binary(t) // which takes its time, too
	began := time.Now()
	dev := launch(t, "dev", "--listen", addr)
	dev.says("Type this in two other terminals", 10*time.Second)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("ready after %v, want under 2s on a machine that is not busy", took)
	} else {
		t.Logf("ready after %v", took)
	}
	for _, want := range []string{"export COORDD_ADDR=" + addr + ",", " run nightly ", " status nightly\n"} {
		if got := dev.out.String(); !strings.Contains(got, want) {
			t.Errorf("got %q, want it to say %q", got, want)
		}
	}

	t.Run("status", func(t *testing.T) {
		if got := command(t, "status", "--addr", addr); got.code != 0 || !strings.Contains(got.stdout, "grants leases     yes\n") {
			t.Errorf("got %+v, want that leases are granted", got)
		}
		eventually(t, 10*time.Second, "all three vote", func() bool {
			view, ok := cluster(t, addr)
			return ok && view.voters() == devNodes && view.Leader != "" && view.Cluster != ""
		})
	})
	t.Run("status of a lease", func(t *testing.T) { testStatusOfLease(t, addr) })
	t.Run("failover", func(t *testing.T) { testDevFailover(t, addr, socketIn(dev.out.String())) })
	t.Run("ports in use", func(t *testing.T) {
		second := launch(t, "dev", "--listen", loopbackAddr(port+devPortStep))
		if got := second.wait(10 * time.Second); got != exitInternal {
			t.Errorf("got code %d, want %d", got, exitInternal)
		}
		if got, want := second.out.String(), loopbackAddr(port+devPortStep)+" is in use"; !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("got %q, want one line that says %q", got, want)
		}
	})

	dev.signal(syscall.SIGINT)
	if got := dev.wait(10 * time.Second); got != 0 {
		t.Errorf("got code %d at SIGINT, want 0", got)
	}
	if _, err := os.Stat(filepath.Dir(socketIn(dev.out.String()))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that the folder of the sockets is gone", err)
	}
	if got := dev.out.String(); strings.Contains(got, "coordd: ") || strings.Contains(got, "level=ERROR") || strings.Contains(got, "handed over") {
		t.Errorf("got %q, want no error, and no complaint that the last member is alone", got)
	}
}

// socketIn is the socket that coordd dev tells of.
func socketIn(greeting string) string {
	_, after, _ := strings.Cut(greeting, "--socket ")
	path, _, _ := strings.Cut(after, "\n")
	return path
}

// testDevFailover passes authority to the arbiter and back. A holder keeps its lease,
// and its token.
func testDevFailover(t *testing.T, addr, socket string) {
	if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Fatalf("got %v (%v), want a folder that nobody else may open", info, err)
	}
	t.Setenv("COORDD_SOCKET", socket)
	t.Setenv("COORDD_ADDR", addr)
	c, err := client.Dial([]string{addr})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	lease, err := c.TryAcquire(t.Context(), "weekly")
	if err != nil {
		t.Fatal(err)
	}

	failed(t, command(t, "takeover", "--force"), exitUnavailable, "the root register was written meanwhile", "is not gone")
	var handed handedView
	handOver := func(to string) {
		t.Helper()
		got := command(t, "failover", "--to", to, "-o", "json")
		before := handed.Epoch
		if err := json.Unmarshal([]byte(got.stdout), &handed); got.code != 0 || err != nil || handed.To != to || handed.Epoch <= before {
			t.Fatalf("failover to %s: got %+v (%v), want a greater epoch than %d", to, got, err, before)
		}
		if token := command(t, "lease", "get", "weekly", "-o", "json"); !strings.Contains(token.stdout, `"token": "`+lease.Token().String()+`"`) {
			t.Errorf("after a failover to %s: got %+v, want the lease under its token, %v", to, token, lease.Token())
		}
	}
	handOver(toFallback)
	if got := command(t, "status"); got.code != 0 || !strings.Contains(got.stdout, "yes (by the arbiter)") || !strings.Contains(got.stdout, "(coordd failover --to raft)") {
		t.Errorf("got %+v, want that the arbiter grants leases", got)
	}
	handOver(toRaft)
	if got := command(t, "status"); got.code != 0 || strings.Contains(got.stdout, "(by the arbiter)") || !strings.Contains(got.stdout, "window ") {
		t.Errorf("got %+v, want that a leader grants leases", got)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("release: got %v, want that it was held all the time", err)
	}

	var history historyView
	got := command(t, "authority", "history", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &history); err != nil {
		t.Fatalf("got %+v (%v), want the history", got, err)
	}
	var why []string
	for _, c := range history.Changes {
		why = append(why, string(c.Why))
	}
	if want := "birth imported handover failback imported"; strings.Join(why, " ") != want || history.Epoch != handed.Epoch {
		t.Errorf("got %v in epoch %d, want %s in epoch %d", why, history.Epoch, want, handed.Epoch)
	}
}

// testStatusOfLease follows one lease through its life.
func testStatusOfLease(t *testing.T, addr string) {
	status := func() (view leaseView) {
		t.Helper()
		got := command(t, "status", "nightly", "--addr", addr, "-o", "json")
		if err := json.Unmarshal([]byte(got.stdout), &view); got.code != 0 || err != nil {
			t.Fatalf("got %+v (%v), want a lease", got, err)
		}
		return view
	}
	if got := status(); got.Held || got.Last != nil {
		t.Errorf("got %+v, want a lease that nobody has held", got)
	}

	c, err := client.Dial([]string{addr}, client.WithOwner(leases.Owner{Label: "backup", Host: "host7", PID: 12}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	lease, err := c.TryAcquire(t.Context(), "nightly", client.TTL(20*time.Second), client.Attributes([]byte("v=1")))
	if err != nil {
		t.Fatal(err)
	}
	got := status()
	if !got.Held || got.Token != lease.Token() || got.Owner.Label != "backup" || got.TTLMS != 20000 ||
		*got.AtMostMS == 0 || *got.AtMostMS > 20200 || got.AcquiredAt == nil || string(got.Attributes) != "v=1" {
		t.Errorf("got %+v, want it held by backup under %v", got, lease.Token())
	}
	if got := command(t, "status", "nightly", "--addr", addr); got.code != 0 || !strings.Contains(got.stdout, "backup on host7 (pid 12)") {
		t.Errorf("got %+v, want the holder", got)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := status(); got.Held || got.Last == nil || got.Last.Token != lease.Token() || got.Last.Why != "released" {
		t.Errorf("got %+v, want that token %v was released", got, lease.Token())
	}
}

func TestDevEndsAtSIGTERM(t *testing.T) {
	dev := launch(t, "dev", "--listen", loopbackAddr(freePorts(t, devNodes)), "-v")
	dev.says("level=INFO", 10*time.Second)
	dev.signal(syscall.SIGTERM)
	if got := dev.wait(10 * time.Second); got != 0 {
		t.Errorf("got code %d, want 0", got)
	}
}

func TestDevGreeting(t *testing.T) {
	addrs := []string{"127.0.0.1:7420", "127.0.0.1:7430", "127.0.0.1:7440"}
	const plain = `Three members on 127.0.0.1:7420, 127.0.0.1:7430, 127.0.0.1:7440; n1 leads, ready after 0.8 s.
Everything is in memory and gone when this process ends (Ctrl-C).

Type this in two other terminals; the second waits until the first is done:

  bin/coordd run nightly --wait forever -- sh -c 'echo "my token is $COORDD_FENCING_TOKEN"; sleep 10'

And look at it meanwhile:

  bin/coordd status
  bin/coordd status nightly
  curl '127.0.0.1:7421/v1/lease?name=nightly'
`
	const arbitrated = plain + `
Hand the leases over to the arbiter, and back; whoever holds one keeps it:

  bin/coordd failover --to fallback --socket /tmp/d/n1.sock
  bin/coordd failover --to raft --socket /tmp/d/n1.sock
  bin/coordd authority history
`
	table := strings.Replace(arbitrated, "Everything is in memory and gone when this process ends",
		"They keep everything in memory; the arbiter's registers outlive this process", 1) +
		"  bin/coordd arbiter show --name dev-x --region local --endpoint http://127.0.0.1:8000\n"
	local := storeFlags{kind: choice{value: dynamoDBArbiter}, table: "coordd", name: "dev-x", region: "local", endpoint: "http://127.0.0.1:8000"}
	for _, c := range []struct {
		name  string
		store arbiter.Store
		look  string
		want  string
	}{
		{"none", nil, (&storeFlags{kind: choice{value: noArbiter}}).look(), plain},
		{"memory", arbiter.NewMemory(), (&storeFlags{kind: choice{value: memoryArbiter}}).look(), arbitrated},
		{"dynamodb", arbiter.NewMemory(), local.look(), table},
	} {
		members := devMembers(addrs, "/tmp/d", c.store, "dev-x", nil)
		if got := devGreeting("bin/coordd", members, c.look, "n1 leads", 850*time.Millisecond); got != c.want {
			t.Errorf("%s: got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// The members of a cluster with an arbiter find each other by it.
func TestDevMembers(t *testing.T) {
	for _, store := range []arbiter.Store{nil, arbiter.NewMemory()} {
		for _, m := range devMembers([]string{"127.0.0.1:7420", "127.0.0.1:7430", "127.0.0.1:7440"}, "/tmp/d", store, "dev-x", nil) {
			if err := validate(&m); err != nil {
				t.Errorf("%s: got %v, want a config that is right", m.Name, err)
			}
			if alone := store == nil; m.Bootstrap != alone || len(m.Join) > 0 != alone {
				t.Errorf("%s: got bootstrap %v and join %v, want them without an arbiter alone", m.Name, m.Bootstrap, m.Join)
			}
		}
	}
}
