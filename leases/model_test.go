package leases

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/tokens"
)

// model is the lease table written down as plainly as can be: slices that are
// searched from end to end, and the rules one after the other.
type model struct {
	kept      int
	cluster   ID
	founders  uint32
	epoch     uint64
	counter   uint64
	revision  uint64
	held      []Lease
	ended     []Ending
	lastToken uint64 // the greatest that was ever granted
}

func (m *model) find(name string) (int, bool) {
	for i, l := range m.held {
		if l.Name == name {
			return i, true
		}
	}
	return 0, false
}

// known is what is remembered of a token.
func (m *model) known(name string, token tokens.Token) (Ending, bool) {
	for _, e := range m.ended {
		if e.Name == name && e.Token == token {
			return e, true
		}
	}
	return Ending{Name: name, Token: token}, false
}

func (m *model) last(name string) (Ending, bool) {
	for _, e := range slices.Backward(m.ended) {
		if e.Name == name {
			return e, true
		}
	}
	return Ending{}, false
}

// sound repeats the bounds, for ops that the generator may make.
func sound(op Op) bool {
	name := len(op.Name) > 0 && len(op.Name) <= 512
	token := op.Token > 0 && op.Token < 1<<53
	terms := op.TTL > 0 && op.TTL%1e6 == 0 && op.TTL/1e6 < 1<<32 && len(op.Attributes) <= 512 && len(op.Owner.Label) <= 128
	switch op.Kind {
	case KindBirth:
		return op.Cluster != ID{} && op.Founders > 0
	case KindAcquire:
		return name && terms && op.Session != ID{} && op.Attempt != ID{}
	case KindWithdraw:
		return name && op.Session != ID{} && op.Attempt != ID{}
	case KindRelease:
		return name && token && op.Session != ID{}
	case KindTransfer:
		return name && token && terms && op.Session != ID{} && op.Heir != ID{} && op.Attempt != ID{}
	case KindExpire, KindBreak:
		return name && token
	}
	return op.Kind == KindBump
}

func (m *model) apply(op Op) Result {
	born := m.cluster != ID{}
	switch {
	case !sound(op):
		return Result{Outcome: Ignored}
	case op.Kind == KindBirth && (born || op.Epoch == 0), op.Kind == KindBump && born && uint64(op.Epoch) <= m.epoch:
		return Result{Outcome: StaleEpoch}
	case op.Kind != KindBirth && !born:
		return Result{Outcome: Unborn}
	case (op.Kind == KindBirth || op.Kind == KindBump) && op.Epoch >= 1<<21:
		return Result{Outcome: UsedUp}
	case op.Kind == KindBirth:
		m.cluster, m.founders, m.epoch = op.Cluster, op.Founders, uint64(op.Epoch)
		m.revision++
		return Result{Outcome: Born}
	case op.Kind == KindBump:
		m.epoch, m.counter = uint64(op.Epoch), 0
		m.revision++
		return Result{Outcome: Bumped}
	case uint64(op.Epoch) != m.epoch:
		return Result{Outcome: StaleEpoch}
	case op.Name[:1] == "@":
		return Result{Outcome: Ignored}
	case op.Kind == KindAcquire:
		return m.acquire(op)
	}
	at, ok := m.find(op.Name)
	if ok {
		l := m.held[at]
		switch op.Kind {
		case KindWithdraw:
			ok = l.Session == op.Session && l.Attempt == op.Attempt
		case KindRelease, KindTransfer:
			ok = l.Session == op.Session && l.Token == op.Token
		default:
			ok = l.Token == op.Token
		}
	}
	if !ok {
		e := Ending{Name: op.Name}
		if op.Kind != KindWithdraw {
			e, _ = m.known(op.Name, op.Token)
		}
		return Result{Outcome: Absent, Ending: e}
	}
	if op.Kind == KindBreak && !op.Now {
		was := m.held[at].Broken
		m.held[at].Broken = true
		l := m.held[at]
		if was {
			return Result{Outcome: Repeated, Lease: &l}
		}
		m.revision++
		return Result{Outcome: Marked, Lease: &l}
	}
	transfers := op.Kind == KindTransfer && m.counter < 1<<32-1
	l, e := m.end(at, op.Kind, transfers)
	m.revision++
	if !transfers {
		return Result{Outcome: Freed, Lease: &l, Ending: e}
	}
	heir := m.grant(op, op.Heir)
	e.Next = heir.Token
	return Result{Outcome: Transferred, Lease: &heir, Ending: e}
}

// end takes a lease out and remembers why.
func (m *model) end(at int, by Kind, transfers bool) (Lease, Ending) {
	l := m.held[at]
	m.held = slices.Delete(m.held, at, at+1)
	e := Ending{Name: l.Name, Token: l.Token, Why: WhyReleased}
	switch {
	case transfers:
		e.Why = WhyTransferred
	case by == KindWithdraw:
		e.Why = WhyWithdrawn
	case by == KindBreak || by == KindExpire && l.Broken:
		e.Why = WhyBroken
	case by == KindExpire:
		e.Why = WhyExpired
	}
	m.ended = append(m.ended, e)
	m.ended = m.ended[max(0, len(m.ended)-m.kept):]
	return l, e
}

func (m *model) acquire(op Op) Result {
	if at, ok := m.find(op.Name); ok {
		l := m.held[at]
		switch {
		case l.Session != op.Session || l.Attempt != op.Attempt:
			return Result{Outcome: Refused, Lease: &l}
		case l.TTL != op.TTL:
			return Result{Outcome: Mismatch, Lease: &l, Field: "ttl"}
		case l.Owner != op.Owner:
			return Result{Outcome: Mismatch, Lease: &l, Field: "owner"}
		case string(l.Attributes) != string(op.Attributes):
			return Result{Outcome: Mismatch, Lease: &l, Field: "attributes"}
		}
		return Result{Outcome: Repeated, Lease: &l}
	}
	if m.counter == 1<<32-1 {
		return Result{Outcome: UsedUp}
	}
	m.revision++
	l := m.grant(op, op.Session)
	return Result{Outcome: Granted, Lease: &l}
}

// grant is told as of the revision that it is part of.
func (m *model) grant(op Op, session ID) Lease {
	m.counter++
	l := Lease{
		Name: op.Name, Session: session, Attempt: op.Attempt, Token: tokens.Token(m.epoch*(1<<32) + m.counter), TTL: op.TTL,
		Owner: op.Owner, Stamp: m.revision,
	}
	if len(op.Attributes) > 0 {
		l.Attributes = op.Attributes
	}
	if op.AcquiredAt.UnixMilli() > 0 {
		l.AcquiredAt = op.AcquiredAt.UTC().Truncate(time.Millisecond)
	}
	m.held = append(m.held, l)
	slices.SortFunc(m.held, func(a, b Lease) int { return cmp.Compare(a.Name, b.Name) })
	for i, e := range slices.Backward(m.ended) {
		if e.Name == op.Name {
			m.ended[i].Next = l.Token
			break
		}
	}
	return l
}

var (
	someNames  = mostly([]string{"a", "b"}, []string{"c", "", "@", "@a", "a@", "ä", "\x00"})
	someIDs    = mostly([]ID{{1}}, []ID{{2}, {15: 1}, {}})
	someTTLs   = mostly([]time.Duration{5 * time.Second}, []time.Duration{time.Minute, time.Millisecond, 0, -1, 1})
	someOwners = mostly([]Owner{{Label: "x"}}, []Owner{{}, {Site: "s", Host: "h", PID: 1}})
	someBytes  = mostly([][]byte{nil}, [][]byte{{}, {1}, make([]byte, 513)})
	someTimes  = rapid.SampledFrom([]time.Time{{}, noon, noon.Add(1234567), time.Unix(0, 0), time.Unix(-5, 0)})
	someKinds  = mostly(
		[]Kind{KindAcquire, KindAcquire, KindAcquire, KindWithdraw, KindRelease, KindExpire, KindBreak, KindTransfer, KindTransfer},
		[]Kind{KindBump, KindBirth, 0, KindTransfer + 1})
	someFounders = mostly([]uint32{1, 3}, []uint32{0})
)

// mostly draws one of often, or now and then one of seldom.
func mostly[E any](often, seldom []E) *rapid.Generator[E] {
	return rapid.Custom(func(t *rapid.T) E {
		if rapid.IntRange(1, 8).Draw(t, "seldom") == 8 {
			return rapid.SampledFrom(seldom).Draw(t, "value")
		}
		return rapid.SampledFrom(often).Draw(t, "value")
	})
}

// someEpoch is mostly the present one.
func someEpoch(t *rapid.T, kind Kind, now uint64) uint32 {
	if kind == KindBirth || kind == KindBump {
		return rapid.SampledFrom([]uint32{uint32(now) + 1, uint32(now) + 1, uint32(now) + 1024, uint32(now), 0, 1, tokens.MaxEpoch, tokens.MaxEpoch + 1}).Draw(t, "new epoch")
	}
	return uint32(now) - mostly([]uint32{0}, []uint32{0, 1}).Draw(t, "epochs ago")
}

func someOp(t *rapid.T, m *model) Op {
	op := Op{
		Kind: someKinds.Draw(t, "kind"), Name: someNames.Draw(t, "name"), Session: someIDs.Draw(t, "session"), Attempt: someIDs.Draw(t, "attempt"),
		TTL: someTTLs.Draw(t, "ttl"), Owner: someOwners.Draw(t, "owner"), Attributes: someBytes.Draw(t, "attributes"), AcquiredAt: someTimes.Draw(t, "time of day"),
		Heir: someIDs.Draw(t, "heir"), Now: rapid.Bool().Draw(t, "now"), Cluster: someIDs.Draw(t, "cluster"), Founders: someFounders.Draw(t, "founders"),
	}
	op.Epoch = someEpoch(t, op.Kind, m.epoch)
	candidates := []tokens.Token{0, 1, tokens.Max, tokens.Max + 1, tokens.Token(m.lastToken + 1)}
	for _, l := range m.held {
		if l.Name == op.Name {
			candidates = []tokens.Token{l.Token, l.Token, l.Token, l.Token, l.Token - 1, l.Token + 1}
		}
	}
	for _, e := range m.ended {
		candidates = append(candidates, e.Token)
	}
	op.Token = rapid.SampledFrom(candidates).Draw(t, "token")
	return op
}

func equalResults(got, want Result) bool {
	if (got.Lease == nil) != (want.Lease == nil) || got.Lease != nil && !reflect.DeepEqual(*got.Lease, *want.Lease) {
		return false
	}
	return got.Outcome == want.Outcome && got.Ending == want.Ending && got.Field == want.Field
}

func compare(t *rapid.T, table *Table, m *model) {
	if table.Cluster() != m.cluster || table.Founders() != m.founders || uint64(table.Epoch()) != m.epoch ||
		uint64(table.Counter()) != m.counter || table.Revision() != m.revision || table.Len() != len(m.held) {
		t.Fatalf("got cluster %v, founders %d, epoch %d, counter %d, revision %d, %d leases, want %+v",
			table.Cluster(), table.Founders(), table.Epoch(), table.Counter(), table.Revision(), table.Len(), *m)
	}
	var held []Lease
	for l := range table.All() {
		held = append(held, *l)
	}
	if len(held)+len(m.held) > 0 && !reflect.DeepEqual(held, m.held) {
		t.Fatalf("All: got %+v, want %+v", held, m.held)
	}
	compareFrom(t, table, m)
	for _, name := range []string{"a", "b", "c", "@a", "a@", "ä", "\x00"} {
		got, ok := table.Last(name)
		want, wantOK := m.last(name)
		if got != want || ok != wantOK {
			t.Fatalf("Last(%q): got %+v, %v, want %+v, %v", name, got, ok, want, wantOK)
		}
		lease, ok := table.Get(name)
		at, wantOK := m.find(name)
		if ok != wantOK || ok && !reflect.DeepEqual(*lease, m.held[at]) {
			t.Fatalf("Get(%q): got %+v, %v, want %v", name, lease, ok, wantOK)
		}
		for _, e := range m.ended {
			got, ok := table.Ended(name, e.Token)
			if want, wantOK := m.known(name, e.Token); ok != wantOK || ok && got != want {
				t.Fatalf("Ended(%q, %v): got %+v, %v, want %+v, %v", name, e.Token, got, ok, want, wantOK)
			}
		}
	}
}

// compareFrom lists parts of the table, as pages would be listed.
func compareFrom(t *rapid.T, table *Table, m *model) {
	for _, prefix := range []string{"", "a", "a@", "b", "\xc3", "z"} {
		for _, after := range []string{"", "\x00", "a", "a@", "b", "bb", "z"} {
			var got, want []string
			for l := range table.From(prefix, after) {
				got = append(got, l.Name)
			}
			for _, l := range m.held {
				if len(l.Name) >= len(prefix) && l.Name[:len(prefix)] == prefix && l.Name > after {
					want = append(want, l.Name)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("From(%q, %q): got %q, want %q", prefix, after, got, want)
			}
		}
	}
}

// step applies an op to all of them, by way of its encoding if it has one.
func step(t *rapid.T, m *model, table, twin *Table) {
	op := someOp(t, m)
	if op.Validate() == nil {
		var err error
		if op, _, err = DecodeOp(AppendOp(nil, op)); err != nil {
			t.Fatalf("decode: %v", err)
		}
	}
	got, want := table.Apply(op), m.apply(op)
	if !equalResults(got, want) {
		t.Fatalf("%+v: got %+v (lease %+v), want %+v (lease %+v)", op, got, got.Lease, want, want.Lease)
	}
	twin.Apply(op)
	if got.Outcome == Granted || got.Outcome == Transferred {
		if uint64(got.Lease.Token) <= m.lastToken {
			t.Fatalf("got token %v after %d", got.Lease.Token, m.lastToken)
		}
		m.lastToken = uint64(got.Lease.Token)
	}
}

// TestModel runs the table against the model, op by op, through encodings of
// the ops and of the table, and sees to it that tokens only grow.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const kept = 3
		m, table, twin := &model{kept: kept}, newTable(kept), newTable(kept)
		if birth := birth(someEpoch(t, KindBirth, 0)); rapid.IntRange(0, 9).Draw(t, "unborn") > 0 {
			table.Apply(birth)
			twin.Apply(birth)
			m.apply(birth)
		}
		if m.epoch > 0 && rapid.Bool().Draw(t, "late") {
			const almost = 1<<32 - 3 // too many ops to get there
			m.counter, table.counter, twin.counter = almost, almost, almost
		}
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				for range 4 { // so that most steps are ops
					step(t, m, table, twin)
				}
			},
			"restore": func(t *rapid.T) {
				b := written(t, table)
				if !bytes.Equal(b, written(t, twin)) {
					t.Fatal("a table that was never restored has another encoding")
				}
				restored := newTable(kept)
				if err := restored.read(bytes.NewReader(b)); err != nil {
					t.Fatalf("read: %v", err)
				}
				table = restored
				if !bytes.Equal(written(t, table), b) {
					t.Fatal("the restored table has another encoding")
				}
			},
			"": func(t *rapid.T) { compare(t, table, m) },
		})
	})
}

func written(t *rapid.T, table *Table) []byte {
	var b bytes.Buffer
	if _, err := table.Snapshot().WriteTo(&b); err != nil {
		t.Fatalf("write: %v", err)
	}
	return b.Bytes()
}

// However grants, ends and bumps follow each other, every token is greater than
// all before it, of its own name and of any other.
func TestTokensStrictlyIncrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := NewTable()
		table.Apply(birth(rapid.Uint32Range(1, 1000).Draw(t, "first epoch")))
		var last tokens.Token
		for _, step := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 200).Draw(t, "steps") {
			name := string(rune('a' + step%3))
			l, held := table.Get(name)
			switch {
			case step == 9:
				table.Apply(bump(table.Epoch() + 1))
			case held:
				table.Apply(with(expire(name, l.Token), func(op *Op) { op.Epoch = table.Epoch() }))
			default:
				r := table.Apply(with(acquire(name, alice, try1), func(op *Op) { op.Epoch = table.Epoch() }))
				if r.Outcome != Granted || r.Lease.Token <= last || r.Lease.Token.Epoch() != table.Epoch() {
					t.Fatalf("got %v of %+v in epoch %d, after token %v", r.Outcome, r.Lease, table.Epoch(), last)
				}
				last = r.Lease.Token
			}
		}
	})
}
