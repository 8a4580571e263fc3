package arbitertest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/coordd/coordd/arbiter"
)

func TestSoundStorePasses(t *testing.T) {
	Run(t, func(*testing.T) arbiter.Store { return arbiter.NewMemory() })
}

// wrong is a store with a fault: what is nil is done by the memory inside.
type wrong struct {
	*arbiter.Memory
	load func(context.Context, string) (arbiter.Register, error)
	swap func(context.Context, string, arbiter.Version, arbiter.Write) error
}

func (w *wrong) Load(ctx context.Context, key string) (arbiter.Register, error) {
	if w.load == nil {
		return w.Memory.Load(ctx, key)
	}
	return w.load(ctx, key)
}

func (w *wrong) CompareAndSwap(ctx context.Context, key string, from arbiter.Version, write arbiter.Write) error {
	if w.swap == nil {
		return w.Memory.CompareAndSwap(ctx, key, from, write)
	}
	return w.swap(ctx, key, from, write)
}

// misread changes what a store loads.
func misread(m *arbiter.Memory, f func(r *arbiter.Register)) *wrong {
	return &wrong{Memory: m, load: func(ctx context.Context, key string) (arbiter.Register, error) {
		r, err := m.Load(ctx, key)
		f(&r)
		return r, err
	}}
}

// mistaken changes what a store answers to a write that it has not carried out.
func mistaken(m *arbiter.Memory, f func(error) error) *wrong {
	return &wrong{Memory: m, swap: func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
		if err := m.CompareAndSwap(ctx, key, from, w); err != nil {
			return f(err)
		}
		return nil
	}}
}

// Each rule is broken at least once, and the suite notices.
func TestUnsoundStoresFail(t *testing.T) {
	for _, tt := range []struct {
		fault, check string
		store        func(*arbiter.Memory) *wrong
	}{
		{"an absent register has version 1", "a register that was never written has version 0", func(m *arbiter.Memory) *wrong {
			return misread(m, func(r *arbiter.Register) { r.Version = max(r.Version, 1) })
		}},
		{"a write adds two", "each write adds one to the version", func(m *arbiter.Memory) *wrong {
			return misread(m, func(r *arbiter.Register) { r.Version *= 2 })
		}},
		{"the nonce is lost", "each write adds one to the version", func(m *arbiter.Memory) *wrong {
			return misread(m, func(r *arbiter.Register) { r.Nonce = arbiter.Nonce{} })
		}},
		{"a conflict is empty", "a conflict carries what was found", func(m *arbiter.Memory) *wrong {
			return mistaken(m, func(err error) error {
				if c, ok := errors.AsType[*arbiter.ConflictError](err); ok {
					return &arbiter.ConflictError{Key: c.Key, From: c.From}
				}
				return err
			})
		}},
		{"a conflict is no answer", "a conflict carries what was found", func(m *arbiter.Memory) *wrong {
			return mistaken(m, func(err error) error { return arbiter.Unreachable("k", err) })
		}},
		{"space is trimmed", "contents come back as they were written", func(m *arbiter.Memory) *wrong {
			return misread(m, func(r *arbiter.Register) { r.Data = bytes.TrimSpace(r.Data) })
		}},
		{"the caller's buffer is kept", "the caller's buffer is its own again", aliased},
		{"read, then write", "of racing writers one wins", unlocked},
		{"a repeat is a conflict", "a repeat is known by its nonce", func(m *arbiter.Memory) *wrong {
			return &wrong{Memory: m, swap: func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
				if r, err := m.Load(ctx, key); err == nil && r.Version == from+1 {
					return &arbiter.ConflictError{Key: key, From: from, Found: r}
				}
				return m.CompareAndSwap(ctx, key, from, w)
			}}
		}},
		{"any later version is success", "a later version proves nothing about a repeat", func(m *arbiter.Memory) *wrong {
			return mistaken(m, func(err error) error {
				if c, ok := errors.AsType[*arbiter.ConflictError](err); ok && c.Found.Version > c.From+1 {
					return nil
				}
				return err
			})
		}},
		{"what is too large is sent", "what no register can hold is refused before it is sent", func(m *arbiter.Memory) *wrong {
			return &wrong{Memory: m, swap: func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
				w.Data = w.Data[:min(len(w.Data), 10)]
				return m.CompareAndSwap(ctx, key, from, w)
			}}
		}},
		{"reads lag behind", "who reads after a write sees it, and never an older one again", lagging},
		{"the context is ignored", "nothing is done when the context has ended", func(m *arbiter.Memory) *wrong {
			return &wrong{
				m,
				func(ctx context.Context, key string) (arbiter.Register, error) {
					return m.Load(context.WithoutCancel(ctx), key)
				},
				func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
					return m.CompareAndSwap(context.WithoutCancel(ctx), key, from, w)
				},
			}
		}},
		{"keys are trimmed", "registers are independent", func(m *arbiter.Memory) *wrong {
			return &wrong{
				m,
				func(ctx context.Context, key string) (arbiter.Register, error) {
					return m.Load(ctx, strings.TrimSpace(key))
				},
				func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
					return m.CompareAndSwap(ctx, strings.TrimSpace(key), from, w)
				},
			}
		}},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			for _, c := range checks {
				if c.name != tt.check {
					continue
				}
				err := c.run(t.Context(), tt.store(arbiter.NewMemory()))
				if err == nil {
					t.Fatalf("%q has passed", tt.check)
				}
				t.Log(err)
				return
			}
			t.Fatalf("there is no check %q", tt.check)
		})
	}
}

// aliased hands out the caller's own buffer.
func aliased(m *arbiter.Memory) *wrong {
	var kept []byte
	return &wrong{
		m,
		func(ctx context.Context, key string) (arbiter.Register, error) {
			r, err := m.Load(ctx, key)
			r.Data = kept
			return r, err
		},
		func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
			kept = w.Data
			return m.CompareAndSwap(ctx, key, from, w)
		},
	}
}

// unlocked compares first and writes then, as a store without conditions would.
func unlocked(m *arbiter.Memory) *wrong {
	return &wrong{Memory: m, swap: func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
		r, err := m.Load(ctx, key)
		if err != nil {
			return err
		}
		if r.Version != from {
			return &arbiter.ConflictError{Key: key, From: from, Found: r}
		}
		runtime.Gosched()
		_ = m.CompareAndSwap(ctx, key, from, w)
		return nil
	}}
}

// lagging answers each third load with what was there before the last write, as an
// eventually consistent replica would.
func lagging(m *arbiter.Memory) *wrong {
	var (
		mu     sync.Mutex
		before arbiter.Register
		loads  int
	)
	return &wrong{
		m,
		func(ctx context.Context, key string) (arbiter.Register, error) {
			mu.Lock()
			defer mu.Unlock()
			if loads++; loads%3 == 0 {
				return before, nil
			}
			return m.Load(ctx, key)
		},
		func(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
			mu.Lock()
			defer mu.Unlock()
			r, err := m.Load(ctx, key)
			if err != nil {
				return err
			}
			if err := m.CompareAndSwap(ctx, key, from, w); err != nil {
				return err
			}
			before = r
			return nil
		},
	}
}
