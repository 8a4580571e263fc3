package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/coordd/coordd/leases"
)

// Bounds of one entry of the log. A larger one would delay heartbeats.
const (
	MaxOps   = 4096
	MaxBytes = 512 << 10
)

const (
	entryMagic   = 'L'
	entryVersion = 1
)

// Entry is what one entry of the Raft log holds: the ops of one group commit,
// in order, and the term in which they were decided.
type Entry struct {
	Term uint64
	Ops  []leases.Op
}

// appendEntryHeader begins an entry; encoded ops follow up to its end.
func appendEntryHeader(b []byte, term uint64) []byte {
	b = leases.AppendHeader(b, entryMagic, entryVersion, leases.FirstRelease)
	return binary.AppendUvarint(b, term)
}

// Encode returns the entry as the log keeps it.
func (e Entry) Encode() []byte {
	b := appendEntryHeader(nil, e.Term)
	for _, op := range e.Ops {
		b = leases.AppendOp(b, op)
	}
	return b
}

// DecodeEntry reads what Encode wrote. An error that matches
// leases.ErrUnreadable comes from a newer release; any other is damage.
func DecodeEntry(b []byte) (Entry, error) { return decodeEntry(b, nil) }

// decodeEntry is DecodeEntry with memory for the ops.
func decodeEntry(b []byte, ops []leases.Op) (Entry, error) {
	version, since, b, err := leases.ReadHeader(b, entryMagic)
	if err != nil {
		return Entry{}, fmt.Errorf("log entry: %w", err)
	}
	if err := leases.Readable("log entry", version, entryVersion, since); err != nil {
		return Entry{}, err
	}
	e := Entry{Ops: ops[:0]}
	term, n := binary.Uvarint(b)
	if n <= 0 || n != len(binary.AppendUvarint(nil, term)) {
		return Entry{}, fmt.Errorf("log entry: %w: no term", leases.ErrCorrupt)
	}
	e.Term, b = term, b[n:]
	for len(b) > 0 {
		if len(e.Ops) == MaxOps {
			return Entry{}, fmt.Errorf("log entry: %w: more than %d ops", leases.ErrCorrupt, MaxOps)
		}
		op, rest, err := leases.DecodeOp(b)
		var unreadable *leases.UnreadableError
		if errors.As(err, &unreadable) {
			unreadable.Since = since
		}
		if err != nil {
			return Entry{}, fmt.Errorf("log entry, op %d: %w", len(e.Ops)+1, err)
		}
		e.Ops, b = append(e.Ops, op), rest
	}
	return e, nil
}
