package node

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// book is what the node knows of the others, by server id: where they are, and
// when they were heard. It is a hint everywhere but in its own rule: an address
// that a server has given for a later start of its own replaces the one before.
type book struct {
	clock clock.Clock

	mu      sync.Mutex // guards what follows
	self    string     // the node's own server id
	entries map[string]entry
	conns   map[string]*grpc.ClientConn // by address
}

// entry is one other server.
type entry struct {
	name, id, address, site string
	starts                  uint64
	heard                   clock.Instant // by itself; 0: never since this node's start
	roundTrip               time.Duration // 0: never measured
	far                     int           // how many round trips in a row were long
	reads                   uint32        // op version; 0: it has not said
	applied                 uint64        // Raft index
	group                   leases.ID     // the Raft group that it takes part in
	led                     bool          // it knows a leader of that group
}

func newBook(self string, c clock.Clock) *book {
	return &book{self: self, clock: c, entries: map[string]entry{}, conns: map[string]*grpc.ClientConn{}}
}

// hint takes what somebody else, or the data folder, tells of a server.
func (b *book) hint(m identity.Member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, known := b.entries[m.ServerID]
	if m.ServerID == b.self || m.ServerID == "" || m.Address == "" || known && e.starts >= m.Starts {
		return
	}
	before := e.address
	e.id, e.name, e.address, e.starts = m.ServerID, identity.NameOf(m.ServerID), m.Address, m.Starts
	b.entries[m.ServerID] = e
	b.hangUp(before)
}

// heard takes what a server has said of itself. It returns the entry as it is now.
func (b *book) heard(n *peerv1.Node, change func(*entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.GetServerId() == "" || n.GetServerId() == b.self {
		return
	}
	e := b.entries[n.GetServerId()]
	before := e.address
	if n.GetStarts() >= e.starts {
		e.id, e.name, e.address, e.site, e.starts = n.GetServerId(), n.GetName(), n.GetAddress(), n.GetSite(), n.GetStarts()
	}
	e.heard = b.clock.Now()
	change(&e)
	b.entries[e.id] = e
	b.hangUp(before)
}

func (b *book) get(id string) (entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[id]
	return e, ok
}

// forget drops servers that the predicate names.
func (b *book) forget(gone func(entry) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.entries {
		if gone(e) {
			delete(b.entries, id)
			b.hangUp(e.address)
		}
	}
}

// hangUp closes the connection to an address at which nobody is any more. It is
// called with mu held.
func (b *book) hangUp(address string) {
	for _, e := range b.entries {
		if e.address == address {
			return
		}
	}
	if conn := b.conns[address]; conn != nil {
		_ = conn.Close()
		delete(b.conns, address)
	}
}

// alive reports whether a server has been heard within a time.
func (b *book) alive(id string, within time.Duration) (entry, bool) {
	e, ok := b.get(id)
	return e, ok && e.heard != 0 && b.clock.Now().Sub(e.heard) <= within
}

// renamed notes that the node itself goes on under another server id.
func (b *book) renamed(self string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.self = self
	delete(b.entries, self)
}

// seen returns the names of the nodes that were heard within a time, the own one
// included, and whether one of them knows a leader of that group.
func (b *book) seen(own string, group leases.ID, within time.Duration) (names []string, led bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	names = append(names, own)
	for _, e := range b.entries {
		if e.heard != 0 && now.Sub(e.heard) <= within && e.name != own {
			names = append(names, e.name)
			led = led || e.led && e.group == group
		}
	}
	slices.Sort(names)
	return slices.Compact(names), led
}

// members is the book as the data folder and other nodes are told it.
func (b *book) members() []identity.Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	members := make([]identity.Member, 0, len(b.entries))
	for _, e := range b.entries {
		members = append(members, identity.Member{ServerID: e.id, Address: e.address, Starts: e.starts})
	}
	identity.SortMembers(members)
	return members
}

// dial returns a client for the peer service at an address. It is shared, and
// the book's to close.
func (b *book) dial(address string, t *transport.TLS, network transport.Network) (peerv1.PeerClient, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	conn := b.conns[address]
	if conn == nil {
		var err error
		if conn, err = transport.NewClientConn(address, t, network); err != nil {
			return nil, err
		}
		b.conns[address] = conn
	}
	return peerv1.NewPeerClient(conn), nil
}

func (b *book) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for address, conn := range b.conns {
		_ = conn.Close()
		delete(b.conns, address)
	}
}
