package main

import (
	"testing"
)

// At a terminal lease break --now asks for the name, and does nothing without.
func TestBreakNowAsks(t *testing.T) {
	for _, c := range []struct {
		typed, says string
		code        int
	}{
		{"nightlx\n", "nothing was broken: the name was not typed", exitUsage},
		{"\x04", "nothing was broken", exitUsage}, // Ctrl-D
		{"nightly\n", "is a node running with that data folder?", exitUnavailable},
	} {
		p := sitDown(t, binary(t), "lease", "break", "nightly", "--token", "4294967297", "--now", "--data", t.TempDir())
		p.sees("only stores that check fencing tokens are protected")
		p.sees("Type the lease's name to free it now: ")
		p.types(c.typed)
		if got := p.leaves().ExitStatus(); got != c.code {
			t.Errorf("typed %q: got code %d, want %d", c.typed, got, c.code)
		}
		p.sees(c.says)
	}
}
