package arbiter_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/arbitertest"
)

func TestMemory(t *testing.T) {
	arbitertest.Run(t, func(*testing.T) arbiter.Store { return arbiter.NewMemory() })
}

// Each error matches its own sentinel and no other.
func TestErrors(t *testing.T) {
	sentinels := []error{
		arbiter.ErrConflict, arbiter.ErrUnknown, arbiter.ErrUnreachable,
		arbiter.ErrTooLarge, arbiter.ErrInvalid, arbiter.ErrSetBack,
	}
	for _, tt := range []struct {
		err  error
		want []error
		text string
	}{
		{&arbiter.ConflictError{Key: "R", From: 3, Found: arbiter.Register{Version: 4}}, []error{arbiter.ErrConflict}, "register R holds version 4, not 3"},
		{&arbiter.ConflictError{Key: "R", From: 3, Found: arbiter.Register{Version: 2}}, []error{arbiter.ErrConflict, arbiter.ErrSetBack}, "it holds version 2, and has held 3"},
		{arbiter.SetBack("R", 9, 0), []error{arbiter.ErrSetBack}, "it holds version 0, and has held 9"},
		{&arbiter.UnknownError{Key: "R", Err: errors.New("no answer")}, []error{arbiter.ErrUnknown}, "write of register R: the outcome of the write is unknown: no answer"},
		{arbiter.Unreachable("R", errors.New("refused")), []error{arbiter.ErrUnreachable}, "register R: the arbiter gives no usable answer: refused"},
		{arbiter.Validate("R", make([]byte, arbiter.MaxData+1)), []error{arbiter.ErrTooLarge}, "408577 bytes, at most 408576"},
		{arbiter.Validate("R", []byte("\xff")), []error{arbiter.ErrInvalid}, "not UTF-8"},
		{arbiter.Validate("", nil), []error{arbiter.ErrInvalid}, "empty"},
		{arbiter.Validate(strings.Repeat("k", 513), nil), []error{arbiter.ErrInvalid}, "513 bytes, at most 512"},
		{arbiter.Validate("\xff", nil), []error{arbiter.ErrInvalid}, "not UTF-8"},
	} {
		if !strings.Contains(tt.err.Error(), tt.text) {
			t.Errorf("got %q, want %q in it", tt.err, tt.text)
		}
		for _, sentinel := range sentinels {
			want := false
			for _, w := range tt.want {
				want = want || w == sentinel
			}
			if got := errors.Is(tt.err, sentinel); got != want {
				t.Errorf("%v matches %q: got %v, want %v", tt.err, sentinel, got, want)
			}
		}
	}
	if err := arbiter.Validate(strings.Repeat("k", arbiter.MaxKey), make([]byte, arbiter.MaxData)); err != nil {
		t.Error(err)
	}
}

func TestNewNonce(t *testing.T) {
	a, b := arbiter.NewNonce(), arbiter.NewNonce()
	if a == b || a == (arbiter.Nonce{}) {
		t.Errorf("got nonces %v and %v", a, b)
	}
	if s := a.String(); len(s) != 32 {
		t.Errorf("got %q, want 32 digits", s)
	}
}
