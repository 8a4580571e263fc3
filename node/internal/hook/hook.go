// Package hook is how this module's tests reach inside of a node.
package hook

import (
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/node/internal/identity"
)

// Testing is what a test may put in the place of a node's own parts. Its zero
// value changes nothing.
type Testing struct {
	Rules rules.Set
	// Storage, where it is not nil, is used instead of the data folder; whoever
	// hands it in keeps it over a restart of the node.
	Storage *Storage
}

// Storage is what a node keeps between two starts.
type Storage struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	Identity  Identity
}

// Identity keeps who the node is.
type Identity interface {
	// Load returns what was saved last, or false if nothing was.
	Load() (identity.Identity, bool, error)
	// Save replaces it durably.
	Save(identity.Identity) error
}
