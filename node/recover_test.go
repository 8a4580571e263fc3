package node_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// Two of three logs are lost. What is left goes on alone, with its leases and
// greater tokens; a member of before that comes back with its old log is told
// that it was removed, and one with an empty folder joins.
func TestRecover(t *testing.T) {
	configs := site(t)
	nodes := make([]*node.Node, 3)
	for i, c := range configs {
		nodes[i] = start(t, c)
	}
	cluster := oneCluster(t, nodes...)
	c := dial(t, addressesOf(nodes)...)
	before := acquire(t, c, "job")
	eventually(t, "n1 has applied all", func() bool { return nodes[0].Status().Revision >= 3 })
	if _, err := node.OpenRecovery(configs[0].Data, nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a running node's folder: got %v, want that it is in use", err)
	}
	for _, n := range nodes {
		stop(t, n)
	}

	r, err := node.OpenRecovery(configs[0].Data, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(r.Members)
	if r.Name != "n1" || r.Cluster != cluster || r.Leases != 0 || r.NewEpoch != r.Epoch+1024 || !slices.Equal(r.Members, []string{"n1", "n2", "n3"}) || r.LastIndex == 0 || r.LastTerm == 0 {
		t.Errorf("got %+v", r)
	}
	if err := r.Apply(true); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(configs[2].Data); err != nil { // n2 keeps its old log
		t.Fatal(err)
	}

	nodes[0] = start(t, configs[0])
	serving(t, nodes[:1])
	if s := nodes[0].Status(); s.Cluster != cluster || s.Epoch != r.NewEpoch {
		t.Errorf("recovered: got cluster %v and epoch %d, want %v and %d", s.Cluster, s.Epoch, cluster, r.NewEpoch)
	}
	if after := acquire(t, dial(t, configs[0].Listen), "job"); after <= before {
		t.Errorf("the next token is %v, after %v", after, before)
	}
	nodes[2] = start(t, configs[2])
	eventually(t, "n3 votes", func() bool {
		members := nodes[0].Status().Members
		return len(members) == 2 && members[0].Voter && members[1].Voter
	})
	old, err := node.New(configs[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, old) })
	eventually(t, "a former member ends", func() bool { return errors.Is(old.Err(), node.ErrRemoved) })
}

// Until no lease that the lost logs may have granted can be held any more, a
// recovered node serves nobody and takes nobody in.
func TestRecoveredNodeWaits(t *testing.T) {
	configs := site(t)
	configs[0].Join = nil
	n := start(t, configs[0])
	serving(t, []*node.Node{n})
	stop(t, n)
	for range 2 { // an Apply that is repeated
		r, err := node.OpenRecovery(configs[0].Data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Apply(false); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n = start(t, configs[0])
	eventually(t, "the node says that it waits", func() bool { return strings.Contains(n.Status().Doing, "recovered") })
	ctx, cancel := context.WithTimeout(t.Context(), 10*configs[0].ElectionTimeout)
	defer cancel()
	if _, err := dial(t, configs[0].Listen).Acquire(ctx, "job"); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("acquire: got %v, want unavailable", err)
	}
	configs[1].Bootstrap = false
	other := start(t, configs[1])
	never(t, 10*configs[0].ElectionTimeout, "it takes another member in", func() bool { return len(n.Status().Members) > 1 || other.Status().Serving })
}

// A cluster that was lost before it granted anything serves once it is
// recovered; one that was recovered before, from another log, is told of an
// epoch that is greater still.
func TestRecoverOfAnUnusedCluster(t *testing.T) {
	configs := site(t)
	nodes := make([]*node.Node, 3)
	for i, c := range configs {
		nodes[i] = start(t, c)
	}
	oneCluster(t, nodes...)
	for _, n := range nodes {
		stop(t, n)
	}
	r, err := node.OpenRecovery(configs[0].Data, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Begin(r.NewEpoch - 1); !errors.Is(err, leases.ErrInvalid) {
		t.Errorf("an epoch that may have been: got %v, want invalid", err)
	}
	if err := r.Begin(5000); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Apply(true), r.Close()); err != nil {
		t.Fatal(err)
	}
	n := start(t, configs[0])
	serving(t, []*node.Node{n})
	if got := acquire(t, dial(t, configs[0].Listen), "job").Epoch(); got != 5000 {
		t.Errorf("the first token is of epoch %d, want 5000", got)
	}
}

// A folder without a log is not recovered, and not changed.
func TestRecoverNeedsALog(t *testing.T) {
	dir := t.TempDir()
	_, err := node.OpenRecovery(dir, nil)
	if !errors.Is(err, leases.ErrInvalid) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want that the folder is invalid", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("the folder has %v, %v, want nothing", files, err)
	}
}
