// Package boltstore is where a node keeps Raft's log, term, vote and snapshots:
// in its data folder or in memory. It is the only importer of raft-boltdb and
// bbolt.
package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/node/internal/identity"
)

// Storage is all that Raft stores. The guard against stalled writes belongs
// over Logs and Stable, and a raft.LogCache over the guarded log: the cache
// hides every optional interface under it.
type Storage struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Close gives everything back, after Raft has shut down. It hangs as long as
	// a write to the log does.
	Close func() error
}

// retain is how many snapshots are kept in a data folder.
const retain = 2

// Open opens the storage in a data folder, which must exist, and makes what is
// missing. Messages about snapshots go to log. Errors: ErrLocked, ErrCorrupt,
// those of the file system.
func Open(dir string, log hclog.Logger) (Storage, error) {
	store, err := openFile(filepath.Join(dir, identity.LogFile))
	if err != nil {
		return Storage{}, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, retain, log)
	if err != nil {
		return Storage{}, errors.Join(fmt.Errorf("snapshots in %s: %w", dir, err), store.Close())
	}
	return Storage{Logs: store, Stable: store, Snapshots: snapshots, Close: store.Close}, nil
}

// Memory returns a storage that forgets everything with the process, term and
// vote too: its node must not come back under the same server id.
func Memory() Storage {
	store := raft.NewInmemStore()
	return Storage{
		Logs: store, Stable: store, Snapshots: raft.NewInmemSnapshotStore(),
		Close: func() error { return nil },
	}
}

// Remove deletes what Open has made in a data folder, which must not be open.
func Remove(dir string) error {
	return errors.Join(os.RemoveAll(filepath.Join(dir, identity.SnapshotsDir)), removeFile(filepath.Join(dir, identity.LogFile)))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
