package leases

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/tokens"
)

// sampleOps are ops of every kind, each at the bounds of its fields.
func sampleOps() []Op {
	long := acquire(strings.Repeat("n", MaxName), alice, try1)
	long.Epoch, long.TTL, long.AcquiredAt = math.MaxUint32, maxOpTTL, time.UnixMilli(maxMillis).UTC()
	long.Owner = Owner{strings.Repeat("l", MaxLabel), strings.Repeat("s", MaxLabel), strings.Repeat("h", MaxLabel), math.MaxUint32}
	long.Attributes = bytes.Repeat([]byte{0xff}, MaxAttributes)
	return []Op{
		birth(1), with(birth(math.MaxUint32), func(op *Op) { op.Founders = math.MaxUint32 }), bump(0), bump(tokens.MaxEpoch),
		acquire("job", alice, try1),
		{Kind: KindAcquire, Name: "j", Session: alice, Attempt: try1, TTL: time.Millisecond},
		long,
		withdraw("job", alice, try1), release("job", alice, 1), release("job", alice, tokens.Max), expire("job", 127), expire("job", 128),
		breaks("job", 127), breakNow("job", tokens.Max),
		transfer(bob, 1, acquire("job", alice, try1)), transfer(bob, tokens.Max, long),
		{Kind: KindTransfer, Name: "j", Session: alice, Token: 128, Heir: bob, Attempt: try2, TTL: time.Millisecond},
		with(birth(1), func(op *Op) { op.Shards = Shards{MaxShards, MinShardBytes} }),
		adopt(1, Shards{1, MaxShardBytes}), importAll(2, 0), importAll(math.MaxUint32, math.MaxUint32),
		part(2), part(3, sampleLeases()...), part(math.MaxUint32, longLease()),
		with(expire("job", 128), func(op *Op) { op.Stamp = math.MaxUint64 }),
		renew("job", alice, tokens.Max), reclaim(acquire("job", alice, ID{}), 127), reclaim(with(long, func(op *Op) { op.Attempt = ID{} }), tokens.Max),
	}
}

// sampleLeases are leases that an import may bring.
func sampleLeases() []*Lease {
	return []*Lease{
		{
			Name: "job", Session: alice, Attempt: try1, Token: token(1), TTL: 15 * time.Second, Owner: Owner{Label: "billing", Host: "host7"},
			Attributes: []byte("v=1"), AcquiredAt: noon,
		},
		{Name: "reclaimed", Session: bob, Token: token(2), TTL: time.Millisecond},
		{Name: "broken", Session: bob, Attempt: try2, Token: token(3), TTL: maxOpTTL, Broken: true},
	}
}

// longLease is as long as a lease can be.
func longLease() *Lease {
	return &Lease{
		Name: strings.Repeat("n", MaxName), Session: alice, Attempt: try1, Token: tokens.Max, TTL: maxOpTTL, Broken: true,
		Owner:      Owner{strings.Repeat("l", MaxLabel), strings.Repeat("s", MaxLabel), strings.Repeat("h", MaxLabel), math.MaxUint32},
		Attributes: bytes.Repeat([]byte{0xff}, MaxAttributes), AcquiredAt: time.UnixMilli(maxMillis).UTC(),
	}
}

func TestOpRoundTrip(t *testing.T) {
	var all []byte
	for _, want := range sampleOps() {
		b := AppendOp([]byte("before"), want)
		got, rest, err := DecodeOp(append(b, "after"...)[len("before"):])
		if err != nil || string(rest) != "after" || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %q, %v, want %+v", got, rest, err, want)
		}
		all = AppendOp(all, want)
	}
	for _, want := range sampleOps() {
		var got Op
		var err error
		if got, all, err = DecodeOp(all); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("one after the other: got %+v, %v, want %+v", got, err, want)
		}
	}
	if len(all) != 0 {
		t.Errorf("got %d bytes left", len(all))
	}
}

// The fields that a kind does not use are not written.
func TestOpFieldsOfOtherKinds(t *testing.T) {
	for _, want := range sampleOps() {
		full := acquire("job", bob, try2)
		full.Token, full.Heir, full.Now, full.Stamp, full.Cluster, full.Founders = 7, bob, true, 9, cluster, 9
		full.Shards, full.Leases, full.Count = Shards{7, 2048}, sampleLeases(), 9
		got, wanted := reflect.ValueOf(&full).Elem(), reflect.ValueOf(want)
		for i := range got.NumField() { // keep the others' fields, as far as this kind's own are unset
			if f := wanted.Field(i); !f.IsZero() {
				got.Field(i).Set(f)
			}
		}
		switch want.Kind {
		case KindAcquire, KindTransfer, KindReclaim:
			continue // their zero fields are fields of their own
		case KindBirth:
			full.Shards = want.Shards
		case KindExpire:
			full.Stamp = want.Stamp
		case KindBreak:
			full.Now = want.Now
		case KindImportPart:
			full.Leases = want.Leases
		case KindImport:
			full.Count = want.Count
		}
		full.Epoch = want.Epoch
		if a, b := AppendOp(nil, full), AppendOp(nil, want); !bytes.Equal(a, b) {
			t.Errorf("%v: got %x, want %x", want.Kind, a, b)
		}
	}
}

func TestAppendOpRefusesWhatNobodyCouldDecode(t *testing.T) {
	defer func() {
		if got, want := recover(), `leases: invalid name "0 bytes": want 1 to 512 bytes`; got != want {
			t.Errorf("got %v, want the panic %s", got, want)
		}
	}()
	AppendOp(nil, acquire("", alice, try1))
}

// body frames an op's body by hand.
func body(kind Kind, parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = binary.AppendUvarint(b, uint64(p))
		case string:
			b = append(b, p...)
		case ID:
			b = append(b, p[:]...)
		}
	}
	return appendRecord([]byte{byte(kind)}, b)
}

func TestDecodeOpRefuses(t *testing.T) {
	id := ID{1}
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"nothing", nil, "kind 0: corrupt: it ends within its first byte"},
		{"no length", []byte{byte(KindBump)}, "bump: corrupt: it ends within its body length"},
		{"no body", []byte{byte(KindBump), 0}, "bump: corrupt: it ends within its epoch"},
		{"half a body", []byte{byte(KindBump), 2, 1}, "bump: corrupt: it ends within its body"},
		{"half a number", body(KindBump, "\x80"), "bump: corrupt: it ends within its epoch"},
		{"a longer number than need be", body(KindBump, "\x81\x00"), "bump: corrupt: its epoch is no shortest varint"},
		{"a number beyond 64 bits", body(KindBump, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "bump: corrupt: its epoch is no shortest varint"},
		{"an endless number", body(KindBump, strings.Repeat("\xff", 20)), "bump: corrupt: its epoch is no shortest varint"},
		{"an epoch beyond 32 bits", body(KindBump, math.MaxUint32+1), "bump: corrupt: its epoch is 4294967296: at most 4294967295"},
		{"a longer length than need be", []byte{byte(KindBump), 0x81, 0, 1}, "bump: corrupt: its body length is no shortest varint"},
		{"a body that is too long", appendRecord([]byte{byte(KindBump)}, make([]byte, 4097)), "bump: corrupt: its body length is 4097: at most 4096"},
		{"a length beyond memory", binary.AppendUvarint([]byte{byte(KindBump)}, math.MaxUint64), "bump: corrupt: its body length is 18446744073709551615: at most 4096"},
		{"more than its fields", body(KindBump, 1, 1), "bump: corrupt: 1 bytes follow its last field"},
		{"half an id", body(KindBirth, 1, "123"), "birth: corrupt: it ends within its cluster"},
		{"no cluster", body(KindBirth, 1, ID{}, 1, 0, 0), `birth: corrupt: invalid cluster "none": want 16 bytes that are not all zero`},
		{"too many shards", body(KindBirth, 1, id, 1, 4097, 1024), `birth: corrupt: invalid shards "4097": want 1 to 4096`},
		{"room but no shards", body(KindBirth, 1, id, 1, 0, 1024), `birth: corrupt: invalid shards "0": want 1 to 4096`},
		{"shards that are too small", body(KindAdopt, 1, 1, 1023), `adopt: corrupt: invalid shard bytes "1023": want 1024 to 262144`},
		{"shards that are too large", body(KindAdopt, 1, 1, 262145), `adopt: corrupt: invalid shard bytes "262145": want 1024 to 262144`},
		{"no shards", body(KindAdopt, 1, 0, 0), `adopt: corrupt: invalid shards "0": want 1 to 4096`},
		{"no count", body(KindImport, 1), "import: corrupt: it ends within its count"},
		{"a part with too much", body(KindImportPart, 2, 129), "import part: corrupt: its number of leases is 129: at most 128"},
		{"a part with too little", body(KindImportPart, 2, 1), "import part: corrupt: it ends within its name length"},
		{"a part that is too long", appendRecord([]byte{byte(KindImportPart)}, make([]byte, 256<<10+1)), "import part: corrupt: its body length is 262145: at most 262144"},
		{"a part with a nobody's lease", body(KindImportPart, 2, 1, 1, "n", ID{}, id, 1, 1, 0, 0, 0, 0, 0, 0, 0), `import part: corrupt: invalid session "none": want 16 bytes that are not all zero`},
		{"a part with more than leases", body(KindImportPart, 2, 1, 1, "n", id, id, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1), "import part: corrupt: 1 bytes follow its last field"},
		{"no token to renew", body(KindRenew, 1, 1, "n", id, 0), `renew: corrupt: invalid token "0": want 1 to 9007199254740991`},
		{"no token to reclaim", body(KindReclaim, 1, 1, "n", id, 0, 1, 0, 0, 0, 0, 0, 0), `reclaim: corrupt: invalid token "0": want 1 to 9007199254740991`},
		{"no ttl to reclaim", body(KindReclaim, 1, 1, "n", id, 1, 0, 0, 0, 0, 0, 0, 0), `reclaim: corrupt: invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
		{"no stamp", body(KindExpire, 1, 1, "n", 1), "expire: corrupt: it ends within its stamp"},
		{"no name", body(KindExpire, 1, 0, "", 1, 0), `expire: corrupt: invalid name "0 bytes": want 1 to 512 bytes`},
		{"a name that is too long", body(KindExpire, 1, 513, strings.Repeat("n", 513), 1), "expire: corrupt: its name length is 513: at most 512"},
		{"no token", body(KindExpire, 1, 1, "n", 0, 0), `expire: corrupt: invalid token "0": want 1 to 9007199254740991`},
		{"a token beyond 53 bits", body(KindExpire, 1, 1, "n", 1<<53), "expire: corrupt: its token is 9007199254740992: at most 9007199254740991"},
		{"no attempt", body(KindWithdraw, 1, 1, "n", id, ID{}), `withdraw: corrupt: invalid attempt "none": want 16 bytes that are not all zero`},
		{"no ttl", body(KindAcquire, 1, 1, "n", id, id, 0, 0, 0, 0, 0, 0, 0), `acquire: corrupt: invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
		{"a ttl beyond 32 bits", body(KindAcquire, 1, 1, "n", id, id, 1<<32, 0, 0, 0, 0, 0, 0), "acquire: corrupt: its ttl is 4294967296: at most 4294967295"},
		{"a label that is too long", body(KindAcquire, 1, 1, "n", id, id, 1, 129, strings.Repeat("l", 129), 0, 0, 0, 0, 0), "acquire: corrupt: its owner label length is 129: at most 128"},
		{"a time after 9999", body(KindAcquire, 1, 1, "n", id, id, 1, 0, 0, 0, 0, 0, maxMillis+1), "acquire: corrupt: its time of day is 253402300800000: at most 253402300799999"},
		{"a mark that is neither", body(KindBreak, 1, 1, "n", 1, 2), "break: corrupt: its mark now is 2: at most 1"},
		{"no mark", body(KindBreak, 1, 1, "n", 1), "break: corrupt: it ends within its mark now"},
		{"a mark behind the mark", body(KindBreak, 1, 1, "n", 1, 1, 1), "break: corrupt: 1 bytes follow its last field"},
		{"a break of no token", body(KindBreak, 1, 1, "n", 0, 1), `break: corrupt: invalid token "0": want 1 to 9007199254740991`},
		{"no heir", body(KindTransfer, 1, 1, "n", id, 1, ID{}, id, 1, 0, 0, 0, 0, 0, 0), `transfer: corrupt: invalid heir "none": want 16 bytes that are not all zero`},
		{"half an heir", body(KindTransfer, 1, 1, "n", id, 1, "123"), "transfer: corrupt: it ends within its heir"},
		{"no attempt of the heir's", body(KindTransfer, 1, 1, "n", id, 1, id, ID{}, 1, 0, 0, 0, 0, 0, 0), `transfer: corrupt: invalid attempt "none": want 16 bytes that are not all zero`},
		{"no ttl of the heir's", body(KindTransfer, 1, 1, "n", id, 1, id, id, 0, 0, 0, 0, 0, 0, 0), `transfer: corrupt: invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
	} {
		op, rest, err := DecodeOp(c.in)
		if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnreadable) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ErrCorrupt, …%s", c.name, err, c.want)
		}
		if !reflect.DeepEqual(op, Op{}) || rest != nil {
			t.Errorf("%s: got %+v, %x beside the error", c.name, op, rest)
		}
	}
}

func TestDecodeOpOfLaterRelease(t *testing.T) {
	for _, in := range [][]byte{{0}, {byte(KindReclaim) + 1}, {255, 1, 2, 3}} {
		_, _, err := DecodeOp(in)
		var unreadable *UnreadableError
		if !errors.As(err, &unreadable) || !errors.Is(err, ErrUnreadable) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%x: got %v, want an *UnreadableError", in, err)
		}
		if want := fmt.Sprintf("op of kind %d: this release does not know it; a later release can read it", in[0]); err.Error() != want {
			t.Errorf("%x: got %q, want %q", in, err, want)
		}
	}
}

// Every part of an op's encoding that is cut off is missed.
func TestDecodeOpTruncated(t *testing.T) {
	for _, op := range sampleOps() {
		b := AppendOp(nil, op)
		for n := range len(b) {
			if _, _, err := DecodeOp(b[:n]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v, %d of %d bytes: got %v, want ErrCorrupt", op.Kind, n, len(b), err)
			}
		}
	}
}

func TestUnreadableError(t *testing.T) {
	for _, c := range []struct {
		err  UnreadableError
		want string
	}{
		{UnreadableError{What: "log entry", Version: 3, Reads: 1, Since: "0.4.0"}, "log entry of version 3: this release reads up to 1; release 0.4.0 or later can read it"},
		{UnreadableError{What: "log entry", Version: 3, Since: "0.4.0"}, "log entry of version 3: this release does not know it; release 0.4.0 or later can read it"},
		{UnreadableError{What: "op of kind 9", Since: "0.4.0"}, "op of kind 9: this release does not know it; release 0.4.0 or later can read it"},
		{UnreadableError{What: "op of kind 9"}, "op of kind 9: this release does not know it; a later release can read it"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if err := Readable("lease table", 1, 1, "0.1.0"); err != nil {
		t.Errorf("version 1 of 1: got %v", err)
	}
	err := Readable("lease table", 2, 1, "0.4.0")
	if want := "lease table of version 2: this release reads up to 1; release 0.4.0 or later can read it"; err == nil || err.Error() != want {
		t.Errorf("version 2 of 1: got %v, want %s", err, want)
	}
}

func TestHeader(t *testing.T) {
	for _, c := range []struct {
		version uint32
		since   string
	}{{1, FirstRelease}, {127, "1.0.0-rc.1+build"}, {128, "1"}, {math.MaxUint32, strings.Repeat("9", maxSince)}} {
		b := AppendHeader(nil, 'T', c.version, c.since)
		if len(b) > maxHeader {
			t.Errorf("version %d, release %s: got %d bytes, want at most %d", c.version, c.since, len(b), maxHeader)
		}
		version, since, rest, err := ReadHeader(append(b, "after"...), 'T')
		if err != nil || version != c.version || since != c.since || string(rest) != "after" {
			t.Errorf("got %d, %q, %q, %v, want %d, %q", version, since, rest, err, c.version, c.since)
		}
		for n := range len(b) {
			if _, _, _, err := ReadHeader(b[:n], 'T'); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%d of %d bytes: got %v, want ErrCorrupt", n, len(b), err)
			}
		}
	}
	for in, want := range map[string]string{
		"L\x01\x011":                             "header: corrupt: it begins with 0x4c, not with 0x54",
		"T\x00\x011":                             `header: corrupt: version 0, release "1"`,
		"T\x01\x00":                              `header: corrupt: version 1, release ""`,
		"T\x01\x01\n":                            `header: corrupt: version 1, release "\n"`,
		"T\x81\x00\x011":                         "header: corrupt: its version is no shortest varint",
		"T\x80\x80\x80\x80\x10\x011":             "header: corrupt: its version is 4294967296: at most 4294967295",
		"T\x01\x21" + strings.Repeat("1", 33):    "header: corrupt: its release length is 33: at most 32",
		"T\x01\xff\xff\xff\xff\xff\xff\xff\xff7": "header: corrupt: its release length is 4035225266123964415: at most 32",
	} {
		_, _, _, err := ReadHeader([]byte(in), 'T')
		if !errors.Is(err, ErrCorrupt) || err.Error() != want {
			t.Errorf("%q: got %v, want %s", in, err, want)
		}
	}
}

func TestAppendHeaderPanics(t *testing.T) {
	for _, c := range []struct {
		version uint32
		since   string
	}{{0, "1"}, {1, ""}, {1, "1 2"}, {1, strings.Repeat("1", 33)}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("version %d, release %q: got no panic", c.version, c.since)
				}
			}()
			AppendHeader(nil, 'T', c.version, c.since)
		}()
	}
}

// These bytes are in logs: a release that writes or reads them otherwise needs
// a new version.
func TestOpEncodingIsFixed(t *testing.T) {
	id := strings.Repeat("00", 15)
	for _, c := range []struct {
		op   Op
		want string
	}{
		{birth(1), "01" + "14" + "01" + "c1" + id + "03" + "0000"},
		{with(birth(1), func(op *Op) { op.Shards = Shards{256, 65536} }), "01" + "17" + "01" + "c1" + id + "03" + "8002" + "808004"},
		{acquire("job", alice, try1), "02" + "44" + "01" + "036a6f62" + "a1" + id + id + "01" + "9875" + "0762696c6c696e67" + "03617773" + "05686f737437" + "0c" + "03763d31" + "809494caca33"},
		{withdraw("job", alice, try1), "03" + "25" + "01" + "036a6f62" + "a1" + id + id + "01"},
		{release("job", alice, token(1)), "04" + "1a" + "01" + "036a6f62" + "a1" + id + "8180808010"},
		{expire("job", token(1)), "05" + "0b" + "01" + "036a6f62" + "8180808010" + "00"},
		{bump(300), "06" + "02" + "ac02"},
		{breaks("job", token(1)), "07" + "0b" + "01" + "036a6f62" + "8180808010" + "00"},
		{breakNow("job", token(1)), "07" + "0b" + "01" + "036a6f62" + "8180808010" + "01"},
		{transfer(bob, token(1), acquire("job", alice, try1)), "08" + "59" + "01" + "036a6f62" + "b0" + id + "8180808010" + "a1" + id + id + "01" + "9875" + "0762696c6c696e67" + "03617773" + "05686f737437" + "0c" + "03763d31" + "809494caca33"},
		{
			part(2, sampleLeases()[0], sampleLeases()[1]), "09" + "7f" + "02" + "02" +
				"036a6f62" + "a1" + id + id + "01" + "8180808010" + "9875" + "0762696c6c696e67" + "00" + "05686f737437" + "00" + "03763d31" + "809494caca33" + "00" +
				"097265636c61696d6564" + "b0" + id + "00" + id + "8280808010" + "01" + "00" + "00" + "00" + "00" + "00" + "00" + "00",
		},
		{importAll(2, 300), "0a" + "03" + "02" + "ac02"},
		{adopt(1, Shards{256, 65536}), "0b" + "06" + "01" + "8002" + "808004"},
		{renew("job", alice, token(1)), "0c" + "1a" + "01" + "036a6f62" + "a1" + id + "8180808010"},
		{reclaim(acquire("job", alice, try1), token(1)), "0d" + "39" + "01" + "036a6f62" + "a1" + id + "8180808010" + "9875" + "0762696c6c696e67" + "03617773" + "05686f737437" + "0c" + "03763d31" + "809494caca33"},
	} {
		if got := hex.EncodeToString(AppendOp(nil, c.op)); got != c.want {
			t.Errorf("%v: got %s, want %s", c.op.Kind, got, c.want)
		}
	}
}

func FuzzDecodeOp(f *testing.F) {
	for _, op := range sampleOps() {
		f.Add(AppendOp(nil, op))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		op, rest, err := DecodeOp(b)
		if err != nil {
			if errors.Is(err, ErrCorrupt) == errors.Is(err, ErrUnreadable) {
				t.Fatalf("got %v, want one of ErrCorrupt and ErrUnreadable", err)
			}
			return
		}
		if err := op.Validate(); err != nil {
			t.Fatalf("decoded an invalid op: %v", err)
		}
		if again := AppendOp(nil, op); !bytes.Equal(again, b[:len(b)-len(rest)]) {
			t.Fatalf("%x is %+v, whose encoding is %x", b, op, again)
		}
		table, r := effect(op)
		if want := outcomeOf(op); r.Outcome != want {
			t.Fatalf("%+v: got %v, want %v", op, r.Outcome, want)
		}
		if _, err := ReadTable(bytes.NewReader(encoded(t, table))); err != nil { // what is in a log can be in a table
			t.Fatalf("a table with %+v cannot be read: %v", op, err)
		}
	})
}

// effect applies op to a table that holds the lease that op is about.
func effect(op Op) (*Table, Result) {
	table := NewTable()
	apply(table, birth(1))
	if op.Kind != KindAcquire {
		held := acquire(op.Name, op.Session, op.Attempt)
		if held.Session.IsZero() {
			held.Session = alice
		}
		if held.Attempt.IsZero() {
			held.Attempt = try1
		}
		table.Apply(held)
		op.Token, op.Stamp = token(1), 0
	}
	if op.Kind != KindImportPart && op.Kind != KindImport {
		op.Epoch = 1
	}
	return table, table.Apply(op)
}

// outcomeOf is what effect has to come to.
func outcomeOf(op Op) Outcome {
	switch op.Kind {
	case KindBirth, KindBump:
		return StaleEpoch // the table is of epoch 1 already
	case KindImportPart, KindImport:
		return importOf(op)
	case KindAdopt:
		return Adopted
	case KindRenew, KindReclaim:
		return Ignored // the table is not a shard's
	}
	switch {
	case op.Name[0] == '@':
		return Ignored
	case op.Kind == KindAcquire:
		return Granted
	case op.Kind == KindBreak && !op.Now:
		return Marked
	case op.Kind == KindTransfer:
		return Transferred
	default:
		return Freed
	}
}

func importOf(op Op) Outcome {
	switch {
	case op.Epoch <= 1:
		return StaleEpoch
	case op.Epoch > tokens.MaxEpoch:
		return UsedUp
	case op.Kind == KindImport && op.Count > 0:
		return Mismatch // nothing is staged
	case op.Kind == KindImport:
		return Imported
	case slices.ContainsFunc(op.Leases, func(l *Lease) bool { return l.Name[0] == '@' || l.Token.Epoch() >= op.Epoch }):
		return Ignored
	default:
		return Staged
	}
}

// A part of the longest leases fits into what is read, and into an entry of the log.
func TestLongestPart(t *testing.T) {
	op := part(math.MaxUint32)
	for range MaxPart {
		op.Leases = append(op.Leases, longLease())
	}
	b := AppendOp(nil, op)
	got, _, err := DecodeOp(b)
	if err != nil || !reflect.DeepEqual(got, op) || len(b) > maxPart*3/4 {
		t.Errorf("%d bytes: got %v, want at most %d and the same op", len(b), err, maxPart*3/4)
	}
	op.Leases = append(op.Leases, longLease())
	if err := op.Validate(); err == nil || err.Error() != `invalid leases "129": want at most 128` {
		t.Errorf("one more: got %v", err)
	}
}
