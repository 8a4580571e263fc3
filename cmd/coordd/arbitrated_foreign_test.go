package main

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/authority"
	fake "github.com/coordd/coordd/internal/registers"
)

// rootOf is the root register's item of a table.
func rootOf(table *fake.Table) fake.Item { return table.Get(authority.RootKey(defaultCluster)) }

func rootItem(data string) fake.Item {
	return fake.Item{
		fake.Key:  {"S": authority.RootKey(defaultCluster)},
		"Version": {"N": "7"},
		"Nonce":   {"S": strings.Repeat("ab", 16)},
		"Value":   {"S": data},
	}
}

// alone starts one node whose flags a test adds to.
func alone(t *testing.T, at table, more ...string) (m *member, addr string) {
	t.Helper()
	addr = loopbackAddr(freePorts(t, 1))
	return launch(t, append([]string{
		"serve", "--name", "n1", "--listen", addr, "--arbiter", "dynamodb", "--arbiter-endpoint", at.endpoint, "--shards", "8",
		"--authority-lease", "1s", "--election-timeout", "300ms",
	}, more...)...), addr
}

// What is in the root register, and is not what this cluster has put there, is not
// touched: the node does not serve, and says what it has found.
func TestArbitratedGarbage(t *testing.T) {
	another := rootItem("{}")
	another["Version"] = fake.Value{"S": "seven"}
	for name, c := range map[string]struct {
		item fake.Item
		says []string
	}{
		"no JSON":         {rootItem("<xml/>"), []string{`it holds "<xml/>"`}},
		"other JSON":      {rootItem(`{"owner":"me"}`), []string{`it holds "{\"owner\":\"me\"}"`}},
		"empty":           {rootItem(""), []string{`it holds ""`}},
		"a later release": {rootItem(`{"format":2,"new":true}`), []string{"root register of version 2: this release reads up to 1"}},
		"no register":     {another, []string{"attribute Version is", "something else has written it"}},
	} {
		t.Run(name, func(t *testing.T) {
			at, table := emptyTable(t)
			table.Put(c.item)
			m, addr := alone(t, at)
			m.says("the arbiter cannot be used", 20*time.Second)
			refuses(t, addr, c.says)
			if got := rootOf(table); !reflect.DeepEqual(got, c.item) || len(table.Keys()) != 1 {
				t.Errorf("got %v and the keys %q, want %v alone, as it was", got, table.Keys(), c.item)
			}
			m.signal(syscall.SIGTERM)
			if got := m.wait(10 * time.Second); got != 0 {
				t.Errorf("got code %d after a SIGTERM, want 0", got)
			}
		})
	}
}

// refuses checks that the node at addr grants nothing, and says why.
func refuses(t *testing.T, addr string, says []string) {
	t.Helper()
	got := command(t, "status", "--addr", addr)
	for _, words := range says {
		if got.code != exitUnavailable || !strings.Contains(got.stderr, words) {
			t.Errorf("status: got %+v, want code %d and %q", got, exitUnavailable, words)
		}
	}
	if got := command(t, "run", "--addr", addr, "--timeout", "1s", "job", "true"); got.code != exitUnavailable {
		t.Errorf("run: got %+v, want code %d", got, exitUnavailable)
	}
}

// The root register of another cluster of the same name, which somebody has put in the
// place of a cluster's own, ends what the cluster does; so it does for a member that comes
// back with its data, and finds it.
func TestArbitratedForeignCluster(t *testing.T) {
	data := []string{"--data", filepath.Join(t.TempDir(), "n1")}
	at, table := emptyTable(t)
	m, addr := alone(t, at, data...)
	eventually(t, 20*time.Second, "leases are granted", func() bool { _, ok := cluster(t, addr); return ok })

	foreign := maps.Clone(rootOf(table))
	var root authority.Root
	if err := json.Unmarshal([]byte(foreign["Value"]["S"]), &root); err != nil {
		t.Fatal(err)
	}
	own := root.Cluster
	root.Cluster[0]++
	root.Epoch += 5
	foreign["Value"], foreign["Version"] = fake.Value{"S": string(root.Encode())}, fake.Value{"N": "1000"}
	table.Put(foreign)
	says := []string{"DynamoDB table registers in local", "not this cluster's", "it is of cluster " + root.Cluster.String(), "this node belongs to " + own.String()}
	m.says(says[2], 20*time.Second)
	eventually(t, 20*time.Second, "nothing is granted", func() bool { _, ok := cluster(t, addr); return !ok })
	refuses(t, addr, says)
	m.signal(syscall.SIGTERM)
	if got := m.wait(10 * time.Second); got != 0 {
		t.Errorf("got code %d after a SIGTERM, want 0", got)
	}

	again, addr := alone(t, at, data...)
	again.says(says[2], 20*time.Second)
	refuses(t, addr, says)
	if got := rootOf(table); !reflect.DeepEqual(got, foreign) {
		t.Errorf("got %v, want %v, as it was", got, foreign)
	}
	if keys := table.Keys(); slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, root.Cluster.String()) }) {
		t.Errorf("got the keys %q, want none of the other cluster's", keys)
	}
}
