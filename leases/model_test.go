package leases

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

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
	shards    Shards
	held      []Lease
	ended     []Ending
	staging   uint64 // the epoch of what is staged
	staged    []Lease
	shard     *modelShard // of a shard's table
	lastToken uint64      // the greatest that was ever granted
}

type modelShard struct {
	index  uint32
	stamp  uint64
	closed bool
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

// widest is how long a lease can get in a register, with the comma behind it.
func widest(l Lease) uint32 {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	type owner struct {
		Label string `json:"label"`
		Site  string `json:"site"`
		Host  string `json:"host"`
		PID   uint32 `json:"pid"`
	}
	err := e.Encode(struct {
		Name       string `json:"name"`
		Holder     ID     `json:"holder"`
		Token      uint64 `json:"token"`
		TTL        uint32 `json:"ttl_ms"`
		Attempt    ID     `json:"attempt"`
		Stamp      uint64 `json:"stamp"`
		Broken     bool   `json:"broken"`
		Owner      owner  `json:"owner"`
		Attributes []byte `json:"attributes"`
		AcquiredAt string `json:"acquired_at"`
	}{
		l.Name, l.Session, 1<<53 - 1, math.MaxUint32, l.Attempt, math.MaxUint64, true,
		owner{l.Owner.Label, l.Owner.Site, l.Owner.Host, math.MaxUint32},
		append([]byte{}, l.Attributes...), "2026-03-01T12:00:00.000Z",
	})
	if err != nil {
		panic(err)
	}
	return uint32(b.Len()) // the end of the line is as long as the comma
}

// room is what the leases of a shard take up, without that of the name but.
func room(held []Lease, shards Shards, shard uint32, but string) (sum uint32) {
	for _, l := range held {
		if l.Name != but && shards.Of(l.Name) == shard {
			sum += widest(l)
		}
	}
	return sum
}

func (m *model) fits(op Op) bool {
	if m.shards.Count == 0 {
		return true
	}
	if !utf8.ValidString(op.Name + "|" + op.Owner.Label) {
		return false
	}
	l := Lease{Name: op.Name, Owner: op.Owner, Attributes: op.Attributes}
	return room(m.held, m.shards, m.shards.Of(op.Name), op.Name)+widest(l) <= m.shards.Bytes
}

// sound repeats the bounds, for ops that the generator may make.
func sound(op Op) bool {
	name := len(op.Name) > 0 && len(op.Name) <= 512
	token := op.Token > 0 && op.Token < 1<<53
	terms := op.TTL > 0 && op.TTL%1e6 == 0 && op.TTL/1e6 < 1<<32 && len(op.Attributes) <= 512 && len(op.Owner.Label) <= 128
	shards := op.Shards.Count > 0 && op.Shards.Count <= 4096 && op.Shards.Bytes >= 1024 && op.Shards.Bytes <= 256*1024
	switch op.Kind {
	case KindBirth:
		return op.Cluster != ID{} && op.Founders > 0 && (shards || op.Shards == Shards{})
	case KindAcquire:
		return name && terms && op.Session != ID{} && op.Attempt != ID{}
	case KindWithdraw:
		return name && op.Session != ID{} && op.Attempt != ID{}
	case KindRelease, KindRenew:
		return name && token && op.Session != ID{}
	case KindTransfer:
		return name && token && terms && op.Session != ID{} && op.Heir != ID{} && op.Attempt != ID{}
	case KindReclaim:
		return name && token && terms && op.Session != ID{}
	case KindExpire, KindBreak:
		return name && token
	case KindAdopt:
		return shards
	case KindImportPart:
		return !slices.ContainsFunc(op.Leases, func(l *Lease) bool {
			return l.Name == "" || l.Session == ID{} || l.Token == 0 || l.Token >= 1<<53 || l.TTL <= 0 || l.TTL%1e6 != 0 || len(l.Attributes) > 512
		})
	}
	return op.Kind == KindBump || op.Kind == KindImport
}

// ofRaft are the kinds that are for the table of a Raft group alone, ofShard those for a shard's.
var (
	ofRaft  = []Kind{KindBirth, KindBump, KindImportPart, KindImport, KindAdopt}
	ofShard = []Kind{KindRenew, KindReclaim}
)

func (m *model) apply(op Op) Result {
	other := ofShard
	if m.shard != nil {
		other = ofRaft
	}
	switch {
	case !sound(op) || slices.Contains(other, op.Kind):
		return Result{Outcome: Ignored}
	case op.Kind == KindBirth:
		return m.birth(op)
	case m.epoch == 0:
		return Result{Outcome: Unborn}
	case op.Kind == KindBump || op.Kind == KindImportPart || op.Kind == KindImport:
		return m.begin(op)
	case uint64(op.Epoch) != m.epoch:
		return Result{Outcome: StaleEpoch}
	case op.Kind == KindAdopt:
		return m.adopt(op)
	case op.Name[:1] == "@", m.shard != nil && m.shards.Of(op.Name) != m.shard.index:
		return Result{Outcome: Ignored}
	case op.Kind == KindAcquire:
		return m.acquire(op)
	case op.Kind == KindReclaim:
		return m.reclaim(op)
	}
	return m.named(op)
}

func (m *model) birth(op Op) Result {
	switch {
	case m.epoch > 0 || op.Epoch == 0:
		return Result{Outcome: StaleEpoch}
	case op.Epoch >= 1<<21:
		return Result{Outcome: UsedUp}
	}
	m.cluster, m.founders, m.epoch, m.shards = op.Cluster, op.Founders, uint64(op.Epoch), op.Shards
	m.revision++
	return Result{Outcome: Born}
}

func (m *model) begin(op Op) Result {
	epoch := uint64(op.Epoch)
	switch {
	case epoch <= m.epoch:
		return Result{Outcome: StaleEpoch}
	case epoch >= 1<<21:
		return Result{Outcome: UsedUp}
	case op.Kind == KindImportPart:
		return m.stage(op)
	case op.Kind == KindImport && epoch < m.staging:
		return Result{Outcome: StaleEpoch}
	}
	r := Result{Outcome: Bumped}
	if op.Kind == KindImport {
		var imported []Lease
		if epoch == m.staging {
			imported = m.staged
		}
		if len(imported) != int(op.Count) {
			return Result{Outcome: Mismatch, Field: "count"}
		}
		for i := range imported {
			imported[i].Stamp = m.revision + 1
		}
		m.held = imported
		m.ended = slices.DeleteFunc(m.ended, func(e Ending) bool {
			i, held := m.find(e.Name)
			return held && e.Token >= m.held[i].Token
		})
		r.Outcome = Imported
	}
	m.epoch, m.counter = epoch, 0
	m.revision++
	if m.staging <= epoch {
		m.staging, m.staged = 0, nil
	}
	return r
}

func (m *model) stage(op Op) Result {
	for _, l := range op.Leases {
		if l.Name[:1] == "@" || uint64(l.Token)>>32 >= uint64(op.Epoch) {
			return Result{Outcome: Ignored}
		}
	}
	if uint64(op.Epoch) < m.staging {
		return Result{Outcome: StaleEpoch}
	}
	if uint64(op.Epoch) > m.staging {
		m.staging, m.staged = uint64(op.Epoch), nil
	}
	for _, l := range op.Leases {
		m.staged = slices.DeleteFunc(m.staged, func(other Lease) bool { return other.Name == l.Name })
		kept := *l
		kept.Stamp = 0
		m.staged = append(m.staged, kept)
	}
	slices.SortFunc(m.staged, byName)
	return Result{Outcome: Staged}
}

func (m *model) adopt(op Op) Result {
	switch {
	case m.shards == op.Shards:
		return Result{Outcome: Repeated}
	case m.shards != Shards{}:
		return Result{Outcome: Mismatch, Field: "shards"}
	}
	for shard := range op.Shards.Count {
		if room(m.held, op.Shards, shard, "") > op.Shards.Bytes {
			return Result{Outcome: NoRoom}
		}
	}
	if slices.ContainsFunc(m.held, func(l Lease) bool { return !utf8.ValidString(l.Name) }) {
		return Result{Outcome: NoRoom}
	}
	m.shards = op.Shards
	m.revision++
	return Result{Outcome: Adopted}
}

func (m *model) reclaim(op Op) Result {
	l := Lease{
		Name: op.Name, Session: op.Session, Token: op.Token, TTL: op.TTL, Owner: op.Owner, Attributes: op.Attributes,
		AcquiredAt: kept(op.AcquiredAt), Stamp: m.shard.stamp,
	}
	at, held := m.find(op.Name)
	switch {
	case !utf8.ValidString(op.Name):
		return Result{Outcome: Ignored}
	case m.shard.closed:
		return Result{Outcome: Closed}
	case uint64(op.Token)>>32 >= m.epoch:
		return Result{Outcome: Absent, Ending: Ending{Name: op.Name, Token: op.Token}}
	case !held:
		m.hold(l)
	case m.held[at].Token < op.Token:
		m.held = slices.Delete(m.held, at, at+1)
		m.hold(l)
	case m.held[at].Token > op.Token || m.held[at].Session != op.Session:
		l = m.held[at]
		return Result{Outcome: Refused, Lease: &l}
	case m.held[at].Broken:
		return Result{Outcome: Absent, Ending: Ending{Name: op.Name, Token: op.Token, Why: WhyBroken}}
	default:
		m.held[at].Stamp = m.shard.stamp
		l = m.held[at]
	}
	m.revision++
	return Result{Outcome: Reclaimed, Lease: &l}
}

// named is what is done to a lease that is held.
func (m *model) named(op Op) Result {
	at, ok := m.find(op.Name)
	if ok {
		l := m.held[at]
		switch op.Kind {
		case KindWithdraw:
			ok = l.Session == op.Session && l.Attempt == op.Attempt
		case KindRelease, KindTransfer, KindRenew:
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
	l := m.held[at]
	switch {
	case op.Kind == KindExpire && op.Stamp != 0 && op.Stamp != l.Stamp:
		return Result{Outcome: Refused, Lease: &l}
	case op.Kind == KindRenew && l.Broken:
		return Result{Outcome: Absent, Ending: Ending{Name: l.Name, Token: l.Token, Why: WhyBroken}}
	case op.Kind == KindBreak && !op.Now && l.Broken:
		return Result{Outcome: Repeated, Lease: &l}
	}
	m.revision++
	switch {
	case op.Kind == KindRenew:
		m.held[at].Stamp = m.shard.stamp
		l = m.held[at]
		return Result{Outcome: Renewed, Lease: &l}
	case op.Kind == KindBreak && !op.Now:
		m.held[at].Broken = true
		l = m.held[at]
		return Result{Outcome: Marked, Lease: &l}
	}
	transfers := op.Kind == KindTransfer && m.number(m.counter+1) < 1<<32 && m.fits(op)
	l, e := m.end(at, op.Kind, transfers)
	if !transfers {
		return Result{Outcome: Freed, Lease: &l, Ending: e}
	}
	heir := m.grant(op, op.Heir)
	e.Next = heir.Token
	return Result{Outcome: Transferred, Lease: &heir, Ending: e}
}

// number is the counter of the n-th token.
func (m *model) number(n uint64) uint64 {
	if m.shard != nil && n > 0 {
		return n*uint64(m.shards.Count) + uint64(m.shard.index)
	}
	return n
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
	switch {
	case m.number(m.counter+1) >= 1<<32:
		return Result{Outcome: UsedUp}
	case !m.fits(op):
		return Result{Outcome: NoRoom}
	}
	m.revision++
	l := m.grant(op, op.Session)
	return Result{Outcome: Granted, Lease: &l}
}

// grant is told as of the revision that it is part of.
func (m *model) grant(op Op, session ID) Lease {
	m.counter++
	l := Lease{
		Name: op.Name, Session: session, Attempt: op.Attempt, Token: tokens.Token(m.epoch*(1<<32) + m.number(m.counter)), TTL: op.TTL,
		Owner: op.Owner, Attributes: op.Attributes, AcquiredAt: kept(op.AcquiredAt), Stamp: m.revision,
	}
	if m.shard != nil {
		m.shard.closed, l.Stamp = true, m.shard.stamp
	}
	l = m.hold(l)
	for i, e := range slices.Backward(m.ended) {
		if e.Name == op.Name {
			m.ended[i].Next = l.Token
			break
		}
	}
	return l
}

func (m *model) hold(l Lease) Lease {
	if len(l.Attributes) == 0 {
		l.Attributes = nil
	}
	m.held = append(m.held, l)
	slices.SortFunc(m.held, byName)
	return l
}

func byName(a, b Lease) int { return cmp.Compare(a.Name, b.Name) }

// kept is the time of day as a lease keeps it.
func kept(at time.Time) time.Time {
	if at.UnixMilli() <= 0 {
		return time.Time{}
	}
	return at.UTC().Truncate(time.Millisecond)
}

var (
	someNames  = mostly([]string{"a", "b"}, []string{"c", "d", "", "@", "@a", "a@", "ä", "\x00", "\xff"})
	someIDs    = mostly([]ID{{1}}, []ID{{2}, {15: 1}, {}})
	someTTLs   = mostly([]time.Duration{5 * time.Second}, []time.Duration{time.Minute, time.Millisecond, 0, -1, 1})
	someOwners = mostly([]Owner{{Label: "x"}}, []Owner{{}, {Site: "s", Host: "h", PID: 1}})
	someBytes  = mostly([][]byte{nil}, [][]byte{{}, {1}, make([]byte, 512), make([]byte, 513)})
	someTimes  = rapid.SampledFrom([]time.Time{{}, noon, noon.Add(1234567), time.Unix(0, 0), time.Unix(-5, 0)})
	someKinds  = mostly(
		[]Kind{KindAcquire, KindAcquire, KindAcquire, KindWithdraw, KindRelease, KindExpire, KindBreak, KindTransfer, KindTransfer, KindImportPart, KindImport},
		[]Kind{KindBump, KindAdopt, KindAdopt, KindBirth, KindRenew, KindReclaim, 0, KindReclaim + 1})
	someShardKinds = mostly(
		[]Kind{
			KindAcquire, KindAcquire, KindWithdraw, KindRelease, KindExpire, KindBreak, KindTransfer, KindTransfer, KindRenew, KindRenew,
			KindReclaim, KindReclaim, KindReclaim,
		},
		[]Kind{KindBump, KindAdopt, KindBirth, KindImportPart, KindImport, 0, KindReclaim + 1})
	someFounders = mostly([]uint32{1, 3}, []uint32{0})
	someShards   = mostly([]Shards{{1, 1024}, {2, 1024}}, []Shards{{2, 1025}, {}, {0, 1024}, {4097, 1024}, {1, 1023}, {1, 256*1024 + 1}})
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
func someEpoch(t *rapid.T, kind Kind, m *model) uint32 {
	now := uint32(m.epoch)
	switch kind {
	case KindImportPart, KindImport:
		if m.staging > 0 && rapid.IntRange(0, 9).Draw(t, "staged") > 0 {
			return uint32(m.staging)
		}
		fallthrough
	case KindBirth, KindBump:
		return rapid.SampledFrom([]uint32{now + 1, now + 1, now + 3, now + 1024, now, 0, 1, tokens.MaxEpoch, tokens.MaxEpoch + 1}).Draw(t, "new epoch")
	}
	return now - mostly([]uint32{0}, []uint32{0, 1}).Draw(t, "epochs ago")
}

func someOp(t *rapid.T, m *model) Op {
	kinds := someKinds
	if m.shard != nil {
		kinds = someShardKinds
	}
	op := Op{
		Kind: kinds.Draw(t, "kind"), Name: someNames.Draw(t, "name"), Session: someIDs.Draw(t, "session"), Attempt: someIDs.Draw(t, "attempt"),
		TTL: someTTLs.Draw(t, "ttl"), Owner: someOwners.Draw(t, "owner"), Attributes: someBytes.Draw(t, "attributes"), AcquiredAt: someTimes.Draw(t, "time of day"),
		Heir: someIDs.Draw(t, "heir"), Now: rapid.Bool().Draw(t, "now"), Cluster: someIDs.Draw(t, "cluster"), Founders: someFounders.Draw(t, "founders"),
		Shards: someShards.Draw(t, "shards"),
	}
	op.Epoch = someEpoch(t, op.Kind, m)
	op.Token = someToken(t, m, op)
	switch op.Kind {
	case KindExpire:
		op.Stamp = rapid.SampledFrom(stamps(m)).Draw(t, "stamp")
	case KindImportPart:
		for range rapid.IntRange(0, 4).Draw(t, "leases") {
			op.Leases = append(op.Leases, someLease(t, m, op))
		}
	case KindImport:
		if uint64(op.Epoch) == m.staging {
			op.Count = uint32(len(m.staged))
		}
		op.Count += mostly([]uint32{0}, []uint32{1}).Draw(t, "too many")
	}
	return op
}

func someToken(t *rapid.T, m *model, op Op) tokens.Token {
	candidates := []tokens.Token{0, 1, tokens.Max, tokens.Max + 1, tokens.Token(m.lastToken + 1)}
	for _, l := range m.held {
		if l.Name == op.Name {
			candidates = []tokens.Token{l.Token, l.Token, l.Token, l.Token, l.Token - 1, l.Token + 1}
		}
	}
	for _, e := range m.ended {
		candidates = append(candidates, e.Token)
	}
	if op.Kind == KindReclaim || op.Kind == KindImportPart {
		before := tokens.Token(m.epoch << 32)
		candidates = append(candidates, before-1, before-2, before-3, before, tokens.Token(uint64(op.Epoch)<<32))
	}
	return rapid.SampledFrom(candidates).Draw(t, "token")
}

// stamps are those that an expiry may name.
func stamps(m *model) []uint64 {
	all := []uint64{0, 0, 1, m.revision}
	for _, l := range m.held {
		all = append(all, l.Stamp)
	}
	return all
}

// someLease is one that an import may bring.
func someLease(t *rapid.T, m *model, op Op) *Lease {
	op.Name = mostly([]string{"a", "b", "c", "d", "e", "f"}, []string{"@a", ""}).Draw(t, "name")
	op.Kind = KindImportPart
	return &Lease{
		Name: op.Name, Session: mostly([]ID{{1}, {2}}, []ID{{}}).Draw(t, "session"), Attempt: someIDs.Draw(t, "attempt"), Token: someToken(t, m, op),
		TTL: mostly([]time.Duration{5 * time.Second, time.Minute}, []time.Duration{0}).Draw(t, "ttl"), Owner: op.Owner, Broken: rapid.Bool().Draw(t, "broken"),
		Stamp: rapid.Uint64().Draw(t, "old stamp"),
	}
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
	compareSums(t, table, m)
	compareFrom(t, table, m)
	for _, name := range []string{"a", "b", "c", "@a", "a@", "ä", "\x00", "\xff"} {
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

// compareSums asks for what the table keeps of all its leases together.
func compareSums(t *rapid.T, table *Table, m *model) {
	var longest time.Duration
	for _, l := range m.held {
		longest = max(longest, l.TTL)
	}
	var fill []uint32
	for shard := range m.shards.Count {
		if m.shard == nil || m.shard.index == shard {
			fill = append(fill, room(m.held, m.shards, shard, ""))
		}
	}
	newest := tokens.Token(m.epoch<<32 + m.number(m.counter))
	if table.MaxTTL() != longest || !slices.Equal(table.Fill(), fill) || table.Shards() != m.shards || table.Newest() != newest {
		t.Fatalf("got longest ttl %v, fill %v of %v, newest token %v, want %v, %v of %v, %v",
			table.MaxTTL(), table.Fill(), table.Shards(), table.Newest(), longest, fill, m.shards, newest)
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
	if twin != table {
		twin.Apply(op)
	}
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
		if birth := birth(someEpoch(t, KindBirth, m)); rapid.IntRange(0, 9).Draw(t, "unborn") > 0 {
			birth.Shards = rapid.SampledFrom([]Shards{{}, {1, 1024}, {2, 1024}}).Draw(t, "shards")
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

// TestShardModel runs the table of a shard against the model, through encodings of
// the ops and of the register, and through its moves to later epochs.
func TestShardModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.SampledFrom([]Shards{{1, 1024}, {2, 1024}, {3, 2048}}).Draw(t, "shards")
		m := &model{kept: EndedKept, shards: shards, shard: &modelShard{index: rapid.Uint32Range(0, shards.Count-1).Draw(t, "index"), stamp: 1}}
		if rapid.Bool().Draw(t, "moved") {
			m.epoch = 2
			if rapid.Bool().Draw(t, "late") {
				m.counter = (1<<32-1)/uint64(shards.Count) - 3
			}
		}
		open := func(s Shard) *Table { return OpenShard(s, m.shard.index, shards, m.shard.stamp) }
		table := open(Shard{Epoch: uint32(m.epoch), Counter: uint32(m.counter)})
		reopen := func(move func(Shard) Shard) {
			s := table.Shard()
			b := EncodeShard(s)
			decoded, err := DecodeShard(b)
			if err != nil || !reflect.DeepEqual(decoded, s) {
				t.Fatalf("%s: got %+v, %v, want %+v", b, decoded, err, s)
			}
			if most := table.Fill()[0] + 96; uint32(len(b)) > most {
				t.Fatalf("%s: %d bytes, want at most %d", b, len(b), most)
			}
			m.shard.stamp++
			m.revision, m.ended = 0, nil
			table = open(move(decoded))
		}
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				for range 4 { // so that most steps are ops
					step(t, m, table, table)
				}
			},
			"write": func(*rapid.T) { reopen(func(s Shard) Shard { return s }) },
			"move": func(t *rapid.T) {
				raft := m.epoch - min(m.epoch, rapid.Uint64Range(0, 1).Draw(t, "raft epochs ago"))
				if m.shard.closed = m.epoch > raft; !m.shard.closed {
					m.held = nil
				}
				m.epoch, m.counter = m.epoch+rapid.Uint64Range(1, 3).Draw(t, "epochs"), 0
				reopen(func(s Shard) Shard { return MoveShard(s, uint32(m.epoch), uint32(raft)) })
			},
			"": func(t *rapid.T) {
				if table.Shard().Closed != m.shard.closed {
					t.Fatalf("closed: got %v, want %v", table.Shard().Closed, m.shard.closed)
				}
				compare(t, table, m)
			},
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
