package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/node/internal/boltstore"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/node/internal/raftlog"
)

// site is the configuration of three nodes with data folders and the same flags.
func site(t *testing.T) []node.Config {
	t.Helper()
	var configs []node.Config
	var addresses []string
	for i := range 3 {
		addresses = append(addresses, freeAddress(t))
		configs = append(configs, node.Config{
			Name: fmt.Sprintf("n%d", i+1), Data: filepath.Join(t.TempDir(), "data"), Bootstrap: true,
			ElectionTimeout: 300 * time.Millisecond,
		})
	}
	for i := range configs {
		configs[i].Listen, configs[i].Join = addresses[i], addresses
	}
	return configs
}

// allVote waits until one node serves and all three know that all three vote,
// and returns the one that serves.
func allVote(t *testing.T, nodes ...*node.Node) (leader *node.Node) {
	t.Helper()
	eventually(t, "one node serves and all three vote", func() bool {
		leader = nil
		for _, n := range nodes {
			s := n.Status()
			voters := 0
			for _, m := range s.Members {
				if m.Voter {
					voters++
				}
			}
			if voters != 3 || len(s.Members) != 3 {
				return false
			}
			if s.Serving {
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

func oneCluster(t *testing.T, nodes ...*node.Node) leases.ID {
	t.Helper()
	allVote(t, nodes...)
	id := nodes[0].Status().Cluster
	for _, n := range nodes {
		if got := n.Status().Cluster; got != id || id.IsZero() {
			t.Fatalf("%s belongs to cluster %v, %s to %v", nodes[0].Status().Node, id, n.Status().Node, got)
		}
	}
	return id
}

// The same flags on all three, in every order: one cluster (N1).
func TestFoundingInEveryOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			t.Parallel()
			configs := site(t)
			var nodes []*node.Node
			for _, i := range order {
				nodes = append(nodes, start(t, configs[i]))
			}
			oneCluster(t, nodes...)
		})
	}
}

// A founder that is killed between two steps goes on from there.
func TestFoundingGoesOnAfterACrash(t *testing.T) {
	for _, step := range []string{"identity saved", "log bootstrapped"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			configs := site(t)
			self := identity.New("n1")
			self.Cluster = leases.NewID()
			self.Group, self.Founding, self.Founders, self.FirstEpoch = self.Cluster, true, 3, 5
			leaveOff(t, configs[0].Data, self, step == "log bootstrapped")
			var nodes []*node.Node
			for _, c := range configs {
				nodes = append(nodes, start(t, c))
			}
			if id := oneCluster(t, nodes...); id != self.Cluster {
				t.Errorf("the founding did not go on: got cluster %v, want %v", id, self.Cluster)
			}
			if epoch := allVote(t, nodes...).Status().Epoch; epoch != 5 {
				t.Errorf("epoch: got %d, want the 5 that the founder was told", epoch)
			}
		})
	}
}

// leaveOff makes a data folder as a founder leaves it that is killed.
func leaveOff(t *testing.T, dir string, self identity.Identity, bootstrapped bool) {
	t.Helper()
	folder, err := identity.Open(dir, self.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := folder.Save(self); err != nil {
		t.Fatal(err)
	}
	if bootstrapped {
		s, err := boltstore.Open(dir, raftlog.New(testLog(t)))
		if err != nil {
			t.Fatal(err)
		}
		id := self.ServerID()
		conf := raft.DefaultConfig()
		conf.LocalID = raft.ServerID(id)
		_, transport := raft.NewInmemTransport(raft.ServerAddress(id))
		alone := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}}}
		if err := raft.BootstrapCluster(conf, s.Logs, s.Stable, s.Snapshots, transport, alone); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := folder.Close(); err != nil {
		t.Fatal(err)
	}
}

// A founder that has lost its disk joins what it has founded before (S42); with
// the rule off it founds a second cluster, whose tokens start over.
func TestFounderThatLostItsDisk(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("rule off %v", off), func(t *testing.T) {
			t.Parallel()
			configs := site(t)
			var nodes []*node.Node
			for _, c := range configs {
				nodes = append(nodes, start(t, c))
			}
			first := oneCluster(t, nodes...)
			stop(t, nodes[0])
			if err := os.RemoveAll(configs[0].Data); err != nil {
				t.Fatal(err)
			}
			if !off {
				nodes[0] = start(t, configs[0])
				if again := oneCluster(t, nodes...); again != first {
					t.Errorf("a second cluster was founded: %v after %v", again, first)
				}
				return
			}
			configs[0].Testing = hook.Testing{Rules: rules.Without(rules.Founding)}
			configs[0].Join = nil // the flags of a founder that asks nobody
			n := start(t, configs[0])
			eventually(t, "a second cluster serves, as it must not", func() bool { return n.Status().Serving })
			if again := n.Status().Cluster; again == first {
				t.Errorf("with the rule off the founder is still of cluster %v", again)
			}
		})
	}
}

// A client pins the cluster of its first answer and refuses any other's.
func TestClientRefusesAnotherCluster(t *testing.T) {
	one := start(t, node.Config{Name: "one", InMemory: true, Listen: freeAddress(t), Bootstrap: true})
	serving(t, []*node.Node{one})
	address := one.Address()
	c := dial(t, address)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lease, err := c.Acquire(ctx, "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	stop(t, one)
	other := start(t, node.Config{Name: "other", InMemory: true, Listen: address, Bootstrap: true})
	serving(t, []*node.Node{other})
	brief, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := c.Acquire(brief, "job"); !errors.Is(err, leases.ErrWrongCluster) {
		t.Errorf("got %v, want %v", err, leases.ErrWrongCluster)
	}
	off, err := client.Dial([]string{address})
	if err != nil {
		t.Fatal(err)
	}
	defer off.Close(ctx)
	if l, err := off.TryAcquire(ctx, "job"); err != nil {
		t.Errorf("a client without a pin: got %v, want the lease", err)
	} else if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}

// A member that has lost its log, but not who it was, founds no second cluster,
// whatever flags it was given: it looks for the members that it knew, and where
// it knew none it waits for its operator (N1).
func TestMemberWithoutItsLogFoundsNothing(t *testing.T) {
	t.Run("it knew others", func(t *testing.T) {
		t.Parallel()
		configs := site(t)
		configs[0].Join = nil
		var nodes []*node.Node
		for i := range configs {
			if i > 0 {
				configs[i].Bootstrap, configs[i].Join = false, []string{configs[0].Listen}
			}
			nodes = append(nodes, start(t, configs[i]))
		}
		id := oneCluster(t, nodes...)
		stop(t, nodes[0])
		if err := os.Remove(filepath.Join(configs[0].Data, identity.LogFile)); err != nil {
			t.Fatal(err)
		}
		nodes[0] = start(t, configs[0])
		if again := oneCluster(t, nodes...); again != id {
			t.Errorf("cluster: got %v, want %v", again, id)
		}
	})
	t.Run("it was alone", func(t *testing.T) {
		t.Parallel()
		config := site(t)[0]
		config.Join = nil
		alone := start(t, config)
		serving(t, []*node.Node{alone})
		stop(t, alone)
		if err := os.Remove(filepath.Join(config.Data, identity.LogFile)); err != nil {
			t.Fatal(err)
		}
		alone = start(t, config)
		eventually(t, "it says what to do", func() bool { return strings.Contains(alone.Status().Doing, "empty the data folder") })
		never(t, 2*config.ElectionTimeout, "it founds a cluster", func() bool { return !alone.Status().Cluster.IsZero() })
	})
}
