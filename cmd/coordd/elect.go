package main

import (
	"context"
	"errors"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
)

// Bounds of the pause between two terms.
const (
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
)

// campaign has the command run in term after term, until a signal ends it all
// or something does that another try would not change.
func (j *job) campaign(ctx context.Context, c *client.Client) error {
	for pause := minBackoff; ; {
		t := j.term(ctx, c)
		if t.last {
			return t.err
		}
		now := clock.System().Now()
		var wait time.Duration
		wait, pause = backoff(pause, t)
		j.pauses(t, wait)
		if sig := j.idle(now.Add(wait), nil); sig != 0 {
			return j.refused(&signalled{sig})
		}
	}
}

// backoff returns the pause after a term, and the one that follows on it if the
// command fails again. Each is twice the one before; a command that has run for
// long, or has not failed by itself, begins anew.
func backoff(pause time.Duration, t term) (now, next time.Duration) {
	if !t.failed || t.ran >= maxBackoff {
		return minBackoff, minBackoff
	}
	return pause, min(2*pause, maxBackoff)
}

// pauses says how a term has ended that others follow on.
func (j *job) pauses(t term, wait time.Duration) {
	e, _ := errors.AsType[*exit](t.err)
	switch {
	case e == nil:
		j.note("run %s: the command ended with code 0; campaigning again in %v", j.name, wait)
	case e.err != nil:
		j.say("%s; campaigning again in %v", oneLine(e.err), wait)
	}
}
