package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestStatusOutput(t *testing.T) {
	serving := &coorddv1.ClusterStatus{
		Cluster: "000102030405060708090a0b0c0d0e0f", Node: "n2", Version: "0.1.0",
		Leader: "n2", LeaderAddress: "10.0.0.2:7420", Serving: true, State: "serving",
		Term: 3, Epoch: 1, Revision: 1234, Leases: 2, Waiters: 1, ElectionTimeoutMs: 1000,
		Members: []*coorddv1.Member{
			{Name: "n2", ServerId: "n2.0c0d", Address: "10.0.0.2:7420", Site: "aws", Voter: true, Leader: true, Reachable: true},
			{Name: "n1", ServerId: "n1.0a0b", Address: "10.0.0.1:7420", Site: "aws", Voter: true, Reachable: true, RoundTripUs: 412},
			{Name: "n3", ServerId: "n3.0e0f", Address: "10.1.0.1:7420", Site: "azure-west", Reachable: true, RoundTripUs: 23100, Note: "catching up"},
			{Name: "n4", ServerId: "n4.1011", Address: "10.1.0.2:7420", Voter: true},
		},
	}
	for _, c := range []struct {
		name   string
		answer *coorddv1.StatusResponse
		code   int
	}{
		{name: "cluster", answer: &coorddv1.StatusResponse{Cluster: serving}},
		{name: "cluster-without-leader", code: exitUnavailable, answer: &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{
			Cluster: serving.Cluster, Node: "n3", Version: "0.1.0", State: "looking for a leader", Term: 4, Epoch: 1, ElectionTimeoutMs: 1000,
			Members: []*coorddv1.Member{
				{Name: "n1", ServerId: "n1.0a0b", Address: "10.0.0.1:7420", Voter: true, RoundTripUs: 412},
				{Name: "n3", ServerId: "n3.0e0f", Address: "10.1.0.1:7420", Voter: true, Reachable: true},
				{Name: "n4", ServerId: "n4.1011", Address: "10.1.0.2:7420", Reachable: true},
			},
		}}},
		{name: "cluster-not-founded", code: exitUnavailable, answer: &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{
			Node: "n1", Version: "0.1.0", State: "waiting for n2 at 10.0.0.2:7420 to answer", ElectionTimeoutMs: 1000,
		}}},
		{name: "raft-window", answer: arbitrated(nil)},
		{name: "raft-unanimity", answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			c.Authority.WindowBy, c.Authority.WindowLeftMs = "unanimity", 2345
			c.Authority.Arbiter = &coorddv1.ArbiterHealth{Store: "DynamoDB table coordd in eu-central-1", RoundTripUs: 4100, Errors: 17, Error: "dial tcp: i/o timeout"}
		})},
		{name: "raft-no-window", code: exitUnavailable, answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			c.Serving, c.State = false, "waiting for a window"
			c.Authority.WindowBy, c.Authority.WindowLeftMs = "", 0
			c.Authority.Arbiter = &coorddv1.ArbiterHealth{Store: "DynamoDB table coordd in eu-central-1", Errors: 17, Error: "dial tcp: i/o timeout"}
		})},
		{name: "fallback-grace", code: exitUnavailable, answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			fallback(c)
			c.Authority.GraceLeftMs = 12345
		})},
		{name: "fallback", answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			fallback(c)
			c.Authority.GraceDone = true
		})},
		{name: "fallback-held", answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			fallback(c)
			c.Authority.GraceDone, c.Authority.Held = true, true
			c.Authority.History[1].Why = "handover"
		})},
		{name: "importing", code: exitUnavailable, answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			fallback(c)
			c.Serving, c.State = false, "taking the leases over"
			c.Leader, c.LeaderAddress = "n3", "10.1.0.1:7420"
			c.Authority.Mode, c.Authority.Epoch, c.Authority.GraceDone, c.Authority.Owner, c.Authority.OwnerTerm = "importing", 9, true, "n3", 5
		})},
		{name: "arbiter-not-read", code: exitUnavailable, answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			c.Cluster, c.Leader, c.LeaderAddress, c.Serving, c.State, c.Members = "", "", "", false, "looking for the cluster", nil
			c.Authority = &coorddv1.Authority{Arbiter: &coorddv1.ArbiterHealth{Store: "DynamoDB table coordd in eu-central-1", Errors: 2, Error: "no such host"}}
		})},
		{name: "arbiter-foreign", code: exitUnavailable, answer: arbitrated(func(c *coorddv1.ClusterStatus) {
			c.Cluster, c.Leader, c.LeaderAddress, c.Serving, c.State, c.Members = "", "", "", false, "looking for the cluster", nil
			c.Authority = &coorddv1.Authority{Arbiter: &coorddv1.ArbiterHealth{Store: "DynamoDB table coordd in eu-central-1", Reachable: true, RoundTripUs: 4100, Error: "the arbiter's root register is not this cluster's"}}
		})},
	} {
		compare(t, filepath.Join("testdata", "status", c.name), c.code, func(w io.Writer, out output) error {
			return printCluster(w, out, c.answer)
		})
	}
}

// arbitrated is the answer of a leader with a window by its arbiter, changed.
func arbitrated(change func(*coorddv1.ClusterStatus)) *coorddv1.StatusResponse {
	c := &coorddv1.ClusterStatus{
		Cluster: "000102030405060708090a0b0c0d0e0f", Node: "n2", Version: "0.1.0",
		Leader: "n2", LeaderAddress: "10.0.0.2:7420", Serving: true, State: "serving",
		Term: 3, Epoch: 7, Revision: 1234, Leases: 2, ElectionTimeoutMs: 1000,
		Members: []*coorddv1.Member{
			{Name: "n1", ServerId: "n1.0a0b", Address: "10.0.0.1:7420", Voter: true, Reachable: true, RoundTripUs: 412},
			{Name: "n2", ServerId: "n2.0c0d", Address: "10.0.0.2:7420", Voter: true, Leader: true, Reachable: true},
		},
		Authority: &coorddv1.Authority{
			Mode: "raft", Epoch: 7, RaftEpoch: 7, Group: "101112131415161718191a1b1c1d1e1f", Owner: "n2", OwnerTerm: 3,
			Sequence: 4321, Takers: []string{"n1", "n2"}, TtlCeilingMs: 30000, LeaseMs: 10000, Rho: 0.01,
			WindowLeftMs: 7200, WindowBy: "arbiter",
			Arbiter: &coorddv1.ArbiterHealth{Store: "DynamoDB table coordd in eu-central-1", Reachable: true, RoundTripUs: 4100},
			Shards:  &coorddv1.Shards{Count: 256, Bytes: 65536, Fullest: 17, FullestBytes: 12345},
			History: []*coorddv1.AuthorityChange{
				{Epoch: 7, Mode: "raft", Node: "n1", Why: "imported", AtUnixMs: 1767225600000},
			},
		},
	}
	if change != nil {
		change(c)
	}
	return &coorddv1.StatusResponse{Cluster: c}
}

// fallback changes a status to that of a node that has taken over.
func fallback(c *coorddv1.ClusterStatus) {
	a := c.Authority
	c.Node, c.Leader, c.LeaderAddress, c.State = "n1", "", "", "serving from the registers"
	c.Members[1].Leader, c.Members[1].Reachable = false, false
	c.Epoch, a.Epoch, a.Mode, a.Owner, a.OwnerTerm = 8, 8, "fallback", "n1", 0
	a.WindowBy, a.WindowLeftMs = "", 0
	a.History = append(a.History, &coorddv1.AuthorityChange{Epoch: 8, Mode: "fallback", Node: "n1", Why: "takeover", AtUnixMs: 1767225611234})
}

func TestHistoryOutput(t *testing.T) {
	unread := arbitrated(func(c *coorddv1.ClusterStatus) {
		c.Authority = &coorddv1.Authority{Arbiter: &coorddv1.ArbiterHealth{Store: "DynamoDB table coordd", Error: "no such host"}}
	})
	without := arbitrated(func(c *coorddv1.ClusterStatus) { c.Authority = nil })
	for _, c := range []struct {
		name   string
		answer *coorddv1.StatusResponse
		code   int
	}{
		{"history", arbitrated(fallback), 0},
		{"history-without-arbiter", without, 0},
		{"history-not-read", unread, exitUnavailable},
	} {
		compare(t, filepath.Join("testdata", "status", c.name), c.code, func(w io.Writer, out output) error {
			return printHistory(w, out, c.answer)
		})
	}
}

// compare compares what a command prints, in text and as JSON, with the golden files
// of that name, and its exit code.
func compare(t *testing.T, file string, code int, print func(io.Writer, output) error) {
	t.Helper()
	for _, form := range []string{"text", "json"} {
		t.Run(filepath.Base(file)+"/"+form, func(t *testing.T) {
			var (
				b   bytes.Buffer
				out = output{format: newChoice("text", "json")}
			)
			if err := out.format.Set(form); err != nil {
				t.Fatal(err)
			}
			err := print(&b, out)
			if got := exitCode(err); got != code {
				t.Errorf("got code %d (%v), want %d", got, err, code)
			}
			if err != nil {
				b.WriteString("error: " + err.Error() + "\n")
			}
			golden(t, file+"."+form, b.Bytes())
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}
