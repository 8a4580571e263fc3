package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/node/internal/stall/stalltest"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// A node whose disk hangs ends with ErrDiskStalled, in time, and for good: it
// acknowledges nothing, although the late write lands, and Close returns while
// the write still hangs.
func TestStalledDiskEndsTheNode(t *testing.T) {
	gate := &stalltest.Gate{}
	store := raft.NewInmemStore()
	const electionTimeout = 500 * time.Millisecond
	n, err := node.New(node.Config{
		Name: "n1", InMemory: true, Listen: freeAddress(t), Bootstrap: true, ElectionTimeout: electionTimeout, Log: testLog(t),
		Testing: hook.Testing{Storage: &hook.Storage{
			Logs: gate.Logs(store), Stable: gate.Stable(store), Snapshots: raft.NewInmemSnapshotStore(), Identity: identity.NewMemory(),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	serving(t, []*node.Node{n})
	c := client.New(n)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	gate.Shut()
	result := make(chan error, 1)
	brief, cancel := context.WithTimeout(ctx, 8*electionTimeout)
	defer cancel()
	go func() {
		_, err := c.Acquire(brief, "job")
		result <- err
	}()
	select {
	case <-n.Done():
	case <-ctx.Done():
		t.Fatal("the node goes on with a disk that hangs")
	}
	if !errors.Is(n.Err(), node.ErrDiskStalled) {
		t.Errorf("got %v, want %v", n.Err(), node.ErrDiskStalled)
	}
	if gate.Held() == 0 {
		t.Error("no write hangs: the test shows nothing")
	}
	closing, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := n.Close(closing); closing.Err() != nil {
		t.Errorf("Close did not return while the write hangs: %v", err)
	}
	gate.Open() // the late write lands
	if err := <-result; err == nil || errors.Is(err, leases.ErrHeld) {
		t.Errorf("acquire: got %v, want that nothing is known", err)
	}
	gone, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = c.Close(gone)
}

// A round counts answers by server id and term alone: whoever is not the
// addressee, or is in another term, says no (N4).
func TestConfirm(t *testing.T) {
	n := start(t, node.Config{Name: "n1", InMemory: true, Listen: freeAddress(t), Bootstrap: true})
	serving(t, []*node.Node{n})
	conn, err := transport.NewClientConn(n.Address(), nil, transport.TCP())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := n.Status()
	self, cluster, other := s.Members[0].ServerID, s.Cluster, leases.NewID()
	for _, c := range []struct {
		what string
		req  *peerv1.ConfirmRequest
		want bool
	}{
		{"the addressee in its term", &peerv1.ConfirmRequest{Cluster: cluster[:], ServerId: self, Term: s.Term, Nonce: 7}, true},
		{"an earlier term", &peerv1.ConfirmRequest{Cluster: cluster[:], ServerId: self, Term: s.Term - 1, Nonce: 7}, false},
		{"a later term", &peerv1.ConfirmRequest{Cluster: cluster[:], ServerId: self, Term: s.Term + 1, Nonce: 7}, false},
		{"its predecessor", &peerv1.ConfirmRequest{Cluster: cluster[:], ServerId: "n1.0123456789abcdef", Term: s.Term, Nonce: 7}, false},
		{"another cluster", &peerv1.ConfirmRequest{Cluster: other[:], ServerId: self, Term: s.Term, Nonce: 7}, false},
	} {
		resp, err := peerv1.NewPeerClient(conn).Confirm(t.Context(), c.req)
		if err != nil || resp.GetYes() != c.want || resp.GetNonce() != 7 {
			t.Errorf("%s: got %v, %v, want %v", c.what, resp, err, c.want)
		}
	}
}
