// Package holder decides what a client may believe about a lease (section 3 of
// docs/protocol.md). It is pure: events and readings of a clock come in, verdicts
// go out. The client drives it over a network, a simulation without one.
package holder

import (
	"errors"
	"fmt"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Stage is how far one attempt at a lease has come.
type Stage uint8

// The stages, in their order.
const (
	Waiting    Stage = iota // no grant has counted yet
	Confirming              // granted; a renewal must confirm it before it is believed in
	Held                    // believed in until its deadline
	Over                    // neither token nor attempt is used any more, but in copies of their last request
)

// Verdict is what an event asks of the holder's driver.
type Verdict uint8

// The verdicts.
const (
	Ignore      Verdict = iota // nothing
	Send                       // the claim or renewal in question is to be sent now
	SendReclaim                // the lease is to be reclaimed now, in the epoch in question
	Believe                    // the lease is held, until a new deadline
	End                        // it is over, and Why says how
	Settle                     // it was over, and now nothing is left to give back
)

// Holder is what a client may believe about one attempt at a lease. Every instant
// that it is given is a reading of the client's own clock. It is not safe for
// concurrent use: its driver calls it under one lock, so that of a late answer and
// the request that makes it void one is certainly first (S47).
type Holder struct {
	name  string
	ttl   time.Duration
	rules rules.Set

	stage    Stage
	sent     bool
	since    clock.Instant // the sending that a grant counts from
	token    tokens.Token  // from the grant on
	epoch    uint32        // the greatest in which the lease was to be reclaimed
	deadline clock.Instant // of a lease that is held: the first instant at which it is not believed in
	trouble  error         // why the newest renewal was not answered
	why      error         // once it is over
	owed     bool          // see Owed
}

// New returns the holder of an attempt that has not been sent yet.
func New(name string, ttl time.Duration, r rules.Set) Holder {
	return Holder{name: name, ttl: ttl, rules: r}
}

// Stage is how far the attempt has come, as of the last event.
func (h *Holder) Stage() Stage { return h.stage }

// Token is that of the grant; zero before.
func (h *Holder) Token() tokens.Token { return h.token }

// Held names the lease; its token is zero before the grant.
func (h *Holder) Held() leases.Held { return leases.Held{Name: h.name, Token: h.token} }

// Since is the sending that a grant counts from; zero before the first.
func (h *Holder) Since() clock.Instant { return h.since }

// Deadline is the first instant at which the lease is not believed in, or was not
// to be; zero: it never was.
func (h *Holder) Deadline() clock.Instant { return h.deadline }

// Why says how it ended; nil before.
func (h *Holder) Why() error { return h.why }

// Owed reports whether it is over, but the cluster may keep the name taken until
// it is given back, or its deadline.
func (h *Holder) Owed() bool { return h.owed }

// Attempted notes that a copy of the Acquire is about to be sent. A grant counts
// from the first of them: a repeat gets the same token and no time (S40).
func (h *Holder) Attempted(now clock.Instant) Verdict {
	if h.stage != Waiting {
		return Ignore
	}
	if !h.sent || !h.rules.On(rules.FirstSending) {
		h.sent, h.since = true, now
	}
	return Send
}

// Granted takes the answer to any copy of the Acquire. A grant that waited may
// have a shorter first deadline than its TTL, so it is not believed in before a
// renewal has confirmed it (S45); nor is one whose time is half used up.
func (h *Holder) Granted(g leases.Grant, now clock.Instant) Verdict {
	if h.stage != Waiting {
		return Ignore
	}
	h.token = g.Token
	deadline := h.since.Add(leases.Shrink(h.ttl))
	if g.Waited && h.rules.On(rules.Confirm) || deadline.Sub(now) < h.ttl/2 {
		h.stage = Confirming
		return Send
	}
	h.stage, h.deadline = Held, deadline
	return Believe
}

// Renew says whether a renewal may be sent now.
func (h *Holder) Renew(now clock.Instant) Verdict {
	if v := h.Lapse(now); v != Ignore {
		return v
	}
	if h.stage != Confirming && h.stage != Held {
		return Ignore
	}
	return Send
}

// Renewed takes the positive answer to a renewal, or to a reclaim, that was sent
// at sent.
func (h *Holder) Renewed(sent, now clock.Instant) Verdict {
	deadline := sent.Add(leases.Shrink(h.ttl))
	if h.revives(deadline, now) {
		h.stage, h.deadline, h.why = Held, deadline, nil
		return Believe
	}
	if v := h.Renew(now); v != Send {
		return v // over before the answer came: it counts no more (S13, S47)
	}
	h.trouble = nil
	switch {
	case h.stage == Confirming && !now.Before(deadline):
		return Send // it took longer than it is good for
	case h.stage == Held && deadline <= h.deadline:
		return Ignore
	}
	h.stage, h.deadline = Held, deadline
	return Believe
}

// revives reports whether an answer brings a lease back that has lapsed. With the
// rule in force none does.
func (h *Holder) revives(deadline, now clock.Instant) bool {
	return !h.rules.On(rules.LateAnswer) && h.deadline != 0 && !now.Before(h.deadline) && now.Before(deadline) &&
		(h.stage == Held || errors.Is(h.why, leases.ErrExpired))
}

// Reclaim takes the answer to a renewal, or to a reclaim, that the arbiter has
// taken over in that epoch, and that the lease is not known there: it says whether
// a reclaim may be sent now. That is so only while the lease is believed in. What
// was still to be confirmed may have been granted to somebody else meanwhile, who
// reclaims it too (S46), and nobody will ever confirm it: the attempt is over. An
// answer from an epoch before the last one, or before the token's next, is no news.
func (h *Holder) Reclaim(epoch uint32, now clock.Instant) Verdict {
	if v := h.Renew(now); v != Send {
		return v
	}
	if epoch < h.epoch || epoch <= h.token.Epoch() {
		return Ignore
	}
	h.epoch = epoch
	if h.stage == Held || !h.rules.On(rules.ReclaimBelieved) && now.Before(h.since.Add(leases.Shrink(h.ttl))) {
		return SendReclaim
	}
	h.stage, h.owed = Over, true // a planned takeover may yet hand the grant over
	h.why = fmt.Errorf("%w: %q under token %v was not confirmed before the arbiter took over in epoch %d", leases.ErrLost, h.name, h.token, epoch)
	return End
}

// Refused takes the certain answer that the lease is not held, or the news that
// it is broken: then it is over for its holder alone, who may still give it back.
func (h *Holder) Refused(err error, now clock.Instant) Verdict {
	if v := h.Renew(now); v != Send {
		return v
	}
	h.stage, h.why = Over, fmt.Errorf("%w: %w", leases.ErrLost, err)
	var gone *leases.NotHeldError
	h.owed = errors.As(err, &gone) && gone.Why == leases.WhyBroken
	return End
}

// Gone takes the news that the lease has ended in the cluster too.
func (h *Holder) Gone(err error, now clock.Instant) Verdict {
	v := h.Refused(err, now)
	if v == Ignore {
		return h.forgive()
	}
	h.owed = false
	return v
}

// forgive notes that nothing is left to give back.
func (h *Holder) forgive() Verdict {
	if !h.owed {
		return Ignore
	}
	h.owed = false
	return Settle
}

// Unanswered notes that nothing is known of a renewal or a reclaim. That is never
// a loss.
func (h *Holder) Unanswered(err error) { h.trouble = err }

// Lapse ends a lease whose deadline has come.
func (h *Holder) Lapse(now clock.Instant) Verdict {
	switch {
	case h.deadline == 0 || now.Before(h.deadline):
		return Ignore
	case h.stage != Held:
		return h.forgive()
	}
	h.stage = Over
	h.why = fmt.Errorf("%w: %q under token %v was not renewed in time", leases.ErrExpired, h.name, h.token)
	if h.trouble != nil {
		h.why = fmt.Errorf("%w: %w", h.why, h.trouble)
	}
	return End
}

// Withdraw ends an attempt that is about to be withdrawn, unless its lease is
// believed in already: then it returns false, and the lease is the caller's.
func (h *Holder) Withdraw(why error) bool {
	if h.stage == Held {
		return false
	}
	if h.stage != Over && h.rules.On(rules.AttemptOver) {
		h.stage, h.why = Over, why
	}
	h.owed = false
	return true
}

// Release ends a lease that is about to be given back, be it to an heir (S47,
// S48). It returns false if nothing is left to give back; Why then says how the
// lease ended.
func (h *Holder) Release(now clock.Instant) bool {
	h.Lapse(now)
	switch {
	case h.stage == Over:
		return h.forgive() == Settle
	case h.rules.On(rules.AttemptOver):
		h.Released()
	}
	return true
}

// Released ends a lease that was given back.
func (h *Holder) Released() Verdict {
	if h.stage == Over {
		return Ignore
	}
	h.stage, h.why = Over, leases.ErrReleased
	return End
}

// Abandon ends whatever there is, without a word to anybody.
func (h *Holder) Abandon(why error) Verdict {
	if h.stage == Over {
		return h.forgive()
	}
	h.stage, h.why = Over, why
	return End
}
