package tokens

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNew(t *testing.T) {
	for _, c := range []struct {
		epoch, counter uint32
		want           Token
		text           string
	}{
		{0, 1, 1, "1"},
		{1, 0, 1 << 32, "4294967296"},
		{1, 1, 1<<32 + 1, "4294967297"},
		{1, MaxCounter, 1<<33 - 1, "8589934591"},
		{2, 0, 1 << 33, "8589934592"},
		{MaxEpoch, MaxCounter, Max, "9007199254740991"},
	} {
		got := New(c.epoch, c.counter)
		if got != c.want {
			t.Errorf("New(%d, %d): got %d, want %d", c.epoch, c.counter, uint64(got), uint64(c.want))
		}
		if got.Epoch() != c.epoch || got.Counter() != c.counter {
			t.Errorf("%v: got epoch %d and counter %d, want %d and %d", got, got.Epoch(), got.Counter(), c.epoch, c.counter)
		}
		if got.String() != c.text {
			t.Errorf("String: got %q, want %q", got.String(), c.text)
		}
	}
}

func TestNewPanicsBeyondMaxEpoch(t *testing.T) {
	defer func() {
		if got, want := recover(), "tokens: epoch 2097152 exceeds 2097151"; got != want {
			t.Errorf("got %v, want the panic %q", got, want)
		}
	}()
	New(MaxEpoch+1, 0)
}

// Stores that keep numbers as doubles must keep every token apart from its
// neighbours.
func TestTokensFitDoubles(t *testing.T) {
	for _, token := range []Token{1, New(1, 1), Max - 1, Max} {
		if got := Token(float64(token)); got != token {
			t.Errorf("through a double: got %v, want %v", got, token)
		}
		if math.Nextafter(float64(token), math.Inf(1)) > float64(token)+1 {
			t.Errorf("a double cannot tell %v from the next token", token)
		}
	}
}

func TestParse(t *testing.T) {
	for _, s := range []string{"1", "10", "4294967297", "9007199254740991"} {
		if got, err := Parse(s); err != nil || got.String() != s {
			t.Errorf("Parse(%q): got %v, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "0", "00", "01", "+1", "-1", " 1", "1 ", "1_000", "0x1", "1e3", "1.0", "१", "9007199254740992", "18446744073709551615",
		"18446744073709551616", "null", strings.Repeat("9", 1000), "\xff",
	} {
		got, err := Parse(s)
		if got != 0 || !errors.Is(err, ErrInvalid) {
			t.Errorf("Parse(%q): got %v, %v, want an error that matches ErrInvalid", s, got, err)
		} else if len(err.Error()) > 200 {
			t.Errorf("Parse of %d bytes: the message has %d", len(s), len(err.Error()))
		}
	}
	_, err := Parse("x")
	if got, want := err.Error(), `invalid fencing token "x": want a decimal number from 1 to 9007199254740991`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJSON(t *testing.T) {
	type doc struct {
		Token Token           `json:"token"`
		Of    map[Token]Token `json:"of,omitempty"`
	}
	for _, c := range []struct {
		in   string
		want Token
		out  string
	}{
		{`{"token":"9007199254740991"}`, Max, `{"token":"9007199254740991"}`},
		{`{"token":4294967297}`, New(1, 1), `{"token":"4294967297"}`},
		{`{"token":"\u0031"}`, 1, `{"token":"1"}`},
		{`{"token":""}`, 0, `{"token":""}`},
		{`{"token":null}`, 0, `{"token":""}`},
		{`{}`, 0, `{"token":""}`},
		{`{"token":"1","of":{"2":"3"}}`, 1, `{"token":"1","of":{"2":"3"}}`},
	} {
		var d doc
		if err := json.Unmarshal([]byte(c.in), &d); err != nil || d.Token != c.want {
			t.Errorf("%s: got %v, %v, want %v", c.in, d.Token, err, c.want)
			continue
		}
		if out, err := json.Marshal(d); err != nil || string(out) != c.out {
			t.Errorf("%s: got %s, %v, want %s", c.in, out, err, c.out)
		}
	}
	for _, in := range []string{`0`, `-1`, `1.5`, `1e3`, `9007199254740992`, `"0"`, `"x"`, `true`, `[1]`, `{}`} {
		token := Token(7)
		if err := json.Unmarshal([]byte(in), &token); err == nil || token != 7 {
			t.Errorf("%s: got %v, %v, want an error and no change", in, token, err)
		} else if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want an error that matches ErrInvalid", in, err)
		}
	}
	// The decoder never passes on broken JSON, but UnmarshalJSON is exported.
	var token Token
	if err := token.UnmarshalJSON([]byte(`"1`)); !errors.Is(err, ErrInvalid) {
		t.Errorf("half a string: got %v, want an error that matches ErrInvalid", err)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := Token(rapid.Uint64Range(1, uint64(Max)).Draw(t, "a"))
		b := Token(rapid.Uint64Range(1, uint64(Max)).Draw(t, "b"))
		if got, err := Parse(a.String()); err != nil || got != a {
			t.Errorf("Parse: got %v, %v, want %v", got, err, a)
		}
		if got := New(a.Epoch(), a.Counter()); got != a {
			t.Errorf("New: got %v, want %v", got, a)
		}
		text, err := a.MarshalText()
		var got Token
		if err != nil || got.UnmarshalText(text) != nil || got != a {
			t.Errorf("text %q: got %v, %v, want %v", text, got, err, a)
		}
		// Tokens are ordered by epoch, then by counter.
		later := a.Epoch() > b.Epoch() || a.Epoch() == b.Epoch() && a.Counter() > b.Counter()
		if later != (a > b) {
			t.Errorf("%v > %v: got %v, want %v", a, b, a > b, later)
		}
	})
}
