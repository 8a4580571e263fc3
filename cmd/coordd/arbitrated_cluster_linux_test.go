package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coordd/coordd/authority"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// The times of the clusters of these tests.
const (
	arbitratedLease    = 2 * time.Second
	arbitratedFloor    = 3 * time.Second
	arbitratedReform   = 3 * time.Second
	arbitratedElection = 300 * time.Millisecond
	// arbitratedWithin is how long any change of theirs may take on a busy machine.
	arbitratedWithin = 40 * time.Second
)

// quartet is a cluster of four nodes, two at each of two sites, that keep everything
// in memory. Each reaches the others, and its arbiter, through a network that can be cut.
type quartet struct {
	t       *testing.T
	at      table
	reform  time.Duration // for how long nobody leads until a group forms anew
	elect   time.Duration // for how long nobody leads until an election
	raced   bool          // the nodes have the race detector in them if the test has, and are slow
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
		t: t, at: at, reform: arbitratedReform, elect: arbitratedElection, network: newNetwork(t), nodes: slices.Concat(atEast, atWest), members: make([]*member, 4),
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
		if q.raced {
			q.members[i] = begin(q.t, itself(q.t, q.line(i)...))
		} else {
			q.members[i] = launch(q.t, q.line(i)...)
		}
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
		"--reform-after", q.reform.String(), "--election-timeout", q.elect.String(),
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

// changes are the changes of authority so far, as the root register tells them; of those
// with the same reason one after the other there is one.
func (q *quartet) changes() (whys []string) {
	q.t.Helper()
	for i := range q.nodes {
		if c := q.view(i); c != nil {
			for _, change := range c.GetAuthority().GetHistory() {
				whys = append(whys, change.GetWhy())
			}
			return slices.Compact(whys)
		}
	}
	q.t.Fatal("no node answers")
	return nil
}
