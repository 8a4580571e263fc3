package stall

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/node/internal/stall/stalltest"
)

const election = time.Second

// machine counts what was applied.
type machine struct{ applied atomic.Uint64 }

func (m *machine) Apply(log *raft.Log) any {
	m.applied.Store(log.Index)
	return nil
}
func (m *machine) Snapshot() (raft.FSMSnapshot, error) { return empty{}, nil }
func (m *machine) Restore(r io.ReadCloser) error       { return r.Close() }

type empty struct{}

func (empty) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (empty) Release()                             {}

type member struct {
	id     raft.ServerID
	gate   stalltest.Gate
	inside *raft.InmemStore
	guard  *Guard
	fsm    machine
	trans  *raft.InmemTransport
	raft   *raft.Raft
	ended  atomic.Bool
}

// newGroup starts a Raft group of n members, each with its stores behind gate
// and guard. Nobody shuts a member down when its guard ends: what the guard
// does by itself must be enough.
func newGroup(t *testing.T, n int, limit time.Duration) []*member {
	t.Helper()
	var members []*member
	var conf raft.Configuration
	for i := range n {
		m := &member{id: raft.ServerID(fmt.Sprint("n", i)), inside: raft.NewInmemStore()}
		_, m.trans = raft.NewInmemTransport(raft.ServerAddress(m.id))
		m.guard = New(m.gate.Logs(m.inside), m.gate.Stable(m.inside), limit, func(error) { m.ended.Store(true) })
		for _, o := range members {
			m.trans.Connect(o.trans.LocalAddr(), o.trans)
			o.trans.Connect(m.trans.LocalAddr(), m.trans)
		}
		members = append(members, m)
		conf.Servers = append(conf.Servers, raft.Server{ID: m.id, Address: m.trans.LocalAddr()})
	}
	for _, m := range members {
		m.start(t, conf)
	}
	return members
}

func (m *member) start(t *testing.T, conf raft.Configuration) {
	t.Helper()
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = m.id, hclog.NewNullLogger()
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = election, election, election/2
	c.TrailingLogs = 1
	logs, err := raft.NewLogCache(1, m.guard.Logs()) // small, so that Raft has to read
	if err != nil {
		t.Fatal(err)
	}
	snapshots := raft.NewInmemSnapshotStore()
	err = m.guard.Run(func() (err error) {
		if err := raft.BootstrapCluster(c, logs, m.guard.Stable(), snapshots, m.trans, conf); err != nil {
			return err
		}
		m.raft, err = raft.NewRaft(c, &m.fsm, logs, m.guard.Stable(), snapshots, m.trans)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// stop ends every member that has not been stopped before. That of a stalled one
// ends like any other.
func stop(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		if err := m.raft.Shutdown().Error(); err != nil {
			t.Errorf("%s: Shutdown: %v", m.id, err)
		}
		m.gate.Open()
		synctest.Wait()
		if err := m.guard.Close(); err != nil {
			t.Errorf("%s: Close: %v", m.id, err)
		}
	}
}

// within waits in virtual time until ok.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, d)
		}
	}
}

func leader(t *testing.T, members ...*member) *member {
	t.Helper()
	var found *member
	within(t, 20*election, "a leader", func() bool {
		for _, m := range members {
			if m.raft.State() == raft.Leader && m.raft.VerifyLeader().Error() == nil {
				found = m
			}
		}
		return found != nil
	})
	return found
}

func others(members []*member, but *member) []*member {
	var rest []*member
	for _, m := range members {
		if m != but {
			rest = append(rest, m)
		}
	}
	return rest
}

func commit(t *testing.T, m *member) {
	t.Helper()
	if err := m.raft.Apply([]byte("x"), election).Error(); err != nil {
		t.Fatalf("%s: Apply: %v", m.id, err)
	}
}

func TestStalledLeaderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newGroup(t, 3, 2*election)
		old := leader(t, members...)
		for range 5 {
			commit(t, old)
		}
		acked := old.raft.LastIndex()

		old.gate.Shut()
		start := time.Now()
		err := old.raft.Apply([]byte("stalled"), election).Error()
		if err == nil || !strings.Contains(err.Error(), ErrStalled.Error()) { // Raft does not wrap it
			t.Errorf("Apply on the stalled leader: got %v, want %v", err, ErrStalled)
		}
		rest := others(members, old)
		next := leader(t, rest...)
		if took := time.Since(start); took > 10*election {
			t.Errorf("another leads after %v, want at most %v", took, 10*election)
		}
		for range 5 {
			commit(t, next)
		}

		old.gate.Open() // the late write lands
		within(t, election, "the late write", func() bool { last, _ := old.inside.LastIndex(); return last > acked })
		for range 5 {
			commit(t, next)
		}
		// With the third member gone, nothing may be committed: that would take an
		// acknowledgement of the stalled one.
		stop(t, others(rest, next)[0])
		committed := next.raft.CommitIndex()
		f := next.raft.Apply([]byte("alone"), election)
		done := make(chan error, 1)
		go func() { done <- f.Error() }()
		time.Sleep(30 * election)
		if got := next.raft.CommitIndex(); got != committed {
			t.Errorf("committed %d after %d with a stalled member only", got, committed)
		}
		if got := old.raft.LastIndex(); got != acked {
			t.Errorf("the stalled member's log goes to %d in its own view, want %d as before", got, acked)
		}
		stop(t, next, old)
		if err := <-done; err == nil {
			t.Error("an entry was committed with a stalled member only")
		}
	})
}

// TestStallWhileCompacting: the write that hangs comes from the goroutine that
// takes snapshots, and has emptied the cache of the log. When the main loop then
// hears that an entry is committed it has to read it, and would panic if it
// could not.
func TestStallWhileCompacting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newGroup(t, 3, election/4)
		lead := leader(t, members...)
		follower := others(members, lead)[0]
		// Cut the follower off when it has an entry and does not know yet that it
		// is committed: it hears so with the next one, or a little later.
		within(t, 100*election, "an entry that the follower does not know to be committed", func() bool {
			commit(t, lead)
			synctest.Wait()
			last, applied := lead.raft.CommitIndex(), follower.fsm.applied.Load()
			return follower.raft.LastIndex() == last && 4 < applied && applied < last
		})
		lead.trans.Disconnect(follower.trans.LocalAddr())
		last := follower.raft.LastIndex()
		follower.gate.Shut()
		taken := follower.raft.Snapshot().Error()
		if taken == nil || !strings.Contains(taken.Error(), ErrStalled.Error()) { // Raft does not wrap it
			t.Errorf("Snapshot: got %v, want %v", taken, ErrStalled)
		}
		lead.trans.Connect(follower.trans.LocalAddr(), follower.trans)
		within(t, election, "the last entry applied", func() bool { return follower.fsm.applied.Load() == last })
		commit(t, lead) // with the other follower
		stop(t, members...)
	})
}

// TestStallOfTheTerm: where Raft cannot save its term it would panic.
func TestStallOfTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newGroup(t, 3, 2*election)
		lead := leader(t, members...)
		commit(t, lead)
		rest := others(members, lead)
		stalled := rest[0]
		before := stalled.raft.CurrentTerm()
		stalled.gate.Shut()
		stop(t, lead) // now the others want a newer term, which nobody else can grant
		within(t, 20*election, "the end of the stalled member", stalled.ended.Load)
		stalled.gate.Open()
		time.Sleep(20 * election)
		if got := rest[1].raft.State(); got == raft.Leader {
			t.Error("a member was elected by one that never answered for its vote")
		}
		if got := stalled.raft.CurrentTerm(); got != before {
			t.Errorf("the stalled member is in term %d, want still %d", got, before)
		}
		if err := stalled.raft.Apply([]byte("x"), election).Error(); err == nil {
			t.Error("the stalled member applied something")
		}
		stop(t, rest...)
	})
}

// TestStallOfALeadersTerm: the leader learns of a newer term and cannot save it.
// It must not go on to send heartbeats, which would keep the others loyal.
func TestStallOfALeadersTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newGroup(t, 3, 2*election)
		old := leader(t, members...)
		commit(t, old)
		old.gate.Shut()
		rest := others(members, old)
		// A vote for a newer term, as a member that was cut off might ask for it.
		req := &raft.RequestVoteRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(rest[0].id), Addr: []byte(rest[0].id)},
			Term:      old.raft.CurrentTerm() + 1, LastLogIndex: 1000, LastLogTerm: 1000, LeadershipTransfer: true,
		}
		var resp raft.RequestVoteResponse
		_ = rest[0].trans.RequestVote(old.id, old.trans.LocalAddr(), req, &resp)
		if resp.Granted {
			t.Error("a vote was granted that could not be saved")
		}
		within(t, 20*election, "the end of the old leader", old.ended.Load)
		next := leader(t, rest...)
		commit(t, next)
		stop(t, members...)
	})
}
