package fsm

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// allKinds has an op of each kind.
func allKinds() []leases.Op {
	heir := acquire("job")
	heir.Kind, heir.Heir, heir.Token = leases.KindTransfer, leases.ID{2}, 1
	return []leases.Op{
		birth(), acquire("job"),
		{Kind: leases.KindWithdraw, Epoch: 1, Name: "job", Session: leases.ID{1}, Attempt: leases.ID{2}},
		{Kind: leases.KindRelease, Epoch: 1, Name: "job", Session: leases.ID{1}, Token: 1},
		{Kind: leases.KindExpire, Epoch: 1, Name: "job", Token: 1},
		{Kind: leases.KindBump, Epoch: 2},
		{Kind: leases.KindBreak, Epoch: 1, Name: "job", Token: 1, Now: true},
		heir, part(2, "a", "b"),
		{Kind: leases.KindImport, Epoch: 2, Count: 2},
		{Kind: leases.KindAdopt, Epoch: 1, Shards: leases.Shards{Count: leases.DefaultShards, Bytes: leases.DefaultShardBytes}},
		{Kind: leases.KindRenew, Epoch: 1, Name: "job", Session: leases.ID{1}, Token: 1},
		{Kind: leases.KindReclaim, Epoch: 1, Name: "job", Session: leases.ID{1}, Token: 1, TTL: time.Second},
	}
}

// part hands over leases of these names for an import to epoch.
func part(epoch uint32, names ...string) leases.Op {
	op := leases.Op{Kind: leases.KindImportPart, Epoch: epoch}
	for i, name := range names {
		op.Leases = append(op.Leases, &leases.Lease{Name: name, Session: leases.ID{1}, Token: tokens.Token(i + 1), TTL: 15 * time.Second})
	}
	return op
}

func importAll(epoch, count uint32) leases.Op {
	return leases.Op{Kind: leases.KindImport, Epoch: epoch, Count: count}
}

func TestEntryRoundTrip(t *testing.T) {
	want := Entry{Term: 7, Ops: allKinds()}
	got, err := DecodeEntry(want.Encode())
	if err != nil || got.Term != want.Term || len(got.Ops) != len(want.Ops) || !bytes.Equal(got.Encode(), want.Encode()) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// An entry that only a later release can read stops the node, and nothing is
// applied after it: a table that left an op out would differ from the others'.
func TestUnreadableEntryStops(t *testing.T) {
	newer := leases.AppendHeader(nil, entryMagic, entryVersion+1, "9.9.0")
	unknownOp := appendEntryHeader(nil, 1)
	unknownOp = append(unknownOp, 200, 3, 1, 2, 3) // kind 200, three bytes
	for name, data := range map[string][]byte{"newer version": newer, "unknown op": unknownOp, "damage": {1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			var fatal error
			f := New(rules.Set{}, func(err error) { fatal = err })
			f.Apply(&raft.Log{Index: 1, Term: 1, Data: Entry{Term: 1, Ops: []leases.Op{birth()}}.Encode()})
			f.Apply(&raft.Log{Index: 2, Term: 1, Data: data})
			if fatal == nil || !strings.Contains(fatal.Error(), "entry 2") {
				t.Fatalf("got %v, want an end that names entry 2", fatal)
			}
			if name != "damage" && !errors.Is(fatal, leases.ErrUnreadable) {
				t.Errorf("got %v, want %v", fatal, leases.ErrUnreadable)
			}
			if name == "newer version" && !strings.Contains(fatal.Error(), "9.9.0") {
				t.Errorf("got %v, want the release that can read it", fatal)
			}
			before := f.table.Revision()
			f.Apply(&raft.Log{Index: 3, Term: 1, Data: Entry{Term: 1, Ops: []leases.Op{acquire("job")}}.Encode()})
			if f.table.Revision() != before {
				t.Error("an entry was applied after the end")
			}
			if _, err := f.Snapshot(); err == nil {
				t.Error("a snapshot was taken after the end")
			}
		})
	}
}

type sink struct {
	bytes.Buffer
	cancelled bool
}

func (*sink) ID() string      { return "test" }
func (s *sink) Cancel() error { s.cancelled = true; return nil }
func (*sink) Close() error    { return nil }

func TestSnapshotRestoresTheSameBytes(t *testing.T) {
	f := New(rules.Set{}, func(err error) { t.Fatal(err) })
	ops := []leases.Op{birth(), acquire("a"), acquire("b"), acquire("c")}
	f.Apply(&raft.Log{Index: 1, Term: 1, Data: Entry{Term: 1, Ops: ops}.Encode()})
	first := take(t, f)
	g := New(rules.Set{}, func(err error) { t.Fatal(err) })
	if err := g.Restore(io.NopCloser(bytes.NewReader(first))); err != nil {
		t.Fatal(err)
	}
	if second := take(t, g); !bytes.Equal(first, second) {
		t.Errorf("a restored table has another snapshot: got %x, want %x", second, first)
	}
}

// A part of an import is in snapshots, and what is restored goes on with it.
func TestSnapshotHasTheStaging(t *testing.T) {
	f, g := replica(t), New(rules.Set{}, func(err error) { t.Fatal(err) })
	commit(f, acquire("gone"), part(3, "a", "b"))
	if err := g.Restore(io.NopCloser(bytes.NewReader(take(t, f)))); err != nil {
		t.Fatal(err)
	}
	for _, replica := range []*FSM{f, g} {
		if r := commit(replica, part(3, "c"), importAll(3, 3)); r[1].Outcome != leases.Imported {
			t.Fatalf("import: got %v", r[1].Outcome)
		}
	}
	if !bytes.Equal(take(t, f), take(t, g)) || g.table.Len() != 3 {
		t.Errorf("the restored table has %d leases or another snapshot, want 3", g.table.Len())
	}
}

// The rules that are switched off are off in the table, in a restored one too.
func TestTableHasTheRules(t *testing.T) {
	for _, off := range []bool{false, true} {
		set := rules.Set{}
		if off {
			set = rules.Without(rules.ImportGreater)
		}
		f := New(set, func(err error) { t.Fatal(err) })
		commit(f, birth())
		if err := f.Restore(io.NopCloser(bytes.NewReader(take(t, f)))); err != nil {
			t.Fatal(err)
		}
		if r := commit(f, importAll(1, 0))[0]; (r.Outcome == leases.Imported) != off {
			t.Errorf("rule off %v: an import to the table's own epoch got %v", off, r.Outcome)
		}
	}
}

func take(t rapid.TB, f *FSM) []byte {
	t.Helper()
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{}
	if err := snap.Persist(s); err != nil {
		t.Fatal(err)
	}
	return s.Bytes()
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(Entry{Term: 1, Ops: []leases.Op{birth(), acquire("job")}}.Encode())
	f.Add(Entry{Term: 1, Ops: allKinds()}.Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		entry, err := DecodeEntry(data)
		if err != nil {
			return
		}
		// The header may name another release; what follows has one encoding.
		if again := entry.Encode(); !bytes.Equal(body(t, again), body(t, data)) {
			t.Errorf("%x decodes to what encodes as %x", data, again)
		}
	})
}

func body(t *testing.T, entry []byte) []byte {
	t.Helper()
	_, _, rest, err := leases.ReadHeader(entry, entryMagic)
	if err != nil {
		t.Fatal(err)
	}
	return rest
}

func BenchmarkApply(b *testing.B) {
	f := New(rules.Set{}, func(err error) { b.Fatal(err) })
	f.Apply(&raft.Log{Index: 1, Term: 1, Data: Entry{Term: 1, Ops: []leases.Op{birth()}}.Encode()})
	entry := Entry{Term: 1}
	for i := range 256 {
		op := acquire(string(rune('a'+i%26)) + string(rune('a'+i/26)))
		entry.Ops = append(entry.Ops, op)
	}
	data := entry.Encode()
	for b.Loop() {
		f.Apply(&raft.Log{Index: 2, Term: 1, Data: data})
	}
}
