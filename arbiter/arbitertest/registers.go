package arbitertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coordd/coordd/arbiter"
)

func absent(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	if err := holds(ctx, s, key, 0, arbiter.Write{}); err != nil {
		return err
	}
	c, err := lost(s.CompareAndSwap(ctx, key, 1, text("from nothing")))
	if err != nil {
		return fmt.Errorf("compare and swap of an absent register from version 1: %w", err)
	}
	if err := same("conflict", c.Found, 0, arbiter.Write{}); err != nil {
		return err
	}
	if !errors.Is(c, arbiter.ErrSetBack) {
		return fmt.Errorf("a version below the one asked for: %v does not match ErrSetBack", c)
	}
	return holds(ctx, s, key, 0, arbiter.Write{})
}

func versions(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	for v := arbiter.Version(1); v <= 12; v++ {
		w := text(fmt.Sprintf(`{"write":%d}`, v))
		if err := write(ctx, s, key, v-1, w); err != nil {
			return err
		}
		if err := holds(ctx, s, key, v, w); err != nil {
			return err
		}
	}
	return nil
}

func conflict(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	first, second := text("first"), text("second")
	if err := write(ctx, s, key, 0, first, second); err != nil {
		return err
	}
	for _, from := range []arbiter.Version{0, 1, 3, 1 << 40} {
		c, err := lost(s.CompareAndSwap(ctx, key, from, text("third")))
		if err != nil {
			return fmt.Errorf("compare and swap from version %d of a register that holds 2: %w", from, err)
		}
		if c.Key != key || c.From != from {
			return fmt.Errorf("conflict: got key %s, from %d, want %s, %d", c.Key, c.From, key, from)
		}
		if err := same("conflict", c.Found, 2, second); err != nil {
			return err
		}
		if got, want := errors.Is(c, arbiter.ErrSetBack), from > 2; got != want {
			return fmt.Errorf("from version %d: %v matches ErrSetBack: got %v, want %v", from, c, got, want)
		}
	}
	return holds(ctx, s, key, 2, second)
}

func contents(ctx context.Context, s arbiter.Store) error {
	for _, data := range []string{
		"",
		"{}",
		`{"a":"\u0000 \" \\ ü 漢 😀","n":9007199254740991}`,
		" leading and trailing \n",
		strings.Repeat("x", arbiter.MaxData),
	} {
		key := freshKey()
		key += strings.Repeat("k", arbiter.MaxKey-len(key))
		w := text(data)
		w.By = strings.Repeat("ü", 4096)
		if err := write(ctx, s, key, 0, w); err != nil {
			return fmt.Errorf("%d bytes of data: %w", len(data), err)
		}
		if err := holds(ctx, s, key, 1, w); err != nil {
			return err
		}
	}
	return nil
}

func buffer(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	w := text("before")
	if err := write(ctx, s, key, 0, w); err != nil {
		return err
	}
	want := arbiter.Write{Nonce: w.Nonce, Data: bytes.Clone(w.Data)}
	copy(w.Data, "after!")
	return holds(ctx, s, key, 1, want)
}

func repeat(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	for v := range arbiter.Version(3) {
		w := text(fmt.Sprintf("write %d", v+1))
		for range 3 {
			if err := s.CompareAndSwap(ctx, key, v, w); err != nil {
				return fmt.Errorf("write %d, or its repeat: %w", v+1, err)
			}
		}
		if err := holds(ctx, s, key, v+1, w); err != nil {
			return err
		}
		if _, err := lost(s.CompareAndSwap(ctx, key, v, text("another's"))); err != nil {
			return fmt.Errorf("another write from the same version: %w", err)
		}
	}
	return nil
}

// The repeat is a call of its own, so a store may say that it has certainly not
// written; that it has, it cannot know.
func overwritten(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	mine, other := text("mine"), text("other")
	if err := write(ctx, s, key, 0, mine, other); err != nil {
		return err
	}
	err := s.CompareAndSwap(ctx, key, 0, mine)
	var found arbiter.Register
	if u, ok := errors.AsType[*arbiter.UnknownError](err); ok {
		found = u.Found
	} else {
		c, err := lost(err)
		if err != nil {
			return fmt.Errorf("repeat of a write that was overwritten: %w", err)
		}
		found = c.Found
	}
	if err := same("repeat", found, 2, other); err != nil {
		return err
	}
	return holds(ctx, s, key, 2, other)
}

func refused(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	kept := text("kept")
	if err := write(ctx, s, key, 0, kept); err != nil {
		return err
	}
	for _, tt := range []struct {
		what, key, data string
		want            error
	}{
		{"too many bytes", key, strings.Repeat("x", arbiter.MaxData+1), arbiter.ErrTooLarge},
		{"no text", key, "\xff\xfe", arbiter.ErrInvalid},
		{"an empty key", "", "x", arbiter.ErrInvalid},
		{"a key too long", strings.Repeat("k", arbiter.MaxKey+1), "x", arbiter.ErrInvalid},
		{"a key that is no text", "\xff", "x", arbiter.ErrInvalid},
	} {
		err := s.CompareAndSwap(ctx, tt.key, 1, text(tt.data))
		if !errors.Is(err, tt.want) || errors.Is(err, arbiter.ErrUnknown) {
			return fmt.Errorf("%s: got %v, want %v", tt.what, err, tt.want)
		}
	}
	return holds(ctx, s, key, 1, kept)
}

func ended(ctx context.Context, s arbiter.Store) error {
	key := freshKey()
	kept := text("kept")
	if err := write(ctx, s, key, 0, kept); err != nil {
		return err
	}
	cause := errors.New("the caller has left")
	over, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	if _, err := s.Load(over, key); !errors.Is(err, arbiter.ErrUnreachable) || !errors.Is(err, cause) {
		return fmt.Errorf("load: got %v, want ErrUnreachable and the cause, %v", err, cause)
	}
	err := s.CompareAndSwap(over, key, 1, text("too late"))
	if !errors.Is(err, arbiter.ErrUnreachable) || !errors.Is(err, cause) || errors.Is(err, arbiter.ErrUnknown) {
		return fmt.Errorf("compare and swap: got %v, want ErrUnreachable and the cause, %v", err, cause)
	}
	return holds(ctx, s, key, 1, kept)
}

func independent(ctx context.Context, s arbiter.Store) error {
	base := freshKey()
	keys := []string{base, base + "/", base + "/1", base + "/2", strings.ToLower(base), base + " ", base + "ü"}
	writes := make([]arbiter.Write, len(keys))
	for i, key := range keys {
		writes[i] = text("contents of " + key)
		for v := range arbiter.Version(i + 1) {
			writes[i].Nonce = arbiter.NewNonce()
			if err := write(ctx, s, key, v, writes[i]); err != nil {
				return fmt.Errorf("register %q: %w", key, err)
			}
		}
	}
	for i, key := range keys {
		if err := holds(ctx, s, key, arbiter.Version(i+1), writes[i]); err != nil {
			return fmt.Errorf("register %q: %w", key, err)
		}
	}
	return nil
}
