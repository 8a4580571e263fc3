package history

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// state is one name as an ideal lock service knows it.
type state struct {
	attempt, session leases.ID // of the lease; zero: the name is free
	token            tokens.Token
	broken           bool         // the lease is renewed no more
	epoch            uint32       // in which it was reclaimed last
	early            tokens.Token // of a lease that was broken before its holder knew of it
	last             tokens.Token // the greatest that was granted under the name
	closed           bool         // the history is over: what had no answer may be without effect
}

func (s state) free() state { return state{early: s.early, last: s.last, closed: s.closed} }

func (s state) grant(r request) state {
	return state{
		attempt: r.Attempt, session: r.Session, token: r.Token, broken: r.Token == s.early,
		early: s.early, last: r.Token, closed: s.closed,
	}
}

// request is an event as the model sees it; one without a kind is the end of the
// history.
type request struct {
	*Event
	// contended: somebody else was asking for the name too, or had asked and
	// was never answered, and may have been granted it.
	contended bool
	// last is the greatest token that a withdrawn attempt was granted under, and
	// a released token itself: once a greater one is granted, there is nothing
	// left to end.
	last tokens.Token
	// before is the token that was granted next before that of a granted Acquire,
	// as far as anybody was told: the search need not try others in between.
	before tokens.Token
	// mine: the token of a Reclaim was granted to who sent it; freed: an operator's
	// Break may have ended it at once, which a takeover forgets.
	mine, freed bool
	// unknown: a Release or Transfer may have been answered as done since, in the
	// grace after a takeover, nobody knew of the lease.
	unknown bool
	// unseen: the Break may have come before the Acquire that told of the grant,
	// since an earlier copy of that got no answer.
	unseen bool
}

// checkLinearizable searches an order of all requests that explains the answers.
func (h History) checkLinearizable(timeout time.Duration) error {
	m, ops := h.model(), h.operations()
	switch porcupine.CheckOperationsTimeout(m, ops, timeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("the search for a linearization of %d requests was not through after %v: nothing is known", len(ops), timeout)
	}
	for _, one := range m.Partition(ops) {
		result, info := porcupine.CheckOperationsVerbose(m, one, timeout)
		if result == porcupine.Illegal {
			return stuck(one, info)
		}
	}
	return violation("the history is not linearizable")
}

// stuck names the requests around the place where the search came no further.
func stuck(ops []porcupine.Operation, info porcupine.LinearizationInfo) error {
	var longest []porcupine.Operation
	for _, p := range info.PartialLinearizationsOperations()[0] {
		if len(p) > len(longest) {
			longest = p
		}
	}
	placed := map[*Event]bool{}
	for _, op := range longest {
		placed[op.Input.(request).Event] = true
	}
	name := ops[0].Input.(request).Name
	evidence := []fmt.Stringer{text("explained in this order, the last few:")}
	for _, op := range longest[max(0, len(longest)-6):] {
		evidence = append(evidence, op.Input.(request))
	}
	evidence = append(evidence, text("none of these can come next:"))
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, op := range ops {
		r := op.Input.(request)
		if r.Kind != 0 && !placed[r.Event] && r.Outcome != Unknown && len(evidence) < 14 {
			evidence = append(evidence, r)
		}
	}
	return violation(fmt.Sprintf("the answers about %q are not linearizable", name), evidence...)
}

type text string

func (t text) String() string { return string(t) }

func (r request) String() string {
	if r.Kind == 0 {
		return "the end"
	}
	return r.Event.String()
}

// operations translates the events that say something. Acquires without an
// answer are not among them: nobody relies on what they may have been granted,
// so anybody may be granted the name over it; they explain refusals alone, see
// contended. Nor are renewals without an answer, breaks of leases that nobody
// was told of, and what had no effect. A Reclaim without an answer is one, if it
// may be its sender's: it may have brought the lease back.
func (h History) operations() []porcupine.Operation {
	const end = math.MaxInt64 - 1
	granted := map[leases.ID]tokens.Token{} // the greatest of each attempt
	asked := map[tokens.Token]int{}         // order of the first Acquire that told of it
	owner := map[tokens.Token]leases.ID{}   // session that it was granted to
	before, last := map[tokens.Token]tokens.Token{}, map[string]tokens.Token{}
	for _, e := range slices.SortedFunc(slices.Values(h.grants()), func(a, b *Event) int { return cmp.Compare(a.Token, b.Token) }) {
		if last[e.Name] != e.Token {
			before[e.Token], last[e.Name] = last[e.Name], e.Token
		}
	}
	for _, e := range h.grants() {
		granted[e.Attempt] = max(granted[e.Attempt], e.Token)
		owner[e.Token] = e.Session
		if _, ok := asked[e.Token]; !ok {
			asked[e.Token] = e.invoked
		}
	}
	contended, freed, epoch := h.contended(), h.freed(), h.epoch()
	var ops []porcupine.Operation
	names := map[string]bool{}
	for _, e := range h.Events {
		r := request{Event: e, contended: contended[e], last: e.Token, before: before[e.Token]}
		switch {
		case e.Outcome == Nothing,
			e.Outcome == Unknown && (e.Kind == Acquire || e.Kind == Renew),
			e.Outcome == NotHeld && e.Kind == Acquire:
			continue
		case e.Kind == Withdraw:
			if r.last = granted[e.Attempt]; r.last == 0 {
				continue
			}
		case e.Kind == Break:
			first, ok := asked[e.Token]
			if !ok {
				continue
			}
			r.unseen = e.invoked < first
		case e.Kind == Reclaim:
			r.mine = owner[e.Token] == e.Session
			if e.Outcome == Unknown && !r.mine {
				continue
			}
			_, r.freed = freed[e.Token]
		case e.Kind == Release || e.Kind == Transfer:
			r.unknown = e.Token.Epoch() < epoch
		}
		returned := int64(e.returned)
		if e.Outcome == Unknown {
			returned = end + 1
		}
		ops = append(ops, porcupine.Operation{Input: r, Call: int64(e.invoked), Return: returned})
		if !names[e.Name] {
			names[e.Name] = true
			over := request{Event: &Event{Name: e.Name}}
			ops = append(ops, porcupine.Operation{Input: over, Call: end, Return: end})
		}
	}
	return ops
}

// epoch is the last one that anybody tells of.
func (h History) epoch() uint32 {
	last := h.Epoch
	for _, e := range h.Events {
		last = max(last, e.Epoch, e.Token.Epoch())
		var grace *leases.GraceError
		if errors.As(e.Err, &grace) {
			last = max(last, grace.Epoch)
		}
	}
	return last
}

// rivals are the two attempts for a name that were under way longest.
type rivals struct{ first, second rival }

type rival struct {
	attempt leases.ID
	until   int // order of the answer
}

func (r *rivals) add(x rival) {
	switch {
	case x.attempt == r.first.attempt:
		r.first.until = max(r.first.until, x.until)
	case x.until > r.first.until:
		r.first, r.second = x, r.first
	case x.until > r.second.until:
		r.second = x
	}
}

// contended returns the refusals that are explained although the name may have
// been free: another attempt was under way, or had been sent without an answer.
func (h History) contended() map[*Event]bool {
	var refusals []*Event
	for _, e := range h.Events {
		if e.Kind == Acquire && e.Outcome == Held {
			refusals = append(refusals, e)
		}
	}
	slices.SortFunc(refusals, func(a, b *Event) int { return cmp.Compare(a.returned, b.returned) })
	set, byName, sent := map[*Event]bool{}, map[string]*rivals{}, h.Events
	for _, e := range refusals {
		for ; len(sent) > 0 && sent[0].invoked < e.returned; sent = sent[1:] {
			if x := sent[0]; x.Kind == Acquire && x.Outcome != Held {
				if byName[x.Name] == nil {
					byName[x.Name] = &rivals{}
				}
				byName[x.Name].add(rival{x.Attempt, x.end()})
			}
		}
		if r := byName[e.Name]; r != nil {
			other := r.first
			if other.attempt == e.Attempt {
				other = r.second
			}
			set[e] = other.until > e.invoked
		}
	}
	return set
}

// end is the place of the answer in the order; without one it may still come.
func (e *Event) end() int {
	if e.Outcome == Unknown {
		return math.MaxInt
	}
	return e.returned
}

// model is the ideal lock service, for each name by itself.
func (h History) model() porcupine.Model {
	own := h.deadlines()
	return porcupine.Model{
		Partition: byName,
		Init:      func() any { return state{} },
		Step: func(s, in, _ any) (bool, any) {
			return step(own, s.(state), in.(request))
		},
		Hash: func(s any) uint64 {
			return uint64(s.(state).token)*31 + uint64(s.(state).last)
		},
	}
}

func byName(ops []porcupine.Operation) [][]porcupine.Operation {
	var parts [][]porcupine.Operation
	index := map[string]int{}
	for _, op := range ops {
		name := op.Input.(request).Name
		i, ok := index[name]
		if !ok {
			i = len(parts)
			index[name] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], op)
	}
	return parts
}

// step says whether the ideal service can carry the request out with that
// answer, and what it knows then.
func step(own map[tokens.Token]*Belief, s state, r request) (bool, state) {
	if r.Kind == 0 {
		s.closed = true
		return true, s
	}
	// takeable: nobody holds the name, or nobody can rely on it any more.
	takeable := s.token == 0 || passed(own, s.token, r.Return)
	mine := s.token != 0 && s.session == r.Session && (s.token == r.Token || r.Kind == Withdraw && s.attempt == r.Attempt)
	switch {
	case r.Kind == Acquire && r.Outcome == Done:
		if s.token == r.Token && s.attempt == r.Attempt {
			return true, s
		}
		if !takeable || r.before != s.last {
			return false, s
		}
		return true, s.grant(r)
	case r.Kind == Acquire: // held by another
		return s.token != 0 && s.attempt != r.Attempt || takeable && r.contended, s
	case r.Kind == Break:
		return breakLease(s, r, takeable)
	case r.Kind == Reclaim && r.Outcome != NotHeld:
		return reclaim(s, r)
	case (r.Kind == Renew || r.Kind == Reclaim) && mine && s.broken:
		return r.Outcome == NotHeld, s // it is held nonetheless
	case r.Outcome == NotHeld:
		if mine && takeable {
			return true, s.free()
		}
		return !mine, s
	case r.Kind == Renew:
		return mine, s
	case mine:
		return true, s.free()
	default: // there is nothing to end
		return (r.Kind == Withdraw || r.unknown) && r.Outcome == Done || r.Outcome == Unknown && (s.closed || s.last > r.last), s
	}
}

// breakLease is step for an operator's Break. One that finds nothing to break
// has no effect, whatever its answer.
func breakLease(s state, r request, takeable bool) (bool, state) {
	switch held := s.token == r.Token; {
	case held && r.Outcome == NotHeld:
		return takeable, s.free()
	case held && r.Now:
		return true, s.free()
	case held:
		s.broken = true
		return true, s
	case r.Token > s.last && r.Outcome != NotHeld:
		s.early = max(s.early, r.Token)
		return r.unseen, s
	default: // it has ended
		return r.Outcome != Unknown || s.closed, s
	}
}

// reclaim is step for a Reclaim that was not refused. After a takeover the lease is
// held again, whether it was known or not, by no attempt and without its mark. It
// cannot be so with a mark that was set in the same epoch, or once the name was
// granted in that epoch or a later one. Where nobody knows any more that an operator
// had ended it, and another was granted the name, the greater token replaces it.
func reclaim(s state, r request) (bool, state) {
	marked := s.token == r.Token && s.broken && s.epoch == r.Epoch
	forgotten := r.freed && (s.token <= r.Token || s.epoch != r.Epoch)
	if r.mine && !marked && s.last.Epoch() < r.Epoch && (s.last == r.Token || s.last > r.Token && forgotten) {
		s.session, s.token, s.attempt = r.Session, r.Token, leases.ID{}
		s.broken, s.epoch = false, r.Epoch
		return true, s
	}
	return r.Outcome == Unknown && (s.closed || s.last > r.Token), s
}
