package transport

import (
	"context"
	"errors"
	"strings"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Get is described at leases.Directory. Like Open it asks each address at most
// once, and follows what they say of the leader.
func (c *Conn) Get(ctx context.Context, name string) (s leases.State, err error) {
	if err := leases.ValidateName(name); err != nil {
		return leases.State{}, err
	}
	err = c.look(ctx, func(ctx context.Context, node coorddv1.CoorddClient) error {
		r, err := node.Get(ctx, &coorddv1.GetRequest{Name: name})
		if err == nil {
			s, err = fromLeaseStatus(r.Lease)
		}
		return err
	})
	return s, err
}

// List is described at leases.Directory.
func (c *Conn) List(ctx context.Context, prefix, after string, limit int) (p leases.Page, err error) {
	if err := (listing{prefix, after, limit}).validate(); err != nil {
		return leases.Page{}, err
	}
	err = c.look(ctx, func(ctx context.Context, node coorddv1.CoorddClient) error {
		r, err := node.List(ctx, &coorddv1.ListRequest{Prefix: prefix, After: after, Limit: uint32(limit)})
		if err == nil {
			p, err = fromListResponse(r)
		}
		return err
	})
	return p, err
}

// Queue is described at leases.Directory. It tells at most the first 8192 who wait.
func (c *Conn) Queue(ctx context.Context, name string) (waiters []leases.Waiter, err error) {
	if err := leases.ValidateName(name); err != nil {
		return nil, err
	}
	err = c.look(ctx, func(ctx context.Context, node coorddv1.CoorddClient) error {
		r, err := node.Queue(ctx, &coorddv1.QueueRequest{Name: name})
		if err == nil {
			waiters, err = fromQueueResponse(r)
		}
		return err
	})
	return waiters, err
}

// look asks the serving node for something. What it certainly refuses is not
// asked for elsewhere.
func (c *Conn) look(ctx context.Context, ask func(context.Context, coorddv1.CoorddClient) error) error {
	var refused error
	err := c.search(ctx, func(ctx context.Context, l *link, _ *search) error {
		err := ask(ctx, coorddv1.NewCoorddClient(l.cc))
		if err == nil {
			err = c.recognize(ctx, l)
		}
		if errors.Is(err, leases.ErrInvalid) {
			refused = err
			return nil
		}
		return nothingTold(err)
	})
	if err == nil {
		err = refused
	}
	return err
}

// recognize makes sure that an answer which has come over l is the pinned
// cluster's, and pins it if none is yet: those of a Directory do not say whose
// they are, and a place in one cluster's history means nothing in another's.
func (c *Conn) recognize(ctx context.Context, l *link) error {
	dial := l.dials.Load()
	if l.known.Load() == dial && c.pin() != nil {
		return nil
	}
	r, err := c.ask(ctx, l, "")
	if err != nil {
		return err
	}
	cluster, err := leases.ParseID(r.GetCluster().GetCluster())
	if err != nil {
		return &leases.UnavailableError{Reason: "the node does not say which cluster it belongs to"}
	}
	if err := c.admit(cluster, true); err != nil {
		return err
	}
	l.known.Store(dial)
	return nil
}

// nothingTold is err of a request that changes nothing: where there is no
// answer, it is unavailable, and its outcome not unknown.
func nothingTold(err error) error {
	if !errors.Is(err, leases.ErrUnknownOutcome) && !errors.Is(err, leases.ErrClosed) {
		return err
	}
	reason := strings.TrimPrefix(err.Error(), leases.ErrUnknownOutcome.Error())
	if reason = strings.TrimPrefix(reason, ": "); reason == "" {
		reason = "no answer"
	}
	return &leases.UnavailableError{Reason: reason}
}
