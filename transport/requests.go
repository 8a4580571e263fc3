package transport

import (
	"fmt"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// defaultPage is how many leases a List without a limit tells at most.
const defaultPage = 100

// requestFields has the fields that the messages of unary calls name otherwise
// than package leases.
var requestFields = map[string]string{
	"owner label": "owner.label", "owner site": "owner.site", "owner host": "owner.host", "acquired at": "acquired_at_unix_ms",
}

// inRequest is err with the field that it is about named as the message names it.
func inRequest(err error) error {
	invalid, ok := err.(*leases.InvalidError)
	if !ok {
		return err
	}
	if field, other := requestFields[invalid.Field]; other {
		return &leases.InvalidError{Field: field, Value: invalid.Value, Bounds: invalid.Bounds}
	}
	return err
}

// parseID reads an id that must be there.
func parseID(field, s string) (leases.ID, error) {
	id, err := leases.ParseID(s)
	if invalid, ok := err.(*leases.InvalidError); ok {
		invalid.Field = field
		return leases.ID{}, invalid
	}
	if id.IsZero() {
		return leases.ID{}, &leases.InvalidError{Field: field, Value: "zeros", Bounds: "32 hexadecimal digits that were drawn at random"}
	}
	return id, nil
}

// fromAcquireRequest draws the ids that are left out. An attempt without a
// session is refused: under another one its repeat would wait for the lease
// that the first copy was granted.
func fromAcquireRequest(r *coorddv1.AcquireRequest) (a attempted, err error) {
	id := leases.NewID()
	a.session, a.drawn = leases.NewID(), r.Attempt == ""
	if !a.drawn {
		if id, err = parseID("attempt", r.Attempt); err != nil {
			return a, err
		}
	}
	if !a.drawn || r.Session != "" {
		if a.session, err = parseID("session", r.Session); err != nil {
			return a, err
		}
	}
	ttl := r.TtlMs
	if ttl == 0 {
		ttl = uint32(leases.DefaultTTL.Milliseconds())
	}
	a.claim, err = fromAcquire(&coorddv1.Acquire{
		Name: r.Name, Attempt: id[:], TtlMs: ttl, WaitMs: r.WaitMs, Owner: r.Owner, Attributes: r.Attributes,
	})
	return a, inMillis(err, r.TtlMs, fmt.Sprintf("or 0 for %d", leases.DefaultTTL.Milliseconds()))
}

// inMillis is err; what is wrong with a TTL is told in milliseconds.
func inMillis(err error, ttl uint32, more string) error {
	if invalid, ok := err.(*leases.InvalidError); ok && invalid.Field == "ttl" {
		return &leases.InvalidError{Field: "ttl_ms", Value: fmt.Sprint(ttl), Bounds: fmt.Sprintf("from %d to %d, %s", leases.MinTTL.Milliseconds(), leases.MaxTTL.Milliseconds(), more)}
	}
	return err
}

func toAcquireResponse(a attempted, g leases.Grant) *coorddv1.AcquireResponse {
	return &coorddv1.AcquireResponse{
		Name: a.claim.Name, Session: a.session.String(), Attempt: a.claim.Attempt.String(), Token: uint64(g.Token), TtlMs: MillisUp(a.claim.TTL),
		AcquiredAtUnixMs: toUnixMillis(g.AcquiredAt), Waited: g.Waited,
	}
}

// withdrawal is what a Withdraw names.
type withdrawal struct {
	name             string
	session, attempt leases.ID
}

func fromWithdrawRequest(r *coorddv1.WithdrawRequest) (w withdrawal, err error) {
	w.name = r.Name
	if err = leases.ValidateName(r.Name); err != nil {
		return w, err
	}
	if w.session, err = parseID("session", r.Session); err != nil {
		return w, err
	}
	w.attempt, err = parseID("attempt", r.Attempt)
	return w, err
}

// holder reads the fields that name a lease and who holds it.
func holder(session, name string, token uint64) (leases.ID, leases.Held, error) {
	held := leases.Held{Name: name, Token: tokens.Token(token)}
	if err := held.Validate(); err != nil {
		return leases.ID{}, held, err
	}
	id, err := parseID("session", session)
	return id, held, err
}

// fromReclaimRequest reads whose lease is presented, and as what it was granted.
func fromReclaimRequest(r *coorddv1.ReclaimRequest) (leases.ID, leases.Claimed, error) {
	session, _, err := holder(r.Session, r.Name, r.Token)
	if err != nil {
		return session, leases.Claimed{}, err
	}
	if err := reclaimEpoch(r.Epoch); err != nil {
		return session, leases.Claimed{}, err
	}
	lease, err := fromClaimed(&coorddv1.Claimed{
		Held: &coorddv1.Held{Name: r.Name, Token: r.Token}, TtlMs: r.TtlMs, Owner: r.Owner, Attributes: r.Attributes, AcquiredAtUnixMs: r.AcquiredAtUnixMs,
	})
	return session, lease, inMillis(err, r.TtlMs, "as the answer to the acquire said")
}

// listing is what a List asks for.
type listing struct {
	prefix, after string
	limit         int
}

func (l listing) validate() error { return leases.ValidateList(l.prefix, l.after, l.limit) }

func fromListRequest(r *coorddv1.ListRequest) (listing, error) {
	l := listing{r.Prefix, r.After, int(r.Limit)}
	if r.Limit == 0 {
		l.limit = defaultPage
	}
	return l, l.validate()
}

// watching is what a Watch asks for.
type watching struct {
	prefix string
	from   leases.Position
}

func (w watching) validate() error {
	if err := leases.ValidatePart("prefix", w.prefix); err != nil {
		return err
	}
	if w.from.Epoch > tokens.MaxEpoch || w.from.Epoch == 0 && w.from.Revision != 0 {
		return &leases.InvalidError{Field: "epoch", Value: fmt.Sprint(w.from.Epoch), Bounds: fmt.Sprintf("from 1 to %d beside a revision, or 0 for both", tokens.MaxEpoch)}
	}
	return nil
}

func fromWatchRequest(r *coorddv1.WatchRequest) (watching, error) {
	w := watching{r.Prefix, leases.Position{Epoch: r.Epoch, Revision: r.Revision}}
	return w, w.validate()
}
