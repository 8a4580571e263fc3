package node

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

var writeFixture = flag.Bool("write-fixture", false, "write testdata/0.1.0 anew, if it is missing")

// fixture is the data folder of a one-node cluster, with a snapshot and entries
// behind it, as release 0.1.0 writes them. Later releases must read it.
const fixture = "testdata/0.1.0"

// alone starts a one-node cluster over a data folder and waits until it serves.
func alone(t *testing.T, data string) *Node {
	t.Helper()
	n, err := New(Config{Name: "n1", Data: data, Listen: "127.0.0.1:0", Bootstrap: true, FirstEpoch: 3, ElectionTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for c := n.clock; !n.Status().Serving || n.hears() == nil; {
		if err := clock.Wait(ctx, c, c.Now().Add(5*time.Millisecond)); err != nil {
			t.Fatalf("the node does not serve: %v", err)
		}
	}
	return n
}

func shutDown(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// table is the node's whole table as a snapshot has it.
func table(t *testing.T, n *Node) []byte {
	t.Helper()
	var b bytes.Buffer
	n.fsm.View(func(t *leases.Table) { _, _ = t.Snapshot().WriteTo(&b) })
	return b.Bytes()
}

// fill takes three leases, of which one is given back, snapshots, and takes and
// gives back some more.
func fill(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := client.New(n, client.WithOwner(leases.Owner{Label: "fixture", Site: "aws", Host: "host", PID: 7}))
	take := func(name string) *client.Lease {
		l, err := c.Acquire(ctx, name, client.TTL(leases.MaxTTL), client.Attributes([]byte("of "+name)))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	release := func(l *client.Lease) {
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	take("kept")
	take("kept too")
	release(take("given back"))
	if err := n.group.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	take("after the snapshot")
	release(take("given back"))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_ = c.Close(gone) // its leases stay in the table
}

func TestRestartRestoresTheTable(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := alone(t, data)
	fill(t, n)
	before := table(t, n)
	shutDown(t, n)
	snapshots, err := filepath.Glob(filepath.Join(data, "snapshots", "*"))
	if err != nil || len(snapshots) != 1 {
		t.Fatalf("snapshots: got %v, %v, want one", snapshots, err)
	}
	n = alone(t, data)
	defer shutDown(t, n)
	if after := table(t, n); !bytes.Equal(after, before) {
		t.Errorf("the table after a restart differs:\n got %x\nwant %x", after, before)
	}
}

func TestFixtureIsRead(t *testing.T) {
	if _, err := os.Stat(fixture); os.IsNotExist(err) && *writeFixture {
		data := filepath.Join(t.TempDir(), "data")
		n := alone(t, data)
		fill(t, n)
		want := table(t, n)
		shutDown(t, n)
		if err := os.Remove(filepath.Join(data, AdminSocket)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.CopyFS(fixture, os.DirFS(data)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(fixture, "table"), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.Join(fixture, "table"))
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(data, os.DirFS(fixture)); err != nil {
		t.Fatal(err)
	}
	n := alone(t, data)
	defer shutDown(t, n)
	got := table(t, n)
	if bytes.Equal(got, want) {
		return
	}
	// A later release may write the table in another way: then its contents count.
	old, err := leases.ReadTable(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if _, err := old.Snapshot().WriteTo(io.Writer(&again)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, again.Bytes()) {
		t.Errorf("the log and snapshot of 0.1.0 are read as another table:\n got %x\nwant %x", got, again.Bytes())
	}
}
