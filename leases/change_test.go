package leases

import (
	"reflect"
	"testing"
	"time"

	"github.com/coordd/coordd/tokens"
)

// Each row is what the last op did to a lease, if anything.
func TestChangeOf(t *testing.T) {
	held, heir := acquire("job", alice, try1), acquire("job", bob, try2)
	heir.TTL, heir.Owner, heir.Attributes, heir.AcquiredAt = time.Minute, Owner{Label: "heir"}, []byte("v=2"), noon.Add(time.Hour)
	for _, c := range []struct {
		name   string
		before []Op
		op     Op
		kind   ChangeKind // zero: no change
		token  tokens.Token
		next   tokens.Token
		free   bool
		of     Op // what the lease that is told of was asked for with
	}{
		{name: "birth", op: birth(1)},
		{name: "bump", before: []Op{birth(1), held}, op: bump(2)},
		{name: "ignored", before: []Op{birth(1)}, op: acquire("@job", alice, try1)},
		{name: "unborn", op: held},
		{name: "stale epoch", before: []Op{birth(2)}, op: held},
		{name: "refused", before: []Op{birth(1), held}, op: heir},
		{name: "repeated", before: []Op{birth(1), held}, op: held},
		{name: "mismatch", before: []Op{birth(1), held}, op: with(held, func(op *Op) { op.TTL++ })},
		{name: "absent", before: []Op{birth(1)}, op: release("job", alice, token(1))},

		{name: "granted", before: []Op{birth(1)}, op: held, kind: ChangeGranted, token: token(1), of: held},
		{name: "released", before: []Op{birth(1), held}, op: release("job", alice, token(1)), kind: ChangeReleased, token: token(1), free: true, of: held},
		{name: "expired", before: []Op{birth(1), held}, op: expire("job", token(1)), kind: ChangeExpired, token: token(1), free: true, of: held},
		{name: "withdrawn", before: []Op{birth(1), held}, op: withdraw("job", alice, try1), kind: ChangeWithdrawn, token: token(1), free: true, of: held},
		{name: "broken", before: []Op{birth(1), held}, op: breaks("job", token(1)), kind: ChangeBroken, token: token(1), of: held},
		{name: "broken again", before: []Op{birth(1), held, breaks("job", token(1))}, op: breaks("job", token(1))},
		{name: "broken now", before: []Op{birth(1), held}, op: breakNow("job", token(1)), kind: ChangeBroken, token: token(1), free: true, of: held},
		{name: "broken and expired", before: []Op{birth(1), held, breaks("job", token(1))}, op: expire("job", token(1)), kind: ChangeBroken, token: token(1), free: true, of: held},
		{name: "broken and released", before: []Op{birth(1), held, breaks("job", token(1))}, op: release("job", alice, token(1)), kind: ChangeReleased, token: token(1), free: true, of: held},
		{name: "transferred", before: []Op{birth(1), held}, op: transfer(alice, token(1), heir), kind: ChangeTransferred, token: token(1), next: token(2), of: heir},
		{name: "transferred twice", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: transfer(alice, token(1), heir)},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable()
			apply(table, c.before...)
			before := table.Revision()
			r := table.Apply(c.op)
			got, ok := ChangeOf(r, table.Revision())
			if c.kind == 0 {
				if ok || !reflect.DeepEqual(got, Change{}) {
					t.Errorf("%v: got %+v, %v, want no change", r.Outcome, got, ok)
				}
				return
			}
			want := Change{
				Revision: before + 1, Kind: c.kind, Name: "job", Token: c.token, Next: c.next, Free: c.free,
				Owner: c.of.Owner, TTL: c.of.TTL, Attributes: c.of.Attributes, AcquiredAt: c.of.AcquiredAt,
			}
			if !ok || !reflect.DeepEqual(got, want) {
				t.Errorf("%v: got %+v, %v, want %+v", r.Outcome, got, ok, want)
			}
			if _, held := table.Get("job"); held == got.Free {
				t.Errorf("got free %v while it is held %v", got.Free, held)
			}
		})
	}
}

// A transfer that is a plain release is told as one.
func TestChangeOfTransferWithTheCounterUsedUp(t *testing.T) {
	table := NewTable()
	apply(table, birth(1), acquire("job", alice, try1))
	table.counter = tokens.MaxCounter
	r := table.Apply(transfer(alice, token(1), acquire("job", bob, try2)))
	if c, ok := ChangeOf(r, 3); !ok || c.Kind != ChangeReleased || !c.Free || c.Token != token(1) || c.Next != 0 {
		t.Errorf("got %+v, %v, want a release of token %v", c, ok, token(1))
	}
}

func TestChangeNames(t *testing.T) {
	for k, want := range map[ChangeKind]string{
		ChangeGranted: "granted", ChangeReleased: "released", ChangeExpired: "expired", ChangeWithdrawn: "withdrawn",
		ChangeBroken: "broken", ChangeTransferred: "transferred", 0: "change 0", ChangeTransferred + 1: "change 7",
	} {
		text, err := k.MarshalText()
		if k.String() != want || string(text) != want || err != nil {
			t.Errorf("%d: got %v, %s, %v, want %s", uint8(k), k, text, err, want)
		}
	}
	if got := (Position{Epoch: 3, Revision: 1 << 40}).String(); got != "3/1099511627776" {
		t.Errorf("position: got %s", got)
	}
}
