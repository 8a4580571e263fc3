package transport

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Watch is described at leases.Directory. Any node will do; each address is asked
// at most once, where the last watch broke comes last. When the node breaks it
// ends with leases.ErrUnavailable: the next Watch asks another one. It ends with
// leases.ErrMissed where none of the nodes that answered remembers enough.
func (c *Conn) Watch(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
	if err := (watching{prefix, from}).validate(); err != nil {
		return err
	}
	if !c.enter() {
		return errConnClosed
	}
	defer c.run.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(errConnClosed) })()
	w, err := c.beginWatch(ctx, &coorddv1.WatchRequest{Prefix: prefix, Epoch: from.Epoch, Revision: from.Revision})
	if err != nil {
		return endOfWatch(ctx, err)
	}
	return c.follow(ctx, w, on)
}

// endOfWatch is err, or that ctx has ended.
func endOfWatch(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); cause {
	case nil:
		return err
	case errConnClosed:
		return cause
	default:
		return fmt.Errorf("the watch was given up: %w", cause)
	}
}

// watch is the client's end of a Watch stream.
type watch struct {
	link   *link // borrowed
	stream grpc.ServerStreamingClient[coorddv1.WatchResponse]
	first  *coorddv1.WatchResponse
}

// beginWatch finds a node that answers. The stream ends with ctx.
func (c *Conn) beginWatch(ctx context.Context, r *coorddv1.WatchRequest) (w *watch, err error) {
	c.mu.Lock()
	s := newSearch(c.cfg.Addrs, "", c.mute)
	c.mu.Unlock()
	s.wanted = "node that tells changes"
	var refused error
	_, err = c.walk(ctx, s, func(try context.Context, l *link, _ *search) (err error) {
		w, err = c.openWatch(ctx, try, l, r)
		if errors.Is(err, leases.ErrMissed) || errors.Is(err, leases.ErrInvalid) {
			refused = err // by the last one that did
		}
		return err
	})
	if err != nil && refused != nil {
		return nil, refused
	}
	return w, err
}

// openWatch begins a stream over l and reads its first answer, within try.
func (c *Conn) openWatch(ctx, try context.Context, l *link, r *coorddv1.WatchRequest) (*watch, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(try, func() { cancel(context.Cause(try)) })
	stream, err := coorddv1.NewCoorddClient(l.cc).Watch(ctx, r)
	var first *coorddv1.WatchResponse
	if err == nil {
		first, err = stream.Recv()
	}
	switch {
	case err == io.EOF:
		err = &leases.UnavailableError{Reason: "the node ended the watch at once"}
	case err == nil:
		err = c.recognize(try, l)
	}
	if !stop() || err != nil {
		cancel(nil)
		return nil, nothingTold(l.unopened(try, err))
	}
	c.mu.Lock()
	l.users++
	c.mu.Unlock()
	return &watch{link: l, stream: stream, first: first}, nil
}

// follow tells on what w tells, until one of them ends it.
func (c *Conn) follow(ctx context.Context, w *watch, on func(leases.Batch) error) error {
	for r := w.first; ; {
		b, err := fromWatchResponse(r)
		if err != nil {
			c.endWatch(w, true)
			return err
		}
		if err := on(b); err != nil {
			c.endWatch(w, false)
			return err
		}
		if r, err = w.stream.Recv(); err != nil {
			err = w.broken(err)
			c.endWatch(w, ctx.Err() == nil && !errors.Is(err, leases.ErrMissed))
			return endOfWatch(ctx, err)
		}
	}
}

// broken says why a stream has ended.
func (w *watch) broken(err error) error {
	if errors.Is(err, io.EOF) {
		return &leases.UnavailableError{Reason: fmt.Sprintf("the node at %s ended the watch", w.link.addr)}
	}
	if word := FromGRPC(err); !errors.Is(word, leases.ErrUnknownOutcome) {
		return nothingTold(word)
	}
	return &leases.UnavailableError{Reason: fmt.Sprintf("the watch of the node at %s broke: %s", w.link.addr, status.Convert(err).Message())}
}

// endWatch gives the link back. broken: the next watch asks another node first.
func (c *Conn) endWatch(w *watch, broken bool) {
	if broken {
		c.mu.Lock()
		c.mute = w.link.addr
		c.mu.Unlock()
	}
	c.giveBack(w.link, w.link.spoiled(false))
}
