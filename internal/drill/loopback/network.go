// Package loopback is the network of this machine with named hosts on it, whose
// links can be cut: real sockets, for drills in one process. A host stands for a
// machine; it is told apart by who dials and who listens, not by its address.
package loopback

import (
	"context"
	"sync"
	"time"
)

// Network is what connects the hosts. It is safe for concurrent use.
//
// A cut link is like a cable that is pulled: what is written waits, until there is no room
// for more and the writer waits too, nothing that was sent arrives, and whoever dials over
// it hears nothing until its context ends. The ends of connections are not told either.
type Network struct {
	mu      sync.Mutex // guards what follows, and all that hosts and connections hold
	hosts   map[string]*Host
	homes   map[string]string // the host that listens at an address, or did
	cuts    map[pair]bool
	silent  map[string]bool // hosts that are cut off from everybody
	conns   map[*conn]struct{}
	changed chan struct{} // closed, and replaced, whenever somebody who waits may go on

	sending sync.WaitGroup // of what has waited at links that were cut
}

// pair is two hosts in the order of their names: a link has no direction.
type pair struct{ a, b string }

func between(a, b string) pair { return pair{min(a, b), max(a, b)} }

// New returns a network without hosts, and with no link cut.
func New() *Network {
	return &Network{
		hosts: map[string]*Host{}, homes: map[string]string{}, cuts: map[pair]bool{}, silent: map[string]bool{},
		conns: map[*conn]struct{}{}, changed: make(chan struct{}),
	}
}

// Host returns the host of that name, and makes it first if there is none.
func (n *Network) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[name] == nil {
		n.hosts[name] = &Host{n: n, name: name, listeners: map[*listener]struct{}{}}
	}
	return n.hosts[name]
}

// Cut cuts every link between a host of one group and one of the other.
func (n *Network) Cut(one, other []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range one {
		for _, b := range other {
			n.cuts[between(a, b)] = true
		}
	}
}

// Silence cuts hosts off from every other, until Heal: so it is for a machine that
// hangs, or a process that is stopped.
func (n *Network) Silence(hosts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range hosts {
		n.silent[h] = true
	}
}

// Speak undoes Silence for some hosts. What waited goes on.
func (n *Network) Speak(hosts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range hosts {
		delete(n.silent, h)
	}
	n.mended()
}

// Heal undoes every Cut and Silence. What waited goes on.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cuts)
	clear(n.silent)
	n.mended()
}

// Kill ends a host as a killed process ends: nobody listens there any more, and its
// connections are reset. The *Host is dead for good; Host returns the next life.
func (n *Network) Kill(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[name]
	if h == nil {
		return
	}
	delete(n.hosts, name)
	h.dead = true
	for l := range h.listeners {
		_ = l.Listener.Close()
	}
	for c := range n.conns {
		if c.host == h {
			c.reset()
		}
	}
	n.tell()
}

// Close ends everything that is left of all hosts.
func (n *Network) Close() {
	n.mu.Lock()
	names := make([]string, 0, len(n.hosts))
	for name := range n.hosts {
		names = append(names, name)
	}
	n.mu.Unlock()
	n.Heal()
	for _, name := range names {
		n.Kill(name)
	}
	n.sending.Wait()
}

// The methods below are called with mu held.

// blocked reports whether nothing passes between two hosts. A host always reaches itself.
func (n *Network) blocked(a, b string) bool {
	return n.cuts[between(a, b)] || a != b && (n.silent[a] || n.silent[b])
}

// mended lets go what was written while its link was cut, and ends the connections that
// were closed meanwhile: only now does the other end hear of that.
func (n *Network) mended() {
	for c := range n.conns {
		if !c.blocked() && (c.closed || len(c.unsent) > 0) {
			n.sending.Go(c.mended)
		}
	}
	n.tell()
}

func (n *Network) tell() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// await waits until ready returns true or an error, deadline (zero: never) or ctx
// ends. ready is called with mu held; so is deadline, since it may move meanwhile.
func (n *Network) await(ctx context.Context, deadline func() time.Time, ready func() (bool, error)) error {
	for {
		n.mu.Lock()
		done, err := ready()
		at, changed := deadline(), n.changed
		n.mu.Unlock()
		if done || err != nil {
			return err
		}
		if err := rest(ctx, at, changed); err != nil {
			return err
		}
	}
}
