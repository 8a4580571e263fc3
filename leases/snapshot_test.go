package leases

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/coordd/coordd/tokens"
)

var writeFixtures = flag.Bool("write-fixtures", false, "write the fixtures that do not exist yet")

// sampleTable has something of everything.
func sampleTable() *Table {
	table := NewTable()
	apply(table, with(birth(1), func(op *Op) { op.Shards = Shards{DefaultShards, DefaultShardBytes} }))
	for _, op := range sampleOps()[4:8] {
		op.Epoch = 1
		apply(table, op)
	}
	apply(table,
		acquire("done", alice, try1), release("done", alice, token(4)), acquire("done", bob, try1), expire("done", token(5)),
		acquire("job2", alice, try1), withdraw("job2", alice, try1), bump(7), with(acquire("später", bob, try2), func(op *Op) { op.Epoch = 7 }))
	for _, op := range []Op{
		breaks("j", token(2)), acquire("given", alice, try1), transfer(alice, tokens.New(7, 2), acquire("given", bob, try2)),
		acquire("taken", alice, try1), breakNow("taken", tokens.New(7, 4)),
	} {
		op.Epoch = 7
		apply(table, op)
	}
	apply(table, part(9, sampleLeases()...))
	return table
}

func TestTableRoundTrip(t *testing.T) {
	for name, table := range map[string]*Table{
		"unborn": NewTable(), "empty": func() *Table { t := NewTable(); apply(t, birth(3)); return t }(), "sample": sampleTable(),
	} {
		b := encoded(t, table)
		got, err := ReadTable(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(encoded(t, got), b) {
			t.Errorf("%s: the read table has another encoding", name)
		}
		if want, got := slices.Collect(table.All()), slices.Collect(got.All()); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got leases %+v, want %+v", name, got, want)
		}
		if want, got := table.Snapshot().ended, got.Snapshot().ended; !slices.Equal(got, want) {
			t.Errorf("%s: got endings %+v, want %+v", name, got, want)
		}
		if got.held.shards != table.held.shards || !slices.Equal(got.Fill(), table.Fill()) || got.MaxTTL() != table.MaxTTL() {
			t.Errorf("%s: got shards %v, filled %v, longest ttl %v", name, got.Shards(), got.Fill(), got.MaxTTL())
		}
		if got.cluster != table.cluster || got.founders != table.founders || got.epoch != table.epoch || got.counter != table.counter || got.revision != table.revision {
			t.Errorf("%s: got %+v, want %+v", name, got, table)
		}
	}
}

// The encoding tells nothing of how the table came about: where the ring of
// endings begins, or whether the table was restored in between.
func TestTableEncodingIsCanonical(t *testing.T) {
	const kept, steps = 3, 20
	straight, restored := newTable(kept), newTable(kept)
	apply(straight, birth(1))
	apply(restored, birth(1))
	for n := uint32(1); n <= steps; n++ {
		ops := []Op{acquire("job", alice, try1), release("job", alice, token(n))}
		apply(straight, ops...)
		apply(restored, ops...)
		again := newTable(kept)
		if err := again.read(bytes.NewReader(encoded(t, restored))); err != nil {
			t.Fatal(err)
		}
		restored = again
		if !bytes.Equal(encoded(t, straight), encoded(t, restored)) {
			t.Fatalf("after %d leases: the tables' encodings differ", n)
		}
	}
}

// A snapshot written while the table goes on is the table as it was.
func TestSnapshotWhileApplying(t *testing.T) {
	table := NewTable()
	apply(table, birth(1))
	counter := uint32(0)
	step := func(n int) {
		name := fmt.Sprintf("job%d", n%500)
		if l, ok := table.Get(name); ok {
			apply(table, release(name, alice, l.Token))
		} else {
			apply(table, acquire(name, alice, try1))
			counter++
		}
	}
	for n := range 700 {
		step(n)
	}
	var writers sync.WaitGroup
	for round := range 8 {
		want, snapshot := encoded(t, table), table.Snapshot()
		for range 2 { // a snapshot may have several readers, too
			writers.Go(func() {
				var got bytes.Buffer
				if _, err := snapshot.WriteTo(&got); err != nil {
					t.Error(err)
				}
				if !bytes.Equal(got.Bytes(), want) {
					t.Errorf("round %d: the snapshot is not the table as it was", round)
				}
			})
		}
		for n := range 2000 {
			step(n * 7)
		}
	}
	writers.Wait()
	if table.Counter() != counter {
		t.Errorf("got counter %d, want %d", table.Counter(), counter)
	}
}

func TestReadTableTruncatedOrDamaged(t *testing.T) {
	b := encoded(t, sampleTable())
	for n := range len(b) {
		if _, err := ReadTable(bytes.NewReader(b[:n])); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d of %d bytes: got %v, want ErrCorrupt", n, len(b), err)
		}
	}
	for n := range len(b) {
		damaged := bytes.Clone(b)
		damaged[n] ^= 1 << (n % 8)
		if _, err := ReadTable(bytes.NewReader(damaged)); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnreadable) {
			t.Fatalf("a bit of byte %d flipped: got %v, want ErrCorrupt or ErrUnreadable", n, err)
		}
	}
	if _, err := ReadTable(bytes.NewReader(append(b, 0))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("with a byte behind it: got %v, want ErrCorrupt", err)
	}
}

// sealed appends the checksum that b's content has.
func sealed(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// What a later release writes is recognised whatever follows its header.
func TestReadTableOfLaterRelease(t *testing.T) {
	b := append(AppendHeader(nil, tableMagic, 2, "0.4.0"), "something else"...)
	_, err := ReadTable(bytes.NewReader(b))
	want := "lease table of version 2: this release reads up to 1; release 0.4.0 or later can read it"
	if !errors.Is(err, ErrUnreadable) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// plain is a table's encoding by hand, with right checksum and counts.
func plain(epoch, counter, revision uint64, leases []*Lease, ended []Ending) []byte {
	return plainStaging(epoch, counter, revision, leases, ended, 0)
}

// plainStaging is plain with leases that are staged for an import to an epoch; 0: nothing is.
func plainStaging(epoch, counter, revision uint64, leases []*Lease, ended []Ending, to uint64, staged ...*Lease) []byte {
	b := AppendHeader(nil, tableMagic, TableVersion, FirstRelease)
	b = append(b, cluster[:]...)
	for _, n := range []uint64{3, epoch, counter, revision, 0, 0, uint64(len(leases))} {
		b = binary.AppendUvarint(b, n)
	}
	for _, l := range leases {
		b = appendRecord(b, appendLease(nil, l))
	}
	b = binary.AppendUvarint(b, uint64(len(ended)))
	for _, e := range ended {
		b = appendRecord(b, appendEnding(nil, e))
	}
	b = binary.AppendUvarint(b, to)
	if to != 0 {
		b = binary.AppendUvarint(b, uint64(len(staged)))
	}
	for _, l := range staged {
		b = appendRecord(b, appendStaged(nil, l))
	}
	return sealed(b)
}

// Tables that no ops lead to are refused although their checksum is right.
func TestReadTableRefusesWhatNoTableIs(t *testing.T) {
	lease := func(name string, change func(*Lease)) *Lease {
		r := apply(NewTable(), birth(1), acquire(name, alice, try1))
		l := *r.Lease
		if change != nil {
			change(&l)
		}
		return &l
	}
	if _, err := ReadTable(bytes.NewReader(plain(1, 9, 9, []*Lease{lease("a", nil), lease("b", nil)}, []Ending{{"c", token(2), WhyReleased, token(3)}}))); err != nil {
		t.Fatalf("a good one: got %v", err)
	}
	if _, err := ReadTable(bytes.NewReader(plainStaging(1, 9, 9, nil, nil, 3, lease("a", nil), lease("b", nil)))); err != nil {
		t.Fatalf("a good one with leases staged: got %v", err)
	}
	header := AppendHeader(nil, tableMagic, TableVersion, FirstRelease)
	nobody := make([]byte, 16)
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"another magic", sealed(AppendHeader(nil, 'L', 1, FirstRelease)), "header: corrupt: it begins with 0x4c, not with 0x54"},
		{"another release", sealed(AppendHeader(nil, tableMagic, TableVersion, "0.1.1")), "version 1 came with release 0.1.0, not with 0.1.1"},
		{"an epoch without a cluster", sealed(append(append(header, nobody...), 0, 1, 0, 0, 0, 0, 0, 0, 0)), "it has no cluster, but an epoch, founders, a counter, a revision or shards"},
		{"shards without a cluster", sealed(append(append(header, nobody...), 0, 0, 0, 0, 1, 0x80, 8, 0, 0, 0)), "it has no cluster, but an epoch, founders, a counter, a revision or shards"},
		{"shards that are too small", sealed(append(append(header, cluster[:]...), 3, 1, 0, 1, 1, 0xff, 7, 0, 0, 0)), `invalid shard bytes "1023": want 1024 to 262144`},
		{"room but no shards", sealed(append(append(header, cluster[:]...), 3, 1, 0, 1, 0, 0x80, 8, 0, 0, 0)), `invalid shards "0": want 1 to 4096`},
		{"a cluster without an epoch", plain(0, 0, 1, nil, nil), "it has a cluster, but no epoch, founders or revision"},
		{"a cluster without a revision", plain(1, 0, 0, nil, nil), "it has a cluster, but no epoch, founders or revision"},
		{"an epoch too great", plain(1<<21, 0, 1, nil, nil), "its epoch is 2097152: at most 2097151"},
		{"a counter too great", plain(1, 1<<32, 1, nil, nil), "its counter is 4294967296: at most 4294967295"},
		{"wrong order", plain(1, 9, 9, []*Lease{lease("b", nil), lease("a", nil)}, nil), `lease "a" follows lease "b"`},
		{"a name twice", plain(1, 9, 9, []*Lease{lease("a", nil), lease("a", nil)}, nil), `lease "a" follows lease "a"`},
		{"no name", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Name = "" })}, nil), `invalid name "0 bytes": want 1 to 512 bytes`},
		{"no session", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Session = ID{} })}, nil), `invalid session "none": want 16 bytes that are not all zero`},
		{"no ttl", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.TTL = 0 })}, nil), `invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
		{"no token", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Token = 0 })}, nil), `invalid token "0": want 1 to 9007199254740991`},
		{"a token to come", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Token = token(10) })}, nil), `lease "a" has token 4294967306, beyond the table's 4294967305`},
		{"no stamp", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Stamp = 0 })}, nil), `lease "a" has stamp 0, outside of the table's revisions 1 to 9`},
		{"a stamp to come", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Stamp = 10 })}, nil), `lease "a" has stamp 10, outside of the table's revisions 1 to 9`},
		{"a lease that goes on", plain(1, 9, 9, []*Lease{lease("a", func(l *Lease) { l.Name = strings.Repeat("n", 513) })}, nil), "its name length is 513: at most 512"},
		{"held and ended", plain(1, 9, 9, []*Lease{lease("a", nil)}, []Ending{{"a", token(1), WhyReleased, 0}}), `ended lease "a" has token 4294967297, but is held under 4294967297`},
		{"ended after it was granted anew", plain(1, 9, 9, []*Lease{lease("a", nil)}, []Ending{{"a", token(2), WhyReleased, 0}}), `ended lease "a" has token 4294967298, but is held under 4294967297`},
		{"ended twice", plain(1, 9, 9, nil, []Ending{{"a", token(1), WhyReleased, 0}, {"a", token(1), WhyReleased, 0}}), `ended lease "a" has token 4294967297 after 4294967297`},
		{"staged for its own epoch", plainStaging(2, 9, 9, nil, nil, 2), "an import to epoch 2 is staged, but its own is 2"},
		{"staged for no token's epoch", plainStaging(2, 9, 9, nil, nil, 1<<21), "its staged epoch is 2097152: at most 2097151"},
		{"staged before its birth", sealed(append(append(header, nobody...), 0, 0, 0, 0, 0, 0, 0, 0, 2, 0)), "an import to epoch 2 is staged, but its own is 0"},
		{"staged in wrong order", plainStaging(1, 9, 9, nil, nil, 3, lease("b", nil), lease("a", nil)), `staged lease "a" follows staged lease "b"`},
		{"staged of the epoch to begin", plainStaging(1, 9, 9, nil, nil, 2, lease("a", func(l *Lease) { l.Token = tokens.New(2, 1) })), `lease "a" of token 8589934593 is staged for epoch 2`},
		{"staged under a reserved name", plainStaging(1, 9, 9, nil, nil, 2, lease("a", func(l *Lease) { l.Name = "@a" })), `lease "@a" of token 4294967297 is staged for epoch 2`},
		{"staged for nobody", plainStaging(1, 9, 9, nil, nil, 2, lease("a", func(l *Lease) { l.Session = ID{} })), `invalid session "none": want 16 bytes that are not all zero`},
		{"ended for no reason", plain(1, 9, 9, nil, []Ending{{"a", token(1), WhyUnknown, 0}}), `invalid why "0": want 1 to 5`},
		{"ended for a later release's reason", plain(1, 9, 9, nil, []Ending{{"a", token(1), WhyTransferred + 1, 0}}), `invalid why "6": want 1 to 5`},
		{"ended before it was granted", plain(1, 9, 9, nil, []Ending{{"a", token(10), WhyReleased, 0}}), `ended lease "a" has token 4294967306, then 0, beyond the table's 4294967305`},
		{"a next token to come", plain(1, 9, 9, nil, []Ending{{"a", token(1), WhyReleased, token(10)}}), `ended lease "a" has token 4294967297, then 4294967306, beyond the table's 4294967305`},
		{"a next token from before", plain(1, 9, 9, nil, []Ending{{"a", token(2), WhyReleased, token(1)}}), `ended lease "a" has token 4294967298, then 4294967297`},
		{"too many ended", plain(1, EndedKept+1, 9, nil, manyEndings(EndedKept+1)), "its number of ended leases is 10001: at most 10000"},
		{"more leases than memory", sealed(binary.AppendUvarint(plain(1, 9, 9, nil, nil)[:len(header)+16+6], math.MaxUint64)), "its number of leases is 18446744073709551615: at most 9223372036854775807"},
		{"no leases where many are said", sealed(binary.AppendUvarint(plain(1, 9, 9, nil, nil)[:len(header)+16+6], math.MaxInt64)), ""},
		{"a mark that is neither", sealed(markOther(plain(1, 9, 9, []*Lease{lease("a", nil)}, nil))), "its mark broken is 2: at most 1"},
		{"a record that is too long", sealed(withRecord(plain(1, 9, 9, nil, nil), make([]byte, maxRecord+1))), "its lease length is 4097: at most 4096"},
		{"more than its fields", sealed(withRecord(plain(1, 9, 9, nil, nil), append(appendLease(nil, lease("a", nil)), 0))), "1 bytes follow the last field of a lease"},
	} {
		_, err := ReadTable(bytes.NewReader(c.in))
		if !errors.Is(err, ErrCorrupt) || !strings.HasPrefix(err.Error(), "lease table: ") || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ErrCorrupt, …%s", c.name, err, c.want)
		}
	}
}

func manyEndings(n uint32) (l []Ending) {
	for i := range n {
		l = append(l, Ending{"a", token(i + 1), WhyReleased, 0})
	}
	return l
}

// markOther sets the mark of the only lease to 2 and takes the checksum off.
func markOther(b []byte) []byte {
	b = b[:len(b)-crc32.Size]
	b[len(b)-4] = 2 // its stamp, no endings and no staging follow
	return b
}

// withRecord puts a lease's record into the empty table b and takes the checksum off.
func withRecord(b, record []byte) []byte {
	b = b[:len(b)-crc32.Size-3]
	b = append(b, 1)
	return append(appendRecord(b, record), 0, 0)
}

func TestReadTableFromSlowReaders(t *testing.T) {
	b := encoded(t, sampleTable())
	for name, r := range map[string]io.Reader{
		"a byte at a time": iotest.OneByteReader(bytes.NewReader(b)),
		"halves":           iotest.HalfReader(bytes.NewReader(b)),
		"data with EOF":    iotest.DataErrReader(bytes.NewReader(b)),
	} {
		got, err := ReadTable(r)
		if err != nil || !bytes.Equal(encoded(t, got), b) {
			t.Errorf("%s: got %v, want the table", name, err)
		}
	}
}

func TestReadTablePassesErrorsOn(t *testing.T) {
	b, failure := encoded(t, sampleTable()), errors.New("the disk is on fire")
	for n := range len(b) + 1 {
		_, err := ReadTable(io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(failure)))
		if !errors.Is(err, failure) || errors.Is(err, ErrCorrupt) {
			t.Fatalf("after %d of %d bytes: got %v, want %v", n, len(b), err, failure)
		}
	}
}

// failing takes n bytes.
type failing struct {
	n   int
	err error
}

func (f *failing) Write(b []byte) (int, error) {
	n := min(len(b), f.n)
	f.n -= n
	if n < len(b) {
		return n, f.err
	}
	return n, nil
}

func TestWriteToPassesErrorsOn(t *testing.T) {
	table := sampleTable()
	for n := range 200 { // more than the writer's buffer holds
		apply(table, with(acquire(fmt.Sprintf("%d", n), alice, try1), func(op *Op) { op.Epoch, op.Attributes = 7, make([]byte, MaxAttributes) }))
	}
	for n := range 200 {
		l, _ := table.Get(fmt.Sprintf("%d", n))
		if n%2 == 0 {
			apply(table, with(release(l.Name, alice, l.Token), func(op *Op) { op.Epoch = 7 }))
		}
	}
	size, failure := len(encoded(t, table)), errors.New("the disk is full")
	for _, n := range []int{0, 1, 100, size / 2, size - crc32.Size - 1, size - crc32.Size, size - 1} {
		got, err := table.Snapshot().WriteTo(&failing{n: n, err: failure})
		if !errors.Is(err, failure) || got != int64(n) {
			t.Errorf("a writer that takes %d of %d bytes: got %d, %v, want %d, %v", n, size, got, err, n, failure)
		}
	}
}

// The fixtures are what release 0.1.0 writes: every later one must read them, and
// what it writes itself must stay what it was.
func TestFixtures(t *testing.T) {
	var ops []byte
	for _, op := range sampleOps() {
		ops = AppendOp(ops, op)
	}
	for file, b := range map[string][]byte{
		"testdata/v1-all.table": encoded(t, sampleTable()), "testdata/v1-all.ops": ops, "testdata/v1-all.shard": EncodeShard(sampleShard()),
	} {
		want, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) && *writeFixtures {
			want, err = b, os.WriteFile(file, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s: this release encodes the same otherwise, without a new version", file)
		}
	}
	b := fixture(t, "testdata/v1-all.table")
	if table, err := ReadTable(bytes.NewReader(b)); err != nil || table.Len() != sampleTable().Len() || !bytes.Equal(encoded(t, table), b) {
		t.Errorf("table: got %v, other leases or another encoding", err)
	}
	rest := fixture(t, "testdata/v1-all.ops")
	for n, want := range sampleOps() {
		var op Op
		var err error
		if op, rest, err = DecodeOp(rest); err != nil || !reflect.DeepEqual(op, want) {
			t.Fatalf("op %d: got %+v, %v, want %+v", n+1, op, err, want)
		}
	}
	if len(rest) > 0 {
		t.Errorf("%d bytes follow the last op", len(rest))
	}
	if s, err := DecodeShard(fixture(t, "testdata/v1-all.shard")); err != nil || !reflect.DeepEqual(s, sampleShard()) {
		t.Errorf("shard: got %+v, %v", s, err)
	}
}

func fixture(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzReadTable(f *testing.F) {
	for _, table := range []*Table{NewTable(), sampleTable()} {
		b := encoded(f, table)
		f.Add(b[:len(b)-crc32.Size])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// With a right checksum, or it would keep the fuzzer out.
		b = sealed(bytes.Clone(b))
		table, err := ReadTable(bytes.NewReader(b))
		if err != nil {
			if errors.Is(err, ErrCorrupt) == errors.Is(err, ErrUnreadable) {
				t.Fatalf("got %v, want one of ErrCorrupt and ErrUnreadable", err)
			}
			return
		}
		if !bytes.Equal(encoded(t, table), b) {
			t.Fatal("the table has another encoding than the one it was read from")
		}
		before := table.Newest()
		r := table.Apply(with(acquire("\U0010FFFF", bob, try2), func(op *Op) { op.Epoch = table.Epoch() }))
		switch r.Outcome {
		case Granted:
			if r.Lease.Token <= before {
				t.Fatalf("got token %v after %v", r.Lease.Token, before)
			}
		case Refused, Repeated, Mismatch, Unborn:
		case NoRoom:
			if table.Shards() == (Shards{}) {
				t.Fatalf("got %v without an arbiter", r.Outcome)
			}
		case UsedUp:
			if table.Counter() != tokens.MaxCounter {
				t.Fatalf("got %v at counter %d", r.Outcome, table.Counter())
			}
		default:
			t.Fatalf("got %v", r.Outcome)
		}
		importStaged(t, table)
	})
}

// importStaged puts into force what is staged, ends every lease, and reads the table anew.
func importStaged(t *testing.T, table *Table) {
	if table.staged.epoch == 0 {
		return
	}
	if r := table.Apply(importAll(table.staged.epoch, uint32(table.staged.leases.Len()))); r.Outcome != Imported {
		t.Fatalf("import: got %v", r.Outcome)
	}
	for _, l := range slices.Collect(table.All()) {
		if r := table.Apply(Op{Kind: KindExpire, Epoch: table.Epoch(), Name: l.Name, Token: l.Token}); r.Outcome != Freed {
			t.Fatalf("expiry of %+v: got %v", l, r.Outcome)
		}
	}
	if _, err := ReadTable(bytes.NewReader(encoded(t, table))); err != nil {
		t.Fatalf("after the import: %v", err)
	}
}
