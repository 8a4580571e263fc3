package node_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/node/internal/identity"
)

// heldStore is a store whose first reading waits for the test.
type heldStore struct {
	*raft.InmemStore
	once    sync.Once
	reached chan struct{}
	release chan struct{}
}

func (s *heldStore) GetUint64(key []byte) (uint64, error) {
	s.once.Do(func() { close(s.reached); <-s.release })
	return s.InmemStore.GetUint64(key)
}

// A node that is closed while it is founding a cluster leaves nothing behind: a
// Raft group that went on would vote.
func TestCloseWhileTheGroupStarts(t *testing.T) {
	before := goleak.IgnoreCurrent()
	store := &heldStore{InmemStore: raft.NewInmemStore(), reached: make(chan struct{}), release: make(chan struct{})}
	n, err := node.New(node.Config{
		Name: "n1", Listen: "127.0.0.1:0", Bootstrap: true, ElectionTimeout: node.MinElectionTimeout, Log: testLog(t),
		Testing: hook.Testing{Storage: &hook.Storage{Logs: store, Stable: store, Snapshots: raft.NewInmemSnapshotStore(), Identity: identity.NewMemory()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-store.reached
	closed := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		closed <- n.Close(ctx)
	}()
	eventually(t, "the node is being closed", func() bool {
		_, err := n.Open(t.Context(), leases.NewID(), nil)
		return errors.Is(err, leases.ErrClosed)
	})
	close(store.release)
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// A client in the process of a node that was closed is told so at once.
func TestClientOfAClosedNode(t *testing.T) {
	n := start(t, node.Config{Name: "n1", InMemory: true, Listen: freeAddress(t), Bootstrap: true})
	serving(t, []*node.Node{n})
	stop(t, n)
	c := client.New(n)
	defer c.Close(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Acquire(ctx, "job"); !errors.Is(err, leases.ErrClosed) || ctx.Err() != nil {
		t.Errorf("got %v, want %v at once", err, leases.ErrClosed)
	}
}
