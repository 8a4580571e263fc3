package identity

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// version is the version of the file's format. A field more is a version more.
const version = 1

// MaxName is the greatest length of a node's name in bytes.
const MaxName = 128

// ErrVersion: the file was written by a newer release.
var ErrVersion = errors.New("unknown version")

type file struct {
	Version int `json:"version"`
	Identity
}

func encode(id Identity) ([]byte, error) {
	b, err := json.MarshalIndent(file{version, id}, "", "  ")
	return append(b, '\n'), err
}

func decode(b []byte) (Identity, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return Identity{}, err
	}
	if head.Version != version {
		return Identity{}, fmt.Errorf("%w %d: this release reads version %d", ErrVersion, head.Version, version)
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Identity{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Identity{}, errors.New("something follows the identity")
	}
	return f.Identity, f.Validate()
}

// Validate returns an error that names the first field that cannot be right.
func (id Identity) Validate() error {
	if err := ValidateName(id.Name); err != nil {
		return err
	}
	if b, err := hex.DecodeString(id.Incarnation); err != nil || len(b) != 8 || hex.EncodeToString(b) != id.Incarnation {
		return fmt.Errorf("invalid incarnation %q: want 16 lower-case hexadecimal digits", clip(id.Incarnation))
	}
	for _, m := range id.Members {
		if m.ServerID == "" || m.Address == "" {
			return fmt.Errorf("invalid member %q at %q: want a server id and an address", clip(m.ServerID), clip(m.Address))
		}
	}
	return nil
}

// ValidateName returns an error unless name is one that a node can have.
func ValidateName(name string) error {
	ok := name != "" && len(name) <= MaxName && utf8.ValidString(name)
	for _, r := range name {
		ok = ok && unicode.IsPrint(r) && r != ' ' && r != '/'
	}
	if !ok {
		return fmt.Errorf("invalid node name %q: want 1 to %d bytes of printable UTF-8 without spaces and slashes", clip(name), MaxName)
	}
	return nil
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
