package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fallback"
	"github.com/coordd/coordd/leases"
)

// regime is under which rules the shards are served now, in that fallback epoch; false:
// it is over.
func (a *arbitration) regime(epoch uint32) (r fallback.Regime, ok bool) {
	a.with(func(m *authority.Machine, now clock.Instant) {
		root, _, _ := m.Root()
		var present uint32
		if present, ok = m.Serves(); present != epoch {
			ok = false
			return
		}
		r = fallback.Regime{Epoch: epoch, RaftEpoch: root.RaftEpoch, Fresh: root.GraceDone, FreshAt: now.Add(m.GraceLeft(now)), Ceiling: root.Ceiling()}
	})
	return r, ok
}

// serveEpoch serves by the registers until that fallback epoch is over.
func (n *Node) serveEpoch(epoch uint32) {
	a := n.arbitration
	regime, ok := a.regime(epoch)
	if !ok {
		return
	}
	root, _ := a.root()
	ctx, cancel := context.WithCancelCause(n.ctx)
	defer cancel(nil)
	t, registers := n.registersTenure(a.registers(root), regime)
	defer registers.Close()
	end := n.serveWhile(ctx, t)
	defer func() { cancel(nil); end() }()
	n.log.Warn("the arbiter has authority: leases are served by its registers", "epoch", epoch, "grace", !regime.Fresh)
	for ctx.Err() == nil {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		next, ok := a.regime(epoch)
		if !ok {
			cancel(errPassedOn(n.cfg.Name, epoch))
			return
		}
		if next.Fresh && !regime.Fresh {
			n.log.Info("the grace is over: leases are granted anew", "epoch", epoch)
			registers.Serve(next)
			t.begun()
			regime = next
		}
		select {
		case <-changed:
		case e := <-registers.Superseded():
			n.log.Info("the registers are of a greater epoch", "epoch", e)
			a.reread()
		case <-ctx.Done():
		}
	}
}

// serveWhile lets a tenure serve until the returned function is called, which waits for
// all that it has started. ctx must have ended by then.
func (n *Node) serveWhile(ctx context.Context, t *tenure) (end func()) {
	var running sync.WaitGroup
	t.begin(ctx)
	t.run(ctx, &running)
	n.serveBy(ctx, t)
	return func() {
		n.serveNoMore(t)
		running.Wait()
	}
}

func errPassedOn(node string, epoch uint32) error {
	return &leases.UnavailableError{Reason: fmt.Sprintf("%s no longer serves epoch %d: authority has passed on", node, epoch)}
}
