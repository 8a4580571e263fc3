package raftlog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestComplaintsAreSparse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&out, nil)))
		count := func() int { defer out.Reset(); return strings.Count(out.String(), "failed to heartbeat") }
		for range 5 {
			l.Error("failed to heartbeat to", "peer", "n2")
			l.With("a", 1).Error("failed to heartbeat to", "peer", "n2")
			l.Error("failed to heartbeat to", "peer", "n3")
		}
		if got := count(); got != 2 {
			t.Errorf("complaints about two peers: got %d, want 2", got)
		}
		time.Sleep(interval)
		l.Error("failed to heartbeat to", "peer", "n2")
		if text := out.String(); !strings.Contains(text, `"left out"=9`) || count() != 1 {
			t.Errorf("after %v: got %q, want it once and how many were left out", interval, text)
		}
	})
}
