package drill

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Invariant is one of the protocol's promises.
type Invariant string

// The promises that a drill looks at (docs/protocol.md, section 1).
const (
	Authority  Invariant = "I1" // never may a Raft leader with an open window and a fallback epoch both grant or renew
	Exclusion  Invariant = "I2" // at most one client relies on a lease at a time
	Tokens     Invariant = "I3" // a later grant's token is greater
	Continuity Invariant = "I4" // a holder that renews keeps its lease and its token
)

// invariants is all of them, and what they promise in a few words.
var invariants = []struct {
	Invariant
	name string
}{
	{Authority, "one authority at a time"},
	{Exclusion, "one holder at a time"},
	{Tokens, "tokens only grow"},
	{Continuity, "a lease that is renewed is kept"},
}

// Outcome says what a drill has shown of a promise.
type Outcome string

// The outcomes.
const (
	Kept        Outcome = "kept"
	Broken      Outcome = "broken"
	NotPromised Outcome = "not promised" // here, and Detail says why, and what was seen
	NotKnown    Outcome = "not known"    // the check was not through in time
)

// Verdict is what a drill has shown of one promise.
type Verdict struct {
	Invariant Invariant `json:"invariant"`
	Name      string    `json:"name"`
	Outcome   Outcome   `json:"outcome"`
	Detail    string    `json:"detail"`
	Evidence  []string  `json:"evidence,omitempty"`
}

// maxEvidence is how many violations of one promise are told in full.
const maxEvidence = 5

// findings collects what speaks against each promise, and what was looked at.
type findings struct {
	// apart says that two authorities may act at once: then the order of two grants in
	// time says nothing of their tokens, and what speaks against it is I1's.
	apart   bool
	against map[Invariant][]string
	unknown map[Invariant]string
	looked  map[Invariant]string
}

func newFindings() *findings {
	return &findings{against: map[Invariant][]string{}, unknown: map[Invariant]string{}, looked: map[Invariant]string{}}
}

func (f *findings) add(i Invariant, evidence ...string) {
	f.against[i] = append(f.against[i], evidence...)
}

// verdicts says what was found. notPromised has the promises that the scenario does not
// make, and why.
func (f *findings) verdicts(notPromised map[Invariant]string) (all []Verdict) {
	for _, i := range invariants {
		v := Verdict{Invariant: i.Invariant, Name: i.name, Outcome: Kept, Detail: f.looked[i.Invariant]}
		evidence := f.against[i.Invariant]
		why, exempt := notPromised[i.Invariant]
		switch {
		case exempt:
			v.Outcome, v.Detail = NotPromised, why+"; "+seen(len(evidence))
		case len(evidence) > 0:
			v.Outcome, v.Detail = Broken, seen(len(evidence))
		case f.unknown[i.Invariant] != "":
			v.Outcome, v.Detail = NotKnown, f.unknown[i.Invariant]
		}
		v.Evidence = slices.Clone(evidence[:min(len(evidence), maxEvidence)])
		all = append(all, v)
	}
	return all
}

func seen(violations int) string {
	switch violations {
	case 0:
		return "nothing against it was seen"
	case 1:
		return "broken once"
	default:
		return fmt.Sprintf("broken %d times", violations)
	}
}

// historyTimeout bounds the search for an order that explains all answers.
const historyTimeout = 20 * time.Second

// history takes what the clients were told.
func (f *findings) history(h history.History) {
	for _, err := range leaves(h.Check(historyTimeout)) {
		v, ok := errors.AsType[*history.Violation](err)
		if !ok { // the search was not through
			f.unknown[Exclusion] = err.Error()
			continue
		}
		if v.What == history.TokenWentBack {
			f.add(f.order(), v.Error())
			continue
		}
		f.add(promise(v), v.Error())
	}
	f.epochs(h)
	c := h.Counts()
	f.looked[Exclusion] = fmt.Sprintf("%d beliefs in a lease, none beside another; %d requests, explained in one order", len(h.Beliefs), c.Events)
}

// order is the promise that a token breaks which is smaller than an earlier one.
func (f *findings) order() Invariant {
	if f.apart {
		return Authority
	}
	return Tokens
}

// leaves are the errors that were joined to err.
func leaves(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}

// promise is the one that a violation breaks. Whatever else a history shows concerns
// who holds a lease.
func promise(v *history.Violation) Invariant {
	switch {
	case strings.Contains(v.What, "token"):
		return Tokens
	case strings.Contains(v.What, "lost"):
		return Continuity
	default:
		return Exclusion
	}
}

// epochs finds grants of an older epoch that were asked for after one of a newer had
// been answered: whoever granted them had lost its authority. For each epoch it tells of
// the first.
func (f *findings) epochs(h history.History) {
	asked := map[leases.ID]clock.Instant{} // when each attempt was: a repeat gets the token of its first copy
	for _, e := range h.Events {
		if first, ok := asked[e.Attempt]; e.Kind == history.Acquire && (!ok || e.Invoke.Before(first)) {
			asked[e.Attempt] = e.Invoke
		}
	}
	for _, g := range firstOfEpochs(h) {
		i := slices.IndexFunc(h.Events, func(e *history.Event) bool {
			return granted(e) && g.Return.Before(asked[e.Attempt]) && e.Token.Epoch() < g.Token.Epoch()
		})
		if i >= 0 {
			f.add(Authority, fmt.Sprintf("a grant of epoch %d was answered, and then one of epoch %d was asked for and answered\n\t%v\n\t%v",
				g.Token.Epoch(), h.Events[i].Token.Epoch(), g, h.Events[i]))
		}
	}
}

func granted(e *history.Event) bool { return e.Kind == history.Acquire && e.Outcome == history.Done }

// firstOfEpochs is, for each epoch, the grant that was answered first.
func firstOfEpochs(h history.History) (firsts []*history.Event) {
	byEpoch := map[uint32]*history.Event{}
	for _, e := range h.Events {
		if first := byEpoch[e.Token.Epoch()]; granted(e) && (first == nil || e.Return.Before(first.Return)) {
			byEpoch[e.Token.Epoch()] = e
		}
	}
	for _, e := range byEpoch {
		firsts = append(firsts, e)
	}
	slices.SortFunc(firsts, func(a, b *history.Event) int { return cmp.Compare(a.Return, b.Return) })
	return firsts
}

// nodes takes what was seen of the nodes, in so many looks.
func (f *findings) nodes(evidence []string, looks int) {
	f.add(Authority, evidence...)
	f.looked[Authority] = fmt.Sprintf("%d looks at the nodes, none with an open window beside a later fallback epoch", looks)
}

// keeper takes what has become of the lease that was to last through everything.
func (f *findings) keeper(t tokens.Token, lost error) {
	f.looked[Continuity] = fmt.Sprintf("the keeper has had its lease to the end, under token %v", t)
	if lost != nil {
		f.add(Continuity, fmt.Sprintf("the keeper has lost its lease, which it held under token %v: %v", t, lost))
	}
}

// register takes what the register that checks tokens has seen, beside what was granted.
func (f *findings) register(writes []write, h history.History) {
	first := map[tokens.Token]*history.Event{}
	for _, e := range h.Events {
		if granted(e) && first[e.Token] == nil {
			first[e.Token] = e
		}
	}
	type use struct {
		by, name string
	}
	users, refused := map[tokens.Token]use{}, 0
	for _, w := range writes {
		if u, ok := users[w.token]; ok && u != (use{w.by, w.name}) {
			f.add(Tokens, fmt.Sprintf("the register was written to under token %v by %s for %q, and by %s for %q", w.token, u.by, u.name, w.by, w.name))
		}
		users[w.token] = use{w.by, w.name}
		if w.accepted {
			continue
		}
		refused++
		mine, greater := first[w.token], first[w.greatest]
		if mine != nil && greater != nil && greater.Return.Before(mine.Invoke) {
			f.add(f.order(), fmt.Sprintf("the register refused %s's write to %q under token %v, although it was granted after %v", w.by, w.name, w.token, w.greatest))
		}
	}
	f.looked[Tokens] = fmt.Sprintf("%d grants; the register took %d writes and refused %d under an older token", len(first), len(writes)-refused, refused)
}
