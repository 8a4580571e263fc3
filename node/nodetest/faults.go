package nodetest

import (
	"context"
	"time"
)

// Partition cuts the links between two groups of hosts, both ways.
func (c *Cluster) Partition(a, b []string) {
	c.Note("partition %v | %v", a, b)
	c.Net.Partition(a, b)
}

// Cut cuts one direction of a link; Heal and HealAll mend it.
func (c *Cluster) Cut(from, to string) {
	c.Note("cut %s → %s", from, to)
	c.Net.Cut(from, to)
}

// Heal mends one direction of a link.
func (c *Cluster) Heal(from, to string) {
	c.Note("heal %s → %s", from, to)
	c.Net.Heal(from, to)
}

// HealAll mends all links.
func (c *Cluster) HealAll() {
	c.Note("heal all")
	c.Net.HealAll()
}

// Pause stops node i as SIGSTOP stops a process: nothing that it sends leaves,
// nothing arrives, nothing gets onto its disk, and its clock shows it nothing
// new. The timers of the Raft library alone go on: where its lease matters,
// give the node a long election timeout.
func (c *Cluster) Pause(i int) {
	m := c.members[i]
	if m.node.Load() == nil || m.paused.Load() {
		return
	}
	c.Note("pause %s", m.host)
	m.paused.Store(true)
	m.clock.pause()
	m.writes.close()
	c.Net.Pause(m.host)
}

// Resume lets a paused node go on.
func (c *Cluster) Resume(i int) {
	m := c.members[i]
	if !m.paused.Load() {
		return
	}
	c.Note("resume %s", m.host)
	m.paused.Store(false)
	m.clock.resume()
	m.writes.open()
	c.Net.Resume(m.host)
}

// Crash ends node i as SIGKILL ends a process: its connections are reset, and a
// write that waits for the disk is lost.
func (c *Cluster) Crash(i int) {
	m := c.members[i]
	if m.node.Load() == nil {
		return
	}
	c.Note("crash %s", m.host)
	c.Net.Crash(m.host)
	m.writes.kill()
	m.proposals.kill()
	m.clock.resume()
	dead := m.node.Swap(nil)
	m.paused.Store(false)
	c.graves.Go(func() { c.bury(dead) })
}

// SetElectionTimeout sets node i's election timeout, from its next start on.
func (c *Cluster) SetElectionTimeout(i int, d time.Duration) {
	c.members[i].electionTimeout = d
}

// Restart begins the next life of a node that has crashed or was stopped.
func (c *Cluster) Restart(i int) {
	if c.Node(i) != nil {
		return
	}
	c.Note("restart %s", c.Host(i))
	c.Start(i)
}

// Wipe replaces the disk of a node that is down by an empty one.
func (c *Cluster) Wipe(i int) {
	c.Note("wipe %s", c.Host(i))
	fresh := newDisk()
	fresh.journal = c.members[i].disk.journal
	c.members[i].disk = fresh
}

// Stop ends node i in order: it hands its leadership on.
func (c *Cluster) Stop(i int) {
	m := c.members[i]
	if m.node.Load() == nil {
		return
	}
	c.Note("stop %s", m.host)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := m.node.Load().Close(ctx); err != nil {
		c.Note("stop %s: %v", m.host, err)
	}
	m.node.Store(nil)
}

// StallDisk keeps every later write to node i's disk from ending until
// UnstallDisk.
func (c *Cluster) StallDisk(i int) {
	c.Note("stall the disk of %s", c.Host(i))
	c.members[i].writes.close()
}

// UnstallDisk lets the writes that wait land.
func (c *Cluster) UnstallDisk(i int) {
	c.Note("unstall the disk of %s", c.Host(i))
	c.members[i].writes.open()
}

// HoldProposals keeps what node i decides as a leader from getting into the
// Raft log until ReleaseProposals, as if its goroutine were not scheduled.
func (c *Cluster) HoldProposals(i int) {
	c.Note("hold the proposals of %s", c.Host(i))
	c.members[i].proposals.close()
}

// ReleaseProposals lets go what HoldProposals held.
func (c *Cluster) ReleaseProposals(i int) {
	c.Note("release the proposals of %s", c.Host(i))
	c.members[i].proposals.open()
}

// SkewClock makes node i's clock run at a rate of the true one; rates from
// 1−ρ/2 to 1+ρ/2 keep what clocks are assumed to keep.
func (c *Cluster) SkewClock(i int, rate float64) {
	c.Note("the clock of %s runs at %v", c.Host(i), rate)
	c.members[i].clock.setRate(rate)
}
