package history

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Check returns nil if the history keeps every promise, else an error that
// names the events that break one:
//
//   - nobody relies on a lease that somebody else relies on at that time, or
//     that was not granted;
//   - tokens of a name grow, and none is granted twice;
//   - no lease is refused its renewal, or to be reclaimed, while its holder's own
//     deadline has not passed;
//   - nothing is reclaimed but what was granted to who reclaims it, in an epoch
//     before, and under whose name nothing greater was granted before that began;
//   - the answers are linearizable: there is one order of all requests, each
//     between its sending and its answer, that explains them. A lease can go to
//     somebody else only after its release, withdrawal or transfer, or if its
//     holder's own deadline had passed when the next grant was answered.
//
// An operator's Break excuses what it is there for. From then on the lease is
// not renewed, but it is held as before; one that frees the name now ends it,
// and nobody is wronged if its holder still relies on it. A takeover may forget
// either: the lease can then be reclaimed.
//
// A check that is not through after the timeout is an error. In a synctest
// bubble the timeout does not work: there, Check is to be called outside.
func (h History) Check(timeout time.Duration) error {
	return errors.Join(h.checkTokens(), h.checkOrder(), h.checkReclaims(), h.checkBeliefs(), h.checkRenewals(), h.checkLinearizable(timeout))
}

// TokenWentBack is the What of a grant that came after one with a greater token.
const TokenWentBack = "a token went back"

// Violation is an error of Check.
type Violation struct {
	What     string
	Evidence []fmt.Stringer // the events and beliefs that show it
}

func (v *Violation) Error() string {
	var s strings.Builder
	s.WriteString(v.What)
	for _, e := range v.Evidence {
		s.WriteString("\n\t" + e.String())
	}
	return s.String()
}

func violation(what string, evidence ...fmt.Stringer) error {
	return &Violation{What: what, Evidence: evidence}
}

// grants returns the granted acquires.
func (h History) grants() []*Event {
	var grants []*Event
	for _, e := range h.Events {
		if e.Kind == Acquire && e.Outcome == Done {
			grants = append(grants, e)
		}
	}
	return grants
}

// checkTokens finds tokens that were granted twice.
func (h History) checkTokens() error {
	var errs []error
	first := map[tokens.Token]*Event{}
	for _, e := range h.grants() {
		switch f := first[e.Token]; {
		case e.Token == 0:
			errs = append(errs, violation("a grant without a token", e))
		case f == nil:
			first[e.Token] = e
		case f.Name != e.Name || f.Attempt != e.Attempt:
			errs = append(errs, violation("a token was granted twice", f, e))
		}
	}
	return errors.Join(errs...)
}

// checkOrder finds grants that were asked for after a greater token of the
// same name had been granted.
func (h History) checkOrder() error {
	var errs []error
	for e, g := range h.overtaken(h.grants()) {
		errs = append(errs, violation(TokenWentBack, g, e))
	}
	return errors.Join(errs...)
}

// overtaken goes through those events, in the order of their invocations, before
// which a greater token of the same name had been granted, with such a grant.
func (h History) overtaken(events []*Event) iter.Seq2[*Event, *Event] {
	return func(yield func(e, grant *Event) bool) {
		returned := slices.SortedFunc(slices.Values(h.grants()), func(a, b *Event) int { return cmp.Compare(a.returned, b.returned) })
		greatest := map[string]*Event{} // of the grants that had returned
		for _, e := range events {
			for len(returned) > 0 && returned[0].returned < e.invoked {
				if g := greatest[returned[0].Name]; g == nil || g.Token < returned[0].Token {
					greatest[returned[0].Name] = returned[0]
				}
				returned = returned[1:]
			}
			if g := greatest[e.Name]; g != nil && g.Token > e.Token && !yield(e, g) {
				return
			}
		}
	}
}

// checkReclaims finds leases that came back although their holder never had them,
// or although their name had been granted anew (I5).
func (h History) checkReclaims() error {
	var errs []error
	granted, freed := h.granted(), h.freed()
	var reclaims []*Event
	for _, e := range h.Events {
		if e.Kind != Reclaim || e.Outcome != Done {
			continue
		}
		if !granted[grant{e.Client, e.Name, e.Token}] {
			errs = append(errs, violation("a lease was reclaimed that was not granted", e))
		}
		if e.Token.Epoch() >= e.Epoch {
			errs = append(errs, violation(fmt.Sprintf("a lease of epoch %d was reclaimed in epoch %d", e.Token.Epoch(), e.Epoch), e))
		}
		if _, ok := freed[e.Token]; !ok {
			reclaims = append(reclaims, e)
		}
	}
	for e, g := range h.overtaken(reclaims) {
		errs = append(errs, violation("a lease came back that had been granted anew", g, e))
	}
	return errors.Join(errs...)
}

// grant is what a client was granted.
type grant struct {
	client, name string
	token        tokens.Token
}

func (h History) granted() map[grant]bool {
	granted := map[grant]bool{}
	for _, e := range h.grants() {
		granted[grant{e.Client, e.Name, e.Token}] = true
	}
	return granted
}

// checkBeliefs finds beliefs that nothing was granted for, and those that overlap.
func (h History) checkBeliefs() error {
	var errs []error
	granted, freed, byName := h.granted(), h.freed(), map[string][]*Belief{}
	for _, b := range h.Beliefs {
		if !granted[grant{b.Client, b.Name, b.Token}] {
			errs = append(errs, violation("a lease was relied on that was not granted", b))
		}
		if at, ok := freed[b.Token]; ok && at.Before(b.Until) {
			part := *b
			part.Until = at
			b = &part
		}
		if b.From.Before(b.Until) {
			byName[b.Name] = append(byName[b.Name], b)
		}
	}
	for _, beliefs := range byName {
		errs = append(errs, overlaps(beliefs)...)
	}
	return errors.Join(errs...)
}

// freed returns when a Break was first sent that frees the name at once, by the
// token that it names.
func (h History) freed() map[tokens.Token]clock.Instant {
	first := map[tokens.Token]clock.Instant{}
	for _, e := range h.Events {
		if _, ok := first[e.Token]; !ok && e.Now && e.breaks() {
			first[e.Token] = e.Invoke
		}
	}
	return first
}

// breaks reports whether e is a Break that may have taken effect.
func (e *Event) breaks() bool {
	return e.Kind == Break && (e.Outcome == Done || e.Outcome == Unknown)
}

// overlaps compares each belief with the one before it that lasts longest.
func overlaps(beliefs []*Belief) (errs []error) {
	slices.SortFunc(beliefs, func(a, b *Belief) int { return cmp.Compare(a.From, b.From) })
	longest := beliefs[0]
	for _, b := range beliefs[1:] {
		if b.From.Before(longest.Until) {
			errs = append(errs, violation("two relied on one lease at a time", longest, b))
		}
		if longest.Until.Before(b.Until) {
			longest = b
		}
	}
	return errs
}

// checkRenewals finds leases that were lost although their holders renewed or
// reclaimed them: refused before the holder's own deadline, and before it sent
// their end or an operator sent a Break.
func (h History) checkRenewals() error {
	own := h.deadlines()
	over := map[tokens.Token]int{} // order of the first request after which a renewal may be refused
	note := func(t tokens.Token, order int) {
		if first, ok := over[t]; !ok || order < first {
			over[t] = order
		}
	}
	attempts := map[leases.ID][]tokens.Token{}
	for _, e := range h.grants() {
		attempts[e.Attempt] = append(attempts[e.Attempt], e.Token)
	}
	for _, e := range h.Events {
		switch {
		case e.Kind == Release, e.Kind == Transfer, e.breaks():
			note(e.Token, e.invoked)
		case e.Kind == Withdraw:
			for _, t := range attempts[e.Attempt] {
				note(t, e.invoked)
			}
		}
	}
	var errs []error
	for _, e := range h.Events {
		if e.Kind != Renew && e.Kind != Reclaim || e.Outcome != NotHeld {
			continue
		}
		belief := own[e.Token]
		ended, hasEnded := over[e.Token]
		if belief != nil && e.Return.Before(belief.Deadline) && (!hasEnded || ended > e.returned) {
			errs = append(errs, violation("a lease was lost although its holder's own deadline had not passed", belief, e))
		}
	}
	return errors.Join(errs...)
}

// deadlines returns for each token the belief with the latest deadline.
func (h History) deadlines() map[tokens.Token]*Belief {
	own := map[tokens.Token]*Belief{}
	for _, b := range h.Beliefs {
		if o := own[b.Token]; o == nil || o.Deadline.Before(b.Deadline) {
			own[b.Token] = b
		}
	}
	return own
}

// passed reports whether the holder of t did not rely on it any more at the
// instant, by its own deadline. Nobody relies on a token without a belief.
func passed(own map[tokens.Token]*Belief, t tokens.Token, at clock.Instant) bool {
	b := own[t]
	return b == nil || !at.Before(b.Deadline)
}
