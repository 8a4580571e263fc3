package stall

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/coordd/coordd/node/internal/stall/stalltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 2 * time.Second

var term = []byte("CurrentTerm")

// bench is a guard over a gate over a store in memory.
type bench struct {
	gate   stalltest.Gate
	inside *raft.InmemStore
	guard  *Guard
	logs   raft.LogStore
	stable raft.StableStore
	ends   atomic.Int32 // how often onEnd was called
	end    atomic.Pointer[error]
}

func newBench(t *testing.T) *bench {
	b := &bench{inside: raft.NewInmemStore()}
	b.guard = New(b.gate.Logs(b.inside), b.gate.Stable(b.inside), limit, func(err error) {
		b.ends.Add(1)
		b.end.Store(&err)
	})
	b.logs, b.stable = b.guard.Logs(), b.guard.Stable()
	t.Cleanup(func() {
		b.gate.Open()
		b.guard.Close()
	})
	if err := b.logs.StoreLogs(entries(1, 9)); err != nil {
		t.Fatal(err)
	}
	if err := b.stable.SetUint64(term, 7); err != nil {
		t.Fatal(err)
	}
	return b
}

func entries(first, last uint64) []*raft.Log {
	var logs []*raft.Log
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: 1})
	}
	return logs
}

// returns reports whether f returns rather than ends its goroutine, and with
// what.
func returns(f func() error) (err error, ok bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		ok = true
	}()
	<-done
	return err, ok
}

// storeOp is one way to write.
type storeOp struct {
	name string
	do   func(*bench) error
	says string // what the error calls it
	goes bool   // it ends its goroutine instead of returning the error
}

var storeOps = []storeOp{
	{"StoreLog", func(b *bench) error { return b.logs.StoreLog(entries(10, 10)[0]) }, "storing log entry 10", false},
	{"StoreLogs", func(b *bench) error { return b.logs.StoreLogs(entries(10, 12)) }, "storing log entries 10 to 12", false},
	{"DeleteRange", func(b *bench) error { return b.logs.DeleteRange(1, 4) }, "deleting log entries 1 to 4", false},
	{"Set", func(b *bench) error { return b.stable.Set([]byte("LastVoteCand"), []byte("a")) }, "saving LastVoteCand", true},
	{"SetUint64", func(b *bench) error { return b.stable.SetUint64(term, 8) }, "saving CurrentTerm", true},
}

func TestWritesPass(t *testing.T) {
	b := newBench(t)
	for _, op := range storeOps {
		if err, ok := returns(func() error { return op.do(b) }); err != nil || !ok {
			t.Errorf("%s: got %v, returned %v", op.name, err, ok)
		}
	}
	if err := b.logs.StoreLogs(nil); err != nil {
		t.Errorf("nothing to store: %v", err)
	}
	first, _ := b.logs.FirstIndex()
	last, _ := b.logs.LastIndex()
	if first != 5 || last != 12 {
		t.Errorf("entries: got %d to %d, want 5 to 12", first, last)
	}
	if got, err := b.stable.GetUint64(term); err != nil || got != 8 {
		t.Errorf("term: got %d, %v, want 8", got, err)
	}
	if got, err := b.stable.Get([]byte("LastVoteCand")); err != nil || string(got) != "a" {
		t.Errorf("vote: got %q, %v, want a", got, err)
	}
	// Raft tells "not found" from a failure by these very values.
	if err := b.logs.GetLog(99, new(raft.Log)); err != raft.ErrLogNotFound {
		t.Errorf("missing entry: got %v, want %v", err, raft.ErrLogNotFound)
	}
	if _, err := b.stable.Get([]byte("nothing")); err == nil || err.Error() != "not found" {
		t.Errorf("missing key: got %v, want not found", err)
	}
	if b.guard.Err() != nil || b.ends.Load() != 0 {
		t.Errorf("ended by %v without a fault", b.guard.Err())
	}
}

func TestSlowWritesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for range 3 { // no write is held against the next
			b.gate.Shut()
			time.AfterFunc(limit-time.Millisecond, b.gate.Open)
			if err := b.logs.StoreLog(entries(10, 10)[0]); err != nil {
				t.Fatalf("a write that took less than the limit: %v", err)
			}
		}
	})
}

func TestStall(t *testing.T) {
	for _, op := range storeOps {
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.gate.Shut()
				start := time.Now()
				err, ok := returns(func() error { return op.do(b) })
				if took := time.Since(start); took != limit {
					t.Errorf("answered after %v, want %v", took, limit)
				}
				synctest.Wait()
				if op.goes == ok || !op.goes && err != b.guard.Err() {
					t.Errorf("returned %v with %v, want it to end its goroutine: %v", ok, err, op.goes)
				}
				checkEnded(t, b, ErrStalled, op.says, limit.String())
				if held := b.gate.Held(); held != 1 {
					t.Errorf("%d writes hang, want 1: none may be begun after a stall", held)
				}
				if err := b.guard.Close(); !errors.Is(err, ErrStalled) {
					t.Errorf("Close while the write hangs: got %v, want %v", err, ErrStalled)
				}
				b.gate.Open()
				synctest.Wait()
				checkEnded(t, b, ErrStalled, op.says)
				if ends := b.ends.Load(); ends != 1 {
					t.Errorf("the node was told %d times, want once", ends)
				}
				if err := b.guard.Close(); err != nil {
					t.Errorf("Close after the write has landed: %v", err)
				}
			})
		})
	}
}

// checkEnded checks that the guard has ended with an error that matches want
// and says what, and that nothing works any more.
func checkEnded(t *testing.T, b *bench, want error, says ...string) {
	t.Helper()
	fatal := b.guard.Err()
	if end := b.end.Load(); end == nil || *end != fatal {
		t.Fatalf("the node was told %v, want %v", end, fatal)
	}
	if !errors.Is(fatal, want) {
		t.Fatalf("got %v, want %v", fatal, want)
	}
	for _, s := range says {
		if !strings.Contains(fatal.Error(), s) {
			t.Errorf("got %q, want it to say %q", fatal, s)
		}
	}
	for _, op := range storeOps {
		if err, ok := returns(func() error { return op.do(b) }); op.goes == ok || !op.goes && err != fatal {
			t.Errorf("%s after the end: returned %v with %v", op.name, ok, err)
		}
	}
	reads := map[string]func() error{
		"FirstIndex":           func() error { _, err := b.logs.FirstIndex(); return err },
		"LastIndex":            func() error { _, err := b.logs.LastIndex(); return err },
		"Get":                  func() error { _, err := b.stable.Get(term); return err },
		"GetUint64":            func() error { _, err := b.stable.GetUint64(term); return err },
		"StoreLogs of nothing": func() error { return b.logs.StoreLogs(nil) },
	}
	for name, read := range reads {
		if err := read(); err != fatal {
			t.Errorf("%s after the end: got %v, want %v", name, err, fatal)
		}
	}
}

func TestGetLogAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.gate.Shut()
		fatal := b.logs.StoreLogs(entries(10, 12))
		for _, late := range []bool{false, true} {
			if late {
				b.gate.Open()
				synctest.Wait()
			}
			for index := uint64(1); index <= 12; index++ {
				var want error
				if index >= 10 {
					want = fatal // even when it has landed
				}
				if err := b.logs.GetLog(index, new(raft.Log)); err != want {
					t.Errorf("entry %d, write landed %v: got %v, want %v", index, late, err, want)
				}
			}
		}
		if last, _ := b.inside.LastIndex(); last != 12 {
			t.Errorf("the late write has not landed: last entry %d", last)
		}
	})
}

func TestStallEndsWhoWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.gate.Shut()
		errs := make(chan error, 2)
		go func() { errs <- b.logs.DeleteRange(1, 4) }()
		synctest.Wait()
		go func() { errs <- b.logs.StoreLogs(entries(10, 12)) }()
		synctest.Wait()
		if held := b.gate.Held(); held != 1 {
			t.Fatalf("%d writes are under way, want 1 at a time", held)
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "deleting") {
				t.Errorf("got %v, want %v of the deletion", err, ErrStalled)
			}
		}
		b.gate.Open()
		synctest.Wait()
		if last, _ := b.inside.LastIndex(); last != 9 {
			t.Errorf("a write that waited was made after the stall: last entry %d, want 9", last)
		}
	})
}

// broken is a store whose writes fail.
type broken struct{ *raft.InmemStore }

var errFull = errors.New("no space left on device")

func (broken) StoreLogs([]*raft.Log) error      { return errFull }
func (broken) StoreLog(*raft.Log) error         { return errFull }
func (broken) DeleteRange(uint64, uint64) error { return errFull }
func (broken) Set([]byte, []byte) error         { return errFull }
func (broken) SetUint64([]byte, uint64) error   { return errFull }

func TestFailedWriteIsFatal(t *testing.T) {
	for _, op := range storeOps {
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.guard.Close()
				full := broken{b.inside}
				b.guard = New(full, full, limit, b.guard.onEnd)
				b.logs, b.stable = b.guard.Logs(), b.guard.Stable()
				if err, ok := returns(func() error { return op.do(b) }); op.goes == ok || !op.goes && !errors.Is(err, errFull) {
					t.Errorf("returned %v with %v, want %v", ok, err, errFull)
				}
				synctest.Wait()
				checkEnded(t, b, ErrFailed, op.says, errFull.Error())
				if err := b.guard.Err(); !errors.Is(err, errFull) || errors.Is(err, ErrStalled) {
					t.Errorf("got %v, want %v and not %v", err, errFull, ErrStalled)
				}
				if err := b.guard.Close(); err != nil {
					t.Errorf("Close where nothing hangs: %v", err)
				}
			})
		})
	}
}

func TestClose(t *testing.T) {
	b := newBench(t)
	for range 2 {
		if err := b.guard.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.logs.StoreLog(entries(10, 10)[0]); !errors.Is(err, ErrClosed) {
		t.Errorf("write after Close: got %v, want %v", err, ErrClosed)
	}
	if b.ends.Load() != 0 {
		t.Error("Close was taken for a fault")
	}
	if err := New(b.inside, b.inside, limit, nil).Close(); err != nil {
		t.Errorf("Close of an unused guard: %v", err)
	}
}

type monotonic struct{ *raft.InmemStore }

func (monotonic) IsMonotonic() bool { return true }

func TestOptionalInterfacesShow(t *testing.T) {
	store := raft.NewInmemStore()
	for _, tt := range []struct {
		store raft.LogStore
		want  bool
	}{{store, false}, {monotonic{store}, true}} {
		cache, err := raft.NewLogCache(4, New(tt.store, store, limit, nil).Logs())
		if err != nil {
			t.Fatal(err)
		}
		if got := cache.IsMonotonic(); got != tt.want {
			t.Errorf("%T through guard and cache: monotonic %v, want %v", tt.store, got, tt.want)
		}
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		plain := errors.New("plain")
		if err := b.guard.Run(func() error { return plain }); err != plain {
			t.Errorf("got %v, want %v", err, plain)
		}
		if err := b.guard.Run(func() error { return nil }); err != nil {
			t.Errorf("got %v, want nil", err)
		}
		err := b.guard.Run(func() error { panic(fmt.Errorf("failed to get log")) })
		if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "failed to get log") {
			t.Errorf("panic: got %v, want %v", err, ErrUnreadable)
		}
		b.gate.Shut()
		if err := b.guard.Run(func() error { return b.stable.SetUint64(term, 8) }); !errors.Is(err, ErrStalled) {
			t.Errorf("stall: got %v, want %v", err, ErrStalled)
		}
	})
}

func BenchmarkStoreLog(b *testing.B) {
	store := raft.NewInmemStore()
	guard := New(store, store, limit, nil)
	defer guard.Close()
	for name, logs := range map[string]raft.LogStore{"bare": store, "guarded": guard.Logs()} {
		b.Run(name, func(b *testing.B) {
			log := entries(1, 1)[0]
			b.ReportAllocs()
			for b.Loop() {
				if err := logs.StoreLog(log); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
