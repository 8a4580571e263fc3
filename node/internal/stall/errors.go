package stall

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrStalled: a write took longer than the limit and may still land. See *WriteError.
	ErrStalled = errors.New("disk stalled")
	// ErrFailed: a write failed, so that nobody knows what is on the disk. See *WriteError.
	ErrFailed = errors.New("disk write failed")
	// ErrUnreadable: Raft cannot be built on what its stores hold.
	ErrUnreadable = errors.New("log cannot be read")
	// ErrClosed: the guard was closed.
	ErrClosed = errors.New("log store is closed")
)

// WriteError names the write that was fatal. It matches ErrFailed if there is
// a cause, else ErrStalled.
type WriteError struct {
	Write string        // such as "storing log entries 5 to 9"
	Limit time.Duration // how long a write may take
	Cause error         // what the store said; nil: nothing within the limit
}

func (e *WriteError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%v: %s: %v; check the disk of the data folder and its free space, then start the node again", ErrFailed, e.Write, e.Cause)
	}
	return fmt.Sprintf("%v: %s took longer than %v; check the disk of the data folder, then start the node again", ErrStalled, e.Write, e.Limit)
}

// Is matches ErrStalled or ErrFailed.
func (e *WriteError) Is(target error) bool {
	if e.Cause != nil {
		return target == ErrFailed
	}
	return target == ErrStalled
}

// Unwrap is the cause.
func (e *WriteError) Unwrap() error { return e.Cause }

// write is one write to either store. Its zero value concerns nothing.
type write struct {
	verb        string
	key         string // of the stable store
	first, last uint64 // entries of the log store, from 1
}

func (w write) String() string {
	if w.key != "" {
		return w.verb + " " + w.key
	}
	if w.first == w.last {
		return fmt.Sprintf("%s log entry %d", w.verb, w.first)
	}
	return fmt.Sprintf("%s log entries %d to %d", w.verb, w.first, w.last)
}

// concerns reports whether the write may have changed the log entry at index.
func (w write) concerns(index uint64) bool { return w.first <= index && index <= w.last }
