package leases

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordd/coordd/tokens"
)

// imported is a lease that an import brings.
func imported(name string, session ID, token tokens.Token) *Lease {
	return &Lease{Name: name, Session: session, Attempt: try1, Token: token, TTL: 15 * time.Second, Owner: Owner{Label: "billing"}, Attributes: []byte("v=1"), AcquiredAt: noon}
}

// held tells what a table holds.
func held(t *Table) (all []string) {
	for l := range t.All() {
		all = append(all, fmt.Sprintf("%s %d.%d", l.Name, l.Token.Epoch(), l.Token.Counter()))
	}
	return all
}

// Each row is a way to import: the last op's outcome, and what is held then.
func TestImport(t *testing.T) {
	a, b := imported("a", alice, token(1)), imported("b", bob, token(2))
	older := imported("a", bob, token(7))
	begun := []Op{birth(1), acquire("gone", alice, try2)}
	after := func(ops ...Op) []Op { return append(slices.Clone(begun), ops...) }
	before := []string{"gone 1.1"}
	for _, c := range []struct {
		name   string
		before []Op
		op     Op
		want   Outcome
		field  string
		held   []string
		epoch  uint32
		staged int
	}{
		{name: "part before birth", op: part(2, a), want: Unborn},
		{name: "import before birth", op: importAll(2, 0), want: Unborn},
		{name: "part", before: begun, op: part(2, a), want: Staged, held: before, epoch: 1, staged: 1},
		{name: "an empty part", before: begun, op: part(2), want: Staged, held: before, epoch: 1},
		{name: "part of the same epoch", before: begun, op: part(1, a), want: StaleEpoch, held: before, epoch: 1},
		{name: "part of no epoch", before: begun, op: part(0), want: StaleEpoch, held: before, epoch: 1},
		{name: "part of the last epoch", before: begun, op: part(tokens.MaxEpoch, a), want: Staged, held: before, epoch: 1, staged: 1},
		{name: "part beyond the last epoch", before: begun, op: part(tokens.MaxEpoch+1, a), want: UsedUp, held: before, epoch: 1},
		{name: "second part", before: after(part(2, a)), op: part(2, b), want: Staged, held: before, epoch: 1, staged: 2},
		{name: "the same part again", before: after(part(2, a, b)), op: part(2, a, b), want: Staged, held: before, epoch: 1, staged: 2},
		{name: "part of a greater epoch", before: after(part(2, a, b)), op: part(3, b), want: Staged, held: before, epoch: 1, staged: 1},
		{name: "part of a lesser epoch", before: after(part(3, a)), op: part(2, b), want: StaleEpoch, held: before, epoch: 1, staged: 1},
		{name: "part of a reserved name", before: after(part(2, a)), op: part(2, b, imported("@b", bob, token(2))), want: Ignored, held: before, epoch: 1, staged: 1},
		{name: "part with a token to come", before: begun, op: part(2, imported("b", bob, tokens.New(2, 0))), want: Ignored, held: before, epoch: 1},
		{name: "part with a token of a former fallback", before: begun, op: part(3, imported("b", bob, tokens.New(2, 5))), want: Staged, held: before, epoch: 1, staged: 1},

		{name: "import", before: after(part(2, a), part(2, b)), op: importAll(2, 2), want: Imported, held: []string{"a 1.1", "b 1.2"}, epoch: 2},
		{name: "import of nothing", before: begun, op: importAll(2, 0), want: Imported, epoch: 2},
		{name: "import by far", before: after(part(1025, a)), op: importAll(1025, 1), want: Imported, held: []string{"a 1.1"}, epoch: 1025},
		{name: "import beyond the last epoch", before: begun, op: importAll(tokens.MaxEpoch+1, 0), want: UsedUp, held: before, epoch: 1},
		{name: "import with a part missing", before: after(part(2, a)), op: importAll(2, 2), want: Mismatch, field: "count", held: before, epoch: 1, staged: 1},
		{name: "import with a part too many", before: after(part(2, a, b)), op: importAll(2, 1), want: Mismatch, field: "count", held: before, epoch: 1, staged: 2},
		{name: "import without its parts", before: after(part(3, a)), op: importAll(4, 1), want: Mismatch, field: "count", held: before, epoch: 1, staged: 1},
		{name: "import of nothing over the parts of an earlier one", before: after(part(3, a)), op: importAll(4, 0), want: Imported, epoch: 4},
		{name: "import of nothing, overtaken by the parts of another", before: after(part(3, a)), op: importAll(2, 0), want: StaleEpoch, held: before, epoch: 1, staged: 1},
		{name: "import of a name that came twice", before: after(part(2, older), part(2, b), part(2, a)), op: importAll(2, 2), want: Imported, held: []string{"a 1.1", "b 1.2"}, epoch: 2},
		{name: "import over a name that is held", before: after(part(2, imported("gone", bob, token(9)))), op: importAll(2, 1), want: Imported, held: []string{"gone 1.9"}, epoch: 2},
		{name: "import twice", before: after(part(2, a), importAll(2, 1)), op: importAll(2, 1), want: StaleEpoch, held: []string{"a 1.1"}, epoch: 2},
		{name: "import of nothing twice", before: after(importAll(2, 0)), op: importAll(2, 0), want: StaleEpoch, epoch: 2},
		{name: "a part after its import", before: after(part(2, a), importAll(2, 1)), op: part(2, b), want: StaleEpoch, held: []string{"a 1.1"}, epoch: 2},
		{name: "import after a bump", before: after(part(2, a), bump(2)), op: importAll(2, 1), want: StaleEpoch, held: before, epoch: 2},
		{name: "a bump beyond the parts", before: after(part(2, a)), op: bump(5), want: Bumped, held: before, epoch: 5},
		{name: "a bump short of the parts", before: after(part(4, a)), op: bump(3), want: Bumped, held: before, epoch: 3, staged: 1},
		{name: "import after a bump short of it", before: after(part(4, a), bump(3)), op: importAll(4, 1), want: Imported, held: []string{"a 1.1"}, epoch: 4},
		{name: "a bump after the import", before: after(part(2, a), importAll(2, 1)), op: bump(2), want: StaleEpoch, held: []string{"a 1.1"}, epoch: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable()
			apply(table, c.before...)
			revision, encoding := table.Revision(), encoded(t, table)
			r := table.Apply(c.op)
			if r.Outcome != c.want || r.Field != c.field || r.Lease != nil || r.Ending != (Ending{}) {
				t.Fatalf("got %+v, want %v %s", r, c.want, c.field)
			}
			if got := held(table); !slices.Equal(got, c.held) || table.Epoch() != c.epoch {
				t.Errorf("got %q in epoch %d, want %q in epoch %d", got, table.Epoch(), c.held, c.epoch)
			}
			staged := 0
			if table.staged.epoch != 0 {
				staged = table.staged.leases.Len()
			}
			if staged != c.staged {
				t.Errorf("got %d leases staged, want %d", staged, c.staged)
			}
			if c.want == Imported || c.want == Bumped {
				revision++
			}
			if table.Revision() != revision {
				t.Errorf("got revision %d, want %d: parts change nothing that anybody sees", table.Revision(), revision)
			}
			changes := c.want == Imported || c.want == Bumped || c.want == Staged && c.name != "the same part again"
			if changed := !bytes.Equal(encoding, encoded(t, table)); changed != changes {
				t.Errorf("changed the table: got %v, want %v", changed, changes)
			}
		})
	}
}

// What an import brings is held as it was exported, and what is granted next comes after all of it.
func TestImportKeepsLeases(t *testing.T) {
	table := NewTable()
	apply(table, birth(1), acquire("job", alice, try1), bump(4))
	table.counter = 99
	l := imported("job", bob, tokens.New(4, 7))
	l.Broken, l.Stamp = true, 1234
	apply(table, part(5, l), importAll(5, 1))
	want := *l
	want.Stamp = 4 // birth, grant, bump and import
	got, _ := table.Get("job")
	if !reflect.DeepEqual(*got, want) || table.Counter() != 0 || table.Revision() != 4 || table.MaxTTL() != l.TTL {
		t.Errorf("got %+v at counter %d, revision %d, want %+v at 0, 4", *got, table.Counter(), table.Revision(), want)
	}
	l.Attributes[0], l.Session = 'x', alice // the exporter's memory, which it may use again
	if string(got.Attributes) != "v=1" || got.Session != bob {
		t.Errorf("the exporter changed the lease to %+v", *got)
	}
	of5 := func(op *Op) { op.Epoch = 5 }
	if r := table.Apply(with(acquire("job", bob, try1), of5)); r.Outcome != Mismatch {
		t.Errorf("a repeat of the attempt: got %v, want it recognised", r.Outcome)
	}
	if r := table.Apply(with(acquire("new", bob, try2), of5)); r.Outcome != Granted || r.Lease.Token != tokens.New(5, 1) {
		t.Errorf("the next grant: got %v of %+v", r.Outcome, r.Lease)
	}
	if r := table.Apply(with(expire("job", tokens.New(4, 7)), of5)); r.Outcome != Freed || r.Ending.Why != WhyBroken {
		t.Errorf("its expiry: got %v, %+v, want it broken", r.Outcome, r.Ending)
	}
}

// A lease without an attempt is nobody's to repeat or to withdraw.
func TestImportOfAReclaimedLease(t *testing.T) {
	table := NewTable()
	l := imported("job", alice, token(1))
	l.Attempt = ID{}
	apply(table, birth(1), part(2, l), importAll(2, 1))
	of2 := func(op *Op) { op.Epoch = 2 }
	for _, c := range []struct {
		op   Op
		want Outcome
	}{
		{acquire("job", alice, try1), Refused},
		{withdraw("job", alice, try1), Absent},
		{acquire("job", alice, ID{}), Ignored},
		{withdraw("job", alice, ID{}), Ignored},
		{release("job", alice, token(1)), Freed},
	} {
		if r := table.Apply(with(c.op, of2)); r.Outcome != c.want {
			t.Errorf("%v: got %v, want %v", c.op.Kind, r.Outcome, c.want)
		}
	}
}

// Endings are remembered over an import, but for what it contradicts: a lease that
// was exported has not ended, nor was its name granted since.
func TestImportAndEndings(t *testing.T) {
	table := newTable(4)
	apply(table, birth(1))
	for n := uint32(1); n <= 5; n++ { // of which the first is forgotten
		apply(table, acquire("job", alice, try1), release("job", alice, token(n)))
	}
	apply(table, acquire("other", alice, try1), release("other", alice, token(6)))
	apply(table, part(3, imported("job", alice, token(4))), importAll(3, 1))
	want := []Ending{{"job", token(3), WhyReleased, token(4)}, {"other", token(6), WhyReleased, 0}}
	if got := table.ended.list(); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	of3 := func(op *Op) { op.Epoch = 3 }
	apply(table, with(release("job", alice, token(4)), of3), with(acquire("job", bob, try1), of3))
	want = append(want, Ending{"job", token(4), WhyReleased, tokens.New(3, 1)})
	if got := table.ended.list(); !slices.Equal(got, want) {
		t.Errorf("after its end: got %+v, want %+v", got, want)
	}
	again := newTable(4)
	if err := again.read(bytes.NewReader(encoded(t, table))); err != nil || !slices.Equal(again.ended.list(), want) {
		t.Errorf("read anew: got %+v, %v", again.ended.list(), err)
	}
}

// Imports come with whatever room they need; grants are refused then, and no others.
func TestImportBeyondTheRoom(t *testing.T) {
	table := NewTable()
	apply(table, with(birth(1), func(op *Op) { op.Shards = Shards{1, MinShardBytes} }))
	op := part(2)
	for n := range uint32(9) {
		op.Leases = append(op.Leases, imported(fmt.Sprintf("job%d", n), alice, token(n+1)))
	}
	if r := apply(table, op, importAll(2, 9)); r.Outcome != Imported || table.Fill()[0] <= MinShardBytes {
		t.Fatalf("got %v with %d bytes", r.Outcome, table.Fill()[0])
	}
	of2 := func(op *Op) { op.Epoch = 2 }
	if r := table.Apply(with(acquire("new", alice, try1), of2)); r.Outcome != NoRoom {
		t.Errorf("a grant: got %v", r.Outcome)
	}
	if r := table.Apply(with(acquire("job1", alice, try1), of2)); r.Outcome != Mismatch {
		t.Errorf("a repeat: got %v", r.Outcome)
	}
	for n := range uint32(9) {
		apply(table, with(release(fmt.Sprintf("job%d", n), alice, token(n+1)), of2))
	}
	if table.Fill()[0] != 0 || table.MaxTTL() != 0 {
		t.Errorf("an empty table: got %d bytes, longest ttl %v", table.Fill()[0], table.MaxTTL())
	}
	if r := table.Apply(with(acquire("new", alice, try1), of2)); r.Outcome != Granted {
		t.Errorf("a grant into the empty shard: got %v", r.Outcome)
	}
}

// An arbiter that is adopted while an import is under way counts what is staged, too.
func TestAdoptWhileStaging(t *testing.T) {
	table := NewTable()
	shards := Shards{2, MinShardBytes}
	apply(table, birth(1), part(3, imported("a", alice, token(1)), imported("b", alice, token(2))), adopt(1, shards), part(3, imported("c", alice, token(3))))
	if r := table.Apply(importAll(3, 3)); r.Outcome != Imported {
		t.Fatalf("got %v", r.Outcome)
	}
	want := make([]uint32, 2)
	for l := range table.All() {
		want[shards.Of(l.Name)] += cost(l.Name, l.Owner, l.Attributes)
	}
	if !slices.Equal(table.Fill(), want) {
		t.Errorf("got %v, want %v", table.Fill(), want)
	}
}

// A snapshot of the staging is written while the leases in it are put into force, and
// others with them.
func TestSnapshotWhileImporting(t *testing.T) {
	table := NewTable()
	apply(table, birth(1))
	var writers sync.WaitGroup
	for epoch := uint32(2); epoch < 6; epoch++ {
		for at := range uint32(20) {
			op := part(epoch)
			for n := range uint32(MaxPart) {
				op.Leases = append(op.Leases, imported(fmt.Sprintf("job%d/%d", at, n), alice, token(at*MaxPart+n+1)))
			}
			apply(table, op)
		}
		want, snapshot := encoded(t, table), table.Snapshot()
		writers.Go(func() {
			var got bytes.Buffer
			if _, err := snapshot.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got %v, or not the table as it was", err)
			}
		})
		apply(table, part(epoch, imported("late", alice, token(1))))
		if r := table.Apply(importAll(epoch, 20*MaxPart+1)); r.Outcome != Imported {
			t.Fatalf("got %v", r.Outcome)
		}
		for l := range table.All() {
			if l.Stamp != table.Revision() {
				t.Fatalf("got stamp %d, want %d", l.Stamp, table.Revision())
			}
		}
		apply(table, with(release("job0/0", alice, token(1)), func(op *Op) { op.Epoch = epoch }))
	}
	writers.Wait()
}
