package mux

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// sparse writes at most one line a second, so that strangers cannot fill a
// disk, and says how many it left out.
type sparse struct {
	log   *slog.Logger
	level slog.Level

	mu   sync.Mutex // guards what follows
	next time.Time
	left int
}

func (s *sparse) note(msg string, args ...any) {
	s.mu.Lock()
	now := time.Now()
	if now.Before(s.next) {
		s.left++
		s.mu.Unlock()
		return
	}
	left := s.left
	s.next, s.left = now.Add(time.Second), 0
	s.mu.Unlock()
	if left > 0 {
		args = append(args, "similar_lines_left_out", left)
	}
	s.log.Log(context.Background(), s.level, msg, args...)
}
