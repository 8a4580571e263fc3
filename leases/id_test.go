package leases

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestID(t *testing.T) {
	a, b := NewID(), NewID()
	if a == b || a.IsZero() || !(ID{}).IsZero() {
		t.Errorf("got %v and %v, want two ids that are not zero", a, b)
	}
	if got, err := ParseID(a.String()); err != nil || got != a {
		t.Errorf("ParseID(%v): got %v, %v", a, got, err)
	}
	if got, err := IDFromBytes("session", a[:]); err != nil || got != a {
		t.Errorf("IDFromBytes(%x): got %v, %v", a[:], got, err)
	}
	if got, want := (ID{0: 0xab, 15: 1}).String(), "ab000000000000000000000000000001"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	type doc struct{ ID ID }
	text, err := json.Marshal(doc{a})
	var got doc
	if err != nil || json.Unmarshal(text, &got) != nil || got.ID != a {
		t.Errorf("JSON %s: got %v, %v, want %v", text, got.ID, err, a)
	}
	if err := json.Unmarshal([]byte(`{"ID":"ab"}`), &got); !errors.Is(err, ErrInvalid) || got.ID != a {
		t.Errorf("bad JSON: got %v, %v, want an error and no change", got.ID, err)
	}
}

func TestParseIDRefuses(t *testing.T) {
	good := strings.Repeat("ab", 16)
	for _, c := range []struct{ in, want string }{
		{"", `invalid id "": want 32 hexadecimal digits`},
		{good[1:], `invalid id "` + good[1:] + `": want 32 hexadecimal digits`},
		{good[1:] + "g", `invalid id "` + good[1:] + `g": want 32 hexadecimal digits`},
		{good + "a", `invalid id "` + good + `a": want 32 hexadecimal digits`},
		{good + good, `invalid id "` + good + good[:8] + `… (64 bytes)": want 32 hexadecimal digits`},
	} {
		id, err := ParseID(c.in)
		if !errors.Is(err, ErrInvalid) || err.Error() != c.want || !id.IsZero() {
			t.Errorf("%q: got %v, %v, want %s", c.in, id, err, c.want)
		}
	}
}

func TestIDFromBytesRefuses(t *testing.T) {
	for n, want := range map[int]string{
		0: `invalid attempt "0 bytes": want 16 bytes`, 15: `invalid attempt "15 bytes": want 16 bytes`, 17: `invalid attempt "17 bytes": want 16 bytes`,
	} {
		if id, err := IDFromBytes("attempt", make([]byte, n)); !errors.Is(err, ErrInvalid) || err.Error() != want || !id.IsZero() {
			t.Errorf("%d bytes: got %v, %v, want %s", n, id, err, want)
		}
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"abcd", "abcd"},
		{"abcde", "abcd… (5 bytes)"},
		{"abcé", "abc… (5 bytes)"},
		{"日本語", "日… (9 bytes)"},
		{"\x80\x80\x80\x80\x80", "… (5 bytes)"},
	} {
		got := clip(c.in, 4)
		if got != c.want || utf8.ValidString(c.in) && !utf8.ValidString(got) {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
	}
}
