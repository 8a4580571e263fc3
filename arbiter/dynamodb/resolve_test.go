package dynamodb

import (
	"errors"
	"testing"

	"github.com/coordd/coordd/arbiter"
)

// What a failed condition of a write from version 4 says.
func TestResolve(t *testing.T) {
	const from = 4
	mine, other := write("mine"), write("other")
	for _, tt := range []struct {
		name  string
		item  item
		first error // no try before was lost
		later error // one was
	}{
		{"the next version, mine", encode("k", 5, mine), nil, nil},
		{"the next version, another's", encode("k", 5, other), arbiter.ErrConflict, arbiter.ErrConflict},
		{"a later version", encode("k", 6, other), arbiter.ErrConflict, arbiter.ErrUnknown},
		{"a later version, with my nonce", encode("k", 6, mine), arbiter.ErrConflict, arbiter.ErrUnknown},
		{"an older version", encode("k", 3, other), arbiter.ErrSetBack, arbiter.ErrUnknown},
		{"no item", nil, arbiter.ErrSetBack, arbiter.ErrUnknown},
		{"the same version", encode("k", 4, other), arbiter.ErrUnreachable, arbiter.ErrUnknown},
		{"garbage", item{keyAttribute: text("k")}, arbiter.ErrUnreachable, arbiter.ErrUnknown},
	} {
		for _, lost := range []bool{false, true} {
			want := tt.first
			if lost {
				want = tt.later
			}
			err := resolve("k", from, mine.Nonce, tt.item, lost)
			if !errors.Is(err, want) {
				t.Errorf("%s, lost %v: got %v, want %v", tt.name, lost, err, want)
			}
			n := 0
			for _, class := range []error{arbiter.ErrConflict, arbiter.ErrUnknown, arbiter.ErrUnreachable} {
				if errors.Is(err, class) {
					n++
				}
			}
			if n > 1 {
				t.Errorf("%s, lost %v: %v is of %d classes", tt.name, lost, err, n)
			}
		}
	}
}

// A store that returns no item with a failed condition is told from an absent one.
func TestResolveWithoutItem(t *testing.T) {
	err := resolve("k", 0, arbiter.NewNonce(), nil, false)
	if !errors.Is(err, arbiter.ErrUnreachable) || errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}
