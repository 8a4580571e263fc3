package raftlog

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// interval is how often the same complaint about the same peer is written.
// Raft repeats it with each heartbeat.
const interval = 10 * time.Second

// maxComplaints bounds what is remembered.
const maxComplaints = 1024

// sparse lets a complaint through once in an interval.
type sparse struct {
	mu   sync.Mutex // guards what follows
	last map[string]time.Time
	left map[string]int // how many were left out since
}

// pass reports whether a complaint is to be written now, and how often it was
// left out since it was written last.
func (s *sparse) pass(level slog.Level, msg string, args []any) (ok bool, leftOut int) {
	if level < slog.LevelWarn {
		return true, 0
	}
	key := msg
	for i := 0; i+1 < len(args); i += 2 {
		if k, _ := args[i].(string); k == "peer" || k == "target" || k == "server-id" {
			key += fmt.Sprint(args[i+1])
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last[key]) < interval {
		s.left[key]++
		return false, 0
	}
	if s.last == nil || len(s.last) >= maxComplaints {
		s.last, s.left = map[string]time.Time{}, map[string]int{}
	}
	leftOut = s.left[key]
	s.last[key] = now
	delete(s.left, key)
	return true, leftOut
}
