package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// All nodes are lost at once, with all that they knew. The manual's worker reclaims its
// lease when they are back and the arbiter has taken over: it goes on under its token,
// in the grace and when a group has formed anew.
func TestHTTPWorkerThroughATakeover(t *testing.T) {
	at, _ := emptyTable(t)
	q := newQuartet(t, at).begin()
	var urls []string
	for _, addr := range q.listen {
		urls = append(urls, httpURL(addr))
	}
	journal := filepath.Join(t.TempDir(), "journal")
	w := works(t, journal, strings.Join(urls, ","), "kept", "--ttl", "15", "--steps", "100000")
	token := working(t, journal, 0)

	q.kill(0, 1, 2, 3)
	q.start(0, 1, 2, 3)
	q.fallsBack(q.nodes...)
	eventually(t, arbitratedWithin, "the lease is reclaimed", func() bool { return leaseAt(t, urls[0], "kept").Held })
	q.whole("a group has formed anew")
	eventually(t, arbitratedWithin, "the worker has worked for longer than its lease", func() bool {
		all := spans(t, journal)
		return time.Duration(all[0].last-all[0].first) > 15*time.Second
	})
	if l := leaseAt(t, urls[0], "kept"); l.Token != uint64(token) {
		t.Errorf("got %v, want it held under token %v", l, token)
	}
	w.signal(syscall.SIGTERM)
	w.ends(143)
	if all := spans(t, journal); len(all) != 1 {
		t.Errorf("got %+v, want one token", all)
	}
}
