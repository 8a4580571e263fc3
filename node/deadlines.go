package node

import (
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// watched is what a Raft leader knows of one lease that the table holds.
type watched struct {
	token    tokens.Token
	deadline clock.Instant
	// waited is set for a grant that waited, until its first renewal: its first
	// deadline may be shorter than its TTL, so every answer has to say so.
	waited bool
	// expiring is set once its expiry has been proposed: it is renewed no more.
	expiring bool
}

// watch notes the deadline of a lease. It is called with mu held.
func (r *raftReplicator) watch(l *leases.Lease, deadline clock.Instant, waited bool) {
	r.leases[l.Name] = &watched{token: l.Token, deadline: deadline, waited: waited}
	r.expiry.add(l.Name, l.Token, deadline)
	r.shrink()
}

// forget is called with mu held.
func (r *raftReplicator) forget(h leases.Held) {
	if w := r.leases[h.Name]; w != nil && w.token == h.Token {
		delete(r.leases, h.Name)
	}
}

// granted notes the first deadline of a new lease (N3).
func (r *raftReplicator) granted(l *leases.Lease, waited bool) {
	life := l.TTL
	if waited && r.tenure.rules.On(rules.FirstDeadline) {
		life = min(life, leases.FirstDeadline)
	}
	r.watch(l, r.tenure.clock.Now().Add(leases.Stretch(life)), waited)
	r.bump()
}

func (r *raftReplicator) unconfirmed(l *leases.Lease) bool {
	w := r.leases[l.Name]
	return w != nil && w.waited && r.tenure.rules.On(rules.WaitedRepeats)
}

func (r *raftReplicator) atMost(l *leases.Lease) time.Duration {
	w := r.leases[l.Name]
	if w == nil || w.token != l.Token {
		return leases.Stretch(l.TTL) // applied, and not yet noted here
	}
	return max(w.deadline.Sub(r.tenure.clock.Now()), 0)
}
