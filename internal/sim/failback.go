package sim

import (
	"errors"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/fallback"
	"github.com/coordd/coordd/leases"
)

// rewrite drives a fallback.Rewrite to its end.
func (n *node) rewrite(index int, m *fallback.Rewrite, done func([]*leases.Lease, error)) {
	if m.Done() {
		done(m.Result())
		return
	}
	again := func() { n.rewrite(index, m, done) }
	act, at := m.Next(n.clock())
	switch act := act.(type) {
	case fallback.Load:
		n.s.arbiter.load(n, 1+index, func(reg arbiter.Register, err error) {
			m.Loaded(n.clock(), reg, err)
			again()
		})
	case fallback.Swap:
		n.s.arbiter.swap(n, 1+index, act.From, act.Write, func(err error) {
			m.Swapped(n.clock(), err)
			again()
		})
	default:
		if m.Done() {
			done(m.Result())
			return
		}
		n.s.at(n.skew.when(at), &n.process, driver, again)
	}
}

// importLeases is F2: it seals every shard, and brings the leases that are current into
// the log, in parts.
func (n *node) importLeases(a authority.Import) {
	shards := n.s.params.Shards
	var all []*leases.Lease
	left := int(shards.Count)
	var failed error
	for k := range left {
		m := fallback.NewSeal(uint32(k), shards, n.s.rules, func() arbiter.Nonce { return nonce(n.rng) }, a.Epoch, a.RaftEpoch)
		n.rewrite(k, m, func(found []*leases.Lease, err error) {
			all = append(all, found...)
			left--
			failed = errors.Join(failed, err)
			switch {
			case left > 0:
			case failed != nil:
				n.after(n.s.lease/20, func() { n.done(a, failed) })
			default:
				n.importParts(a, all)
			}
		})
	}
}

// part is how many leases go into one ImportPart here.
const part = 2

func (n *node) importParts(a authority.Import, all []*leases.Lease) {
	end := func(res leases.Result, err error) {
		if err == nil && res.Outcome != leases.Staged && res.Outcome != leases.Imported {
			err = errNoWindow
		}
		if err != nil || res.Outcome == leases.Imported {
			n.done(a, err)
		}
	}
	var next func(rest []*leases.Lease)
	next = func(rest []*leases.Lease) {
		if len(rest) == 0 {
			n.own(&leases.Op{Kind: leases.KindImport, Epoch: a.Epoch, Count: uint32(len(all))}, end)
			return
		}
		some := rest[:min(part, len(rest))]
		n.own(&leases.Op{Kind: leases.KindImportPart, Epoch: a.Epoch, Leases: some}, func(res leases.Result, err error) {
			if err != nil || res.Outcome != leases.Staged {
				n.done(a, errNoWindow)
				return
			}
			next(rest[len(some):])
		})
	}
	next(all)
}

// install writes the leases of the table into the shards (section 8).
func (n *node) install(a authority.Install) {
	v := n.server
	if v == nil {
		n.after(0, func() { n.done(a, errNotLeading) })
		return
	}
	shards := n.s.params.Shards
	byShard := make([][]*leases.Lease, shards.Count)
	for l := range v.table.All() {
		k := n.s.shardOf(l.Name)
		byShard[k] = append(byShard[k], l)
	}
	left := 1
	var failed error
	end := func(_ []*leases.Lease, err error) {
		failed = errors.Join(failed, err)
		if left--; left == 0 {
			n.after(0, func() { n.done(a, failed) })
		}
	}
	for k, held := range byShard {
		if len(held) > 0 {
			left++
			n.rewrite(k, fallback.NewInstall(uint32(k), shards, n.s.rules, func() arbiter.Nonce { return nonce(n.rng) }, a.Epoch, a.RaftEpoch, held), end)
		}
	}
	end(nil, nil)
}
