package faulty

import (
	"bytes"
	"context"
	"slices"
)

// maxLate bounds the writes that wait to be released. Beyond it the oldest is
// lost, as a network would lose it in the end.
const maxLate = 1024

// LateWrite is a write that is still under way to the store, while its caller has
// been told ErrUnknown.
type LateWrite struct {
	store *Store
	call  Call
}

// keep puts a write among the late ones. The caller may use its buffer again.
func (s *Store) keep(c Call) {
	c.Write.Data = bytes.Clone(c.Write.Data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.late) == maxLate {
		s.late = slices.Delete(s.late, 0, 1)
	}
	s.late = append(s.late, &LateWrite{store: s, call: c})
}

// Late returns the writes that have not been released, the oldest first: the last
// 1024 at most.
func (s *Store) Late() []*LateWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.late)
}

// Call is the call that the write was sent by.
func (l *LateWrite) Call() Call { return l.call }

// Release lets the write arrive: the store carries it out, or refuses it. It
// returns the answer, which the write's caller does not get. Only the first Release
// or Drop does anything.
func (l *LateWrite) Release(ctx context.Context) error {
	if !l.take() {
		return nil
	}
	return l.store.inside.CompareAndSwap(ctx, l.call.Key, l.call.From, l.call.Write)
}

// Drop loses the write for good.
func (l *LateWrite) Drop() { l.take() }

// take takes the write out of the late ones, and reports whether it was among them.
func (l *LateWrite) take() bool {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.late, l)
	if i < 0 {
		return false
	}
	s.late = slices.Delete(s.late, i, i+1)
	return true
}
