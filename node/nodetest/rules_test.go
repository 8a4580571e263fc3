package nodetest

import (
	"context"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// The name that the clients of these scenarios compete for.
const name = "x"

// acquire waits for the lease for up to d; nil: it did not get it.
func (k *Client) acquire(d, ttl time.Duration) *Hold {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	h, err := k.Acquire(ctx, name, client.TTL(ttl))
	if err != nil {
		k.cluster.Note("%s gets no lease: %v", k.Name, err)
		return nil
	}
	k.cluster.Note("%s has token %v", k.Name, h.Token())
	return h
}

// connect finds the leader, so that the first request goes straight to it.
func (k *Client) connect() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := k.Info(ctx); err != nil {
		k.cluster.t.Fatal(err)
	}
}

// nodes are the hosts of some nodes.
func (c *Cluster) nodes(some ...int) (hosts []string) {
	for _, i := range some {
		hosts = append(hosts, c.Host(i))
	}
	return hosts
}

// cutAll cuts every link from a host of one group to one of the other.
func (c *Cluster) cutAll(from, to []string) {
	for _, f := range from {
		for _, t := range to {
			c.Cut(f, t)
		}
	}
}

func (c *Cluster) healAll(from, to []string) {
	for _, f := range from {
		for _, t := range to {
			c.Heal(f, t)
		}
	}
}

// renewed waits for the next renewal of a lease.
func renewed(h *Hold) {
	select {
	case <-h.Renewed():
	default:
	}
	select {
	case <-h.Renewed():
	case <-h.Done():
	}
}

var someGrants = history.Counts{Grants: 1}

// quick is a cluster whose elections take less time than its leases.
var quick = Config{ElectionTimeout: 300 * time.Millisecond}

// S41. The leader sees a deadline pass and decides an expiry, but has lost its
// term to another, which renews the lease. Before the expiry is proposed, it
// wins the next term.
var decidedEarlier = scenario{
	config: quick,
	run: func(c *Cluster) {
		const ttl = 4 * time.Second
		c.lead()
		a, b := c.Client("a", ClientConfig{}), c.Client("b", ClientConfig{})
		held := a.acquire(10*time.Second, ttl)
		if held == nil {
			return
		}
		renewed(held)
		time.Sleep(c.some(0, time.Second))
		c.HoldProposals(0)
		c.Partition(c.nodes(0), []string{"n2", "n3", "a", "b"})
		time.Sleep(leases.Stretch(ttl) + c.some(50*time.Millisecond, 500*time.Millisecond))
		c.HealAll()
		go b.acquire(20*time.Second, ttl)
		time.Sleep(c.some(300*time.Millisecond, time.Second))
		second := c.Leader()
		c.Stop(second) // the first server of the configuration, which is caught up, succeeds it
		time.Sleep(c.some(50*time.Millisecond, 300*time.Millisecond))
		c.ReleaseProposals(0)
		time.Sleep(2 * ttl)
		c.Restart(second)
		time.Sleep(ttl)
	},
	least: someGrants,
}

func TestDecidedEarlier(t *testing.T)                 { explore(t, decidedEarlier) }
func TestDecidedEarlierNeedsDecidedTerm(t *testing.T) { needs(t, decidedEarlier, rules.DecidedTerm) }

// S19. A round has been answered by a voter that then votes for another leader;
// the answer is late. A renewal that came in meanwhile must not use it.
var staleRound = scenario{
	config: quick,
	run: func(c *Cluster) {
		const ttl = 5 * time.Second
		c.lead()
		c.Net.Break(c.Host(0), c.Host(1)) // what may be left of the connections of a former leader
		a, b := c.Client("a", ClientConfig{Nodes: []int{0}}), c.Client("b", ClientConfig{Nodes: []int{1, 2}})
		held := a.acquire(10*time.Second, ttl)
		if held == nil {
			return
		}
		c.Partition([]string{"b"}, c.nodes(0))
		c.Partition([]string{"a"}, c.nodes(1, 2))
		renewed(held)
		time.Sleep(ttl/3 - ttl/30 - 50*time.Millisecond) // just before the next renewal
		// The leader hears nobody any more; its question still arrives at the voter.
		c.cutAll(c.nodes(1, 2), c.nodes(0))
		c.Cut(c.Host(0), c.Host(2))
		time.Sleep(c.some(230*time.Millisecond, 300*time.Millisecond))
		c.Cut(c.Host(0), c.Host(1))
		go b.acquire(15*time.Second, ttl)
		time.Sleep(c.some(2*time.Second, 3*time.Second))
		c.Heal(c.Host(1), c.Host(0)) // the voter's old answer
		time.Sleep(2 * ttl)
		c.HealAll()
		time.Sleep(time.Second)
	},
	least: someGrants,
}

func TestStaleRound(t *testing.T)                    { explore(t, staleRound) }
func TestStaleRoundNeedsRoundFreshness(t *testing.T) { needs(t, staleRound, rules.RoundFreshness) }

// S43. The leader is cut off from the other voters, with a follower that does
// not vote: that one's answers must not count in a round.
var nonVoter = scenario{
	config: Config{Spare: 1, ElectionTimeout: quick.ElectionTimeout},
	run: func(c *Cluster) {
		const ttl = 3 * time.Second
		c.lead()
		a, b := c.Client("a", ClientConfig{Nodes: []int{0}}), c.Client("b", ClientConfig{Nodes: []int{1, 2}})
		held := a.acquire(10*time.Second, ttl)
		if held == nil {
			return
		}
		c.Start(3)
		c.eventually("the leader has a follower that does not vote", func() bool {
			for _, m := range c.Node(0).Status().Members {
				if m.Name == c.Host(3) {
					return !m.Voter
				}
			}
			return false
		})
		time.Sleep(c.some(50*time.Millisecond, time.Second))
		c.Partition([]string{"n1", "n4", "a"}, []string{"n2", "n3", "b"})
		b.acquire(10*time.Second, ttl)
		time.Sleep(ttl)
		c.HealAll()
		time.Sleep(time.Second)
	},
	least: someGrants,
}

func TestNonVoter(t *testing.T)                 { explore(t, nonVoter) }
func TestNonVoterNeedsRoundVoters(t *testing.T) { needs(t, nonVoter, rules.RoundVoters) }

// S40. The answer to an acquire is lost, and the repeat that is answered comes
// late: the lease counts from the first sending.
var repeatedLate = scenario{
	run: func(c *Cluster) {
		ttl := []time.Duration{5 * time.Second, 60 * time.Second}[c.Rand.IntN(2)]
		a, b := c.Client("a", ClientConfig{}), c.Client("b", ClientConfig{})
		a.connect()
		b.connect()
		all := c.nodes(0, 1, 2)
		c.cutAll(all, []string{"a"})
		go a.acquire(2*ttl, ttl)
		time.Sleep(c.some(100*time.Millisecond, time.Second))
		go b.acquire(3*ttl, ttl)
		time.Sleep(c.some(ttl/4, ttl))
		c.healAll(all, []string{"a"})
		time.Sleep(2 * ttl)
	},
	least: someGrants,
}

func TestRepeatedLate(t *testing.T)                  { explore(t, repeatedLate) }
func TestRepeatedLateNeedsFirstSending(t *testing.T) { needs(t, repeatedLate, rules.FirstSending) }

// S45. A grant that waited has a short first deadline, whatever its TTL: it must
// be confirmed before it is believed in. Now and then the waiter is cut off
// when it is granted, so that the first answer it gets is that to a repeat.
var waited = scenario{
	run: func(c *Cluster) {
		ttl := []time.Duration{5 * time.Second, 60 * time.Second}[c.Rand.IntN(2)]
		wait := []time.Duration{time.Second, ttl / 2, 2 * ttl}[c.Rand.IntN(3)]
		c.Note("ttl %v, wait %v", ttl, wait)
		a, b, d := c.Client("a", ClientConfig{}), c.Client("b", ClientConfig{}), c.Client("d", ClientConfig{})
		first := a.acquire(10*time.Second, ttl)
		if first == nil {
			return
		}
		go b.acquire(4*ttl, ttl)
		time.Sleep(100 * time.Millisecond)
		go d.acquire(6*ttl, ttl)
		time.Sleep(wait)
		if c.Rand.IntN(3) > 0 {
			all, lost := c.nodes(0, 1, 2), c.Rand.IntN(3) > 0
			c.cutAll(all, []string{"b"})
			if c.Rand.IntN(2) == 0 {
				c.cutAll([]string{"b"}, all)
			}
			time.AfterFunc(c.some(500*time.Millisecond, 8*time.Second), func() {
				for _, n := range all {
					if lost { // what is under way to it, too
						c.Net.Break(n, "b")
					}
				}
				c.HealAll()
			})
		}
		ctx, cancel := context.WithTimeout(context.Background(), ttl)
		defer cancel()
		first.Release(ctx)
		c.Note("a has released")
		time.Sleep(10*time.Second + ttl/2)
	},
	least: history.Counts{Grants: 2},
}

func TestWaited(t *testing.T)                   { explore(t, waited) }
func TestWaitedNeedsConfirm(t *testing.T)       { needs(t, waited, rules.Confirm) }
func TestWaitedNeedsWaitedRepeats(t *testing.T) { needs(t, waited, rules.WaitedRepeats) }

// S47, withdrawn. The caller gives up; the answer of the grant comes, and only
// then does the Withdraw arrive.
var withdrawn = scenario{
	run: func(c *Cluster) {
		const ttl = 12 * time.Second
		a, b := c.Client("a", ClientConfig{}), c.Client("b", ClientConfig{})
		a.connect()
		b.connect()
		all, alone := c.nodes(0, 1, 2), []string{"a"}
		c.cutAll(all, alone)
		gaveUp := c.some(50*time.Millisecond, 500*time.Millisecond)
		go a.acquire(gaveUp, ttl)
		time.Sleep(gaveUp / 2)
		go b.acquire(3*ttl, ttl)
		time.Sleep(gaveUp/2 - time.Millisecond)
		c.cutAll(alone, all)
		time.Sleep(c.some(10*time.Millisecond, 900*time.Millisecond))
		c.healAll(all, alone)
		time.Sleep(c.some(10*time.Millisecond, 500*time.Millisecond))
		c.HealAll()
		time.Sleep(ttl)
	},
	least: someGrants,
}

func TestWithdrawn(t *testing.T)                 { explore(t, withdrawn) }
func TestWithdrawnNeedsAttemptOver(t *testing.T) { needs(t, withdrawn, rules.AttemptOver) }

// S47, released. The release hangs in the network while its client wants the
// lease again.
var releasedLate = scenario{
	run: func(c *Cluster) {
		const ttl = 10 * time.Second
		late := &lateEnds{}
		a := c.Client("a", ClientConfig{Backend: func(b leases.Backend) leases.Backend { late.Backend = b; return late }})
		b := c.Client("b", ClientConfig{})
		held := a.acquire(10*time.Second, ttl)
		if held == nil {
			return
		}
		time.Sleep(c.some(0, ttl))
		late.hold(c.some(500*time.Millisecond, 4*time.Second))
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		held.Release(ctx)
		cancel()
		c.Note("a has sent its release")
		go b.acquire(2*ttl, ttl)
		if c.Rand.IntN(2) == 0 {
			time.Sleep(c.some(0, time.Second))
		}
		go a.acquire(2*ttl, ttl)
		time.Sleep(2 * ttl)
		late.bring.Wait()
	},
	least: someGrants,
}

func TestReleasedLate(t *testing.T)                 { explore(t, releasedLate) }
func TestReleasedLateNeedsAttemptOver(t *testing.T) { needs(t, releasedLate, rules.AttemptOver) }

// S52. Two processes use one session id.
var reusedSession = scenario{
	run: func(c *Cluster) {
		const ttl = 5 * time.Second
		id := leases.ID{1}
		a, b := c.Client("a", ClientConfig{Session: id}), c.Client("b", ClientConfig{Session: id, Owner: "a"})
		go a.acquire(10*time.Second, ttl)
		time.Sleep(c.some(0, 20*time.Millisecond))
		if c.Rand.IntN(2) == 0 {
			time.Sleep(c.some(0, ttl))
		}
		if c.Rand.IntN(2) == 0 { // the first life hangs
			c.Partition([]string{"a"}, c.nodes(0, 1, 2))
		}
		b.acquire(3*ttl, ttl)
		time.Sleep(ttl)
	},
	least: someGrants,
}

func TestReusedSession(t *testing.T)                   { explore(t, reusedSession) }
func TestReusedSessionNeedsAttemptRandom(t *testing.T) { needs(t, reusedSession, rules.AttemptRandom) }
