package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// stage is how far one attempt at a lease has come.
type stage uint8

const (
	waiting    stage = iota // no grant has counted yet
	confirming              // granted; a renewal must confirm it before it is believed in
	held                    // believed in until its deadline
	over                    // neither token nor attempt is used any more, but in copies of their last request
)

// verdict is what an event asks of the holder's driver.
type verdict uint8

const (
	ignore  verdict = iota // nothing
	send                   // a renewal is to be sent now
	believe                // the lease is held, until a new deadline
	end                    // it is over, and why says how
	settle                 // it was over, and now nothing is left to give back
)

// holder is what a client may believe about one attempt at a lease (section 3
// of docs/protocol.md), as a pure state machine: events and clock readings in,
// verdicts out. Its driver calls it under one lock, so that of a late answer
// and the request that makes it void one is certainly first (S47).
type holder struct {
	name  string
	ttl   time.Duration
	rules rules.Set

	stage    stage
	sent     bool
	since    clock.Instant // the sending that a grant counts from
	token    tokens.Token  // from the grant on
	deadline clock.Instant // of a lease that is held: the first instant at which it is not believed in
	trouble  error         // why the newest renewal was not answered
	why      error         // once it is over
	owed     bool          // it is over, but the cluster keeps the name taken until it is given back, or its deadline
}

// attempted notes that a copy of the Acquire is about to be sent. A grant counts
// from the first of them: a repeat gets the same token and no time (S40).
func (h *holder) attempted(now clock.Instant) verdict {
	if h.stage != waiting {
		return ignore
	}
	if !h.sent || !h.rules.On(rules.FirstSending) {
		h.sent, h.since = true, now
	}
	return send
}

// granted takes the answer to any copy of the Acquire. A grant that waited may
// have a shorter first deadline than its TTL, so it is not believed in before a
// renewal has confirmed it (S45); nor is one whose time is half used up.
func (h *holder) granted(g leases.Grant, now clock.Instant) verdict {
	if h.stage != waiting {
		return ignore
	}
	h.token = g.Token
	deadline := h.since.Add(leases.Shrink(h.ttl))
	if g.Waited && h.rules.On(rules.Confirm) || deadline.Sub(now) < h.ttl/2 {
		h.stage = confirming
		return send
	}
	h.stage, h.deadline = held, deadline
	return believe
}

// renew says whether a renewal may be sent now.
func (h *holder) renew(now clock.Instant) verdict {
	if v := h.lapse(now); v != ignore {
		return v
	}
	if h.stage != confirming && h.stage != held {
		return ignore
	}
	return send
}

// renewed takes the answer to a renewal that was sent at sent.
func (h *holder) renewed(sent, now clock.Instant) verdict {
	if v := h.renew(now); v != send {
		return v // over before the answer came: it counts no more (S13, S47)
	}
	h.trouble = nil
	deadline := sent.Add(leases.Shrink(h.ttl))
	switch {
	case h.stage == confirming && !now.Before(deadline):
		return send // it took longer than it is good for
	case h.stage == held && deadline <= h.deadline:
		return ignore
	}
	h.stage, h.deadline = held, deadline
	return believe
}

// refused takes the certain answer that the lease is not held, or the news that
// it is broken: then it is over for its holder alone, who may still give it back.
func (h *holder) refused(err error, now clock.Instant) verdict {
	if v := h.renew(now); v != send {
		return v
	}
	h.stage, h.why = over, fmt.Errorf("%w: %w", leases.ErrLost, err)
	var gone *leases.NotHeldError
	h.owed = errors.As(err, &gone) && gone.Why == leases.WhyBroken
	return end
}

// gone takes the news that the lease has ended in the cluster too.
func (h *holder) gone(err error, now clock.Instant) verdict {
	v := h.refused(err, now)
	if v == ignore {
		return h.forgive()
	}
	h.owed = false
	return v
}

// forgive notes that nothing is left to give back.
func (h *holder) forgive() verdict {
	if !h.owed {
		return ignore
	}
	h.owed = false
	return settle
}

// unanswered notes that nothing is known of a renewal. That is never a loss.
func (h *holder) unanswered(err error) { h.trouble = err }

// lapse ends a lease whose deadline has come.
func (h *holder) lapse(now clock.Instant) verdict {
	switch {
	case h.deadline == 0 || now.Before(h.deadline):
		return ignore
	case h.stage != held:
		return h.forgive()
	}
	h.stage = over
	h.why = fmt.Errorf("%w: %q under token %v was not renewed in time", leases.ErrExpired, h.name, h.token)
	if h.trouble != nil {
		h.why = fmt.Errorf("%w: %w", h.why, h.trouble)
	}
	return end
}

// withdraw ends an attempt that is about to be withdrawn, unless its lease is
// believed in already: then it returns false, and the lease is the caller's.
func (h *holder) withdraw(why error) bool {
	if h.stage == held {
		return false
	}
	if h.stage != over && h.rules.On(rules.AttemptOver) {
		h.stage, h.why = over, why
	}
	h.owed = false
	return true
}

// release ends a lease that is about to be given back, be it to an heir (S47,
// S48). It returns false if nothing is left to give back; why then says how the
// lease ended.
func (h *holder) release(now clock.Instant) bool {
	h.lapse(now)
	switch {
	case h.stage == over:
		return h.forgive() == settle
	case h.rules.On(rules.AttemptOver):
		h.released()
	}
	return true
}

// released ends a lease that was given back.
func (h *holder) released() verdict {
	if h.stage == over {
		return ignore
	}
	h.stage, h.why = over, leases.ErrReleased
	return end
}

// abandon ends whatever there is, without a word to anybody.
func (h *holder) abandon(why error) verdict {
	if h.stage == over {
		return h.forgive()
	}
	h.stage, h.why = over, why
	return end
}
