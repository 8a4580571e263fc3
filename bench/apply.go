package main

import (
	"context"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Applier is the role of a member of a plain Raft group, as the library has it
// by default: in memory, its own transport, one op in each entry. Its state
// machine does nothing.
type Applier struct {
	Base
	raft      *raft.Raft
	transport *raft.NetworkTransport
}

// Start begins to take part under the address it listens on, which is its
// server id too.
func (a *Applier) Start(_ None, addr *string) error {
	transport, err := raft.NewTCPTransport("127.0.0.1:0", nil, 3, 10*time.Second, io.Discard)
	if err != nil {
		return err
	}
	a.transport = transport
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(transport.LocalAddr())
	c.Logger = hclog.NewNullLogger()
	c.SnapshotInterval = 2 * time.Second // by default the log in memory would grow without end
	a.raft, err = raft.NewRaft(c, idle{}, raft.NewInmemStore(), raft.NewInmemStore(), raft.NewInmemSnapshotStore(), transport)
	*addr = string(transport.LocalAddr())
	return err
}

// Found makes a group of the servers at addrs.
func (a *Applier) Found(addrs []string, _ *None) error {
	var c raft.Configuration
	for _, addr := range addrs {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(addr), Address: raft.ServerAddress(addr)})
	}
	return a.raft.BootstrapCluster(c).Error()
}

// Leads tells whether this member leads.
func (a *Applier) Leads(_ int, yes *bool) error {
	*yes = a.raft.State() == raft.Leader
	return nil
}

// Load lets the workers apply ops to the log.
func (a *Applier) Load(l Load, _ *None) error { return a.begin(l.Workers, applies{a.raft}, nil) }

func (a *Applier) close() {
	a.Base.close()
	if a.raft != nil {
		_ = a.raft.Shutdown().Error() // always nil
		a.transport.Close()
	}
}

type applies struct{ raft *raft.Raft }

func (a applies) worker(context.Context, int) (worker, error) {
	op := make([]byte, packet)
	apply := func() error { return a.raft.Apply(op, endTime).Error() }
	return func(context.Context) (time.Duration, error) {
		began := time.Now()
		if err := apply(); err != nil {
			return 0, err
		}
		took := time.Since(began)
		return took, apply()
	}, nil
}

func (applies) close() error { return nil }

// idle is a raft.FSM that keeps nothing.
type idle struct{}

func (idle) Apply(*raft.Log) any                  { return nil }
func (idle) Snapshot() (raft.FSMSnapshot, error)  { return idle{}, nil }
func (idle) Restore(r io.ReadCloser) error        { return r.Close() }
func (idle) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (idle) Release()                             {}
