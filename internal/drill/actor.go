package drill

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// actor is a client on a machine of its own. Whatever it asks, is told and believes is
// recorded.
type actor struct {
	stage  *stage
	name   string // of its machine too
	clock  *machineClock
	client *client.Client
	conn   *transport.Conn

	mu   sync.Mutex // guards held
	held []*hold    // that were not given back, in the order of their grants
}

// actor makes one. It is closed with the stage.
func (s *stage) actor(name string) (*actor, error) {
	log := s.cfg.Log.With("client", name)
	conn, err := transport.Dial(transport.DialConfig{Addrs: s.addresses(), Network: s.net.Host(name), Log: log})
	if err != nil {
		return nil, err
	}
	machine := newMachineClock(s.clock)
	a := &actor{
		stage: s, name: name, clock: machine, conn: conn,
		client: client.New(s.history.Backend(name, conn), client.WithClock(machine), client.WithOwner(leases.Owner{Label: name}), client.WithLog(log)),
	}
	s.actors, s.cast = append(s.actors, a), append(s.cast, name)
	return a, nil
}

// close gives back what the actor holds, and ends it.
func (a *actor) close(ctx context.Context) error {
	a.mu.Lock()
	held := a.held
	a.mu.Unlock()
	var errs []error
	for _, h := range held {
		errs = append(errs, h.release(ctx))
	}
	return errors.Join(append(errs, a.client.Close(ctx), a.conn.Close())...)
}

// hold is a lease that an actor relies on.
type hold struct {
	*client.Lease
	by     *actor
	belief *history.Holding
}

// acquire waits for a lease until ctx ends.
func (a *actor) acquire(ctx context.Context, name string, opts ...client.LeaseOption) (*hold, error) {
	return a.hold(a.client.Acquire(ctx, name, opts...))
}

// try is acquire without a place in a queue.
func (a *actor) try(ctx context.Context, name string, opts ...client.LeaseOption) (*hold, error) {
	return a.hold(a.client.TryAcquire(ctx, name, opts...))
}

func (a *actor) hold(l *client.Lease, err error) (*hold, error) {
	if err != nil {
		return nil, err
	}
	b := a.stage.history.Believe(a.name, l.Name(), l.Token(), func() clock.Instant { return a.clock.toTrue(l.Deadline()) })
	context.AfterFunc(l.Context(), b.End)
	h := &hold{Lease: l, by: a, belief: b}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = append(a.held, h)
	return h, nil
}

// write writes to the register under the lease's token, and reports whether it was taken.
func (h *hold) write() bool { return h.by.stage.register.write(h.by.name, h.Name(), h.Token()) }

// release gives the lease up, and then tells the cluster.
func (h *hold) release(ctx context.Context) error {
	h.belief.End()
	h.by.mu.Lock()
	h.by.held = slices.DeleteFunc(h.by.held, func(o *hold) bool { return o == h })
	h.by.mu.Unlock()
	return h.Release(ctx)
}

// stop stops the actor's process, as SIGSTOP does: its clock shows nothing new, nothing
// that it sends leaves, and nothing reaches it.
func (a *actor) stop() {
	a.clock.stop()
	a.stage.net.Silence(a.name)
}

func (a *actor) goOn() {
	a.clock.goOn()
	a.stage.net.Speak(a.name)
}
