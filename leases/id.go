package leases

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"unicode/utf8"
)

// ID is 128 random bits: a session, an attempt or a cluster. Zero is no id.
type ID [16]byte

// NewID draws an id.
func NewID() ID {
	var id ID
	rand.Read(id[:])
	return id
}

// ParseID reads the hexadecimal form that String gives.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) == hex.EncodedLen(len(id)) {
		if _, err := hex.Decode(id[:], []byte(s)); err == nil {
			return id, nil
		}
	}
	return ID{}, &InvalidError{Field: "id", Value: clip(s, 40), Bounds: "32 hexadecimal digits"}
}

// IDFromBytes reads the 16 bytes of an id.
func IDFromBytes(field string, b []byte) (ID, error) {
	var id ID
	if len(b) != len(id) {
		return ID{}, &InvalidError{Field: field, Value: fmt.Sprintf("%d bytes", len(b)), Bounds: "16 bytes"}
	}
	copy(id[:], b)
	return id, nil
}

// IsZero reports whether id is no id.
func (id ID) IsZero() bool { return id == ID{} }

// String is the hexadecimal form.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText is String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (id *ID) UnmarshalText(b []byte) error {
	v, err := ParseID(string(b))
	if err == nil {
		*id = v
	}
	return err
}

// clip cuts s to at most n bytes, and says so, lest a message grows with bad input.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:n], len(s))
}
