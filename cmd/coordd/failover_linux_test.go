package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// At a terminal failover and takeover say what they wait for, and for how long they have;
// what they end with stands in a line of its own.
func TestFailoverProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	silent, err := net.Listen("unix", path) // where nobody ever answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for says, args := range map[string][]string{
		"authority passes to the arbiter's registers: 1s of at most 3s":                             {"failover", "--to", "fallback"},
		"authority passes to Raft: 1s of at most 3s":                                                {"failover", "--to", "raft"},
		"waiting until nobody has written the root register for the authority lease: 1s of at most": {"takeover", "--force"},
	} {
		p := sitDown(t, append(append([]string{binary(t)}, args...), "--socket", path, "--timeout", "3s")...)
		p.sees(says)
		if got := p.leaves().ExitStatus(); got != exitUnavailable {
			t.Errorf("%v: got code %d, want %d", args, got, exitUnavailable)
		}
		if shown := p.shown.String(); !strings.Contains(shown, "\r\x1b[Kcoordd: ") {
			t.Errorf("%v: got %q, want the progress cleared away before the error", args, shown)
		}
	}
	got := command(t, "failover", "--to", "raft", "--socket", path, "--timeout", time.Second.String())
	failed(t, got, exitUnavailable, "tried for 1s, --timeout")
}
