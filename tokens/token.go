// Package tokens defines the fencing token: a number that every grant of a
// lease carries and that only ever grows, so that a resource which remembers
// the greatest token it has seen can refuse the late write of a former holder.
package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Token is a fencing token: epoch·2³² + counter. It is always below 2⁵³, so
// that stores which keep numbers as IEEE 754 doubles keep it exactly. Zero is
// no token. Tokens of one lease name strictly increase from grant to grant,
// and no token is handed out twice in a cluster.
type Token uint64

const (
	// Max is the greatest token.
	Max Token = 1<<53 - 1
	// MaxEpoch is the greatest epoch that a token can carry.
	MaxEpoch uint32 = 1<<21 - 1
	// MaxCounter is the greatest counter that a token can carry.
	MaxCounter uint32 = 1<<32 - 1
)

// ErrInvalid is matched by every error that Parse and the unmarshalers return.
var ErrInvalid = errors.New("invalid fencing token")

// New returns the token of an epoch and a counter. It panics if epoch exceeds
// MaxEpoch: the lease table refuses to grant before that can happen.
func New(epoch, counter uint32) Token {
	if epoch > MaxEpoch {
		panic(fmt.Sprintf("tokens: epoch %d exceeds %d", epoch, MaxEpoch))
	}
	return Token(epoch)<<32 | Token(counter)
}

// Epoch is the authority epoch in which the token was handed out.
func (t Token) Epoch() uint32 { return uint32(t >> 32) }

// Counter is the token's position within its epoch.
func (t Token) Counter() uint32 { return uint32(t) }

// String is the decimal form, the one that every interface shows and accepts.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// Parse reads the decimal form: digits only, without sign or leading zeros,
// from 1 to Max.
func Parse(s string) (Token, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n > uint64(Max) || s[0] == '0' {
		return 0, fmt.Errorf("%w %q: want a decimal number from 1 to %d", ErrInvalid, clip(s), uint64(Max))
	}
	return Token(n), nil
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// MarshalText is String; zero is the empty text.
func (t Token) MarshalText() ([]byte, error) {
	if t == 0 {
		return nil, nil
	}
	return []byte(t.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (t *Token) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*t = 0
		return nil
	}
	v, err := Parse(string(b))
	if err != nil {
		return err
	}
	*t = v
	return nil
}

// UnmarshalJSON reads a decimal string, the form that MarshalText gives, or a
// JSON number. As usual, null changes nothing.
func (t *Token) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) == 0 || b[0] != '"' {
		return t.UnmarshalText(b)
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return t.UnmarshalText([]byte(s))
}
