package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// leaseView is what is printed about one lease.
type leaseView struct {
	Name       string        `json:"name"`
	Held       bool          `json:"held"`
	Token      tokens.Token  `json:"token,omitzero"`
	Owner      *leases.Owner `json:"owner,omitempty"`
	AcquiredAt *time.Time    `json:"acquired_at,omitempty"`
	TTLMS      uint32        `json:"ttl_ms,omitempty"`
	AtMostMS   *uint32       `json:"at_most_ms,omitempty"`
	Broken     bool          `json:"broken,omitempty"`
	Waiters    uint32        `json:"waiters"`
	Attributes []byte        `json:"attributes,omitempty"`
	Last       *endView      `json:"last,omitempty"`
}

// endView tells how a lease ended.
type endView struct {
	Token     tokens.Token `json:"token"`
	Why       string       `json:"why"`
	NextToken tokens.Token `json:"next_token,omitzero"`
}

func viewState(s leases.State) leaseView {
	view := leaseView{Name: s.Name, Held: s.Held, Waiters: uint32(s.Waiters)}
	if s.Held {
		view.Token, view.Owner, view.Attributes, view.Broken = s.Token, &s.Owner, s.Attributes, s.Broken
		view.TTLMS, view.AtMostMS = uint32(s.TTL/time.Millisecond), new(uint32(s.AtMost/time.Millisecond))
		view.AcquiredAt = timeOfDay(s.AcquiredAt)
	}
	if s.Last.Token != 0 {
		view.Last = &endView{Token: s.Last.Token, Why: s.Last.Why.String(), NextToken: s.Last.Next}
	}
	return view
}

func (v leaseView) writeText(w io.Writer) {
	pairs := []string{"lease", v.Name}
	if v.Held {
		pairs = append(pairs, "held by", v.Owner.String(), "token", v.Token.String())
		if v.AcquiredAt != nil {
			pairs = append(pairs, "since", v.AcquiredAt.Format(time.RFC3339))
		}
		pairs = append(pairs, "ends in at most", v.ends(), "attributes", string(v.Attributes))
	} else {
		pairs = append(pairs, "held by", "nobody")
	}
	pairs = append(pairs, "waiting", strconv.FormatUint(uint64(v.Waiters), 10))
	if v.Last != nil {
		pairs = append(pairs, "before", fmt.Sprintf("token %v, %s", v.Last.Token, v.Last.Why))
	}
	writeFields(w, pairs...)
}

// ends says in how much time the lease ends at the latest.
func (v leaseView) ends() string {
	unless := "unless renewed"
	if v.Broken {
		unless = "since an operator has broken it"
	}
	return fmt.Sprintf("%v %s (TTL %v)", milliseconds(*v.AtMostMS), unless, milliseconds(v.TTLMS))
}

// timeOfDay is t as it is printed; nil: not known.
func timeOfDay(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
