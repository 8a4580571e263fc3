package leases

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"
)

// filled is a table with n leases and all the endings that it can have.
func filled(n int) *Table {
	table := NewTable()
	apply(table, birth(1))
	for i := range EndedKept {
		name := fmt.Sprintf("ended/%d", i)
		r := table.Apply(acquire(name, bob, try1))
		table.Apply(release(name, bob, r.Lease.Token))
	}
	for i := range n {
		table.Apply(acquire(fmt.Sprintf("lease/%d", i), alice, try1))
	}
	return table
}

const manyLeases = 100_000

func BenchmarkApply(b *testing.B) {
	table := filled(manyLeases)
	ops := make([]Op, 1000)
	for i := range ops {
		ops[i] = acquire(fmt.Sprintf("lease/%d/more", i*97), bob, try2)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		op := ops[i%len(ops)]
		r := table.Apply(op)
		table.Apply(release(op.Name, bob, r.Lease.Token))
	}
}

// What Apply costs where each grant needs room in its shard.
func BenchmarkApplyWithShards(b *testing.B) {
	table := filled(manyLeases)
	if r := table.Apply(adopt(1, Shards{MaxShards, MaxShardBytes})); r.Outcome != Adopted {
		b.Fatal(r.Outcome)
	}
	ops := make([]Op, 1000)
	for i := range ops {
		ops[i] = acquire(fmt.Sprintf("lease/%d/more", i*97), bob, try2)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		op := ops[i%len(ops)]
		r := table.Apply(op)
		table.Apply(release(op.Name, bob, r.Lease.Token))
	}
}

// What the Import alone costs: it must not outlast heartbeats.
func BenchmarkImport(b *testing.B) {
	table := filled(manyLeases)
	all := slices.Collect(table.All())
	for epoch := uint32(2); b.Loop(); epoch++ {
		b.StopTimer()
		for part := range slices.Chunk(all, MaxPart) {
			table.Apply(Op{Kind: KindImportPart, Epoch: epoch, Leases: part})
		}
		b.StartTimer()
		if r := table.Apply(importAll(epoch, manyLeases)); r.Outcome != Imported {
			b.Fatal(r.Outcome)
		}
	}
}

// What a node does to a full shard between its read and its write.
func BenchmarkShard(b *testing.B) {
	shards := Shards{1, DefaultShardBytes}
	table := OpenShard(Shard{Epoch: 1}, 0, shards, 1)
	for n := 0; table.Apply(acquire(fmt.Sprintf("lease/%d", n), alice, try1)).Outcome == Granted; n++ {
		continue
	}
	register, stamp := EncodeShard(table.Shard()), uint64(2)
	b.SetBytes(int64(len(register)))
	b.ReportAllocs()
	for b.Loop() {
		s, err := DecodeShard(register)
		if err != nil {
			b.Fatal(err)
		}
		table := OpenShard(s, 0, shards, stamp)
		for _, l := range s.Leases {
			table.Apply(renew(l.Name, alice, l.Token))
		}
		register = EncodeShard(table.Shard())
		stamp++
	}
}

func BenchmarkSnapshot(b *testing.B) {
	table := filled(manyLeases)
	b.ReportAllocs()
	for b.Loop() {
		table.Snapshot()
	}
}

// What Apply costs just after a snapshot, when nodes of the tree are copied.
func BenchmarkApplyAfterSnapshot(b *testing.B) {
	table := filled(manyLeases)
	op := acquire("lease/5/more", bob, try2)
	b.ReportAllocs()
	for b.Loop() {
		table.Snapshot()
		r := table.Apply(op)
		table.Apply(release(op.Name, bob, r.Lease.Token))
	}
}

func BenchmarkWriteTo(b *testing.B) {
	snapshot := filled(manyLeases).Snapshot()
	b.ReportAllocs()
	for b.Loop() {
		n, err := snapshot.WriteTo(io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(n)
	}
}

func BenchmarkReadTable(b *testing.B) {
	encoding := encoded(b, filled(manyLeases))
	b.SetBytes(int64(len(encoding)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadTable(bytes.NewReader(encoding)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpCodec(b *testing.B) {
	op, buf := acquire("lease/5", alice, try1), []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendOp(buf[:0], op)
		if _, _, err := DecodeOp(buf); err != nil {
			b.Fatal(err)
		}
	}
}
