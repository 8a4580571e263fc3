package transport

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxHeld is how many leases one Renew carries.
const maxHeld = 1024

// withoutLimit is a wait of leases.Forever on the wire.
const withoutLimit = math.MaxUint32

func toOwner(o leases.Owner) *coorddv1.Owner {
	if o == (leases.Owner{}) {
		return nil
	}
	return &coorddv1.Owner{Label: text(o.Label, leases.MaxLabel), Site: text(o.Site, leases.MaxLabel), Host: text(o.Host, leases.MaxLabel), Pid: o.PID}
}

func fromOwner(o *coorddv1.Owner) leases.Owner {
	return leases.Owner{Label: o.GetLabel(), Site: o.GetSite(), Host: o.GetHost(), PID: o.GetPid()}
}

// toAcquire returns c for the wire, or an *InvalidError. A wait is rounded up
// to whole milliseconds.
func toAcquire(c leases.Claim) (*coorddv1.Acquire, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := &coorddv1.Acquire{Name: c.Name, Attempt: c.Attempt[:], TtlMs: MillisUp(c.TTL), WaitMs: withoutLimit, Owner: toOwner(c.Owner), Attributes: c.Attributes}
	if c.Wait != leases.Forever {
		if a.WaitMs = MillisUp(c.Wait); a.WaitMs == withoutLimit {
			return nil, &leases.InvalidError{Field: "wait", Value: c.Wait.String(), Bounds: fmt.Sprintf("0 to %v, or without limit", fromMillis(withoutLimit-1))}
		}
	}
	return a, nil
}

func fromAcquire(a *coorddv1.Acquire) (leases.Claim, error) {
	attempt, err := leases.IDFromBytes("attempt", a.Attempt)
	if err != nil {
		return leases.Claim{}, err
	}
	c := leases.Claim{Name: a.Name, Attempt: attempt, TTL: fromMillis(a.TtlMs), Wait: fromMillis(a.WaitMs), Owner: fromOwner(a.Owner), Attributes: a.Attributes}
	if a.WaitMs == withoutLimit {
		c.Wait = leases.Forever
	}
	return c, c.Validate()
}

// attempt checks what names an attempt in a Withdraw.
func attempt(name string, id leases.ID) error {
	if err := leases.ValidateName(name); err != nil {
		return err
	}
	if id.IsZero() {
		return &leases.InvalidError{Field: "attempt", Value: "none", Bounds: "16 random bytes"}
	}
	return nil
}

func fromWithdraw(w *coorddv1.Withdraw) (string, leases.ID, error) {
	id, err := leases.IDFromBytes("attempt", w.Attempt)
	if err != nil {
		return "", leases.ID{}, err
	}
	return w.Name, id, attempt(w.Name, id)
}

func toHeld(h leases.Held) *coorddv1.Held {
	return &coorddv1.Held{Name: text(h.Name, maxDetail), Token: uint64(h.Token)}
}

func fromHeld(h *coorddv1.Held) (leases.Held, error) {
	held := leases.Held{Name: h.GetName(), Token: tokens.Token(h.GetToken())}
	return held, held.Validate()
}

func fromRenew(r *coorddv1.Renew) ([]leases.Held, error) {
	if len(r.Held) == 0 || len(r.Held) > maxHeld {
		return nil, &leases.InvalidError{Field: "held", Value: fmt.Sprintf("%d leases", len(r.Held)), Bounds: fmt.Sprintf("1 to %d leases", maxHeld)}
	}
	held := make([]leases.Held, len(r.Held))
	for i, h := range r.Held {
		var err error
		if held[i], err = fromHeld(h); err != nil {
			return nil, err
		}
	}
	return held, nil
}

func toTransfer(h leases.Held, to leases.ID) *coorddv1.Transfer {
	return &coorddv1.Transfer{Held: toHeld(h), To: to[:]}
}

func fromTransfer(t *coorddv1.Transfer) (leases.Held, leases.ID, error) {
	held, err := fromHeld(t.Held)
	if err != nil {
		return held, leases.ID{}, err
	}
	to, err := leases.IDFromBytes("to", t.To)
	if err != nil {
		return held, to, err
	}
	return held, to, heir(to)
}

// heir checks what names the waiter in a Transfer.
func heir(to leases.ID) error {
	if to.IsZero() {
		return &leases.InvalidError{Field: "to", Value: "none", Bounds: "the waiter's attempt"}
	}
	return nil
}

func toGranted(g leases.Grant) *coorddv1.Granted {
	return &coorddv1.Granted{Token: uint64(g.Token), AcquiredAtUnixMs: toUnixMillis(g.AcquiredAt), Waited: g.Waited}
}

func fromGranted(g *coorddv1.Granted) (leases.Grant, error) {
	if g.GetToken() == 0 || g.GetToken() > uint64(tokens.Max) {
		return leases.Grant{}, fmt.Errorf("%w: the answer to an acquire has no valid token", leases.ErrUnknownOutcome)
	}
	return leases.Grant{Token: tokens.Token(g.Token), AcquiredAt: fromUnixMillis(g.AcquiredAtUnixMs), Waited: g.Waited}, nil
}

func toOpened(i leases.Info) *coorddv1.Opened {
	return &coorddv1.Opened{Cluster: i.Cluster[:], Node: text(i.Node, maxDetail), Rho: i.Rho, MaxTtlMs: MillisUp(i.MaxTTL), ElectionTimeoutMs: MillisUp(i.ElectionTimeout)}
}

func fromOpened(o *coorddv1.Opened) (leases.Info, error) {
	cluster, err := leases.IDFromBytes("cluster", o.Cluster)
	if err != nil {
		return leases.Info{}, err
	}
	if !(o.Rho >= 0 && o.Rho <= 0.5) {
		return leases.Info{}, &leases.InvalidError{Field: "rho", Value: fmt.Sprint(o.Rho), Bounds: "from 0 to 0.5"}
	}
	return leases.Info{Cluster: cluster, Node: o.Node, Rho: o.Rho, MaxTTL: fromMillis(o.MaxTtlMs), ElectionTimeout: fromMillis(o.ElectionTimeoutMs)}, nil
}

func toEvent(e leases.Event) *coorddv1.Event {
	switch e := e.(type) {
	case leases.Queued:
		return &coorddv1.Event{Event: &coorddv1.Event_Queued{Queued: &coorddv1.Queued{Name: text(e.Name, maxDetail), Attempt: e.Attempt[:], Position: uint32(max(e.Position, 0))}}}
	case leases.Ended:
		return &coorddv1.Event{Event: &coorddv1.Event_Ended{Ended: &coorddv1.Ended{Held: toHeld(e.Held), Status: ToStatus(e.Err)}}}
	case leases.Breaking:
		return &coorddv1.Event{Event: &coorddv1.Event_Breaking{Breaking: toHeld(e.Held)}}
	}
	return nil
}

// fromEvent returns nil for an event that this release does not know.
func fromEvent(e *coorddv1.Event) leases.Event {
	switch {
	case e.GetQueued() != nil:
		q := e.GetQueued()
		id, err := leases.IDFromBytes("attempt", q.Attempt)
		if err != nil {
			return nil
		}
		return leases.Queued{Name: q.Name, Attempt: id, Position: int(q.Position)}
	case e.GetEnded() != nil:
		held, err := fromHeld(e.GetEnded().Held)
		if err != nil {
			return nil
		}
		return leases.Ended{Held: held, Err: FromStatus(e.GetEnded().Status)}
	case e.GetBreaking() != nil:
		held, err := fromHeld(e.GetBreaking())
		if err != nil {
			return nil
		}
		return leases.Breaking{Held: held}
	}
	return nil
}

// toUnixMillis and fromUnixMillis keep "not known", the zero time, as zero.
func toUnixMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromUnixMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// MillisUp is d in milliseconds, rounded up, within what 32 bits hold.
func MillisUp(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min((uint64(d)+uint64(time.Millisecond)-1)/uint64(time.Millisecond), math.MaxUint32))
}

func fromMillis(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// text makes s fit for a protobuf string: valid UTF-8 of at most n bytes.
func text(s string, n int) string {
	if len(s) <= n && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s[:min(len(s), n)], "\uFFFD")
	for len(s) > n {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	return s
}
