package leases

import (
	"bytes"
	"cmp"
	"errors"
	"hash/fnv"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/tokens"
)

// sampleShard has something of everything.
func sampleShard() Shard {
	long := longLease()
	long.Token, long.Stamp = token(3), math.MaxUint64
	return Shard{Epoch: 2, Closed: true, Counter: 7, Leases: []*Lease{
		{
			Name: "job", Session: alice, Attempt: try1, Token: tokens.New(2, 15), TTL: 15 * time.Second,
			Owner: Owner{Label: "billing", Site: "aws", Host: "host7", PID: 12}, Attributes: []byte("v=1"), AcquiredAt: noon.Add(7 * time.Millisecond), Stamp: 9,
		},
		long,
		{Name: "reclaimed", Session: bob, Token: token(1), TTL: time.Millisecond, Owner: Owner{PID: 1}, Stamp: 3, Broken: true},
		{Name: "später \"\\\x00\x1f\x7f<&>\u2028", Session: bob, Attempt: try2, Token: token(2), TTL: time.Minute, Stamp: 1},
	}}
}

// These bytes are in registers: a release that writes or reads them otherwise needs a
// new version.
func TestShardEncodingIsFixed(t *testing.T) {
	s := sampleShard()
	s.Leases = append(s.Leases[:1:1], s.Leases[2:]...)
	want := `{"format":1,"epoch":2,"closed":true,"counter":7,"leases":[` +
		`{"name":"job","holder":"a1000000000000000000000000000000","token":8589934607,"ttl_ms":15000,"attempt":"00000000000000000000000000000001","stamp":9,` +
		`"owner":{"label":"billing","site":"aws","host":"host7","pid":12},"attributes":"dj0x","acquired_at":"2026-03-01T12:00:00.007Z"},` +
		`{"name":"reclaimed","holder":"b0000000000000000000000000000000","token":4294967297,"ttl_ms":1,"stamp":3,"broken":true,"owner":{"pid":1}},` +
		`{"name":"später \"\\\u0000\u001f` + "\x7f<&>\u2028" + `","holder":"b0000000000000000000000000000000","token":4294967298,"ttl_ms":60000,"attempt":"00000000000000000000000000000002","stamp":1}]}`
	if got := string(EncodeShard(s)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := string(EncodeShard(Shard{})), `{"format":1,"epoch":0,"closed":false,"counter":0,"leases":[]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestShardRoundTrip(t *testing.T) {
	for _, s := range []Shard{{}, {Epoch: 1}, {Epoch: tokens.MaxEpoch, Counter: math.MaxUint32}, sampleShard()} {
		got, err := DecodeShard(EncodeShard(s))
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("got %+v, %v, want %+v", got, err, s)
		}
	}
	if s, err := DecodeShard(nil); err != nil || !reflect.DeepEqual(s, Shard{}) {
		t.Errorf("a register that was never written: got %+v, %v", s, err)
	}
}

func TestDecodeShardRefuses(t *testing.T) {
	good := string(EncodeShard(Shard{Epoch: 2, Leases: []*Lease{{Name: "job", Session: alice, Token: token(1), TTL: time.Second, AcquiredAt: noon, Stamp: 3}}}))
	change := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%s is not in %s", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	two := func(second string) string {
		lease := good[strings.Index(good, `{"name"`) : len(good)-2]
		return strings.TrimSuffix(good, "]}") + "," + strings.Replace(lease, "job", second, 1) + "]}"
	}
	if _, err := DecodeShard([]byte(two("job2"))); err != nil {
		t.Fatalf("a good one: got %v", err)
	}
	for name, c := range map[string]struct{ in, want string }{
		"no JSON":                {"hello", "invalid character"},
		"another type":           {"[]", "cannot unmarshal array"},
		"null":                   {"null", "byte 1 is not as this release writes it"},
		"no fields":              {"{}", "byte 2 is not"},
		"no format":              {change(`"format":1,`, ""), "byte 3 is not"},
		"format 0":               {change(`"format":1`, `"format":0`), "byte 11 is not"},
		"an unknown field":       {change(`"closed"`, `"sealed":true,"closed"`), `unknown field "sealed"`},
		"an unknown one deeper":  {change(`"stamp"`, `"cooling":true,"stamp"`), `unknown field "cooling"`},
		"a field in capitals":    {change(`"closed"`, `"Closed"`), "byte 24 is not"},
		"a field twice":          {change(`"closed":false`, `"closed":false,"closed":false`), "is not as"},
		"another order":          {change(`"epoch":2,"closed":false`, `"closed":false,"epoch":2`), "is not as"},
		"a space":                {change(`"closed":false`, `"closed": false`), "is not as"},
		"a line behind it":       {good + "\n", "is not as"},
		"two of them":            {good + good, "is not as"},
		"half of it":             {good[:len(good)/2], "unexpected EOF"},
		"an escape":              {change("job", "jo\\u0062"), "is not as"},
		"no UTF-8":               {change("job", "jo\xff"), "is not as"},
		"no epoch":               {change(`"epoch":2`, `"epoch":0`), "it has no epoch, but a mark, a counter or leases"},
		"an epoch too great":     {change(`"epoch":2`, `"epoch":2097152`), "its epoch is 2097152: at most 2097151"},
		"an epoch beyond all":    {change(`"epoch":2`, `"epoch":4294967296`), "cannot unmarshal number"},
		"no name":                {change(`"job"`, `""`), `invalid name "0 bytes": want 1 to 512 bytes`},
		"a reserved name":        {change(`"job"`, `"@job"`), `lease "@job" has a reserved name`},
		"a name twice":           {two("job"), `lease "job" follows lease "job"`},
		"names in wrong order":   {two("a"), `lease "a" follows lease "job"`},
		"no holder":              {change("a1", "00"), `invalid session "none": want 16 bytes that are not all zero`},
		"half a holder":          {change("a100", ""), "want 32 hexadecimal digits"},
		"no token":               {change("4294967297", "0"), `invalid token "0": want 1 to 9007199254740991`},
		"half a token":           {change("4294967297", "1.5"), "cannot unmarshal number"},
		"a token to come":        {change("4294967297", "12884901888"), `lease "job" has token 12884901888, of an epoch after 2`},
		"no ttl":                 {change(`"ttl_ms":1000`, `"ttl_ms":0`), `invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
		"no stamp":               {change(`"stamp":3`, `"stamp":0`), `lease "job" has no stamp`},
		"a mark that is no":      {change(`"stamp":3`, `"stamp":3,"broken":false`), "is not as"},
		"an empty owner":         {change(`"stamp":3`, `"stamp":3,"owner":{}`), "is not as"},
		"no attributes":          {change(`"stamp":3`, `"stamp":3,"attributes":""`), "is not as"},
		"no base64":              {change(`"stamp":3`, `"stamp":3,"attributes":"?"`), "illegal base64"},
		"no time":                {change("2026-03-01T12:00:00.000Z", "noon"), "cannot parse"},
		"a time of another zone": {change("2026-03-01T12:00:00.000Z", "2026-03-01T13:00:00.000+01:00"), "cannot parse"},
		"a time before 1970":     {change("2026-03-01", "1969-03-01"), `lease "job" has a time of day that is not kept`},
		"seconds alone":          {change("12:00:00.000Z", "12:00:00Z"), "cannot parse"},
	} {
		s, err := DecodeShard([]byte(c.in))
		if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnreadable) || !strings.HasPrefix(err.Error(), "shard register: corrupt: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ErrCorrupt, … %s …", name, err, c.want)
		}
		if !reflect.DeepEqual(s, Shard{}) {
			t.Errorf("%s: got %+v beside the error", name, s)
		}
	}
}

// What a later release writes is recognised whatever else is in it.
func TestDecodeShardOfLaterRelease(t *testing.T) {
	for _, in := range []string{`{"format":2}`, `{"leases":{"job":[]},"format":2,"sealed":true}`} {
		_, err := DecodeShard([]byte(in))
		want := "shard register of version 2: this release reads up to 1; a later release can read it"
		if !errors.Is(err, ErrUnreadable) || errors.Is(err, ErrCorrupt) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
}

func TestEncodeShardRefusesWhatNobodyCouldDecode(t *testing.T) {
	good := sampleShard().Leases[0]
	for name, change := range map[string]func(*Lease){
		"no stamp": func(l *Lease) { l.Stamp = 0 }, "no session": func(l *Lease) { l.Session = ID{} }, "no text": func(l *Lease) { l.Owner.Site = "\xff" },
		"part of a millisecond": func(l *Lease) { l.AcquiredAt = noon.Add(1) }, "a token to come": func(l *Lease) { l.Token = tokens.New(3, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got no panic", name)
				}
			}()
			l := *good
			change(&l)
			EncodeShard(Shard{Epoch: 2, Leases: []*Lease{&l}})
		}()
	}
}

// someTexts draws texts of all the lengths that escapes can give them.
func someTexts(least, most int) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.OneOf(rapid.Rune(), rapid.RuneFrom([]rune("\"\\\x00\x1f\n/<\u2028\x7f"))), least, -1, most)
}

// No lease takes up more than its cost, which no renewal and no break changes, and
// which is what the widest takes up.
func TestCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Shard{Epoch: tokens.MaxEpoch, Counter: math.MaxUint32, Closed: rapid.Bool().Draw(t, "closed")}
		var sum uint32
		for range rapid.IntRange(0, 3).Draw(t, "leases") {
			l := &Lease{
				Name: someTexts(1, MaxName).Draw(t, "name"), Session: alice, Token: tokens.Token(rapid.Uint64Range(1, uint64(tokens.Max)).Draw(t, "token")),
				TTL:   time.Duration(rapid.Uint32Range(1, math.MaxUint32).Draw(t, "ttl")) * time.Millisecond,
				Owner: Owner{someTexts(0, MaxLabel).Draw(t, "label"), someTexts(0, MaxLabel).Draw(t, "site"), someTexts(0, MaxLabel).Draw(t, "host"), rapid.Uint32().Draw(t, "pid")},
				Stamp: rapid.Uint64Range(1, math.MaxUint64).Draw(t, "stamp"), Broken: rapid.Bool().Draw(t, "broken"),
			}
			if n := len(s.Leases); l.Name[0] == '@' || n > 0 && l.Name <= s.Leases[n-1].Name {
				continue
			}
			if b := rapid.SliceOfN(rapid.Byte(), 0, MaxAttributes).Draw(t, "attributes"); len(b) > 0 {
				l.Attributes = b
			}
			if rapid.Bool().Draw(t, "acquired") {
				l.Attempt, l.AcquiredAt = try1, fromMillis(rapid.Uint64Range(1, maxMillis).Draw(t, "time of day"))
			}
			s.Leases = append(s.Leases, l)
			sum += cost(l.Name, l.Owner, l.Attributes)
			w := widen(*l)
			if b := appendRegistered(nil, w); uint32(len(b))+1 != cost(w.Name, w.Owner, w.Attributes) {
				t.Fatalf("%s,: %d bytes, but it costs %d", b, len(b)+1, cost(w.Name, w.Owner, w.Attributes))
			}
		}
		b := EncodeShard(s)
		if uint32(len(b)) > sum+96 {
			t.Fatalf("%s: %d bytes, want at most %d", b, len(b), sum+96)
		}
		if got, err := DecodeShard(b); err != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("%s: got %+v, %v, want %+v", b, got, err, s)
		}
	})
}

// widen leaves nothing out, and sets what costs the same however long it is to its longest.
func widen(l Lease) *Lease {
	l.Token, l.TTL, l.Attempt, l.Stamp, l.Broken, l.Owner.PID, l.AcquiredAt = tokens.Max, maxOpTTL, try1, math.MaxUint64, true, math.MaxUint32, noon
	for _, text := range []*string{&l.Owner.Label, &l.Owner.Site, &l.Owner.Host} {
		*text = cmp.Or(*text, "x")
	}
	if l.Attributes == nil {
		l.Attributes = []byte{1}
	}
	return &l
}

func TestShardOf(t *testing.T) {
	for _, name := range []string{"", "a", "job/1", "später", "\xff\x00", strings.Repeat("n", MaxName)} {
		h := fnv.New64a()
		h.Write([]byte(name))
		for _, count := range []uint32{1, 2, 3, 256, MaxShards} {
			if got, want := (Shards{Count: count}).Of(name), uint32(h.Sum64()%uint64(count)); got != want {
				t.Errorf("%q of %d: got %d, want %d", name, count, got, want)
			}
		}
	}
}

func FuzzDecodeShard(f *testing.F) {
	for _, s := range []Shard{{}, {Epoch: 1}, sampleShard()} {
		f.Add(EncodeShard(s))
	}
	f.Add([]byte(`{"format":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeShard(b)
		if err != nil {
			if errors.Is(err, ErrCorrupt) == errors.Is(err, ErrUnreadable) {
				t.Fatalf("got %v, want one of ErrCorrupt and ErrUnreadable", err)
			}
			return
		}
		if again := EncodeShard(s); len(b) > 0 && !bytes.Equal(again, b) {
			t.Fatalf("%s is %+v, whose encoding is %s", b, s, again)
		}
		table := OpenShard(s, 0, Shards{1, MaxShardBytes}, math.MaxUint64)
		if uint32(len(b)) > table.Fill()[0]+96 {
			t.Fatalf("%d bytes, but its leases take up %d", len(b), table.Fill()[0])
		}
		before := table.Newest()
		r := table.Apply(with(acquire("\U0010FFFF", bob, try2), func(op *Op) { op.Epoch = s.Epoch }))
		if r.Outcome == Granted && (r.Lease.Token <= before || !table.Shard().Closed) {
			t.Fatalf("got token %v after %v, closed %v", r.Lease.Token, before, table.Shard().Closed)
		}
		for _, l := range s.Leases {
			table.Apply(Op{Kind: KindRenew, Epoch: s.Epoch, Name: l.Name, Session: l.Session, Token: l.Token})
		}
		moved := MoveShard(table.Shard(), tokens.MaxEpoch, 0)
		if got, err := DecodeShard(EncodeShard(moved)); err != nil || !reflect.DeepEqual(got, moved) {
			t.Fatalf("after a move: got %+v, %v, want %+v", got, err, moved)
		}
	})
}
