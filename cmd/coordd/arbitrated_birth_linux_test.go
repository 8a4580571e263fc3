package main

import (
	"testing"

	"github.com/coordd/coordd/authority"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Four nodes that start at the same time, and know nothing of each other, bring one
// cluster forth.
func TestArbitratedBirth(t *testing.T) {
	eachStore(t, func(t *testing.T, at table) {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			t.Run(name, func(t *testing.T) {
				t.Setenv("COORDD_ARBITER_NAME", name)
				q := newQuartet(t, at).begin()
				_, leading := q.leader()
				q.until("all belong to the leader's cluster and group", q.nodes, func(c *coorddv1.ClusterStatus) bool {
					return c.GetCluster() == leading.GetCluster() && c.GetLeader() == leading.GetLeader() && len(c.GetMembers()) == len(q.nodes)
				})
				q.changed(authority.Birth, authority.Imported)
				if got := command(t, "run", "--addr", q.doors[0], "job", "true"); got != (result{}) {
					t.Errorf("got %+v, want that leases are granted", got)
				}
				q.unharmed()
			})
		}
	})
}
