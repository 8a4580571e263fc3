package transport

import (
	"fmt"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxClaimed is how many leases one Reclaim carries: each is there in full, and
// so 256 of them have up to 0.4 MB.
const maxClaimed = 256

// maxMillis is the end of the year 9999, the last that RFC 3339 can write.
const maxMillis = 253402300799999

// claimed checks a lease that is presented to be reclaimed.
func claimed(c leases.Claimed) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if ms := toUnixMillis(c.AcquiredAt); ms < 0 || ms > maxMillis {
		return &leases.InvalidError{Field: "acquired at", Value: fmt.Sprint(ms), Bounds: fmt.Sprintf("milliseconds since 1970, at most %d", int64(maxMillis))}
	}
	return nil
}

// reclaimEpoch checks the epoch in which leases are presented.
func reclaimEpoch(epoch uint32) error {
	if epoch == 0 || epoch > tokens.MaxEpoch {
		return &leases.InvalidError{Field: "epoch", Value: fmt.Sprint(epoch), Bounds: fmt.Sprintf("from 1 to %d, as the answer to the renewal told it", tokens.MaxEpoch)}
	}
	return nil
}

func toClaimed(c leases.Claimed) *coorddv1.Claimed {
	return &coorddv1.Claimed{
		Held: toHeld(c.Held), TtlMs: MillisUp(c.TTL), Owner: toOwner(c.Owner), Attributes: c.Attributes, AcquiredAtUnixMs: toUnixMillis(c.AcquiredAt),
	}
}

func fromClaimed(c *coorddv1.Claimed) (leases.Claimed, error) {
	lease := leases.Claimed{
		Held: leases.Held{Name: c.GetHeld().GetName(), Token: tokens.Token(c.GetHeld().GetToken())},
		TTL:  fromMillis(c.GetTtlMs()), Owner: fromOwner(c.GetOwner()), Attributes: c.GetAttributes(), AcquiredAt: fromUnixMillis(c.GetAcquiredAtUnixMs()),
	}
	return lease, claimed(lease)
}

func fromReclaim(r *coorddv1.Reclaim) ([]leases.Claimed, error) {
	if err := reclaimEpoch(r.Epoch); err != nil {
		return nil, err
	}
	if len(r.Claimed) == 0 || len(r.Claimed) > maxClaimed {
		return nil, &leases.InvalidError{Field: "claimed", Value: fmt.Sprintf("%d leases", len(r.Claimed)), Bounds: fmt.Sprintf("1 to %d leases", maxClaimed)}
	}
	all := make([]leases.Claimed, len(r.Claimed))
	for i, c := range r.Claimed {
		var err error
		if all[i], err = fromClaimed(c); err != nil {
			return nil, err
		}
	}
	return all, nil
}
