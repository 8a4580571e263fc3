package leases

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/tokens"
)

// The tests' shard is of epoch 3, served by nodes that know the leases of epochs 1
// and 2, and about to be written as version 9.
const (
	fallback = 3
	version  = 9
)

var one = Shards{1, MinShardBytes}

// of3 lets ops be of the tests' epoch.
func of3(ops ...Op) []Op {
	for i := range ops {
		ops[i].Epoch = fallback
	}
	return ops
}

// reclaimed is alice's lease of token 5, as it comes out of a reclaim.
func reclaimed(version uint64) *Lease {
	return &Lease{
		Name: "job", Session: alice, Token: token(5), TTL: 15 * time.Second, Owner: Owner{Label: "billing", Site: "aws", Host: "host7", PID: 12},
		Attributes: []byte("v=1"), AcquiredAt: noon, Stamp: version,
	}
}

// Each row is one rule of a shard: what the last op does after the others.
func TestApplyToAShard(t *testing.T) {
	asked, heir := acquire("job", alice, try1), acquire("job", bob, try2)
	five := reclaim(asked, token(5))
	first := tokens.New(fallback, 1)
	for _, c := range []struct {
		name   string
		before []Op
		op     Op
		want   Outcome
		token  tokens.Token // of Result.Lease
		ending Ending
		closed bool // afterwards
	}{
		{name: "birth", op: birth(4), want: Ignored},
		{name: "bump", op: bump(4), want: Ignored},
		{name: "part", op: part(4), want: Ignored},
		{name: "import", op: importAll(4, 0), want: Ignored},
		{name: "adopt", op: adopt(3, one), want: Ignored},
		{name: "reserved name", op: acquire("@job", alice, try1), want: Ignored},
		{name: "a name that is no text", op: acquire("\xff", alice, try1), want: NoRoom},
		{name: "reclaim of a name that is no text", op: reclaim(acquire("\xff", alice, try1), token(5)), want: Ignored},

		{name: "acquire", op: asked, want: Granted, token: first, closed: true},
		{name: "repeat", before: []Op{asked}, op: asked, want: Repeated, token: first, closed: true},
		{name: "acquire of what is held", before: []Op{five}, op: heir, want: Refused, token: token(5)},
		{name: "repeat of an attempt that was reclaimed", before: []Op{five}, op: asked, want: Refused, token: token(5)},
		{name: "withdraw of an attempt that was reclaimed", before: []Op{five}, op: withdraw("job", alice, try1), want: Absent, ending: Ending{Name: "job"}},
		{name: "withdraw", before: []Op{asked}, op: withdraw("job", alice, try1), want: Freed, token: first, ending: Ending{"job", first, WhyWithdrawn, 0}, closed: true},
		{name: "release", before: []Op{asked}, op: release("job", alice, first), want: Freed, token: first, ending: Ending{"job", first, WhyReleased, 0}, closed: true},
		{name: "release of a reclaimed lease", before: []Op{five}, op: release("job", alice, token(5)), want: Freed, token: token(5), ending: Ending{"job", token(5), WhyReleased, 0}},
		{name: "release of an unknown lease", op: release("job", alice, token(5)), want: Absent, ending: Ending{Name: "job", Token: token(5)}},
		{name: "break", before: []Op{five}, op: breaks("job", token(5)), want: Marked, token: token(5)},
		{name: "break now", before: []Op{five}, op: breakNow("job", token(5)), want: Freed, token: token(5), ending: Ending{"job", token(5), WhyBroken, 0}},
		{name: "transfer", before: []Op{five}, op: transfer(alice, token(5), heir), want: Transferred, token: first, ending: Ending{"job", token(5), WhyTransferred, first}, closed: true},
		{name: "transfer twice", before: []Op{five, transfer(alice, token(5), heir)}, op: transfer(alice, token(5), heir), want: Absent, ending: Ending{"job", token(5), WhyTransferred, first}, closed: true},
		{name: "expire", before: []Op{five}, op: expire("job", token(5)), want: Freed, token: token(5), ending: Ending{"job", token(5), WhyExpired, 0}},
		{name: "expire of what rested", before: []Op{five}, op: with(expire("job", token(5)), func(op *Op) { op.Stamp = version }), want: Freed, token: token(5), ending: Ending{"job", token(5), WhyExpired, 0}},
		{name: "expire of what was renewed since", before: []Op{five}, op: with(expire("job", token(5)), func(op *Op) { op.Stamp = version - 1 }), want: Refused, token: token(5)},

		{name: "renew", before: []Op{asked}, op: renew("job", alice, first), want: Renewed, token: first, closed: true},
		{name: "renew of a reclaimed lease", before: []Op{five}, op: renew("job", alice, token(5)), want: Renewed, token: token(5)},
		{name: "renew of another token", before: []Op{asked}, op: renew("job", alice, token(5)), want: Absent, ending: Ending{Name: "job", Token: token(5)}, closed: true},
		{name: "renew by another session", before: []Op{five}, op: renew("job", bob, token(5)), want: Absent, ending: Ending{Name: "job", Token: token(5)}},
		{name: "renew of an unknown lease", op: renew("job", alice, token(5)), want: Absent, ending: Ending{Name: "job", Token: token(5)}},
		{name: "renew after the release", before: []Op{asked, release("job", alice, first)}, op: renew("job", alice, first), want: Absent, ending: Ending{"job", first, WhyReleased, 0}, closed: true},
		{name: "renew of a broken lease", before: []Op{five, breaks("job", token(5))}, op: renew("job", alice, token(5)), want: Absent, ending: Ending{"job", token(5), WhyBroken, 0}},

		{name: "reclaim", op: five, want: Reclaimed, token: token(5)},
		{name: "reclaim of a former fallback's lease", op: reclaim(asked, tokens.New(2, 7)), want: Reclaimed, token: tokens.New(2, 7)},
		{name: "reclaim of this epoch's token", op: reclaim(asked, tokens.New(fallback, 7)), want: Absent, ending: Ending{Name: "job", Token: tokens.New(fallback, 7)}},
		{name: "reclaim of a later epoch's token", op: reclaim(asked, tokens.New(fallback+1, 7)), want: Absent, ending: Ending{Name: "job", Token: tokens.New(fallback+1, 7)}},
		{name: "reclaim twice", before: []Op{five}, op: five, want: Reclaimed, token: token(5)},
		{name: "reclaim with another ttl", before: []Op{five}, op: with(five, func(op *Op) { op.TTL = time.Minute }), want: Reclaimed, token: token(5)},
		{name: "reclaim of a broken lease", before: []Op{five, breaks("job", token(5))}, op: five, want: Absent, ending: Ending{"job", token(5), WhyBroken, 0}},
		{name: "reclaim of a lesser token", before: []Op{five}, op: reclaim(heir, token(4)), want: Refused, token: token(5)},
		{name: "reclaim of the same token by another session", before: []Op{five}, op: reclaim(heir, token(5)), want: Refused, token: token(5)},
		{name: "reclaim of a greater token", before: []Op{five}, op: reclaim(heir, token(6)), want: Reclaimed, token: token(6)},
		{name: "reclaim of a greater token over a broken lease", before: []Op{five, breaks("job", token(5))}, op: reclaim(heir, token(6)), want: Reclaimed, token: token(6)},
		{name: "reclaim of a greater token by the same holder", before: []Op{five}, op: reclaim(asked, token(6)), want: Reclaimed, token: token(6)},
		{name: "reclaim after a grant", before: []Op{acquire("other", bob, try1)}, op: five, want: Closed, closed: true},
		{name: "reclaim after a grant and its release", before: []Op{heir, release("job", bob, first)}, op: five, want: Closed, closed: true},
		{name: "reclaim after a transfer", before: []Op{five, transfer(alice, token(5), heir), release("job", bob, first)}, op: five, want: Closed, closed: true},
		{name: "reclaim of what is held, after a grant", before: []Op{five, acquire("other", bob, try1)}, op: five, want: Closed, closed: true},
		{name: "renew of what was reclaimed, after a grant", before: []Op{five, acquire("other", bob, try1)}, op: renew("job", alice, token(5)), want: Renewed, token: token(5), closed: true},
		{name: "reclaim after a release", before: []Op{five, release("job", alice, token(5))}, op: five, want: Reclaimed, token: token(5)}, // an orphan (V10)
		{name: "reclaim for no time", op: with(five, func(op *Op) { op.TTL = 0 }), want: Ignored},
		{name: "reclaim of a reserved name", op: reclaim(acquire("@job", alice, try1), token(5)), want: Ignored},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := OpenShard(Shard{Epoch: fallback}, 0, one, version)
			apply(table, of3(c.before...)...)
			revision, before := table.Revision(), table.Shard()
			op := c.op
			if op.Kind != KindBirth && op.Kind != KindBump && op.Kind != KindImportPart && op.Kind != KindImport {
				op.Epoch = fallback
			}
			got := table.Apply(op)
			if got.Outcome != c.want || got.Ending != c.ending {
				t.Fatalf("got %v, %+v, want %v, %+v", got.Outcome, got.Ending, c.want, c.ending)
			}
			var gotToken tokens.Token
			if got.Lease != nil {
				gotToken = got.Lease.Token
			}
			if gotToken != c.token || table.Shard().Closed != c.closed {
				t.Errorf("got a lease of token %v, closed %v, want %v, %v", gotToken, table.Shard().Closed, c.token, c.closed)
			}
			if slices.Contains([]Outcome{Granted, Freed, Marked, Transferred, Renewed, Reclaimed}, c.want) {
				revision++
			} else if after := table.Shard(); !reflect.DeepEqual(after, before) {
				t.Errorf("got %+v, want no change of %+v", after, before)
			}
			if table.Revision() != revision {
				t.Errorf("got revision %d, want %d", table.Revision(), revision)
			}
			if r := table.Apply(with(op, func(op *Op) { op.Epoch++ })); r.Outcome != StaleEpoch && r.Outcome != Ignored {
				t.Errorf("the op of another epoch: got %v", r.Outcome)
			}
		})
	}
}

// The stamp of a lease is that of the write which granted, renewed or reclaimed it last,
// and of no other; what a node was handed before stays as it was.
func TestStamps(t *testing.T) {
	s := Shard{Epoch: fallback}
	open := func(version uint64, ops ...Op) *Lease {
		table := OpenShard(s, 0, one, version)
		for _, op := range of3(ops...) {
			if r := table.Apply(op); r.Outcome == Ignored || r.Outcome == Absent {
				t.Fatalf("%v: got %v", op.Kind, r.Outcome)
			}
		}
		s = table.Shard()
		l, _ := table.Get("job")
		return l
	}
	got := open(7, reclaim(acquire("job", alice, try1), token(5)))
	if want := reclaimed(7); !reflect.DeepEqual(got, want) {
		t.Errorf("reclaimed: got %+v, want %+v", got, want)
	}
	before := got
	for _, c := range []struct {
		version uint64
		op      Op
		want    uint64
	}{
		{8, acquire("other", bob, try1), 7},
		{9, renew("job", alice, token(5)), 9},
		{10, acquire("job", bob, try1), 9}, // refused
		{11, breaks("job", token(5)), 9},
		{12, transfer(alice, token(5), acquire("job", bob, try2)), 12},
	} {
		if got := open(c.version, c.op); got.Stamp != c.want {
			t.Errorf("%v with version %d: got stamp %d, want %d", c.op.Kind, c.version, got.Stamp, c.want)
		}
	}
	if want := reclaimed(7); !reflect.DeepEqual(before, want) {
		t.Errorf("the lease that was handed out: got %+v, want %+v", before, want)
	}
}

// A register that was never written is not served.
func TestShardOfNoEpoch(t *testing.T) {
	table := OpenShard(Shard{}, 0, one, 1)
	for _, op := range []Op{acquire("job", alice, try1), reclaim(acquire("job", alice, try1), token(5)), renew("job", alice, token(5))} {
		op.Epoch = 0
		if r := table.Apply(op); r.Outcome != Unborn {
			t.Errorf("%v: got %v, want %v", op.Kind, r.Outcome, Unborn)
		}
	}
	defer func() {
		if got, want := recover(), "leases: shard 1 of 1"; got != want {
			t.Errorf("got %v, want the panic %s", got, want)
		}
	}()
	OpenShard(Shard{}, 1, one, 1)
}

// Every name belongs to one shard, which alone takes ops for it.
func TestNamesOfOtherShards(t *testing.T) {
	shards := Shards{4, MinShardBytes}
	for n := range 40 {
		name := fmt.Sprintf("job%d", n)
		var takers []uint32
		for index := range shards.Count {
			table := OpenShard(Shard{Epoch: 1}, index, shards, 1)
			if r := table.Apply(acquire(name, alice, try1)); r.Outcome == Granted {
				takers = append(takers, index)
			} else if r.Outcome != Ignored {
				t.Errorf("%s in shard %d: got %v", name, index, r.Outcome)
			}
		}
		if !slices.Equal(takers, []uint32{shards.Of(name)}) {
			t.Errorf("%s: got shards %v, want %d", name, takers, shards.Of(name))
		}
	}
}

// Tokens of different shards are different, and each shard's grow up to the end of
// the counter's range.
func TestShardCounters(t *testing.T) {
	name := func(shards Shards, index uint32) string {
		for n := 0; ; n++ {
			if name := fmt.Sprintf("job%d", n); shards.Of(name) == index {
				return name
			}
		}
	}
	for _, count := range []uint32{1, 3, 256, MaxShards} {
		shards := Shards{count, MinShardBytes}
		seen := map[tokens.Token]bool{}
		for _, index := range slices.Compact([]uint32{0, count / 2, count - 1}) {
			last := (math.MaxUint32 - index) / count // counter of the shard's last grant
			for _, from := range []uint32{0, last - 3} {
				table := OpenShard(Shard{Epoch: tokens.MaxEpoch, Counter: from}, index, shards, 1)
				job, newest := name(shards, index), table.Newest()
				for c := from + 1; c <= from+4; c++ {
					r := table.Apply(with(acquire(job, alice, try1), func(op *Op) { op.Epoch = tokens.MaxEpoch }))
					if c > last {
						if r.Outcome != UsedUp {
							t.Errorf("shard %d of %d, grant %d: got %v, want %v", index, count, c, r.Outcome, UsedUp)
						}
						break
					}
					want := tokens.New(tokens.MaxEpoch, c*count+index)
					if r.Outcome != Granted || r.Lease.Token != want || table.Newest() != want || want <= newest || table.Counter() != c {
						t.Fatalf("shard %d of %d, grant %d: got %v of %+v, want token %v", index, count, c, r.Outcome, r.Lease, want)
					}
					if seen[want] {
						t.Errorf("token %v is there twice", want)
					}
					seen[want], newest = true, want
					apply(table, with(release(job, alice, want), func(op *Op) { op.Epoch = tokens.MaxEpoch }))
				}
			}
		}
	}
	if last := tokens.New(tokens.MaxEpoch, math.MaxUint32); last != tokens.Max {
		t.Errorf("the last token of the last shard: got %v, want %v", last, tokens.Max)
	}
}

// With the counter used up a transfer is a plain release, which leaves the shard open;
// a counter that no grant can have led to grants nothing either.
func TestShardCounterUsedUp(t *testing.T) {
	for _, counter := range []uint32{math.MaxUint32 / 2, math.MaxUint32} {
		table := OpenShard(Shard{Epoch: fallback, Counter: counter, Leases: []*Lease{reclaimed(3)}}, Shards{2, 1024}.Of("job"), Shards{2, 1024}, version)
		if got := table.Newest(); got.Epoch() != fallback || counter == math.MaxUint32 && got.Counter() != math.MaxUint32 {
			t.Errorf("counter %d: got newest token %v", counter, got)
		}
		r := apply(table, of3(transfer(alice, token(5), acquire("job", bob, try2)))...)
		if r.Outcome != Freed || r.Ending.Why != WhyReleased || table.Shard().Closed {
			t.Errorf("counter %d: got %v, %+v, closed %v, want a plain release", counter, r.Outcome, r.Ending, table.Shard().Closed)
		}
		if r := apply(table, of3(acquire("job", bob, try2))...); r.Outcome != UsedUp {
			t.Errorf("counter %d: got %v, want %v", counter, r.Outcome, UsedUp)
		}
	}
}

// Grants need room in the shard, in a Raft group's table as in the shard's own;
// reclaims and renewals do not (W9).
func TestRoom(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	full := acquire("job", alice, try1)
	each := cost("a", full.Owner, full.Attributes)
	if each*3 > MinShardBytes || each*4 <= MinShardBytes {
		t.Fatalf("a lease costs %d bytes: the test wants room for three in %d", each, MinShardBytes)
	}
	raft := NewTable()
	apply(raft, with(birth(1), func(op *Op) { op.Shards = one }))
	for what, table := range map[string]*Table{"raft": raft, "shard": OpenShard(Shard{Epoch: 1}, 0, one, 1)} {
		for i, name := range names {
			want := Granted
			if i == 3 {
				want = NoRoom
			}
			if r := table.Apply(acquire(name, alice, try1)); r.Outcome != want || want == NoRoom && (r.Lease != nil || table.Counter() != 3) {
				t.Errorf("%s: acquire %s: got %v, want %v", what, name, r.Outcome, want)
			}
		}
		if r := table.Apply(acquire("a", alice, try1)); r.Outcome != Repeated {
			t.Errorf("%s: a repeat needs no room: got %v", what, r.Outcome)
		}
		same, longer := acquire("a", bob, try2), acquire("b", bob, try2)
		longer.Attributes = make([]byte, 100)
		if r := table.Apply(transfer(alice, token(1), same)); r.Outcome != Transferred || table.Fill()[0] != 3*each {
			t.Errorf("%s: a transfer in the giver's room: got %v, %d bytes", what, r.Outcome, table.Fill()[0])
		}
		r := table.Apply(transfer(alice, token(2), longer))
		if r.Outcome != Freed || r.Ending != (Ending{"b", token(2), WhyReleased, 0}) || table.Fill()[0] != 2*each {
			t.Errorf("%s: a transfer that needs more: got %v, %+v, want a plain release", what, r.Outcome, r.Ending)
		}
		if r := table.Apply(acquire("d", alice, try1)); r.Outcome != Granted {
			t.Errorf("%s: into the room that was given back: got %v", what, r.Outcome)
		}
	}
	table := OpenShard(Shard{Epoch: fallback}, 0, one, 1)
	for i, name := range names {
		if r := apply(table, of3(reclaim(acquire(name, alice, try1), token(uint32(i+1))))...); r.Outcome != Reclaimed {
			t.Errorf("reclaim %s: got %v", name, r.Outcome)
		}
	}
	if r := apply(table, of3(renew("d", alice, token(4)))...); r.Outcome != Renewed || table.Fill()[0] != 4*each {
		t.Errorf("a renewal: got %v, %d bytes", r.Outcome, table.Fill()[0])
	}
	for i, want := range []Outcome{NoRoom, Granted} { // the first release leaves no more than is allowed
		if r := apply(table, of3(release(names[i], alice, token(uint32(i+1))), acquire("e", bob, try1))...); r.Outcome != want {
			t.Errorf("a grant after %d releases: got %v, want %v", i+1, r.Outcome, want)
		}
	}
}

// A shard takes as much as it has room for, to the last byte.
func TestRoomToTheLastByte(t *testing.T) {
	for _, more := range []int{0, 1} {
		table := OpenShard(Shard{Epoch: 1}, 0, one, 1)
		apply(table, acquire("a", alice, try1), acquire("b", alice, try1))
		last := acquire("c", alice, try1)
		left := MinShardBytes - int(table.Fill()[0]+cost(last.Name, last.Owner, last.Attributes))
		last.Name += strings.Repeat("c", left+more)
		want, fill := Granted, uint32(MinShardBytes)
		if more > 0 {
			want, fill = NoRoom, table.Fill()[0]
		}
		if r := table.Apply(last); r.Outcome != want || table.Fill()[0] != fill {
			t.Errorf("%d bytes beyond the room: got %v, %d bytes, want %v, %d", more, r.Outcome, table.Fill()[0], want, fill)
		}
	}
}

// Each row is a move of a shard, by which of R's epochs Raft has served last.
func TestMoveShard(t *testing.T) {
	job := []*Lease{reclaimed(3)}
	for _, c := range []struct {
		name        string
		shard       Shard
		epoch, raft uint32
		want        Shard
	}{
		{"never written, at birth", Shard{}, 1, 0, Shard{Epoch: 1}},
		{"never written", Shard{}, 2, 1, Shard{Epoch: 2}},
		{"of a fallback before the last raft epoch (S12)", Shard{2, true, 7, job}, 5, 3, Shard{Epoch: 5}},
		{"sealed for the import that raft began with (S12)", Shard{3, true, 0, job}, 5, 3, Shard{Epoch: 5}},
		{"of the raft epoch that a bump has left behind", Shard{3, true, 0, job}, 6, 5, Shard{Epoch: 6}},
		{"of the fallback, to be sealed (F2)", Shard{2, false, 0, job}, 3, 1, Shard{3, true, 0, job}},
		{"closed, of the fallback, to be sealed", Shard{2, true, 7, job}, 3, 1, Shard{3, true, 0, job}},
		{"not sealed by an import that was overtaken (S11)", Shard{2, true, 7, job}, 4, 1, Shard{4, true, 0, job}},
		{"sealed by an import that was overtaken (S11)", Shard{3, true, 0, job}, 4, 1, Shard{4, true, 0, job}},
		{"sealed by the import before this one", Shard{3, true, 0, job}, 5, 1, Shard{5, true, 0, job}},
		{"empty, but of the fallback (S14)", Shard{2, false, 0, nil}, 4, 1, Shard{4, true, 0, nil}},
		{"at that epoch", Shard{4, false, 7, job}, 4, 1, Shard{4, false, 7, job}},
		{"beyond that epoch", Shard{5, false, 7, job}, 4, 4, Shard{5, false, 7, job}},
	} {
		if got := MoveShard(c.shard, c.epoch, c.raft); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Each row has one rule switched off, and what goes wrong then. With all rules in
// force it does not.
func TestRulesOff(t *testing.T) {
	five := reclaim(acquire("job", alice, try1), token(5))
	bob1 := acquire("job", bob, try1)
	grantAndRelease := of3(bob1, release("job", bob, tokens.New(fallback, 1)))
	for _, c := range []struct {
		rule  rules.Rule
		wrong func(set rules.Set) bool
	}{
		{rules.ShardCloses, func(set rules.Set) bool { // a lease comes back that was granted anew
			table := OpenShardUnder(set, Shard{Epoch: fallback}, 0, one, version)
			apply(table, grantAndRelease...)
			return apply(table, of3(five)...).Outcome == Reclaimed
		}},
		{rules.KeptShardCloses, func(set rules.Set) bool { // the same, where a node behind the times has granted
			granted := apply(OpenShardUnder(set, Shard{Epoch: fallback - 1}, 0, one, version), with(bob1, func(op *Op) { op.Epoch = fallback - 1 }))
			s := Shard{Epoch: fallback - 1, Closed: true, Counter: 1, Leases: []*Lease{granted.Lease}}
			table := OpenShardUnder(set, MoveShardUnder(set, s, fallback, 1), 0, one, version)
			apply(table, of3(release("job", bob, granted.Lease.Token))...)
			return apply(table, of3(five)...).Outcome == Reclaimed
		}},
		{rules.MoveByRaftEpoch, func(set rules.Set) bool { // a lease comes back that Raft has seen end
			return len(MoveShardUnder(set, Shard{Epoch: 2, Leases: []*Lease{reclaimed(3)}}, 5, 4).Leases) > 0
		}},
		{rules.StampUnique, func(set rules.Set) bool { // a lease ends that was renewed since it was seen
			seen := apply(OpenShardUnder(set, Shard{Epoch: fallback}, 0, one, 5), of3(five)...).Lease.Stamp
			table := OpenShardUnder(set, Shard{Epoch: fallback}, 0, one, 9) // of a later fallback
			return apply(table, of3(five, with(expire("job", token(5)), func(op *Op) { op.Stamp = seen }))...).Outcome == Freed
		}},
		{rules.ImportGreater, func(set rules.Set) bool { // a token is handed out twice
			table := NewTableUnder(set)
			job := with(acquire("job", alice, try1), func(op *Op) { op.Epoch = 2 })
			twice := []Op{part(2, imported("other", bob, token(1))), importAll(2, 1)}
			first := apply(table, append([]Op{birth(1)}, append(twice, job)...)...).Lease
			again := apply(table, append(twice, job)...)
			return again.Outcome == Granted && again.Lease.Token == first.Token
		}},
		{rules.BumpGreater, func(set rules.Set) bool { // the same
			table := NewTableUnder(set)
			first := apply(table, birth(1), acquire("a", alice, try1)).Lease
			again := apply(table, bump(1), acquire("b", bob, try1)).Lease
			return again.Token == first.Token
		}},
		{rules.ReclaimEpoch, func(set rules.Set) bool { // a reclaim from before the takeover is taken for one of a living holder
			table := OpenShardUnder(set, Shard{Epoch: fallback}, 0, one, version)
			return table.Apply(with(five, func(op *Op) { op.Epoch = fallback - 1 })).Outcome == Reclaimed
		}},
	} {
		if c.wrong(rules.Set{}) {
			t.Errorf("rule %d: it goes wrong with all rules in force", c.rule)
		}
		if !c.wrong(rules.Without(c.rule)) {
			t.Errorf("rule %d: nothing goes wrong without it", c.rule)
		}
	}
}
