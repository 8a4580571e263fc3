package main

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// changed checks which changes of authority there were since the cluster's birth.
func (q *quartet) changed(want ...authority.Why) {
	q.t.Helper()
	got := q.changes()
	text := make([]string, len(want))
	for i, w := range want {
		text[i] = string(w)
	}
	if !slices.Equal(got, text) {
		q.t.Errorf("got the changes of authority %q, want %q", got, text)
	}
}

// Two sites of two nodes are cut off from each other: neither has a majority. As long
// as neither reaches the arbiter nothing is granted; then those that do reach it take
// over, and when the sites hear each other again the old group goes on.
func TestArbitratedSplit(t *testing.T) {
	at, _ := emptyTable(t)
	q := newQuartet(t, at)
	q.reform = time.Minute // not in this test
	q.begin()
	_, before := q.leader()
	b := newBusy(q)
	b.grantsAnew("all is well")

	q.network.part(atEast, atWest...)
	q.network.part(q.nodes, theArbiter)
	cut := clock.System().Now()
	b.goOn(time.Second)
	if granted := b.grantsBetween(cut, clock.System().Now()); len(granted) > 0 {
		t.Errorf("by two voters of four, without the arbiter: got the grant %v, want none", granted[0])
	}
	q.network.mend()
	q.whole("nothing but time was lost")
	b.grantsAnew("leases are granted as before")
	b.keeps("after a moment without anybody")

	q.network.part(atEast, atWest...)
	q.network.part(atWest, theArbiter)
	q.fallsBack(atEast...)
	q.graceEnds(atEast...)
	b.grantsAnew("the site that reaches the arbiter grants leases")
	for i, name := range q.nodes {
		if c := q.view(i); slices.Contains(atWest, name) && c.GetServing() {
			t.Errorf("%s serves, and reaches nobody: %v", name, c)
		}
	}
	q.network.join(atWest, theArbiter)
	q.graceEnds(q.nodes...)
	b.grantsAnew("both sites grant leases")
	b.keeps("in fallback")

	q.network.mend()
	if _, after := q.whole("the sites hear each other"); after.GetAuthority().GetGroup() != before.GetAuthority().GetGroup() {
		t.Errorf("got group %v, want still %v", after.GetAuthority(), before.GetAuthority())
	}
	b.grantsAnew("the leader grants leases")
	b.goOn(time.Second)
	q.unharmed()
	b.home(q)
	q.changed(authority.Birth, authority.Imported, authority.Takeover, authority.Failback, authority.Imported)
}

// Where the sites do not hear each other for long, two nodes form a group of their own,
// although the other site reaches the arbiter too. It serves no more then, and joins
// that group when it can.
func TestArbitratedLongSplit(t *testing.T) {
	at, _ := emptyTable(t)
	q := newQuartet(t, at)
	q.raced = true
	q.begin()
	b := newBusy(q)
	b.grantsAnew("all is well")

	q.network.part(atEast, atWest...)
	q.fallsBack(q.nodes...)
	b.keeps("after the takeover")
	leader, _ := q.leads("a site has formed a group")
	b.grantsAnew("its leader grants leases")
	site, other := atEast, atWest
	if slices.Contains(atWest, q.nodes[leader]) {
		site, other = atWest, atEast
	}
	q.until("the leader has the vote of its site", []string{q.nodes[leader]}, func(c *coorddv1.ClusterStatus) bool {
		return len(c.GetMembers()) == len(site)
	})
	for _, name := range other {
		if c := q.view(slices.Index(q.nodes, name)); c.GetServing() {
			t.Errorf("%s serves, and does not hear the leader: %v", name, c)
		}
	}

	q.network.mend()
	q.whole("the sites hear each other")
	b.grantsAnew("the leader grants leases")
	b.goOn(time.Second)
	q.unharmed()
	b.home(q)
	q.changed(authority.Birth, authority.Imported, authority.Takeover, authority.Failback, authority.Imported)
}

// Three nodes of four are lost, with all that they knew. The one that is left takes over;
// when the others come back a group forms anew, since the old one has no majority any more.
func TestArbitratedMajorityLost(t *testing.T) {
	eachStore(t, func(t *testing.T, at table) {
		q := newQuartet(t, at).begin()
		b := newBusy(q)
		b.grantsAnew("all is well")

		leader, _ := q.leads("all is well")
		left := (leader + 1) % len(q.nodes)
		lost := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == left })
		q.kill(lost...)
		q.fallsBack(q.nodes[left])
		b.keeps("after the takeover")
		q.graceEnds(q.nodes[left])
		b.grantsAnew("the node that is left grants leases")

		q.start(lost...)
		q.whole("a group has formed anew")
		b.grantsAnew("the leader grants leases")
		b.goOn(time.Second)
		q.unharmed()
		b.home(q)
		q.changed(authority.Birth, authority.Imported, authority.Takeover, authority.Failback, authority.Imported)
	})
}

// All four are lost at once, and nobody has a disk.
func TestArbitratedAllLost(t *testing.T) {
	at, _ := emptyTable(t)
	q := newQuartet(t, at).begin()
	b := newBusy(q)
	b.grantsAnew("all is well")

	q.kill(0, 1, 2, 3)
	q.start(0, 1, 2, 3)
	q.fallsBack(q.nodes...)
	b.keeps("after the takeover")
	q.whole("a group has formed anew")
	b.grantsAnew("the leader grants leases")
	b.goOn(time.Second)
	q.unharmed()
	b.home(q)
	q.changed(authority.Birth, authority.Imported, authority.Takeover, authority.Failback, authority.Imported)
}

// Nobody reaches the arbiter: the leader goes on by the pledges of all.
func TestArbitratedArbiterLost(t *testing.T) {
	at, _ := emptyTable(t)
	q := newQuartet(t, at)
	q.elect = time.Second // another leader would have to reach the arbiter first
	q.begin()
	b := newBusy(q)
	b.grantsAnew("all is well")
	_, before := q.leads("all is well")
	calm := clock.System().Now()
	b.goOn(2 * time.Second)
	usual := b.pause(calm)

	cut := clock.System().Now()
	q.network.part(q.nodes, theArbiter)
	q.until("the leader goes on by unanimity", []string{before.GetLeader()}, func(c *coorddv1.ClusterStatus) bool {
		return c.GetServing() && c.GetAuthority().GetWindowBy() == string(authority.ByUnanimity)
	})
	b.goOn(3 * arbitratedLease)
	_, during := q.leads("still")
	if during.GetTerm() != before.GetTerm() || during.GetAuthority().GetWindowBy() != string(authority.ByUnanimity) {
		t.Errorf("got %v, want the leader of term %d by unanimity", during, before.GetTerm())
	}
	q.network.mend()
	q.until("the leader goes on by the arbiter", []string{before.GetLeader()}, func(c *coorddv1.ClusterStatus) bool {
		return c.GetServing() && c.GetAuthority().GetWindowBy() == string(authority.ByArbiter)
	})
	paused := b.pause(cut)
	t.Logf("the longest time without a grant: %v without the arbiter, %v before", paused, usual)
	if paused > max(time.Second, 3*usual) {
		t.Errorf("got %v without a grant, want at most 1s: the loss of the arbiter alone interrupts nobody", paused)
	}
	b.goOn(time.Second)
	if _, after := q.whole("the arbiter is back"); after.GetTerm() != before.GetTerm() {
		t.Errorf("got term %d, want still %d", after.GetTerm(), before.GetTerm())
	}
	q.unharmed()
	b.home(q)
	q.changed(authority.Birth, authority.Imported)
}

// The leader's process is killed, and that of the next is stopped for longer than any
// window lasts: where it wakes up it must not take itself for the leader.
func TestArbitratedLeaderLost(t *testing.T) {
	at, _ := emptyTable(t)
	q := newQuartet(t, at).begin()
	b := newBusy(q)
	b.grantsAnew("all is well")

	killed, _ := q.leads("all is well")
	q.kill(killed)
	q.leads("after the leader was killed", killed)
	b.grantsAnew("the next leader grants leases")
	q.start(killed)
	stopped, before := q.whole("the killed one is back")

	q.members[stopped].signal(syscall.SIGSTOP)
	_, after := q.leads("after the leader was stopped", stopped)
	b.grantsAnew("the one after it grants leases")
	b.goOn(2 * arbitratedLease)
	q.members[stopped].signal(syscall.SIGCONT)
	if c := q.view(stopped); c.GetTerm() <= before.GetTerm() && c.GetAuthority().GetWindowLeftMs() > 0 {
		t.Errorf("got %v, want that the window of who was stopped is over", c)
	}
	if after.GetTerm() <= before.GetTerm() {
		t.Errorf("got term %d after %d", after.GetTerm(), before.GetTerm())
	}
	q.whole("the stopped one is back")
	b.grantsAnew("all is well again")
	q.unharmed()
	b.home(q)
	q.changed(authority.Birth, authority.Imported)
}
