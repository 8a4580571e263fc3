// Package hook is how this module's tests reach inside of a node.
package hook

import (
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/fsm"
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
	// Log, where it is not nil, wraps the log that a leader proposes to.
	Log func(fsm.Log) fsm.Log
	// Raft, where it is not nil, may change how Raft is configured.
	Raft func(*raft.Config)
}

// Proposals is the log that a leader proposes to.
func (t Testing) Proposals(l fsm.Log) fsm.Log {
	if t.Log == nil {
		return l
	}
	return t.Log(l)
}

// Configure is called with Raft's configuration before Raft is started.
func (t Testing) Configure(c *raft.Config) *raft.Config {
	if t.Raft != nil {
		t.Raft(c)
	}
	return c
}

// Storage is what a node keeps between two starts.
type Storage struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	Identity  Identity
	// Wipe empties all but Identity.
	Wipe func() error
}

// Identity keeps who the node is.
type Identity interface {
	// Load returns what was saved last, or false if nothing was.
	Load() (identity.Identity, bool, error)
	// Save replaces it durably.
	Save(identity.Identity) error
}
