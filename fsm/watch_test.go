package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// told is what a watcher was told at once.
type told struct {
	leases.Batch
	err error
}

// ask lets a watcher wait for what comes after from.
func ask(t *testing.T, f *FSM, prefix string, from leases.Position) <-chan told {
	t.Helper()
	answer := make(chan told, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b, err := f.Changes(ctx, prefix, from)
		answer <- told{b, err}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return answer
}

// silent fails if a watcher was told something although there is nothing. It
// works in virtual time, where nobody else is at work then.
func silent(t *testing.T, answer <-chan told) {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-answer:
		t.Fatalf("got %+v, %v, want the watcher to wait", a.Batch, a.err)
	default:
	}
}

func TestChangesComeInOrder(t *testing.T) {
	f := replica(t)
	heir := acquire("a/1")
	heir.Kind, heir.Session, heir.Token, heir.Heir = leases.KindTransfer, leases.ID{1}, tokens.New(1, 1), leases.ID{2}
	commit(f, acquire("a/1"), acquire("b"), leases.Op{Kind: leases.KindBreak, Epoch: 1, Name: "b", Token: tokens.New(1, 2)}, acquire("b"))
	commit(f, heir, leases.Op{Kind: leases.KindBump, Epoch: 2},
		leases.Op{Kind: leases.KindExpire, Epoch: 2, Name: "b", Token: tokens.New(1, 2)},
		leases.Op{Kind: leases.KindRelease, Epoch: 2, Name: "a/1", Session: leases.ID{2}, Token: tokens.New(1, 3)})
	all := []string{"2 granted a/1", "3 granted b", "4 broken b", "5 transferred a/1", "7 broken b", "8 released a/1"}
	for _, c := range []struct {
		prefix string
		from   leases.Position
		want   []string
	}{
		{"", at(0, 0), all},
		{"", at(1, 1), all},
		{"", at(1, 3), all[2:]},
		{"", at(1, 5), all[4:]},
		{"", at(2, 6), all[4:]},
		{"a/", at(1, 1), []string{all[0], all[3], all[5]}},
		{"a/1", at(1, 2), []string{all[3], all[5]}},
		{"b", at(1, 1), []string{all[1], all[2], all[4]}},
	} {
		b, err := f.Changes(t.Context(), c.prefix, c.from)
		var got []string
		for _, change := range b.Changes {
			got = append(got, fmt.Sprintf("%d %v %s", change.Revision, change.Kind, change.Name))
		}
		if err != nil || !slices.Equal(got, c.want) || b.At != at(2, 8) {
			t.Errorf("%q since %v: got %q up to %v, %v, want %q up to 2/8", c.prefix, c.from, got, b.At, err, c.want)
		}
	}
}

// Whoever watches must list the leases anew after an import, whose parts tell nothing yet.
func TestImportEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replica(t)
		commit(f, acquire("a"))
		watcher, ahead := ask(t, f, "", at(1, 2)), ask(t, f, "", at(9, 9))
		commit(f, part(3, "b"), part(3, "c"), importAll(3, 1))
		silent(t, watcher)
		if now := f.Position(); now != at(1, 2) {
			t.Errorf("after the parts: at %v, want 1/2", now)
		}
		commit(f, importAll(3, 2))
		var missed *leases.MissedError
		want := leases.MissedError{From: at(1, 2), Oldest: at(3, 3), Newest: at(3, 3)}
		if a := <-watcher; !errors.As(a.err, &missed) || *missed != want {
			t.Errorf("got %+v, %v, want %v", a.Batch, a.err, &want)
		}
		silent(t, ahead) // of this history as of any: the table may still come there
		op := acquire("d")
		op.Epoch = 3
		next := ask(t, f, "", at(3, 3))
		commit(f, op)
		if a := <-next; a.err != nil || len(a.Changes) != 1 || a.Changes[0].Name != "d" {
			t.Errorf("from the import on: got %+v, %v, want the grant of d", a.Batch, a.err)
		}
	})
}

// After a reset another group's history begins: whoever watched this one has missed that.
func TestResetEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replica(t)
		commit(f, acquire("a"))
		watcher := ask(t, f, "", at(1, 2))
		f.Reset()
		silent(t, watcher) // there is no table yet that could be elsewhere
		if now := f.Position(); now != at(0, 0) {
			t.Errorf("after the reset: at %v, want 0/0", now)
		}
		commit(f, birth(), part(3, "b"), importAll(3, 1))
		if a := <-watcher; !errors.Is(a.err, leases.ErrMissed) {
			t.Errorf("got %+v, %v, want %v", a.Batch, a.err, leases.ErrMissed)
		}
	})
}

// What does not fit into one batch comes with the next ones, once each.
func TestChangesGoOnAfterABatch(t *testing.T) {
	f := replica(t)
	var ops []leases.Op
	for i := range 2*MaxBatch + 100 {
		ops = append(ops, acquire(fmt.Sprintf("a/%04d", i)), acquire(fmt.Sprintf("b/%04d", i)))
	}
	commit(f, ops...)
	now := f.Position()
	for _, c := range []struct {
		prefix string
		want   []int
	}{
		{"a/", []int{MaxBatch, MaxBatch, 100}},
		{"", []int{MaxBatch, MaxBatch, MaxBatch, MaxBatch, 200}},
		{"a/0", []int{MaxBatch, 1000 - MaxBatch}},
	} {
		var got []int
		revision := uint64(0)
		for from := at(1, 1); from != now; {
			b, err := f.Changes(t.Context(), c.prefix, from)
			if err != nil {
				t.Fatalf("%q since %v: %v", c.prefix, from, err)
			}
			for _, change := range b.Changes {
				if change.Revision <= revision || change.Revision > b.At.Revision {
					t.Fatalf("%q: revision %d after %d, in a batch up to %v", c.prefix, change.Revision, revision, b.At)
				}
				revision = change.Revision
			}
			got, from = append(got, len(b.Changes)), b.At
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: got batches of %d, want %d", c.prefix, got, c.want)
		}
	}
}

// A watcher waits until one of its names changes, over a bump too.
func TestChangesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replica(t)
		answer := ask(t, f, "a/", f.Position())
		silent(t, answer)
		commit(f, acquire("b"), leases.Op{Kind: leases.KindBump, Epoch: 2})
		silent(t, answer)
		turns(f, "b", 3)
		silent(t, answer)
		turns(f, "a/1", 1)
		a := <-answer
		if a.err != nil || len(a.Changes) != 1 || a.Changes[0].Name != "a/1" || a.At != at(2, 7) {
			t.Errorf("got %+v, %v, want the grant of a/1 at 2/7", a.Batch, a.err)
		}
		// It goes on from where it was told of the change, or from before the bump.
		for i, from := range []leases.Position{a.At, at(1, 2)} {
			name := fmt.Sprintf("c/%d", i)
			answer = ask(t, f, name, from)
			silent(t, answer)
			turns(f, name, 1)
			if a := <-answer; a.err != nil || len(a.Changes) != 1 || a.Changes[0].Name != name {
				t.Errorf("since %v: got %+v, %v, want a change of %s", from, a.Batch, a.err, name)
			}
		}
	})
}

// A watcher that comes from a node that is ahead waits for this one. One whose
// place never comes, however far it is, waits too.
func TestChangesAheadAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replica(t)
		near, far := ask(t, f, "", at(1, 4)), ask(t, f, "", at(1, math.MaxUint64))
		bumped := ask(t, f, "", at(2, 5))
		turns(f, "job", 3) // up to 1/4
		silent(t, near)
		turns(f, "job", 1) // 1/5, which was to be 2/5
		if a := <-near; a.err != nil || len(a.Changes) != 1 || a.Changes[0].Revision != 5 {
			t.Errorf("got %+v, %v, want the change at revision 5", a.Batch, a.err)
		}
		silent(t, bumped)
		turns(f, "job", 1)
		if a := <-bumped; !errors.Is(a.err, leases.ErrMissed) {
			t.Errorf("a place of another history: got %v, want %v", a.err, leases.ErrMissed)
		}
		silent(t, far)
		commit(f, leases.Op{Kind: leases.KindBump, Epoch: 2})
		if a := <-far; !errors.Is(a.err, leases.ErrMissed) {
			t.Errorf("a place of an older epoch that never came: got %v, want %v", a.err, leases.ErrMissed)
		}
	})
}

// A recovered cluster goes on from an older log in a far greater epoch: what
// was told of the lost part is nowhere in its history.
func TestChangesOfALostFutureAreMissed(t *testing.T) {
	f := replica(t)
	turns(f, "job", 4) // up to 1/5
	commit(f, leases.Op{Kind: leases.KindBump, Epoch: 1025})
	for _, from := range []leases.Position{at(1, 6), at(1, 7), at(1, 100), at(2, 6), at(1024, 6), at(1025, 5), at(0, 5), at(2, 2)} {
		_, err := f.Changes(t.Context(), "", from)
		var missed *leases.MissedError
		if !errors.As(err, &missed) || *missed != (leases.MissedError{From: from, Newest: at(1025, 6)}) {
			t.Errorf("since %v: got %v, want it missed, since 0/0 up to 1025/6", from, err)
		}
	}
	turns(f, "job", 1)
	for _, from := range []leases.Position{at(1, 5), at(1025, 6)} { // both histories have these
		if b, err := f.Changes(t.Context(), "", from); err != nil || len(b.Changes) != 1 || b.At != at(1025, 7) {
			t.Errorf("since %v: got %+v, %v", from, b, err)
		}
	}
}

// With a snapshot a table jumps: what led there is not known.
func TestChangesAfterRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead, f := replica(t), replica(t)
		turns(ahead, "job", 9) // up to 1/10
		turns(f, "job", 3)     // up to 1/4
		waits, waitsFor10, waitsFor12 := ask(t, f, "", at(1, 4)), ask(t, f, "", at(1, 10)), ask(t, f, "", at(1, 12))
		silent(t, waits)
		if err := f.Restore(io.NopCloser(bytes.NewReader(take(t, ahead)))); err != nil {
			t.Fatal(err)
		}
		want := leases.MissedError{From: at(1, 4), Oldest: at(1, 10), Newest: at(1, 10)}
		var missed *leases.MissedError
		if a := <-waits; !errors.As(a.err, &missed) || *missed != want {
			t.Errorf("who waited: got %v, want %v", a.err, &want)
		}
		if _, err := f.Changes(t.Context(), "", at(1, 9)); !errors.Is(err, leases.ErrMissed) {
			t.Errorf("since before the snapshot: got %v, want %v", err, leases.ErrMissed)
		}
		if f.Position() != at(1, 10) || f.feed.ring != nil {
			t.Errorf("got position %v and %d changes", f.Position(), len(f.feed.ring))
		}
		silent(t, waitsFor10)
		turns(f, "job", 3) // up to 1/13
		for from, answer := range map[uint64]<-chan told{10: waitsFor10, 12: waitsFor12} {
			if a := <-answer; a.err != nil || len(a.Changes) == 0 || a.Changes[0].Revision != from+1 {
				t.Errorf("since revision %d: got %+v, %v, want the next change", from, a.Batch, a.err)
			}
		}
	})
}

// Who watches names at which nothing happens is told where it stands, long
// before its place is forgotten.
func TestChangesOfQuietNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replica(t)
		answer := ask(t, f, "quiet/", at(1, 1))
		for range 3 {
			from := f.Position()
			turns(f, "job", quiet-1)
			silent(t, answer)
			turns(f, "job", 1)
			want := at(1, from.Revision+quiet)
			if a := <-answer; a.err != nil || len(a.Changes) != 0 || a.At != want {
				t.Fatalf("got %+v, %v, want no changes up to %v", a.Batch, a.err, want)
			}
			answer = ask(t, f, "quiet/", want)
		}
	})
}

// A watch begins where it is asked to, if it can go on from there, else now.
func TestBegin(t *testing.T) {
	f := replica(t)
	turns(f, "job", 3) // up to 1/4
	for from, want := range map[leases.Position]leases.Position{
		{}: at(1, 4), at(1, 1): at(1, 1), at(1, 4): at(1, 4), at(1, 9): at(1, 9), at(2, 9): at(2, 9),
	} {
		if got, err := f.Begin(from); got != want || err != nil {
			t.Errorf("from %v: got %v, %v, want %v", from, got, err, want)
		}
	}
	for _, from := range []leases.Position{at(2, 3), at(0, 3)} {
		if _, err := f.Begin(from); !errors.Is(err, leases.ErrMissed) {
			t.Errorf("from %v: got %v, want %v", from, err, leases.ErrMissed)
		}
	}
}

func TestChangesEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replica(t)
		why := errors.New("the watcher has gone")
		for _, from := range []leases.Position{at(1, 1), at(1, math.MaxUint64), at(9, 9)} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Hour, func() { cancel(why) })
			if b, err := f.Changes(ctx, "", from); !errors.Is(err, why) || len(b.Changes) != 0 {
				t.Errorf("since %v: got %+v, %v, want %v", from, b, err, why)
			}
		}
	})
}

// Whoever watches while entries are applied is told everything of its names,
// once each and in order: no wake-up is lost, or the test would not end.
func TestChangesWhileApplying(t *testing.T) {
	const entries, perName = 3000, 4
	f := replica(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	last := at(2, 2+entries) // birth, a bump, and one change each
	var watchers sync.WaitGroup
	for i := range perName {
		for _, prefix := range []string{"", fmt.Sprintf("job/%d", i)} {
			watchers.Go(func() {
				want := entries / perName
				if prefix == "" {
					want = entries
				}
				n, revision := 0, uint64(0)
				for from := at(1, 1); n < want; {
					b, err := f.Changes(ctx, prefix, from)
					if err != nil {
						t.Errorf("%q since %v, after %d changes: %v", prefix, from, n, err)
						return
					}
					for _, c := range b.Changes {
						if c.Revision <= revision {
							t.Errorf("%q: revision %d after %d", prefix, c.Revision, revision)
						}
						n, revision = n+1, c.Revision
					}
					from = b.At
				}
				if n != want || prefix == "" && revision != last.Revision {
					t.Errorf("%q: got %d changes up to revision %d, want %d", prefix, n, revision, want)
				}
			})
		}
	}
	for i := range entries {
		if i == entries/2 {
			commit(f, leases.Op{Kind: leases.KindBump, Epoch: 2})
		}
		turns(f, fmt.Sprintf("job/%d", i%perName), 1)
	}
	watchers.Wait()
	if f.Position() != last {
		t.Errorf("got %v, want %v", f.Position(), last)
	}
}

// watch starts watchers of everything and returns what ends them.
func watch(t testing.TB, f *FSM, watchers int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range watchers {
		group.Go(func() {
			for from := f.Position(); ; {
				b, err := f.Changes(ctx, "", from)
				switch {
				case errors.Is(err, leases.ErrMissed): // it was too slow
					from = f.Position()
				case err != nil:
					return
				default:
					from = b.At
				}
			}
		})
	}
	return func() { cancel(); group.Wait() }
}
