package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/dynamolocal"
	fake "github.com/coordd/coordd/internal/registers"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// The times of the clusters of these tests.
const (
	arbitratedLease   = 2 * time.Second
	arbitratedFloor   = 3 * time.Second
	arbitratedReform  = 3 * time.Second
	arbitratedTimeout = 300 * time.Millisecond // of an election
	// arbitratedWithin is how long any change of theirs may take on a busy machine.
	arbitratedWithin = 40 * time.Second
)

// stores is as it was when the process began: TestMain clears the environment.
var stores = os.Getenv("COORDD_STORES")

// table is where the nodes of a test find their registers: its endpoint.
type table struct{ endpoint string }

// eachStore runs a test with a table of internal/registers and, under make
// test-stores, with one of DynamoDB Local.
func eachStore(t *testing.T, test func(t *testing.T, at table)) {
	t.Run("registers", func(t *testing.T) {
		at, _ := emptyTable(t)
		test(t, at)
	})
	t.Run("DynamoDB Local", func(t *testing.T) {
		if stores != "1" {
			t.Skip("make test-stores runs it")
		}
		withTable(t)
		if got := command(t, "arbiter", "create-table", "--emulator"); got.code != 0 {
			t.Fatalf("got %+v, want a table", got)
		}
		test(t, table{dynamolocal.Endpoint(t)})
	})
}

// emptyTable returns a table that the test may look into, for its processes.
func emptyTable(t *testing.T) (table, *fake.Table) {
	t.Helper()
	const name = "registers"
	t.Setenv("COORDD_ARBITER_REGION", "local")
	t.Setenv("COORDD_ARBITER_TABLE", name)
	t.Setenv("AWS_ACCESS_KEY_ID", "local")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "local")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	empty := fake.New(name)
	server := httptest.NewServer(empty)
	t.Cleanup(server.Close)
	return table{server.URL}, empty
}

// quartet is a cluster of four nodes, two at each of two sites, that keep everything
// in memory. Each reaches the others, and its arbiter, through a network that can be cut.
type quartet struct {
	t       *testing.T
	at      table
	reform  time.Duration // for how long nobody leads until a group forms anew
	network *network
	nodes   []string // their names
	listen  []string // where they listen
	doors   []string // where everybody reaches them
	arbiter []string // where each reaches its arbiter
	members []*member
	http    http.Client
}

// atEast and atWest are the nodes of the two sites.
var (
	atEast = []string{"n1", "n2"}
	atWest = []string{"n3", "n4"}
)

// newQuartet returns one whose nodes are not started.
func newQuartet(t *testing.T, at table) *quartet {
	t.Helper()
	q := &quartet{
		t: t, at: at, reform: arbitratedReform, network: newNetwork(t), nodes: slices.Concat(atEast, atWest), members: make([]*member, 4),
		http: http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	port := freePorts(t, len(q.nodes))
	for i, name := range q.nodes {
		q.listen = append(q.listen, loopbackAddr(port+i*devPortStep))
		q.doors = append(q.doors, q.network.nodeDoor(name, q.listen[i]))
		q.arbiter = append(q.arbiter, "http://"+q.network.arbiterDoor(name, strings.TrimPrefix(at.endpoint, "http://")))
	}
	return q
}

// begin starts all nodes, and waits until they vote and grant leases.
func (q *quartet) begin() *quartet {
	q.t.Helper()
	q.start(0, 1, 2, 3)
	q.whole("the cluster is born")
	return q
}

// start begins a life of some nodes.
func (q *quartet) start(nodes ...int) {
	q.t.Helper()
	for _, i := range nodes {
		q.members[i] = begin(q.t, itself(q.t, q.line(i)...))
		q.network.lives(q.nodes[i], q.members[i].cmd.Process.Pid)
	}
}

// line is a node's command line.
func (q *quartet) line(i int) []string {
	site := "east"
	if slices.Contains(atWest, q.nodes[i]) {
		site = "west"
	}
	return []string{
		"serve", "--name", q.nodes[i], "--site", site, "--listen", q.listen[i], "--advertise", q.doors[i],
		"--arbiter", "dynamodb", "--arbiter-endpoint", q.arbiter[i], "--shards", "8",
		"--authority-lease", arbitratedLease.String(), "--ttl-ceiling-floor", arbitratedFloor.String(),
		"--reform-after", q.reform.String(), "--election-timeout", arbitratedTimeout.String(),
	}
}

// kill ends the processes of some nodes, with all that they know.
func (q *quartet) kill(nodes ...int) {
	q.t.Helper()
	for _, i := range nodes {
		q.members[i].signal(syscall.SIGKILL)
	}
	for _, i := range nodes {
		q.members[i].wait(10 * time.Second)
	}
}

// unharmed reports processes that have ended by themselves.
func (q *quartet) unharmed() {
	q.t.Helper()
	for _, m := range q.members {
		select {
		case <-m.ended:
			q.t.Errorf("coordd %v has ended: %v", m.args, m.cmd.ProcessState)
		default:
		}
	}
}

// view is what one node says of the cluster and of itself; nil: it does not answer.
// It is asked without regard to the network.
func (q *quartet) view(i int) *coorddv1.ClusterStatus {
	q.t.Helper()
	resp, err := q.http.Get(httpURL(q.listen[i]) + "/v1/status")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	status := new(coorddv1.StatusResponse)
	if err := protojson.Unmarshal(text, status); err != nil {
		q.t.Fatalf("status of %s: %v in %s", q.nodes[i], err, text)
	}
	return status.GetCluster()
}

// until waits until some nodes' views, all of which answer, have what is wanted.
func (q *quartet) until(what string, nodes []string, wanted func(*coorddv1.ClusterStatus) bool) {
	q.t.Helper()
	began := time.Now()
	eventually(q.t, arbitratedWithin, what, func() bool {
		for _, name := range nodes {
			c := q.view(slices.Index(q.nodes, name))
			if c == nil || !wanted(c) {
				return false
			}
		}
		return true
	})
	q.t.Logf("%5.1f s: %s", time.Since(began).Seconds(), what)
}

// leader is the node that grants leases by Raft, by its own account, and its view; -1:
// none does.
func (q *quartet) leader() (int, *coorddv1.ClusterStatus) {
	q.t.Helper()
	for i := range q.nodes {
		if c := q.view(i); c != nil && c.GetServing() && c.GetLeader() == q.nodes[i] && c.GetAuthority().GetMode() == string(authority.Raft) {
			return i, c
		}
	}
	return -1, nil
}

// leads waits until a node leads that is none of those, and returns it.
func (q *quartet) leads(what string, but ...int) (leader int, c *coorddv1.ClusterStatus) {
	q.t.Helper()
	began := time.Now()
	eventually(q.t, arbitratedWithin, what, func() bool {
		leader, c = q.leader()
		return leader >= 0 && !slices.Contains(but, leader)
	})
	q.t.Logf("%5.1f s: %s: %s leads in epoch %d, term %d", time.Since(began).Seconds(), what, q.nodes[leader], c.GetEpoch(), c.GetTerm())
	return leader, c
}

// whole waits until a leader grants leases and hears three other voters, and there is
// no other member.
func (q *quartet) whole(what string) (leader int, c *coorddv1.ClusterStatus) {
	q.t.Helper()
	began := time.Now()
	eventually(q.t, arbitratedWithin, what+": four vote, and one of them grants leases", func() bool {
		leader, c = q.leader()
		return leader >= 0 && len(c.GetMembers()) == len(q.nodes) && !slices.ContainsFunc(c.GetMembers(), func(m *coorddv1.Member) bool {
			return !m.GetVoter() || !m.GetReachable()
		})
	})
	q.t.Logf("%5.1f s: %s: %s leads in epoch %d, term %d", time.Since(began).Seconds(), what, q.nodes[leader], c.GetEpoch(), c.GetTerm())
	return leader, c
}

// fallsBack waits until the arbiter has taken over, by the account of some nodes.
func (q *quartet) fallsBack(nodes ...string) {
	q.t.Helper()
	q.until(fmt.Sprintf("the arbiter has taken over, say %v", nodes), nodes, func(c *coorddv1.ClusterStatus) bool {
		return c.GetServing() && c.GetAuthority().GetMode() == string(authority.Fallback)
	})
}

// graceEnds waits until, by the account of some nodes, leases are granted anew.
func (q *quartet) graceEnds(nodes ...string) {
	q.t.Helper()
	q.until(fmt.Sprintf("the grace is over, say %v", nodes), nodes, func(c *coorddv1.ClusterStatus) bool {
		a := c.GetAuthority()
		return c.GetServing() && a.GetMode() == string(authority.Fallback) && a.GetGraceDone()
	})
}

// changes are the changes of authority so far, as the root register tells them.
func (q *quartet) changes() (whys []string) {
	q.t.Helper()
	for i := range q.nodes {
		if c := q.view(i); c != nil {
			for _, change := range c.GetAuthority().GetHistory() {
				whys = append(whys, change.GetWhy())
			}
			return whys
		}
	}
	q.t.Fatal("no node answers")
	return nil
}
