package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
)

func TestGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 2)
		free, err := q.tenure.get(t.Context(), "y")
		if err != nil || free.Name != "y" || free.Held || free.Waiters != 0 {
			t.Errorf("a free name: got %+v, %v", free, err)
		}
		time.Sleep(10 * time.Second)
		s, err := q.tenure.get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if !s.Held || s.Token != q.grant.Token || s.TTL != time.Minute || s.AtMost != leases.Stretch(time.Minute)-10*time.Second || s.Waiters != 2 || s.Broken || !s.AcquiredAt.Equal(q.grant.AcquiredAt) {
			t.Errorf("a held name: got %+v", s)
		}
		release(q.giver, q.grant.Token)
		q.log.next().land()
		landing := q.log.next()
		if s, err := q.tenure.get(t.Context(), "x"); err != nil || s.Held || s.Waiters != 1 || s.Last.Token != q.grant.Token || s.Last.Why != leases.WhyReleased {
			t.Errorf("a name that was released: got %+v, %v", s, err)
		}
		landing.apply()
		// The grant is in the table, and its deadline has not been noted yet.
		if s, err := q.tenure.get(t.Context(), "x"); err != nil || !s.Held || s.AtMost != leases.Stretch(time.Minute) {
			t.Errorf("a name that is just being granted: got %+v, %v, want at most %v", s, err, leases.Stretch(time.Minute))
		}
		landing.close()
		synctest.Wait()
		if s, err := q.tenure.get(t.Context(), "x"); err != nil || !s.Held || s.AtMost != leases.Stretch(leases.FirstDeadline) {
			t.Errorf("a name that was granted to who had waited: got %+v, %v, want at most %v", s, err, leases.Stretch(leases.FirstDeadline))
		}
	})
}

func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, log, _ := begun(t)
		s := opened(t, tn)
		var all []string
		for i := range 25 {
			c := wanted(0)
			c.Name = fmt.Sprintf("%c-%02d", 'a'+i%3, i)
			granted(t, log, s, c)
			all = append(all, c.Name)
		}
		slices.Sort(all)
		for _, c := range []struct {
			prefix, after string
			limit         int
			from, to      int
			next          bool
		}{
			{"", "", leases.MaxPage, 0, 25, false},
			{"", "", 25, 0, 25, false},
			{"", "", 24, 0, 24, true},
			{"", all[23], 24, 24, 25, false},
			{"", all[24], 24, 25, 25, false},
			{"b", "", 3, 9, 12, true},
			{"b", all[11], 3, 12, 15, true},
			{"b", all[14], 3, 15, 17, false},
			{"b", "a-03", 1, 9, 10, true},
			{"b", "c-02", 1, 0, 0, false},
			{"z", "", 1, 0, 0, false},
		} {
			p, err := tn.list(t.Context(), c.prefix, c.after, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range p.Leases {
				if got = append(got, l.Name); !l.Held || l.AtMost != leases.Stretch(time.Minute) || l.TTL != time.Minute || l.Token == 0 {
					t.Errorf("got %+v", l)
				}
			}
			if want := all[c.from:c.to]; !slices.Equal(got, want) {
				t.Errorf("%+v: got %v, want %v", c, got, want)
			}
			next := ""
			if c.next {
				next = all[c.to-1]
			}
			if p.Next != next || p.At != (leases.Position{Epoch: 1, Revision: 26}) {
				t.Errorf("%+v: got next %q at %v, want %q at 1/26", c, p.Next, p.At, next)
			}
		}
	})
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 0)
		if got, err := q.tenure.queue(t.Context(), "x"); err != nil || len(got) != 0 {
			t.Errorf("nobody waits: got %v, %v", got, err)
		}
		var want []leases.Waiter
		for i := range 3 {
			c := wanted(leases.Forever)
			c.Owner = leases.Owner{Label: fmt.Sprint("worker ", i), PID: uint32(i)}
			q.join(c)
			time.Sleep(10 * time.Second)
			want = append(want, leases.Waiter{Position: i + 1, Attempt: c.Attempt, Owner: c.Owner, Waiting: time.Duration(3-i) * 10 * time.Second})
		}
		ask(t.Context(), q.waiter[1], q.claims[1]) // it waits on, and has waited
		got, err := q.tenure.queue(t.Context(), "x")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	})
}

// A leader that no majority confirms tells nothing, nor does one whose term is over.
func TestNothingIsToldWithoutARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		calls := map[string]func(context.Context) error{
			"get":   func(ctx context.Context) error { _, err := q.tenure.get(ctx, "x"); return err },
			"list":  func(ctx context.Context) error { _, err := q.tenure.list(ctx, "", "", 10); return err },
			"queue": func(ctx context.Context) error { _, err := q.tenure.queue(ctx, "x"); return err },
		}
		for name, call := range calls {
			raftOf(q.tenure).rounds.ask = func(context.Context) error { return leases.ErrNoQuorum }
			if err := call(t.Context()); !errors.Is(err, leases.ErrNoQuorum) {
				t.Errorf("%s without a quorum: got %v, want %v", name, err, leases.ErrNoQuorum)
			}
			answered := make(chan struct{})
			raftOf(q.tenure).rounds.ask = func(context.Context) error { <-answered; return nil }
			ctx, leave := context.WithCancel(t.Context())
			got := make(chan error, 1)
			go func() { got <- call(ctx) }()
			synctest.Wait()
			leave()
			if err := now(t, got); !errors.Is(err, leases.ErrUnknownOutcome) {
				t.Errorf("%s, given up: got %v, want %v", name, err, leases.ErrUnknownOutcome)
			}
			go func() { got <- call(t.Context()) }() // it needs a round of its own
			synctest.Wait()
			close(answered)
			if err := now(t, got); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		q.end()
		synctest.Wait()
		for name, call := range calls {
			if err := call(t.Context()); !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("%s after the term: got %v, want %v", name, err, leases.ErrUnavailable)
			}
		}
	})
}

// A node that has no table yet has no place to watch from: zero would be from
// the next answer on, and what lies between never told.
func TestWatchBeforeTheBirth(t *testing.T) {
	n, err := New(Config{Name: "n1", InMemory: true, Listen: "127.0.0.1:0", Bootstrap: true})
	if err != nil {
		t.Fatal(err)
	}
	defer shutDown(t, n)
	told := func(leases.Batch) error { t.Error("a batch was told"); return nil }
	if err := n.Watch(t.Context(), "", leases.Position{}, told); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("a member of no cluster: got %v, want %v", err, leases.ErrUnavailable)
	}
	n.hearing = t.Context()
	if err := n.Watch(t.Context(), "", leases.Position{}, told); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("a member without a table: got %v, want %v", err, leases.ErrUnavailable)
	}
}

// After a restart from a snapshot a node remembers what came after that alone:
// who asks for more is told so, and goes on from a new list.
func TestWatchAfterARestart(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := alone(t, data)
	before := n.fsm.Position()
	fill(t, n)
	shutDown(t, n)
	n = alone(t, data)
	defer shutDown(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	none := func(leases.Batch) error { return nil }
	var missed *leases.MissedError
	if err := n.Watch(ctx, "", before, none); !errors.As(err, &missed) {
		t.Fatalf("from before the snapshot: got %v, want %v", err, leases.ErrMissed)
	}
	p, err := n.List(ctx, "", "", 10)
	if err != nil || len(p.Leases) != 3 {
		t.Fatalf("list: got %v, %v, want three leases", p, err)
	}
	if missed.From != before || missed.Newest != p.At || missed.Oldest.Revision <= before.Revision || missed.Oldest.Revision >= p.At.Revision {
		t.Errorf("got %+v, want what is remembered up to %v", missed, p.At)
	}
	// From the snapshot on: one lease, and one that was given back.
	stop := errors.New("stop")
	var kinds []leases.ChangeKind
	err = n.Watch(ctx, "", missed.Oldest, func(b leases.Batch) error {
		for _, c := range b.Changes {
			kinds = append(kinds, c.Kind)
		}
		if b.At == p.At {
			return stop
		}
		return nil
	})
	want := []leases.ChangeKind{leases.ChangeGranted, leases.ChangeGranted, leases.ChangeReleased}
	if !errors.Is(err, stop) || !slices.Equal(kinds, want) {
		t.Errorf("from the snapshot on: got %v, %v, want %v", kinds, err, want)
	}
	// From the list on.
	c := client.New(n)
	defer c.Close(ctx)
	told := make(chan leases.Change, 10)
	watching := make(chan error, 1)
	watched, end := context.WithCancel(ctx)
	go func() {
		watching <- n.Watch(watched, "n", p.At, func(b leases.Batch) error {
			for _, c := range b.Changes {
				told <- c
			}
			return nil
		})
	}()
	for _, name := range []string{"other", "new"} {
		l, err := c.Acquire(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(ctx); err != nil {
			t.Error(err)
		}
	}
	for _, kind := range []leases.ChangeKind{leases.ChangeGranted, leases.ChangeReleased} {
		select {
		case c := <-told:
			if c.Name != "new" || c.Kind != kind {
				t.Errorf("got %+v, want that new was %v", c, kind)
			}
		case <-ctx.Done():
			t.Fatal("no change was told")
		}
	}
	end()
	if err := <-watching; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: got %v, want %v", err, context.Canceled)
	}
}
