package nodetest

import (
	"testing"
	"time"

	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/node"
)

// some is a random duration.
func (c *Cluster) some(from, to time.Duration) time.Duration {
	return from + time.Duration(c.Rand.Int64N(int64(to-from)))
}

// others are the hosts of all nodes but node i.
func (c *Cluster) others(i int) (hosts []string) {
	for j := range c.members {
		if j != i {
			hosts = append(hosts, c.Host(j))
		}
	}
	return hosts
}

// underLoad lets workers compete for two names while faults happen, and for a
// while after the last one.
func underLoad(ttl time.Duration, faults func(c *Cluster)) func(*Cluster) {
	return func(c *Cluster) {
		l := startLoad(c, 6, 2, ttl)
		time.Sleep(c.some(0, 2*ttl))
		faults(c)
		c.HealAll()
		time.Sleep(2*ttl + 5*time.Second)
		l.end()
	}
}

var someEvents = history.Counts{Grants: 5, Renewals: 5, Releases: 2}

func TestNoFaults(t *testing.T) {
	explore(t, scenario{run: underLoad(3*time.Second, func(*Cluster) {}), least: someEvents})
}

// Links between nodes, and between nodes and clients, are cut in one direction
// or both, broken and slow.
func TestPartitions(t *testing.T) {
	explore(t, scenario{
		config: Config{ElectionTimeout: 500 * time.Millisecond},
		run: underLoad(3*time.Second, func(c *Cluster) {
			for range 6 {
				i := c.Rand.IntN(c.Size())
				if leader, ok := c.Serving(); ok && c.Rand.IntN(2) == 0 {
					i = leader
				}
				switch c.Rand.IntN(4) {
				case 0:
					c.Partition([]string{c.Host(i)}, c.others(i))
				case 1:
					for _, o := range c.others(i) {
						c.Cut(c.Host(i), o)
					}
				case 2:
					client := c.someClient()
					c.Cut(c.Host(i), client)
					if c.Rand.IntN(2) == 0 {
						c.Cut(client, c.Host(i))
					}
				case 3:
					for _, o := range append(c.others(i), c.someClient()) {
						c.Note("break %s - %s", c.Host(i), o)
						c.Net.Break(c.Host(i), o)
					}
				}
				time.Sleep(c.some(0, 3*time.Second))
				if c.Rand.IntN(3) > 0 {
					c.HealAll()
					time.Sleep(c.some(0, 2*time.Second))
				}
			}
		}),
		least: someEvents,
	})
}

// someClient is the host of a client that has not been closed, or was lately.
func (c *Cluster) someClient() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clients[len(c.clients)-1-c.Rand.IntN(min(6, len(c.clients)))].Name
}

func TestPausedFollower(t *testing.T) {
	explore(t, scenario{
		run: underLoad(3*time.Second, func(c *Cluster) {
			for range 3 {
				i := (c.Leader() + 1 + c.Rand.IntN(c.Size()-1)) % c.Size()
				c.Pause(i)
				time.Sleep(c.some(0, 6*time.Second))
				c.Resume(i)
				time.Sleep(c.some(0, 2*time.Second))
			}
		}),
		least: someEvents,
	})
}

// lead makes the first node lead, with Raft timers so long that it goes on
// believing so for 5 s after it has heard of nobody any more.
func (c *Cluster) lead() {
	c.SetElectionTimeout(0, node.MaxElectionTimeout)
	c.Stop(0)
	c.Restart(0)
	for c.Leader() != 0 {
		time.Sleep(300 * time.Millisecond) // it catches up
		i := c.Leader()
		c.Stop(i) // which hands its leadership to the first that is caught up
		c.Leader()
		c.Restart(i)
	}
	c.AllVote()
}

// The leader is paused, the others elect another, and it wakes while it still
// believes that it leads: it must neither renew nor grant. One client reaches
// that leader alone, another all but that one.
var pausedLeader = scenario{
	config: Config{ElectionTimeout: 300 * time.Millisecond},
	run: func(c *Cluster) {
		const ttl = 5 * time.Second
		c.lead()
		a, b := c.Client("a", ClientConfig{Nodes: []int{0}}), c.Client("b", ClientConfig{Nodes: []int{1, 2}})
		held := a.acquire(10*time.Second, ttl)
		if held == nil {
			return
		}
		c.Partition([]string{"a"}, c.others(0))
		c.Partition([]string{"b"}, c.nodes(0))
		l := startLoad(c, 3, 2, ttl)
		time.Sleep(c.some(0, ttl))
		c.Pause(0)
		go b.acquire(3*ttl, ttl)
		time.Sleep(c.some(time.Second, 5*time.Second))
		if c.Rand.IntN(4) > 0 { // it does not hear of the other at once
			c.cutAll(c.others(0), c.nodes(0))
		}
		c.Resume(0)
		a.acquire(time.Second, ttl)
		time.Sleep(c.some(ttl, 2*ttl))
		c.HealAll()
		time.Sleep(ttl)
		l.end()
	},
	least: someGrants,
}

func TestPausedLeader(t *testing.T)           { explore(t, pausedLeader) }
func TestPausedLeaderNeedsRound(t *testing.T) { needs(t, pausedLeader, rules.Round) }

func TestStalledDisk(t *testing.T) {
	explore(t, scenario{
		config: Config{ElectionTimeout: 500 * time.Millisecond},
		run: underLoad(3*time.Second, func(c *Cluster) {
			i := c.Leader()
			if c.Rand.IntN(3) == 0 {
				i = (i + 1) % c.Size()
			}
			c.StallDisk(i)
			time.Sleep(c.some(0, 4*time.Second))
			if c.Rand.IntN(2) == 0 {
				c.UnstallDisk(i) // the late write lands
			}
			select {
			case <-c.Node(i).Done():
				c.Note("%s has ended: %v", c.Host(i), c.Node(i).Err())
				c.Crash(i)
				time.Sleep(c.some(0, 2*time.Second))
				c.Restart(i)
			default:
				c.UnstallDisk(i)
			}
		}),
		least: someEvents,
	})
}

// Nodes are killed and come back, now and then without their disk.
func TestCrashes(t *testing.T) {
	explore(t, scenario{
		config: Config{ElectionTimeout: 500 * time.Millisecond},
		run: underLoad(3*time.Second, func(c *Cluster) {
			for range 3 {
				i := c.Rand.IntN(c.Size())
				if c.Rand.IntN(2) == 0 {
					i = c.Leader()
				}
				if c.Rand.IntN(4) == 0 {
					c.Stop(i)
				} else {
					c.Crash(i)
				}
				if c.Rand.IntN(4) == 0 {
					c.Wipe(i) // its next life is another server
				}
				time.Sleep(c.some(0, 3*time.Second))
				c.Restart(i)
				// With one of three gone for good, the next must wait for its successor.
				c.AllVote()
				time.Sleep(c.some(0, 2*time.Second))
			}
		}),
		least: someEvents,
	})
}

// The leader changes, and its successor knows of no renewal: it must give every
// lease its full time again.
var leaderChange = scenario{
	config: Config{ElectionTimeout: 300 * time.Millisecond},
	run: underLoad(5*time.Second, func(c *Cluster) {
		for range 2 {
			i := c.Leader()
			if c.Rand.IntN(2) == 0 {
				c.Stop(i)
			} else {
				c.Crash(i)
			}
			time.Sleep(c.some(0, 2*time.Second))
			c.Restart(i)
			time.Sleep(c.some(time.Second, 4*time.Second))
		}
	}),
	least: someEvents,
}

func TestLeaderChange(t *testing.T) { explore(t, leaderChange) }
func TestLeaderChangeNeedsNewTermDeadlines(t *testing.T) {
	needs(t, leaderChange, rules.NewTermDeadlines)
}

// Machines' clocks differ by as much as they may.
func TestSkewedClocks(t *testing.T) {
	explore(t, scenario{
		config: Config{ElectionTimeout: 500 * time.Millisecond},
		run: func(c *Cluster) {
			for i := range c.Size() {
				c.SkewClock(i, 1+(c.Rand.Float64()-0.5)*0.01)
			}
			underLoad(3*time.Second, func(c *Cluster) {
				i := c.Leader()
				c.Crash(i)
				time.Sleep(c.some(0, 3*time.Second))
				c.Restart(i)
			})(c)
		},
		least: someEvents,
	})
}
