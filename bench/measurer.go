package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

// Size is what a number of leases needs.
type Size struct {
	Leases    int     `json:"leases"`
	TableEach float64 `json:"table_bytes_each"` // heap of a leases.Table
	NodeEach  float64 `json:"node_bytes_each"`  // heap of a leader with all that it knows of them
	Encoded   float64 `json:"snapshot_bytes_each"`
	TakeUS    float64 `json:"take_us"`    // a snapshot, while nothing is applied
	WriteMS   float64 `json:"write_ms"`   // it to the disk, meanwhile ops go on
	RestoreMS float64 `json:"restore_ms"` // it from the disk
}

// Measurer is the role of a fresh process that holds leases, to see what they need.
type Measurer struct{ Base }

// Holding says how many leases to hold, and where to write their snapshots.
type Holding struct {
	Leases int
	Dir    string
}

// Measure measures everything of a Size.
func (*Measurer) Measure(h Holding, s *Size) error {
	*s = Size{Leases: h.Leases}
	s.TableEach = tableBytes(h.Leases)
	var err error
	if s.NodeEach, err = nodeBytes(h.Leases); err != nil {
		return fmt.Errorf("one node with %d leases: %w", h.Leases, err)
	}
	return s.snapshots(h)
}

var session = leases.NewID()

// acquireOp is the op of the i-th of many leases.
func acquireOp(i int) leases.Op {
	return leases.Op{
		Kind: leases.KindAcquire, Epoch: 1, Name: key(i), Session: session, Attempt: leases.NewID(), TTL: leases.MaxTTL,
		Owner: leases.Owner{Label: "bench", Host: "localhost", PID: 1}, AcquiredAt: time.Now(),
	}
}

func birthOp() leases.Op {
	return leases.Op{Kind: leases.KindBirth, Epoch: 1, Cluster: session, Founders: 1}
}

// heap is what is in use after a collection.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what the first has found finalizers of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func tableBytes(n int) float64 {
	before := heap()
	t := leases.NewTable()
	t.Apply(birthOp())
	for i := range n {
		// As it comes out of an entry of the log: its strings are its own.
		op, _, err := leases.DecodeOp(leases.AppendOp(nil, acquireOp(i)))
		if err != nil {
			panic(err) // what AppendOp wrote
		}
		t.Apply(op)
	}
	after := heap()
	runtime.KeepAlive(t)
	return (after - before) / float64(n)
}

// nodeBytes acquires leases from an embedded node that is alone in its cluster.
func nodeBytes(n int) (each float64, err error) {
	lone, err := node.New(node.Config{Name: "alone", InMemory: true, Listen: "127.0.0.1:0", Bootstrap: true, MaxClaims: 1 << 20})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*prepareTime)
	defer cancel()
	if err := lone.Start(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lone.Close(ctx)) }()
	for !lone.Status().Serving {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
	s, err := lone.Open(ctx, session, func(leases.Event) {})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	before := heap()
	if _, err := acquireAll(ctx, s, 0, n); err != nil {
		return 0, err
	}
	return (heap() - before) / float64(n), nil
}

// tries is how often what is short is measured, for a median.
const tries = 5

func (s *Size) snapshots(h Holding) error {
	f := fsm.New(rules.Set{}, func(err error) { panic(err) }) // of an entry that cannot be read
	entry := fsm.Entry{Term: 1, Ops: []leases.Op{birthOp()}}
	for i := range h.Leases {
		entry.Ops = append(entry.Ops, acquireOp(i))
		if len(entry.Ops) == 1000 || i == h.Leases-1 {
			f.Apply(&raft.Log{Index: uint64(i), Term: 1, Data: entry.Encode()})
			entry.Ops = entry.Ops[:0]
		}
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(h.Dir, 1, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	var take, write, restore []float64
	for i := range tries {
		began := time.Now()
		snapshot, err := f.Snapshot()
		if err != nil {
			return err
		}
		take = append(take, float64(time.Since(began))/1e3)
		began = time.Now()
		sink, err := store.Create(raft.SnapshotVersionMax, uint64(i+1), 1, raft.Configuration{}, 0, nil)
		if err != nil {
			return err
		}
		if err := snapshot.Persist(sink); err != nil {
			return err
		}
		write = append(write, float64(time.Since(began))/1e6)
		meta, content, err := store.Open(sink.ID())
		if err != nil {
			return err
		}
		s.Encoded = float64(meta.Size) / float64(h.Leases)
		began = time.Now()
		if err := fsm.New(rules.Set{}, func(error) {}).Restore(content); err != nil {
			return err
		}
		restore = append(restore, float64(time.Since(began))/1e6)
	}
	s.TakeUS, s.WriteMS, s.RestoreMS = median(take), median(write), median(restore)
	return nil
}
