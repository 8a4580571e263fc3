package main

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

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
	if got := dev.out.String(); strings.Contains(got, "coordd: ") || strings.Contains(got, "level=ERROR") || strings.Contains(got, "handed over") {
		t.Errorf("got %q, want no error, and no complaint that the last member is alone", got)
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
	got := devGreeting("bin/coordd", []string{"127.0.0.1:7420", "127.0.0.1:7430", "127.0.0.1:7440"}, "n1", 850*time.Millisecond)
	const want = `Three members on 127.0.0.1:7420, 127.0.0.1:7430, 127.0.0.1:7440; n1 leads, ready after 0.8 s.
Everything is in memory and gone when this process ends (Ctrl-C).

Type this in two other terminals; the second waits until the first is done:

  bin/coordd run nightly --wait forever -- sh -c 'echo "my token is $COORDD_FENCING_TOKEN"; sleep 10'

And look at it meanwhile:

  bin/coordd status
  bin/coordd status nightly
  curl '127.0.0.1:7421/v1/lease?name=nightly'
`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
