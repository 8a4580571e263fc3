package transport

import (
	"context"
	"fmt"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// over makes one call over a session of the backend that is opened for it.
func (s *Service) over(ctx context.Context, id leases.ID, call func(context.Context, leases.Session) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.running.Done()
	ctx, done := s.bound(ctx, partingTime)
	defer done()
	return withSession(ctx, s.backend, id, call)
}

// withSession makes a call over a session of b that is opened for it. An error
// of the opening says that nothing was changed.
func withSession(ctx context.Context, b leases.Backend, id leases.ID, call func(context.Context, leases.Session) error) error {
	session, err := b.Open(ctx, id, func(leases.Event) {})
	if err != nil {
		return untouched(err)
	}
	defer session.Close()
	return cutOff(call(ctx, session))
}

// respond is what a unary call returns.
func respond[R any](r *R, err error) (*R, error) {
	if err != nil {
		return nil, ToGRPC(inRequest(err))
	}
	return r, nil
}

// Withdraw undoes an attempt.
func (s *Service) Withdraw(ctx context.Context, r *coorddv1.WithdrawRequest) (*coorddv1.WithdrawResponse, error) {
	w, err := fromWithdrawRequest(r)
	if err == nil {
		err = s.over(ctx, w.session, func(ctx context.Context, b leases.Session) error { return b.Withdraw(ctx, w.name, w.attempt) })
	}
	return respond(&coorddv1.WithdrawResponse{}, err)
}

// Renew gives a lease its full TTL again.
func (s *Service) Renew(ctx context.Context, r *coorddv1.RenewRequest) (*coorddv1.RenewResponse, error) {
	session, held, err := holder(r.Session, r.Name, r.Token)
	if err == nil {
		err = s.over(ctx, session, func(ctx context.Context, b leases.Session) error {
			return alone(b.Renew(ctx, []leases.Held{held}))
		})
	}
	return respond(&coorddv1.RenewResponse{}, err)
}

// Reclaim presents a lease in the epoch of a takeover.
func (s *Service) Reclaim(ctx context.Context, r *coorddv1.ReclaimRequest) (*coorddv1.ReclaimResponse, error) {
	session, lease, err := fromReclaimRequest(r)
	if err == nil {
		err = s.over(ctx, session, func(ctx context.Context, b leases.Session) error {
			return alone(b.Reclaim(ctx, r.Epoch, []leases.Claimed{lease}))
		})
	}
	return respond(&coorddv1.ReclaimResponse{}, err)
}

// alone is the result of a call about one lease.
func alone(each []error, err error) error {
	switch {
	case err != nil:
		return err
	case len(each) != 1:
		return &InternalError{fmt.Sprintf("%d results for 1 lease", len(each))}
	}
	return each[0]
}

// Release gives a lease back.
func (s *Service) Release(ctx context.Context, r *coorddv1.ReleaseRequest) (*coorddv1.ReleaseResponse, error) {
	session, held, err := holder(r.Session, r.Name, r.Token)
	if err == nil {
		err = s.over(ctx, session, func(ctx context.Context, b leases.Session) error { return b.Release(ctx, held) })
	}
	return respond(&coorddv1.ReleaseResponse{}, err)
}

// Transfer gives a lease back and passes it on to a waiter.
func (s *Service) Transfer(ctx context.Context, r *coorddv1.TransferRequest) (*coorddv1.TransferResponse, error) {
	session, held, err := holder(r.Session, r.Name, r.Token)
	var to leases.ID
	if err == nil {
		to, err = parseID("to", r.To)
	}
	resp := &coorddv1.TransferResponse{}
	if err == nil {
		err = s.over(ctx, session, func(ctx context.Context, b leases.Session) (err error) {
			resp.Transferred, err = b.Transfer(ctx, held, to)
			return err
		})
	}
	return respond(resp, err)
}
