package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/coordd/coordd/leases"
)

// Bounds of the opening's frames, in bytes. A frame is its length, 16 bits big
// endian, and so many bytes.
const (
	maxServerID = 255
	maxHello    = 16 + 16 + 2*(1+maxServerID)
	maxReason   = 1024
)

// Hello opens a Raft connection. Raft's messages name no addressee, so the
// connection does: a process that has lost its memory must not answer in the
// name of its predecessor at the same address.
type Hello struct {
	Cluster, Group leases.ID
	To, From       string // server ids, at most 255 bytes
}

// RefusedError is what a Raft dialer gets that the other side does not take.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "raft connection refused: " + e.Reason }

func appendFrame(b, body []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(body))), body...)
}

func readFrame(r io.Reader, bound int) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if n > bound {
		return nil, fmt.Errorf("a frame of %d bytes: the bound is %d", n, bound)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, fmt.Errorf("a frame of %d bytes was cut short: %w", n, err)
	}
	return body, nil
}

func (h Hello) encode() ([]byte, error) {
	b := append(append(make([]byte, 0, maxHello), h.Cluster[:]...), h.Group[:]...)
	for _, id := range []string{h.To, h.From} {
		if len(id) > maxServerID {
			return nil, fmt.Errorf("server id of %d bytes: the bound is %d", len(id), maxServerID)
		}
		b = append(append(b, byte(len(id))), id...)
	}
	return b, nil
}

func decodeHello(b []byte) (Hello, error) {
	var h Hello
	short := errors.New("hello: cut short")
	if len(b) < len(h.Cluster)+len(h.Group) {
		return Hello{}, short
	}
	b = b[copy(h.Cluster[:], b):]
	b = b[copy(h.Group[:], b):]
	for _, id := range []*string{&h.To, &h.From} {
		if len(b) == 0 || len(b)-1 < int(b[0]) {
			return Hello{}, short
		}
		end := 1 + int(b[0])
		*id, b = string(b[1:end]), b[end:]
	}
	if len(b) > 0 {
		return Hello{}, fmt.Errorf("hello: %d bytes too many", len(b))
	}
	return h, nil
}

func readHello(r io.Reader) (Hello, error) {
	b, err := readFrame(r, maxHello)
	if err != nil {
		return Hello{}, err
	}
	return decodeHello(b)
}

// The first byte of the answer to a Hello; after no comes the reason.
const (
	answerYes = 0
	answerNo  = 1
)

func writeAnswer(w io.Writer, refusal error) error {
	body := []byte{answerYes}
	if refusal != nil {
		body = append([]byte{answerNo}, readable(refusal.Error())...)
	}
	_, err := w.Write(appendFrame(nil, body))
	return err
}

// readAnswer returns nil, a *RefusedError or what went wrong in reading.
func readAnswer(r io.Reader) error {
	b, err := readFrame(r, 1+maxReason)
	switch {
	case err != nil:
		return err
	case len(b) == 1 && b[0] == answerYes:
		return nil
	case len(b) > 0 && b[0] == answerNo:
		return &RefusedError{Reason: readable(string(b[1:]))}
	}
	return errors.New("the answer to the hello is not one")
}

// readable makes a bounded line of printable text out of what a peer said.
func readable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s[:min(len(s), maxReason)])
	return strings.ToValidUTF8(s[:min(len(s), maxReason)], "")
}
