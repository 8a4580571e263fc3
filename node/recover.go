package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/boltstore"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/node/internal/raftlog"
	"github.com/coordd/coordd/tokens"
)

// recoveredEpochs is by how much a recovered cluster raises its epoch: more than
// the majority that was lost can have raised it since this log ends (N6).
const recoveredEpochs = 1 << 10

// Recovery makes one member, whose log is left, the only one of its cluster,
// when a majority of the logs is lost for good. It holds the lock of the data
// folder from OpenRecovery to Close, and changes nothing but in Apply. It is
// not safe for concurrent use.
type Recovery struct {
	Name      string
	Cluster   leases.ID
	LastIndex uint64   // of the log: of several that are left, recover the member with the greatest term, then index
	LastTerm  uint64   // of that entry
	Leases    int      // held as of the end of the log
	Epoch     uint32   // as of the end of the log
	NewEpoch  uint32   // that Apply makes the node begin; Begin chooses a greater one
	Members   []string // names by the last configuration in the log, this one included

	log    *slog.Logger
	folder *identity.Folder
	kept   boltstore.Storage
	self   identity.Identity
}

// OpenRecovery reads the data folder of a member that does not run. log is told
// what Raft has to say; nil: nothing.
func OpenRecovery(dir string, log *slog.Logger) (*Recovery, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	self, known, err := identity.Peek(dir)
	if err != nil {
		return nil, err
	}
	hasLog, err := identity.HasLog(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if !known || !hasLog || self.Cluster.IsZero() {
		return nil, &leases.InvalidError{Field: "data", Value: dir, Bounds: "the data folder of a member, with its identity and its log"}
	}
	r := &Recovery{Name: self.Name, Cluster: self.Cluster, log: log}
	if r.folder, err = identity.Open(dir, self.Name); err != nil {
		return nil, err
	}
	if r.kept, err = boltstore.Open(dir, raftlog.New(log)); err != nil {
		return nil, errors.Join(err, r.folder.Close())
	}
	if err := r.read(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// read replays the snapshot and the log into a state machine of its own.
func (r *Recovery) read() error {
	var err error
	if r.self, _, err = r.folder.Load(); err != nil {
		return err
	}
	var fatal error
	f := fsm.New(rules.Set{}, func(err error) { fatal = err })
	var members raft.Configuration
	if members, err = r.restore(f); err != nil {
		return err
	}
	last, err := r.kept.Logs.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	for i := r.LastIndex + 1; i <= last; i++ {
		var entry raft.Log
		if err := r.kept.Logs.GetLog(i, &entry); err != nil {
			return fmt.Errorf("read entry %d of the log: %w", i, err)
		}
		switch entry.Type {
		case raft.LogCommand:
			f.Apply(&entry)
		case raft.LogConfiguration:
			members = raft.DecodeConfiguration(entry.Data)
		}
		if fatal != nil {
			return fatal
		}
		r.LastIndex, r.LastTerm = i, entry.Term
	}
	for _, s := range members.Servers {
		r.Members = append(r.Members, identity.NameOf(string(s.ID)))
	}
	f.View(func(t *leases.Table) { r.Leases, r.Epoch = t.Len(), t.Epoch() })
	r.NewEpoch = r.Epoch + recoveredEpochs
	if before := r.self.Recovered; before != nil { // not served since
		r.NewEpoch = max(r.NewEpoch, before.Epoch)
	}
	if r.NewEpoch > tokens.MaxEpoch {
		return &leases.ExhaustedError{What: "epochs", Bound: uint64(tokens.MaxEpoch)}
	}
	return nil
}

// restore reads the newest snapshot, if there is one.
func (r *Recovery) restore(f *fsm.FSM) (raft.Configuration, error) {
	list, err := r.kept.Snapshots.List()
	if err != nil || len(list) == 0 {
		return raft.Configuration{}, err
	}
	newest := list[0]
	var content io.ReadCloser
	if _, content, err = r.kept.Snapshots.Open(newest.ID); err != nil {
		return raft.Configuration{}, fmt.Errorf("open snapshot %s: %w", newest.ID, err)
	}
	r.LastIndex, r.LastTerm = newest.Index, newest.Term
	return newest.Configuration, f.Restore(content)
}

// Begin chooses the epoch that Apply makes the node begin. It must exceed every
// epoch that the cluster has ever had: more than this log tells, if the cluster
// has been recovered before from another log. Error: leases.ErrInvalid.
func (r *Recovery) Begin(epoch uint32) error {
	if epoch < r.NewEpoch || epoch > tokens.MaxEpoch {
		return &leases.InvalidError{Field: "epoch", Value: fmt.Sprint(epoch), Bounds: fmt.Sprintf("%d to %d", r.NewEpoch, uint32(tokens.MaxEpoch))}
	}
	r.NewEpoch = epoch
	return nil
}

// Apply makes the member the only one of its cluster, under a new incarnation:
// so it answers no former member in its old self's name, and one that comes back
// with its old log learns that it was removed. Started again, the node waits until no lease that the lost majority may
// have granted can be held any more (holdersStopped: it does not), raises the
// epoch and serves. An Apply that was cut short is repeated.
func (r *Recovery) Apply(holdersStopped bool) error {
	next := identity.New(r.Name)
	next.Cluster, next.Group = r.Cluster, r.self.Group
	next.Recovered = &identity.Recovered{Epoch: r.NewEpoch, HoldersStopped: holdersStopped}
	if err := r.folder.Save(next); err != nil {
		return err
	}
	id := raft.ServerID(next.ServerID())
	_, network := raft.NewInmemTransport(raft.ServerAddress(id))
	defer network.Close()
	config := raft.DefaultConfig()
	config.LocalID, config.Logger, config.NoLegacyTelemetry = id, raftlog.New(r.log), true
	var fatal error
	f := fsm.New(rules.Set{}, func(err error) { fatal = err })
	alone := raft.Configuration{Servers: []raft.Server{{ID: id, Address: raft.ServerAddress(id)}}}
	err := raft.RecoverCluster(config, f, r.kept.Logs, r.kept.Stable, r.kept.Snapshots, network, alone)
	if err := errors.Join(err, fatal); err != nil {
		return fmt.Errorf("recover the log: %w", err)
	}
	return nil
}

// Close gives the data folder back.
func (r *Recovery) Close() error { return errors.Join(r.kept.Close(), r.folder.Close()) }

// raise begins the epoch of a recovered log, before anything is served.
func (n *Node) raise(ctx context.Context, proposer *fsm.Proposer) error {
	recovered := n.who().Recovered
	if recovered == nil {
		return nil
	}
	var epoch uint32
	n.fsm.View(func(t *leases.Table) { epoch = t.Epoch() })
	if epoch < recovered.Epoch {
		if until := n.started.Add(leases.Stretch(leases.MaxTTL)); !recovered.HoldersStopped && n.clock.Now().Before(until) {
			n.say(fmt.Sprintf("leading, not serving yet: the log was recovered, and leases that it does not know may be held for %v from the start on", leases.Stretch(leases.MaxTTL)))
			if clock.Wait(ctx, n.clock, until) != nil {
				return nil
			}
		}
		r, err := propose(ctx, proposer, leases.Op{Kind: leases.KindBump, Epoch: recovered.Epoch})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("raise the epoch of a recovered log: %w", err)
		case r.Outcome != leases.Bumped:
			return fmt.Errorf("raise the epoch of a recovered log: the table answered %v", r.Outcome)
		}
	}
	return n.become(func(self *identity.Identity) { self.Recovered = nil })
}
