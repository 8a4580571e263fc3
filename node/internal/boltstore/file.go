package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	// ErrLocked: another process has the log open.
	ErrLocked = errors.New("log is in use")
	// ErrCorrupt: the log's file is damaged.
	ErrCorrupt = errors.New("log is damaged")
)

// patience is how long to wait for a log that another process has open.
const patience = time.Second

// openFile opens or makes the file of a log.
func openFile(path string) (*raftboltdb.BoltStore, error) {
	err := check(path)
	var store *raftboltdb.BoltStore
	if err == nil {
		store, err = raftboltdb.New(raftboltdb.Options{
			Path: path,
			BoltOptions: &bbolt.Options{
				Timeout:        patience,
				NoFreelistSync: true, // else each commit rewrites a list that never shrinks
				FreelistType:   bbolt.FreelistMapType,
			},
			MsgpackUseNewTimeFormat: true,
		})
	}
	switch {
	case err == nil:
		return store, nil
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%w: %s: another process has it open: stop that one first", ErrLocked, path)
	case errors.As(err, new(*fs.PathError)):
		return nil, fmt.Errorf("open the log: %w", err)
	default:
		return nil, fmt.Errorf("%w: %s: %w: bring the data folder's files back if they were moved (never an older copy of them), or move the whole folder away and start the node again: it then joins its cluster as a new member", ErrCorrupt, path, err)
	}
}

// check reads through the file of a log before bbolt opens it for writing:
// bbolt then looks at every page in a goroutine of its own, and where it finds
// one damaged it panics there, out of anybody's reach.
func check(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	// Behind the end of a file the memory map faults.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: patience})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("it ends after %d of %d bytes", info.Size(), tx.Size())
		}
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
}
