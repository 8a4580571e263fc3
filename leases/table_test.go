package leases

import (
	"bytes"
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

var (
	cluster = ID{0: 0xc1}
	alice   = ID{0: 0xa1}
	bob     = ID{0: 0xb0}
	try1    = ID{15: 1}
	try2    = ID{15: 2}
	noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

func birth(epoch uint32) Op {
	return Op{Kind: KindBirth, Epoch: epoch, Cluster: cluster, Founders: 3}
}
func bump(epoch uint32) Op { return Op{Kind: KindBump, Epoch: epoch} }

func acquire(name string, session, attempt ID) Op {
	return Op{
		Kind: KindAcquire, Epoch: 1, Name: name, Session: session, Attempt: attempt, TTL: 15 * time.Second,
		Owner: Owner{Label: "billing", Site: "aws", Host: "host7", PID: 12}, Attributes: []byte("v=1"), AcquiredAt: noon,
	}
}

func withdraw(name string, session, attempt ID) Op {
	return Op{Kind: KindWithdraw, Epoch: 1, Name: name, Session: session, Attempt: attempt}
}

func release(name string, session ID, token tokens.Token) Op {
	return Op{Kind: KindRelease, Epoch: 1, Name: name, Session: session, Token: token}
}

func expire(name string, token tokens.Token) Op {
	return Op{Kind: KindExpire, Epoch: 1, Name: name, Token: token}
}

func breaks(name string, token tokens.Token) Op {
	return Op{Kind: KindBreak, Epoch: 1, Name: name, Token: token}
}

func breakNow(name string, token tokens.Token) Op {
	return with(breaks(name, token), func(op *Op) { op.Now = true })
}

func adopt(epoch uint32, shards Shards) Op {
	return Op{Kind: KindAdopt, Epoch: epoch, Shards: shards}
}

func part(epoch uint32, leases ...*Lease) Op {
	return Op{Kind: KindImportPart, Epoch: epoch, Leases: leases}
}

func importAll(epoch, count uint32) Op {
	return Op{Kind: KindImport, Epoch: epoch, Count: count}
}

func renew(name string, session ID, token tokens.Token) Op {
	return Op{Kind: KindRenew, Epoch: 1, Name: name, Session: session, Token: token}
}

// reclaim presents the lease of that token that of asked for.
func reclaim(of Op, token tokens.Token) Op {
	return with(of, func(op *Op) { op.Kind, op.Token = KindReclaim, token })
}

// transfer passes session's lease on to what heir asks for.
func transfer(session ID, token tokens.Token, heir Op) Op {
	return with(heir, func(op *Op) {
		op.Kind, op.Session, op.Token, op.Heir = KindTransfer, session, token, heir.Session
	})
}

// with is op after change.
func with(op Op, change func(*Op)) Op {
	change(&op)
	return op
}

// token is the n-th of epoch 1.
func token(n uint32) tokens.Token { return tokens.New(1, n) }

// apply applies ops to t and returns the last result.
func apply(t *Table, ops ...Op) (r Result) {
	for _, op := range ops {
		r = t.Apply(op)
	}
	return r
}

func encoded(t testing.TB, table *Table) []byte {
	t.Helper()
	var b bytes.Buffer
	if n, err := table.Snapshot().WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo: got %d, %v, want %d and no error", n, err, b.Len())
	}
	return b.Bytes()
}

// Each row is one rule: what the last op does after the others.
func TestApply(t *testing.T) {
	held, heir := acquire("job", alice, try1), acquire("job", bob, try2)
	for _, c := range []struct {
		name   string
		before []Op
		op     Op
		want   Outcome
		token  tokens.Token // of Result.Lease
		ending Ending
		field  string
	}{
		{name: "birth", op: birth(1), want: Born},
		{name: "birth in a chosen epoch", op: birth(1025), want: Born},
		{name: "birth in epoch 0", op: birth(0), want: StaleEpoch},
		{name: "birth in the last epoch", op: birth(tokens.MaxEpoch), want: Born},
		{name: "birth beyond the last epoch", op: birth(tokens.MaxEpoch + 1), want: UsedUp},
		{name: "second birth", before: []Op{birth(1)}, op: birth(2), want: StaleEpoch},
		{name: "birth into no cluster", op: with(birth(1), func(op *Op) { op.Cluster = ID{} }), want: Ignored},
		{name: "birth of nobody", op: with(birth(1), func(op *Op) { op.Founders = 0 }), want: Ignored},

		{name: "acquire before birth", op: held, want: Unborn},
		{name: "withdraw before birth", op: withdraw("job", alice, try1), want: Unborn},
		{name: "release before birth", op: release("job", alice, token(1)), want: Unborn},
		{name: "expire before birth", op: expire("job", token(1)), want: Unborn},
		{name: "break before birth", op: breaks("job", token(1)), want: Unborn},
		{name: "transfer before birth", op: transfer(alice, token(1), acquire("job", bob, try2)), want: Unborn},
		{name: "bump before birth", op: bump(2), want: Unborn},

		{name: "bump", before: []Op{birth(1)}, op: bump(2), want: Bumped},
		{name: "bump by far", before: []Op{birth(1)}, op: bump(1025), want: Bumped},
		{name: "bump to the same epoch", before: []Op{birth(2)}, op: bump(2), want: StaleEpoch},
		{name: "bump back", before: []Op{birth(2)}, op: bump(1), want: StaleEpoch},
		{name: "bump to the last epoch", before: []Op{birth(2)}, op: bump(tokens.MaxEpoch), want: Bumped},
		{name: "bump beyond the last epoch", before: []Op{birth(2)}, op: bump(tokens.MaxEpoch + 1), want: UsedUp},

		{name: "acquire", before: []Op{birth(1)}, op: held, want: Granted, token: token(1)},
		{name: "acquire of another name", before: []Op{birth(1), held}, op: acquire("job2", bob, try2), want: Granted, token: token(2)},
		{name: "acquire from an older epoch", before: []Op{birth(2)}, op: held, want: StaleEpoch},
		{name: "acquire from a later epoch", before: []Op{birth(1)}, op: with(held, func(op *Op) { op.Epoch = 2 }), want: StaleEpoch},
		{name: "acquire after a bump", before: []Op{birth(1), held, bump(3)}, op: with(acquire("job2", bob, try1), func(op *Op) { op.Epoch = 3 }), want: Granted, token: tokens.New(3, 1)},
		{name: "repeat", before: []Op{birth(1), held}, op: held, want: Repeated, token: token(1)},
		{name: "repeat after a bump", before: []Op{birth(1), held, bump(2)}, op: with(held, func(op *Op) { op.Epoch = 2 }), want: Repeated, token: token(1)},
		{name: "repeat at another time of day", before: []Op{birth(1), held}, op: with(held, func(op *Op) { op.AcquiredAt = noon.Add(time.Second) }), want: Repeated, token: token(1)},
		{name: "repeat with another ttl", before: []Op{birth(1), held}, op: with(held, func(op *Op) { op.TTL = 16 * time.Second }), want: Mismatch, token: token(1), field: "ttl"},
		{name: "repeat for another owner", before: []Op{birth(1), held}, op: with(held, func(op *Op) { op.Owner.PID = 13 }), want: Mismatch, token: token(1), field: "owner"},
		{name: "repeat with other attributes", before: []Op{birth(1), held}, op: with(held, func(op *Op) { op.Attributes = nil }), want: Mismatch, token: token(1), field: "attributes"},
		{name: "another attempt of the holder", before: []Op{birth(1), held}, op: acquire("job", alice, try2), want: Refused, token: token(1)},
		{name: "the holder's attempt by another session", before: []Op{birth(1), held}, op: acquire("job", bob, try1), want: Refused, token: token(1)},
		{name: "somebody else", before: []Op{birth(1), held}, op: acquire("job", bob, try2), want: Refused, token: token(1)},
		{name: "the attempt again after its release", before: []Op{birth(1), held, release("job", alice, token(1))}, op: held, want: Granted, token: token(2)},

		{name: "withdraw", before: []Op{birth(1), held}, op: withdraw("job", alice, try1), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyWithdrawn, 0}},
		{name: "withdraw of another attempt", before: []Op{birth(1), held}, op: withdraw("job", alice, try2), want: Absent, ending: Ending{Name: "job"}},
		{name: "withdraw by another session", before: []Op{birth(1), held}, op: withdraw("job", bob, try1), want: Absent, ending: Ending{Name: "job"}},
		{name: "withdraw of a free name", before: []Op{birth(1)}, op: withdraw("job", alice, try1), want: Absent, ending: Ending{Name: "job"}},
		{name: "withdraw twice", before: []Op{birth(1), held, withdraw("job", alice, try1)}, op: withdraw("job", alice, try1), want: Absent, ending: Ending{Name: "job"}},
		{name: "withdraw from an older epoch", before: []Op{birth(1), held, bump(2)}, op: withdraw("job", alice, try1), want: StaleEpoch},

		{name: "release", before: []Op{birth(1), held}, op: release("job", alice, token(1)), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyReleased, 0}},
		{name: "release of another token", before: []Op{birth(1), held}, op: release("job", alice, token(2)), want: Absent, ending: Ending{Name: "job", Token: token(2)}},
		{name: "release by another session", before: []Op{birth(1), held}, op: release("job", bob, token(1)), want: Absent, ending: Ending{Name: "job", Token: token(1)}},
		{name: "release under another name", before: []Op{birth(1), held, acquire("job2", alice, try2)}, op: release("job2", alice, token(1)), want: Absent, ending: Ending{Name: "job2", Token: token(1)}},
		{name: "release of a free name", before: []Op{birth(1)}, op: release("job", alice, token(1)), want: Absent, ending: Ending{Name: "job", Token: token(1)}},
		{name: "release twice", before: []Op{birth(1), held, release("job", alice, token(1))}, op: release("job", alice, token(1)), want: Absent, ending: Ending{"job", token(1), WhyReleased, 0}},
		{name: "release after the expiry", before: []Op{birth(1), held, expire("job", token(1))}, op: release("job", alice, token(1)), want: Absent, ending: Ending{"job", token(1), WhyExpired, 0}},
		{name: "release after the next grant", before: []Op{birth(1), held, expire("job", token(1)), acquire("job", bob, try1)}, op: release("job", alice, token(1)), want: Absent, ending: Ending{"job", token(1), WhyExpired, token(2)}},
		{name: "release from an older epoch", before: []Op{birth(1), held, bump(2)}, op: release("job", alice, token(1)), want: StaleEpoch},

		{name: "expire", before: []Op{birth(1), held}, op: expire("job", token(1)), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyExpired, 0}},
		{name: "expire of another token", before: []Op{birth(1), held}, op: expire("job", token(2)), want: Absent, ending: Ending{Name: "job", Token: token(2)}},
		{name: "expire after the release", before: []Op{birth(1), held, release("job", alice, token(1)), acquire("job", bob, try1)}, op: expire("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyReleased, token(2)}},
		{name: "expire from an older epoch", before: []Op{birth(1), held, bump(2)}, op: expire("job", token(1)), want: StaleEpoch},

		{name: "break", before: []Op{birth(1), held}, op: breaks("job", token(1)), want: Marked, token: token(1)},
		{name: "break twice", before: []Op{birth(1), held, breaks("job", token(1))}, op: breaks("job", token(1)), want: Repeated, token: token(1)},
		{name: "break of an older lease", before: []Op{birth(1), held, release("job", alice, token(1)), heir}, op: breaks("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyReleased, token(2)}},
		{name: "break of a lease to come", before: []Op{birth(1), held}, op: breaks("job", token(2)), want: Absent, ending: Ending{Name: "job", Token: token(2)}},
		{name: "break under another name", before: []Op{birth(1), held}, op: breaks("job2", token(1)), want: Absent, ending: Ending{Name: "job2", Token: token(1)}},
		{name: "break from an older epoch", before: []Op{birth(1), held, bump(2)}, op: breaks("job", token(1)), want: StaleEpoch},
		{name: "break after a bump", before: []Op{birth(1), held, bump(2)}, op: with(breaks("job", token(1)), func(op *Op) { op.Epoch = 2 }), want: Marked, token: token(1)},
		{name: "break now", before: []Op{birth(1), held}, op: breakNow("job", token(1)), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyBroken, 0}},
		{name: "break now what was marked", before: []Op{birth(1), held, breaks("job", token(1))}, op: breakNow("job", token(1)), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyBroken, 0}},
		{name: "break now twice", before: []Op{birth(1), held, breakNow("job", token(1))}, op: breakNow("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyBroken, 0}},
		{name: "break now a late copy", before: []Op{birth(1), held, breakNow("job", token(1)), heir}, op: breakNow("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyBroken, token(2)}},
		{name: "break now of an older lease", before: []Op{birth(1), held, expire("job", token(1)), heir}, op: breakNow("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyExpired, token(2)}},
		{name: "a broken lease is still held", before: []Op{birth(1), held, breaks("job", token(1))}, op: heir, want: Refused, token: token(1)},
		{name: "repeat of a broken lease's attempt", before: []Op{birth(1), held, breaks("job", token(1))}, op: held, want: Repeated, token: token(1)},
		{name: "release of a broken lease", before: []Op{birth(1), held, breaks("job", token(1))}, op: release("job", alice, token(1)), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyReleased, 0}},
		{name: "withdraw of a broken lease", before: []Op{birth(1), held, breaks("job", token(1))}, op: withdraw("job", alice, try1), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyWithdrawn, 0}},
		{name: "expire of a broken lease", before: []Op{birth(1), held, breaks("job", token(1))}, op: expire("job", token(1)), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyBroken, 0}},
		{name: "transfer of a broken lease", before: []Op{birth(1), held, breaks("job", token(1))}, op: transfer(alice, token(1), heir), want: Transferred, token: token(2), ending: Ending{"job", token(1), WhyTransferred, token(2)}},

		{name: "transfer", before: []Op{birth(1), held}, op: transfer(alice, token(1), heir), want: Transferred, token: token(2), ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "transfer to another attempt of the holder", before: []Op{birth(1), held}, op: transfer(alice, token(1), acquire("job", alice, try2)), want: Transferred, token: token(2), ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "transfer twice", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: transfer(alice, token(1), heir), want: Absent, ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "transfer, a late copy", before: []Op{birth(1), held, transfer(alice, token(1), heir), release("job", bob, token(2)), held}, op: transfer(alice, token(1), heir), want: Absent, ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "transfer by another session", before: []Op{birth(1), held}, op: transfer(bob, token(1), heir), want: Absent, ending: Ending{Name: "job", Token: token(1)}},
		{name: "transfer of another token", before: []Op{birth(1), held}, op: transfer(alice, token(2), heir), want: Absent, ending: Ending{Name: "job", Token: token(2)}},
		{name: "transfer under another name", before: []Op{birth(1), held}, op: transfer(alice, token(1), acquire("job2", bob, try2)), want: Absent, ending: Ending{Name: "job2", Token: token(1)}},
		{name: "transfer after the expiry", before: []Op{birth(1), held, expire("job", token(1))}, op: transfer(alice, token(1), heir), want: Absent, ending: Ending{"job", token(1), WhyExpired, 0}},
		{name: "transfer after the release", before: []Op{birth(1), held, release("job", alice, token(1))}, op: transfer(alice, token(1), heir), want: Absent, ending: Ending{"job", token(1), WhyReleased, 0}},
		{name: "transfer from an older epoch", before: []Op{birth(1), held, bump(2)}, op: transfer(alice, token(1), heir), want: StaleEpoch},
		{name: "transfer after a bump", before: []Op{birth(1), held, bump(2)}, op: with(transfer(alice, token(1), heir), func(op *Op) { op.Epoch = 2 }), want: Transferred, token: tokens.New(2, 1), ending: Ending{"job", token(1), WhyTransferred, tokens.New(2, 1)}},
		{name: "the heir's repeat", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: heir, want: Repeated, token: token(2)},
		{name: "the heir's release", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: release("job", bob, token(2)), want: Freed, token: token(2), ending: Ending{"job", token(2), WhyReleased, 0}},
		{name: "the heir's withdrawal behind the transfer", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: withdraw("job", bob, try2), want: Freed, token: token(2), ending: Ending{"job", token(2), WhyWithdrawn, 0}},
		{name: "the giver's release", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: release("job", alice, token(1)), want: Absent, ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "the giver's withdrawal", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: withdraw("job", alice, try1), want: Absent, ending: Ending{Name: "job"}},
		{name: "the giver's expiry", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: expire("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "break of the giver's lease", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: breaks("job", token(1)), want: Absent, ending: Ending{"job", token(1), WhyTransferred, token(2)}},
		{name: "the giver asks again", before: []Op{birth(1), held, transfer(alice, token(1), heir)}, op: held, want: Refused, token: token(2)},

		{name: "no kind", before: []Op{birth(1)}, op: Op{}, want: Ignored},
		{name: "unknown kind", before: []Op{birth(1)}, op: Op{Kind: KindReclaim + 1, Epoch: 1}, want: Ignored},
		{name: "renew, without a shard", before: []Op{birth(1), held}, op: renew("job", alice, token(1)), want: Ignored},
		{name: "reclaim, without a shard", before: []Op{birth(2)}, op: with(reclaim(held, token(1)), func(op *Op) { op.Epoch = 2 }), want: Ignored},
		{name: "expire of a lease that rested", before: []Op{birth(1), held}, op: with(expire("job", token(1)), func(op *Op) { op.Stamp = 2 }), want: Freed, token: token(1), ending: Ending{"job", token(1), WhyExpired, 0}},
		{name: "expire of a lease that did not rest", before: []Op{birth(1), held}, op: with(expire("job", token(1)), func(op *Op) { op.Stamp = 1 }), want: Refused, token: token(1)},

		{name: "birth with an arbiter", op: with(birth(1), func(op *Op) { op.Shards = Shards{1, 1024} }), want: Born},
		{name: "birth with shards that are too small", op: with(birth(1), func(op *Op) { op.Shards = Shards{1, 1023} }), want: Ignored},
		{name: "adopt before birth", op: adopt(1, Shards{1, 1024}), want: Unborn},
		{name: "adopt", before: []Op{birth(1), held}, op: adopt(1, Shards{1, 1024}), want: Adopted},
		{name: "adopt no arbiter", before: []Op{birth(1)}, op: adopt(1, Shards{}), want: Ignored},
		{name: "adopt from an older epoch", before: []Op{birth(1), bump(2)}, op: adopt(1, Shards{1, 1024}), want: StaleEpoch},
		{name: "adopt twice", before: []Op{birth(1), adopt(1, Shards{2, 1024})}, op: adopt(1, Shards{2, 1024}), want: Repeated},
		{name: "adopt with other shards", before: []Op{birth(1), adopt(1, Shards{2, 1024})}, op: adopt(1, Shards{2, 1025}), want: Mismatch, field: "shards"},
		{name: "adopt what a birth had", before: []Op{with(birth(1), func(op *Op) { op.Shards = Shards{2, 1024} })}, op: adopt(1, Shards{2, 1024}), want: Repeated},
		{name: "adopt without room", before: []Op{birth(1), acquire("a", alice, try1), acquire("b", alice, try1), acquire("c", alice, try1), acquire("d", alice, try1)}, op: adopt(1, Shards{1, 1024}), want: NoRoom},
		{name: "adopt with a name that is no text", before: []Op{birth(1), acquire("\xff", alice, try1)}, op: adopt(1, Shards{1, 1024}), want: NoRoom},
		{name: "break of a reserved name", before: []Op{birth(1)}, op: breakNow("@domain", token(1)), want: Ignored},
		{name: "transfer of a reserved name", before: []Op{birth(1)}, op: transfer(alice, token(1), acquire("@domain", bob, try2)), want: Ignored},
		{name: "transfer to nobody", before: []Op{birth(1), held}, op: with(transfer(alice, token(1), heir), func(op *Op) { op.Heir = ID{} }), want: Ignored},
		{name: "transfer for no time", before: []Op{birth(1), held}, op: with(transfer(alice, token(1), heir), func(op *Op) { op.TTL = 0 }), want: Ignored},
		{name: "reserved name", before: []Op{birth(1)}, op: acquire("@domain", alice, try1), want: Ignored},
		{name: "@ within a name", before: []Op{birth(1)}, op: acquire("me@home", alice, try1), want: Granted, token: token(1)},
		{name: "no name", before: []Op{birth(1)}, op: acquire("", alice, try1), want: Ignored},
		{name: "longest name", before: []Op{birth(1)}, op: acquire(strings.Repeat("n", 512), alice, try1), want: Granted, token: token(1)},
		{name: "name too long", before: []Op{birth(1)}, op: acquire(strings.Repeat("n", 513), alice, try1), want: Ignored},
		{name: "no session", before: []Op{birth(1)}, op: acquire("job", ID{}, try1), want: Ignored},
		{name: "no attempt", before: []Op{birth(1)}, op: acquire("job", alice, ID{}), want: Ignored},
		{name: "no ttl", before: []Op{birth(1)}, op: with(held, func(op *Op) { op.TTL = 0 }), want: Ignored},
		{name: "no token", before: []Op{birth(1), held}, op: release("job", alice, 0), want: Ignored},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable()
			apply(table, c.before...)
			revision, before := table.Revision(), encoded(t, table)
			got := table.Apply(c.op)
			if got.Outcome != c.want {
				t.Fatalf("got outcome %v, want %v", got.Outcome, c.want)
			}
			var gotToken tokens.Token
			if got.Lease != nil {
				gotToken = got.Lease.Token
			}
			if gotToken != c.token {
				t.Errorf("got a lease of token %v, want %v", gotToken, c.token)
			}
			if got.Ending != c.ending {
				t.Errorf("got ending %+v, want %+v", got.Ending, c.ending)
			}
			if got.Field != c.field {
				t.Errorf("got field %q, want %q", got.Field, c.field)
			}
			changes := slices.Contains([]Outcome{Granted, Freed, Marked, Transferred, Born, Bumped, Adopted}, c.want)
			if changed := !bytes.Equal(before, encoded(t, table)); changed != changes {
				t.Errorf("changed the table: got %v, want %v", changed, changes)
			}
			if changes {
				revision++
			}
			if table.Revision() != revision {
				t.Errorf("got revision %d, want %d", table.Revision(), revision)
			}
		})
	}
}

func TestGrantKeepsWhatWasAsked(t *testing.T) {
	table := NewTable()
	op := acquire("job", alice, try1)
	op.AcquiredAt = noon.Add(1234567 * time.Nanosecond).In(time.FixedZone("far", 3600))
	r := apply(table, birth(1), op)
	want := Lease{
		Name: "job", Session: alice, Attempt: try1, Token: token(1), TTL: 15 * time.Second,
		Owner: Owner{Label: "billing", Site: "aws", Host: "host7", PID: 12}, Attributes: []byte("v=1"),
		AcquiredAt: noon.Add(time.Millisecond), Stamp: 2,
	}
	if r.Outcome != Granted || !reflect.DeepEqual(*r.Lease, want) {
		t.Errorf("got %v of %+v, want granted of %+v", r.Outcome, *r.Lease, want)
	}
	if got := r.Lease.Held(); got != (Held{"job", token(1)}) {
		t.Errorf("Held: got %+v", got)
	}
	op.Attributes[0] = 'x' // the caller's memory, which it may use again
	if got, _ := table.Get("job"); string(got.Attributes) != "v=1" {
		t.Errorf("the caller changed the lease's attributes to %q", got.Attributes)
	}
	if r := table.Apply(with(acquire("plain", alice, try2), func(op *Op) { op.Attributes = []byte{} })); r.Lease.Attributes != nil {
		t.Errorf("no attributes: got %#v, want nil, as in a restored table", r.Lease.Attributes)
	}
	if l, ok := table.Get("jo"); ok {
		t.Errorf("Get of a free name: got %+v", l)
	}
}

// The heir gets what it asked for, by a lease of its own in the same revision.
func TestTransferGrantsWhatTheHeirAsked(t *testing.T) {
	table := NewTable()
	op := transfer(alice, token(1), with(acquire("job", bob, try2), func(op *Op) {
		op.TTL, op.Owner, op.Attributes, op.AcquiredAt = time.Minute, Owner{Label: "heir"}, []byte("v=2"), noon.Add(time.Hour)
	}))
	r := apply(table, birth(1), acquire("job", alice, try1), breaks("job", token(1)), op)
	want := Lease{
		Name: "job", Session: bob, Attempt: try2, Token: token(2), TTL: time.Minute, Owner: Owner{Label: "heir"}, Attributes: []byte("v=2"),
		AcquiredAt: noon.Add(time.Hour), Stamp: 4,
	}
	if r.Outcome != Transferred || !reflect.DeepEqual(*r.Lease, want) || table.Revision() != 4 || table.Len() != 1 {
		t.Errorf("got %v of %+v at revision %d, want transferred of %+v at revision 4", r.Outcome, *r.Lease, table.Revision(), want)
	}
	op.Attributes[0] = 'x'
	if got, _ := table.Get("job"); string(got.Attributes) != "v=2" {
		t.Errorf("the caller changed the lease's attributes to %q", got.Attributes)
	}
}

// Whoever was handed a lease may read it at any time: a break does not write to it.
func TestBreakMarksACopy(t *testing.T) {
	table := NewTable()
	granted := apply(table, birth(1), acquire("job", alice, try1)).Lease
	snapshot := table.Snapshot()
	marked := apply(table, breaks("job", token(1))).Lease
	if got, _ := table.Get("job"); granted.Broken || !marked.Broken || got != marked {
		t.Errorf("got the granted lease broken %v, the marked one broken %v, the table's %+v", granted.Broken, marked.Broken, got)
	}
	want := *granted
	want.Broken = true
	if !reflect.DeepEqual(*marked, want) {
		t.Errorf("got %+v, want the same but broken: %+v", *marked, want)
	}
	if l, _ := snapshot.leases.Get(entry{name: "job"}); l.lease.Broken {
		t.Error("a snapshot from before has the mark")
	}
	if got, _ := table.Last("job"); got != (Ending{}) {
		t.Errorf("a marked lease has an ending: %+v", got)
	}
}

func TestFrom(t *testing.T) {
	table := NewTable()
	apply(table, birth(1))
	for _, name := range []string{"a", "a/1", "a/2", "a/2/x", "a0", "b", "ä"} {
		apply(table, acquire(name, alice, try1))
	}
	for _, c := range []struct {
		prefix, after string
		want          []string
	}{
		{"", "", []string{"a", "a/1", "a/2", "a/2/x", "a0", "b", "ä"}},
		{"a", "", []string{"a", "a/1", "a/2", "a/2/x", "a0"}},
		{"a/", "", []string{"a/1", "a/2", "a/2/x"}},
		{"a/2", "", []string{"a/2", "a/2/x"}},
		{"a/2", "a/2", []string{"a/2/x"}},
		{"a/", "a/1", []string{"a/2", "a/2/x"}},
		{"a/", "a/10", []string{"a/2", "a/2/x"}}, // which is not held
		{"a/", "a", []string{"a/1", "a/2", "a/2/x"}},
		{"a/", "A", []string{"a/1", "a/2", "a/2/x"}},
		{"a/", "a/2/x", nil},
		{"a/", "b", nil},
		{"a/", "z", nil},
		{"", "b", []string{"ä"}},
		{"", "ä", nil},
		{"\xc3", "", []string{"ä"}}, // a prefix is bytes
		{"c", "", nil},
	} {
		var got []string
		for l := range table.From(c.prefix, c.after) {
			got = append(got, l.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("From(%q, %q): got %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
	for l := range table.From("a/", "") {
		if l.Name != "a/1" {
			t.Errorf("after an early end: got %q", l.Name)
		}
		break
	}
}

// A time of day that cannot be kept is none: it is no reason to refuse a lease.
func TestTimeOfDay(t *testing.T) {
	last := time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)
	for _, c := range []struct{ in, want time.Time }{
		{time.Time{}, time.Time{}},
		{time.Unix(0, 0), time.Time{}},
		{time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}},
		{time.Unix(0, 1_000_000), time.Unix(0, 1_000_000).UTC()},
		{noon, noon},
		{last, last},
		{last.Add(time.Hour), last},
	} {
		r := apply(NewTable(), birth(1), with(acquire("job", alice, try1), func(op *Op) { op.AcquiredAt = c.in }))
		if r.Outcome != Granted || !r.Lease.AcquiredAt.Equal(c.want) || r.Lease.AcquiredAt.IsZero() != c.want.IsZero() {
			t.Errorf("%v: got %v, %v, want %v", c.in, r.Outcome, r.Lease.AcquiredAt, c.want)
		}
	}
}

func TestAccessors(t *testing.T) {
	table := NewTable()
	check := func(step string, cluster ID, founders, epoch, counter uint32, revision uint64, names ...string) {
		t.Helper()
		if table.Cluster() != cluster || table.Founders() != founders || table.Epoch() != epoch || table.Counter() != counter || table.Revision() != revision {
			t.Errorf("%s: got cluster %v, founders %d, epoch %d, counter %d, revision %d, want %v, %d, %d, %d, %d", step,
				table.Cluster(), table.Founders(), table.Epoch(), table.Counter(), table.Revision(), cluster, founders, epoch, counter, revision)
		}
		var got []string
		for l := range table.All() {
			got = append(got, l.Name)
		}
		if !slices.Equal(got, names) || table.Len() != len(names) {
			t.Errorf("%s: got %d leases %q, want %q", step, table.Len(), got, names)
		}
	}
	check("new", ID{}, 0, 0, 0, 0)
	apply(table, birth(1))
	check("born", cluster, 3, 1, 0, 1)
	apply(table, acquire("b", alice, try1), acquire("c", alice, try1), acquire("a", alice, try1), acquire("a", bob, try1))
	check("acquired", cluster, 3, 1, 3, 4, "a", "b", "c")
	apply(table, bump(5))
	check("bumped", cluster, 3, 5, 0, 5, "a", "b", "c")
	apply(table, with(expire("b", token(1)), func(op *Op) { op.Epoch = 5 }))
	check("expired", cluster, 3, 5, 0, 6, "a", "c")
	for range table.All() {
		break // an early end is fine
	}
}

func TestEndings(t *testing.T) {
	table := NewTable()
	apply(table, birth(1),
		acquire("job", alice, try1), release("job", alice, token(1)),
		acquire("job", bob, try1), expire("job", token(2)),
		acquire("job", alice, try2), withdraw("job", alice, try2),
		acquire("other", alice, try2), acquire("job", bob, try2),
		transfer(bob, token(5), acquire("job", alice, try1)), breakNow("job", token(6)),
		acquire("job", bob, try1), breaks("job", token(7)), expire("job", token(7)))
	for _, want := range []Ending{
		{"job", token(1), WhyReleased, token(2)},
		{"job", token(2), WhyExpired, token(3)},
		{"job", token(3), WhyWithdrawn, token(5)},
		{"job", token(5), WhyTransferred, token(6)},
		{"job", token(6), WhyBroken, token(7)},
		{"job", token(7), WhyBroken, 0},
	} {
		if got, ok := table.Ended("job", want.Token); !ok || got != want {
			t.Errorf("token %v: got %+v, %v, want %+v", want.Token, got, ok, want)
		}
		if got, ok := table.Ended("other", want.Token); ok {
			t.Errorf("token %v under another name: got %+v", want.Token, got)
		}
	}
	if got, ok := table.Last("job"); !ok || got.Token != token(7) {
		t.Errorf("Last: got %+v, %v, want token %v", got, ok, token(7))
	}
	if got, ok := table.Last("other"); ok {
		t.Errorf("Last of a name that never ended: got %+v", got)
	}
	if got, ok := table.Ended("other", token(4)); ok {
		t.Errorf("Ended of a held lease: got %+v", got)
	}
}

func TestEndingErr(t *testing.T) {
	err := Ending{"job", token(1), WhyExpired, token(2)}.Err()
	var got *NotHeldError
	if !errors.As(err, &got) || !errors.Is(err, ErrNotHeld) || *got != (NotHeldError{"job", token(1), WhyExpired, token(2)}) {
		t.Errorf("got %#v", err)
	}
}

// The oldest ending is the first to be forgotten, and nothing else is.
func TestEndedKept(t *testing.T) {
	table := NewTable()
	apply(table, birth(1))
	name := func(n int) string { return fmt.Sprintf("job%d", n%100) }
	const more = 50
	for n := 1; n <= EndedKept+more; n++ {
		apply(table, acquire(name(n), alice, try1), release(name(n), alice, token(uint32(n))))
	}
	for n := 1; n <= EndedKept+more; n++ {
		got, ok := table.Ended(name(n), token(uint32(n)))
		if want := n > more; ok != want {
			t.Fatalf("ending %d of %d: got remembered %v, want %v", n, EndedKept+more, ok, want)
		}
		var next tokens.Token
		if n+100 <= EndedKept+more {
			next = token(uint32(n + 100))
		}
		if ok && got.Next != next {
			t.Fatalf("ending %d: got next %v, want %v", n, got.Next, next)
		}
	}
	if got := len(table.Snapshot().ended); got != EndedKept {
		t.Errorf("got %d endings in a snapshot, want %d", got, EndedKept)
	}
	if r := table.Apply(release(name(1), alice, token(1))); r.Outcome != Absent || r.Ending != (Ending{Name: name(1), Token: token(1)}) {
		t.Errorf("release of a forgotten lease: got %v, %+v", r.Outcome, r.Ending)
	}
}

// A name whose only ending is forgotten has none, and its next grant has
// nothing to note.
func TestForgottenName(t *testing.T) {
	table := newTable(2)
	apply(table, birth(1), acquire("old", alice, try1), release("old", alice, token(1)))
	for n := uint32(2); n <= 3; n++ {
		if _, ok := table.Last("old"); !ok {
			t.Fatalf("before token %d: it is forgotten too early", n)
		}
		apply(table, acquire("new", alice, try1), release("new", alice, token(n)))
	}
	if got, ok := table.Last("old"); ok {
		t.Errorf("got %+v, want it forgotten", got)
	}
	apply(table, acquire("old", alice, try1))
	want := []Ending{{"new", token(2), WhyReleased, token(3)}, {"new", token(3), WhyReleased, 0}}
	if got := table.Snapshot().ended; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestCounterUsedUp(t *testing.T) {
	table := NewTable()
	apply(table, birth(tokens.MaxEpoch-1))
	table.counter = tokens.MaxCounter - 1
	op := func(name string) Op {
		return with(acquire(name, alice, try1), func(op *Op) { op.Epoch = table.Epoch() })
	}
	if r := table.Apply(op("a")); r.Outcome != Granted || r.Lease.Token != tokens.New(tokens.MaxEpoch-1, tokens.MaxCounter) {
		t.Errorf("the last counter: got %v", r.Outcome)
	}
	if r := table.Apply(op("b")); r.Outcome != UsedUp || r.Lease != nil {
		t.Errorf("beyond the last counter: got %v, %v", r.Outcome, r.Lease)
	}
	if r := table.Apply(op("a")); r.Outcome != Repeated {
		t.Errorf("a repeat needs no counter: got %v", r.Outcome)
	}
	if r := apply(table, bump(tokens.MaxEpoch), op("b")); r.Outcome != StaleEpoch {
		t.Errorf("an op of the epoch before: got %v", r.Outcome)
	}
	if r := table.Apply(op("b")); r.Outcome != Granted || r.Lease.Token != tokens.New(tokens.MaxEpoch, 1) {
		t.Errorf("after the bump: got %v", r.Outcome)
	}
	table.counter = tokens.MaxCounter - 1
	if r := table.Apply(op("c")); r.Outcome != Granted || r.Lease.Token != tokens.Max {
		t.Errorf("the last token of all: got %v", r.Outcome)
	}
	if r := table.Apply(op("d")); r.Outcome != UsedUp {
		t.Errorf("beyond the last token of all: got %v", r.Outcome)
	}
}

// A transfer for which no token is left is a plain release.
func TestTransferWithTheCounterUsedUp(t *testing.T) {
	table := NewTable()
	apply(table, birth(1), acquire("a", alice, try1), acquire("b", alice, try1))
	table.counter = tokens.MaxCounter - 1
	if r := table.Apply(transfer(alice, token(1), acquire("a", bob, try2))); r.Outcome != Transferred || r.Lease.Token != token(tokens.MaxCounter) {
		t.Errorf("the last counter: got %v", r.Outcome)
	}
	want := Ending{"b", token(2), WhyReleased, 0}
	if r := table.Apply(transfer(alice, token(2), acquire("b", bob, try2))); r.Outcome != Freed || r.Lease.Token != token(2) || r.Ending != want {
		t.Errorf("beyond the last counter: got %v, %+v, want freed, %+v", r.Outcome, r.Ending, want)
	}
	if l, ok := table.Get("b"); ok {
		t.Errorf("the name is held: %+v", l)
	}
}

func TestNames(t *testing.T) {
	for k, want := range map[Kind]string{
		KindBirth: "birth", KindAcquire: "acquire", KindWithdraw: "withdraw", KindRelease: "release", KindExpire: "expire",
		KindBump: "bump", KindBreak: "break", KindTransfer: "transfer", KindImportPart: "import part", KindImport: "import", KindAdopt: "adopt",
		KindRenew: "renew", KindReclaim: "reclaim", 0: "kind 0", 99: "kind 99",
	} {
		if got := k.String(); got != want {
			t.Errorf("kind %d: got %q, want %q", uint8(k), got, want)
		}
		if got := k.Version(); got == 0 || k.known() && got > OpVersion {
			t.Errorf("%v: got version %d, want 1 to %d", k, got, OpVersion)
		}
	}
	seen := map[string]Outcome{}
	for o := Ignored; o <= Closed; o++ {
		if before, twice := seen[o.String()]; twice || o.String() == "" {
			t.Errorf("outcomes %d and %d: both are %q", before, o, o)
		}
		seen[o.String()] = o
	}
	if got := (Closed + 1).String(); got != "outcome 21" {
		t.Errorf("unknown outcome: got %q", got)
	}
}

func TestOpValidate(t *testing.T) {
	held := acquire("job", alice, try1)
	given := transfer(alice, 1, acquire("job", bob, try2))
	for _, c := range []struct {
		name string
		op   Op
		want string // empty: valid
	}{
		{"all of them", held, ""},
		{"shortest ttl", with(held, func(op *Op) { op.TTL = time.Millisecond }), ""},
		{"longest ttl", with(held, func(op *Op) { op.TTL = math.MaxUint32 * time.Millisecond }), ""},
		{"ttl too long", with(held, func(op *Op) { op.TTL = (math.MaxUint32 + 1) * time.Millisecond }), `invalid ttl "1193h2m47.296s": want whole milliseconds up to 1193h2m47.295s`},
		{"negative ttl", with(held, func(op *Op) { op.TTL = -time.Millisecond }), `invalid ttl "-1ms": want whole milliseconds up to 1193h2m47.295s`},
		{"part of a millisecond", with(held, func(op *Op) { op.TTL = time.Second + 1 }), `invalid ttl "1.000000001s": want whole milliseconds up to 1193h2m47.295s`},
		{"longest label", with(held, func(op *Op) { op.Owner.Label = strings.Repeat("l", 128) }), ""},
		{"label too long", with(held, func(op *Op) { op.Owner.Label = strings.Repeat("l", 129) }), `invalid owner label "129 bytes": want 0 to 128 bytes`},
		{"site too long", with(held, func(op *Op) { op.Owner.Site = strings.Repeat("l", 129) }), `invalid owner site "129 bytes": want 0 to 128 bytes`},
		{"host too long", with(held, func(op *Op) { op.Owner.Host = strings.Repeat("l", 129) }), `invalid owner host "129 bytes": want 0 to 128 bytes`},
		{"most attributes", with(held, func(op *Op) { op.Attributes = make([]byte, 512) }), ""},
		{"too many attributes", with(held, func(op *Op) { op.Attributes = make([]byte, 513) }), `invalid attributes "513 bytes": want 0 to 512 bytes`},
		{"no name", with(held, func(op *Op) { op.Name = "" }), `invalid name "0 bytes": want 1 to 512 bytes`},
		{"unprintable name", with(held, func(op *Op) { op.Name = "\xff\x00" }), ""},
		{"no attempt", withdraw("job", alice, ID{}), `invalid attempt "none": want 16 bytes that are not all zero`},
		{"greatest token", expire("job", tokens.Max), ""},
		{"token too great", expire("job", tokens.Max+1), `invalid token "9007199254740992": want 1 to 9007199254740991`},
		{"no session", release("job", ID{}, 1), `invalid session "none": want 16 bytes that are not all zero`},
		{"break", breaks("job", tokens.Max), ""},
		{"break of no name", breaks("", 1), `invalid name "0 bytes": want 1 to 512 bytes`},
		{"break of no token", breakNow("job", 0), `invalid token "0": want 1 to 9007199254740991`},
		{"transfer", given, ""},
		{"transfer of no name", with(given, func(op *Op) { op.Name = "" }), `invalid name "0 bytes": want 1 to 512 bytes`},
		{"transfer by nobody", with(given, func(op *Op) { op.Session = ID{} }), `invalid session "none": want 16 bytes that are not all zero`},
		{"transfer of no token", with(given, func(op *Op) { op.Token = 0 }), `invalid token "0": want 1 to 9007199254740991`},
		{"transfer to nobody", with(given, func(op *Op) { op.Heir = ID{} }), `invalid heir "none": want 16 bytes that are not all zero`},
		{"transfer to no attempt", with(given, func(op *Op) { op.Attempt = ID{} }), `invalid attempt "none": want 16 bytes that are not all zero`},
		{"transfer for no time", with(given, func(op *Op) { op.TTL = 0 }), `invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
		{"transfer with too many attributes", with(given, func(op *Op) { op.Attributes = make([]byte, 513) }), `invalid attributes "513 bytes": want 0 to 512 bytes`},
		{"no kind", Op{}, `invalid op "kind 0": want a kind that this release knows`},
		{"no founders", with(birth(1), func(op *Op) { op.Founders = 0 }), `invalid founders "0": want 1 to 4294967295`},
		{"bump", bump(math.MaxUint32), ""},
		{"import", importAll(0, 0), ""},
		{"an empty part", part(2), ""},
		{"a part with nothing in it", part(2, nil), `invalid lease "none": want a lease`},
		{"a part with a token too great", part(2, &Lease{Name: "n", Session: alice, Token: tokens.Max + 1, TTL: time.Second}), `invalid token "9007199254740992": want 1 to 9007199254740991`},
		{"a part with part of a millisecond", part(2, &Lease{Name: "n", Session: alice, Token: 1, TTL: 1}), `invalid ttl "1ns": want whole milliseconds up to 1193h2m47.295s`},
		{"no shards adopted", adopt(1, Shards{}), `invalid shards "0": want 1 to 4096`},
		{"most and largest shards", adopt(1, Shards{MaxShards, MaxShardBytes}), ""},
		{"renew", renew("job", alice, 1), ""},
		{"renew for nobody", renew("job", ID{}, 1), `invalid session "none": want 16 bytes that are not all zero`},
		{"reclaim without an attempt", reclaim(held, 1), ""},
		{"reclaim for no time", reclaim(with(held, func(op *Op) { op.TTL = 0 }), 1), `invalid ttl "0s": want whole milliseconds up to 1193h2m47.295s`},
	} {
		err := c.op.Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: got %v, want no error", c.name, err)
		case c.want != "" && (err == nil || err.Error() != c.want || !errors.Is(err, ErrInvalid)):
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}
