package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// memory is the feed written down as plainly as can be: every place that the
// table has been at, and what led there.
type memory struct {
	kept    int
	places  []leases.Position
	changes []leases.Change // to each place; without a kind: no lease has changed
}

func (m *memory) newest() leases.Position { return m.places[len(m.places)-1] }

// remembered are the places that can be watched from.
func (m *memory) remembered() []leases.Position { return m.places[max(0, len(m.places)-1-m.kept):] }

func (m *memory) since(prefix string, from leases.Position) (leases.Batch, error) {
	known, now := m.remembered(), m.newest()
	if from.Revision >= now.Revision && from.Epoch >= now.Epoch {
		return leases.Batch{At: from}, nil
	}
	if !slices.Contains(known, from) {
		return leases.Batch{}, &leases.MissedError{From: from, Oldest: known[0], Newest: now}
	}
	b := leases.Batch{At: now}
	for i, c := range m.changes {
		if m.places[i].Revision > from.Revision && c.Kind != 0 && strings.HasPrefix(c.Name, prefix) {
			b.Changes = append(b.Changes, c)
		}
	}
	return b, nil
}

// someOp draws an op that mostly changes something.
func someOp(t *rapid.T, table *leases.Table) leases.Op {
	op := acquire(rapid.SampledFrom([]string{"a/1", "a/2", "b"}).Draw(t, "name"))
	op.Epoch = table.Epoch()
	switch epoch := table.Epoch() + rapid.SampledFrom([]uint32{0, 1, 1, 1024}).Draw(t, "by"); rapid.IntRange(0, 11).Draw(t, "epoch") {
	case 0:
		return leases.Op{Kind: leases.KindBump, Epoch: epoch}
	case 1:
		return part(epoch, rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a/1", "b"}), 0, 2, rapid.ID[string]).Draw(t, "names")...)
	case 2:
		return importAll(epoch, rapid.Uint32Range(0, 2).Draw(t, "count"))
	}
	if l, ok := table.Get(op.Name); ok {
		op.Kind = rapid.SampledFrom([]leases.Kind{
			leases.KindAcquire, leases.KindRelease, leases.KindExpire, leases.KindWithdraw, leases.KindBreak, leases.KindTransfer,
		}).Draw(t, "kind")
		op.Session, op.Attempt, op.Token, op.Heir, op.Now = l.Session, l.Attempt, l.Token, leases.ID{2}, rapid.Bool().Draw(t, "now")
	}
	return op
}

// TestFeedIsWhatHappened runs the feed against the plain memory: after every
// step all late places, those that were and those that never were, are asked for.
func TestFeedIsWhatHappened(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const kept = 7
		f := New(rules.Set{}, func(err error) { t.Fatal(err) })
		f.feed = newFeed(kept)
		m := &memory{kept: kept, places: make([]leases.Position, 1), changes: make([]leases.Change, 1)}
		do := func(op leases.Op) {
			before := f.table.Revision()
			r := f.apply(op)
			switch now := f.table.Revision(); {
			case r.Outcome == leases.Imported:
				m.places, m.changes = []leases.Position{{Epoch: op.Epoch, Revision: before + 1}}, make([]leases.Change, 1)
			case now != before:
				c, _ := leases.ChangeOf(r, now)
				m.places = append(m.places, leases.Position{Epoch: f.table.Epoch(), Revision: now})
				m.changes = append(m.changes, c)
			}
		}
		do(birth())
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "ops") {
					do(someOp(t, f.table))
				}
			},
			"restore": func(t *rapid.T) {
				if err := f.Restore(io.NopCloser(bytes.NewReader(take(t, f)))); err != nil {
					t.Fatal(err)
				}
				m.places, m.changes = []leases.Position{m.newest()}, make([]leases.Change, 1)
			},
			"": func(t *rapid.T) {
				now := f.Position()
				if now != m.newest() || len(f.feed.ring) > kept || cap(f.feed.ring) > kept {
					t.Fatalf("at %v with room for %d, want %v and at most %d", now, cap(f.feed.ring), m.newest(), kept)
				}
				places := slices.Clone(m.remembered())
				for revision := now.Revision - min(now.Revision, kept+3); revision < now.Revision+3; revision++ {
					places = append(places, at(now.Epoch-1, revision), at(now.Epoch, revision), at(now.Epoch+1, revision))
				}
				for _, from := range places {
					for _, prefix := range []string{"", "a/"} {
						got, err := f.feed.since(prefix, from)
						want, wantErr := m.since(prefix, from)
						if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(err, wantErr) {
							t.Fatalf("%q since %v: got %+v, %v, want %+v, %v", prefix, from, got, err, want, wantErr)
						}
					}
				}
			},
		})
	})
}

// replica is a state machine whose table has been born, at epoch 1, revision 1.
func replica(t testing.TB) *FSM {
	f := New(rules.Set{}, func(err error) { t.Errorf("the state machine has stopped: %v", err) })
	commit(f, birth())
	return f
}

// commit applies the ops as one entry of the log.
func commit(f *FSM, ops ...leases.Op) []leases.Result {
	return f.Apply(&raft.Log{Term: 1, Data: Entry{Term: 1, Ops: ops}.Encode()}).(Applied).Results
}

// take turns holds and frees a name: n changes under it.
func turns(f *FSM, name string, n int) {
	for range n {
		var l *leases.Lease
		f.View(func(table *leases.Table) { l, _ = table.Get(name) })
		op := acquire(name)
		if l != nil {
			op.Kind, op.Session, op.Token = leases.KindRelease, l.Session, l.Token
		}
		op.Epoch = f.Position().Epoch
		commit(f, op)
	}
}

func at(epoch uint32, revision uint64) leases.Position {
	return leases.Position{Epoch: epoch, Revision: revision}
}

// What happened longest ago is forgotten first, and only as much as need be.
func TestFeedForgetsTheOldest(t *testing.T) {
	const more = 5
	f := replica(t)
	turns(f, "job", RememberedChanges-1) // with the birth it is full
	if b, err := f.feed.since("", at(0, 0)); err != nil || len(b.Changes) != MaxBatch || b.Changes[0].Revision != 2 {
		t.Fatalf("a feed that is just full: got %d changes, %v", len(b.Changes), err)
	}
	turns(f, "job", more)
	_, err := f.feed.since("", at(1, more-1))
	var missed *leases.MissedError
	want := leases.MissedError{From: at(1, more-1), Oldest: at(1, more), Newest: at(1, RememberedChanges+more)}
	if !errors.As(err, &missed) || *missed != want || !errors.Is(err, leases.ErrMissed) {
		t.Errorf("got %v, want %v", err, &want)
	}
	told := uint64(more)
	for from := missed.Oldest; from != missed.Newest; {
		b, err := f.feed.since("", from)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range b.Changes {
			if told++; c.Revision != told {
				t.Fatalf("got revision %d, want %d", c.Revision, told)
			}
		}
		from = b.At
	}
	if told != RememberedChanges+more {
		t.Errorf("told up to revision %d, want %d", told, RememberedChanges+more)
	}
	if room := cap(f.feed.ring); room != RememberedChanges {
		t.Errorf("a full feed has room for %d, want %d", room, RememberedChanges)
	}
}

// However many epochs begin, those before the oldest remembered place are
// forgotten, and that place is still one to watch from.
func TestFeedForgetsEpochs(t *testing.T) {
	f := replica(t)
	for epoch := range uint32(RememberedChanges + 10) {
		f.apply(leases.Op{Kind: leases.KindBump, Epoch: epoch + 2})
	}
	const oldest, newest = 11, RememberedChanges + 11 // the revisions are as many as the epochs
	if b, err := f.feed.since("", at(oldest, oldest)); err != nil || b.At != at(newest, newest) || len(f.feed.ring) != RememberedChanges {
		t.Errorf("since %v: got %v, %v with %d remembered", at(oldest, oldest), b.At, err, len(f.feed.ring))
	}
	for _, from := range []leases.Position{at(oldest-1, oldest-1), at(oldest-1, oldest), at(oldest+1, oldest)} {
		if _, err := f.feed.since("", from); !errors.Is(err, leases.ErrMissed) {
			t.Errorf("since %v: got %v, want %v", from, err, leases.ErrMissed)
		}
	}
}

// A change must not hold on to the log entry that it came in.
func TestFeedKeepsNothingOfTheEntry(t *testing.T) {
	f := replica(t)
	op := acquire("job")
	op.Attributes = []byte("v=1")
	op.Owner = leases.Owner{Label: "billing", Site: "aws", Host: "host7"}
	data := Entry{Term: 1, Ops: []leases.Op{op}}.Encode()
	f.Apply(&raft.Log{Term: 1, Data: data})
	for i := range data {
		data[i] = 'x'
	}
	b, err := f.feed.since("", at(1, 1))
	if err != nil || len(b.Changes) != 1 {
		t.Fatalf("got %+v, %v", b, err)
	}
	if c := b.Changes[0]; c.Name != "job" || string(c.Attributes) != "v=1" || c.Owner != op.Owner {
		t.Errorf("got %+v: it is part of the entry's memory", c)
	}
}

// As long as nobody waits, remembering costs no allocation.
func TestFeedAllocatesNothing(t *testing.T) {
	f := newFeed(64)
	add := func() { f.add(revision{1, leases.Change{Kind: leases.ChangeGranted, Name: "job"}}) }
	for range 64 {
		add()
	}
	if n := testing.AllocsPerRun(1000, add); n != 0 {
		t.Errorf("got %v allocations for a change, want none", n)
	}
}

// BenchmarkChanges applies entries of 256 changes each, with so many watchers
// that wait for every one of them.
func BenchmarkChanges(b *testing.B) {
	for _, watchers := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			f := replica(b)
			stop := watch(b, f, watchers)
			defer stop()
			entries := pair(f, 256)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f.Apply(&raft.Log{Term: 1, Data: entries(i)})
			}
		})
	}
	b.Run("table alone", func(b *testing.B) {
		f := replica(b)
		entries := pair(f, 256)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			entry, err := DecodeEntry(entries(i))
			if err != nil {
				b.Fatal(err)
			}
			results := make([]leases.Result, len(entry.Ops))
			for i, op := range entry.Ops {
				results[i] = f.table.Apply(op)
			}
		}
	})
}

// pair returns entries that grant n names and withdraw them again, in turns.
func pair(f *FSM, n int) func(i int) []byte {
	grant, free := Entry{Term: 1}, Entry{Term: 1}
	for i := range n {
		op := acquire(fmt.Sprintf("job-%d", i))
		grant.Ops = append(grant.Ops, op)
		op.Kind = leases.KindWithdraw
		free.Ops = append(free.Ops, op)
	}
	data := [2][]byte{grant.Encode(), free.Encode()}
	return func(i int) []byte { return data[i%2] }
}
