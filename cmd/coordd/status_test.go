package main

import (
	"bytes"
	"flag"
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
	} {
		for _, form := range []string{"text", "json"} {
			t.Run(c.name+"/"+form, func(t *testing.T) {
				var (
					b   bytes.Buffer
					out = output{format: newChoice("text", "json")}
				)
				if err := out.format.Set(form); err != nil {
					t.Fatal(err)
				}
				err := printCluster(&b, out, c.answer)
				if got := exitCode(err); got != c.code {
					t.Errorf("got code %d (%v), want %d", got, err, c.code)
				}
				if err != nil {
					b.WriteString("error: " + err.Error() + "\n")
				}
				golden(t, filepath.Join("testdata", "status", c.name+"."+form), b.Bytes())
			})
		}
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
