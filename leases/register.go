package leases

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/coordd/coordd/tokens"
)

// ShardVersion is the format of a shard register, the greatest that this release reads
// and the one that it writes.
const ShardVersion = 1

// EncodeShard returns a shard as its register keeps it: JSON that a person can read, in
// one form only. It takes up at most what Fill counts, and 96 bytes. It panics if
// DecodeShard would refuse it, lest a register be lost.
func EncodeShard(s Shard) []byte {
	if err := s.invalid(); err != nil {
		panic("leases: " + err.Error())
	}
	return appendShard(nil, s)
}

func appendShard(b []byte, s Shard) []byte {
	b = append(b, `{"format":`...)
	b = strconv.AppendUint(b, ShardVersion, 10)
	b = appendNumber(b, "epoch", uint64(s.Epoch))
	b = append(b, `,"closed":`...)
	b = strconv.AppendBool(b, s.Closed)
	b = appendNumber(b, "counter", uint64(s.Counter))
	b = append(b, `,"leases":[`...)
	for i, l := range s.Leases {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRegistered(b, l)
	}
	return append(b, "]}"...)
}

// appendRegistered appends a lease as registers keep it.
func appendRegistered(b []byte, l *Lease) []byte {
	b = append(b, `{"name":`...)
	b = appendText(b, l.Name)
	b = append(b, `,"holder":"`...)
	b = append(hex.AppendEncode(b, l.Session[:]), '"')
	b = appendNumber(b, "token", uint64(l.Token))
	b = appendNumber(b, "ttl_ms", uint64(l.TTL/time.Millisecond))
	if !l.Attempt.IsZero() {
		b = append(b, `,"attempt":"`...)
		b = append(hex.AppendEncode(b, l.Attempt[:]), '"')
	}
	b = appendNumber(b, "stamp", l.Stamp)
	if l.Broken {
		b = append(b, `,"broken":true`...)
	}
	if l.Owner != (Owner{}) {
		b = appendOwner(append(b, `,"owner":`...), l.Owner)
	}
	if len(l.Attributes) > 0 {
		b = append(b, `,"attributes":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, l.Attributes), '"')
	}
	if !l.AcquiredAt.IsZero() {
		b = append(b, `,"acquired_at":"`...)
		b = append(l.AcquiredAt.UTC().AppendFormat(b, registeredTime), '"')
	}
	return append(b, '}')
}

// registeredTime is RFC 3339 in UTC, with milliseconds: 24 bytes from 1970 to 9999.
const registeredTime = "2006-01-02T15:04:05.000Z"

func appendOwner(b []byte, o Owner) []byte {
	b = append(b, '{')
	for _, f := range [...]struct{ field, value string }{{"label", o.Label}, {"site", o.Site}, {"host", o.Host}} {
		if f.value != "" {
			b = append(b, '"')
			b = append(append(b, f.field...), `":`...)
			b = append(appendText(b, f.value), ',')
		}
	}
	if o.PID != 0 {
		b = append(b, `"pid":`...)
		b = append(strconv.AppendUint(b, uint64(o.PID), 10), ',')
	}
	b[len(b)-1] = '}' // in the place of the last comma
	return b
}

func appendNumber(b []byte, field string, n uint64) []byte {
	b = append(b, `,"`...)
	b = append(append(b, field...), `":`...)
	return strconv.AppendUint(b, n, 10)
}

// appendText appends s, which is UTF-8, as a JSON string. Only what has to be is
// escaped, always in the same way: how much it takes up must never change.
func appendText(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// leaseCost is what a lease takes up in a register, with the comma behind it, where its
// name, its owner's texts and its attributes are empty, and all else as long as can be.
const leaseCost = len(`{"name":"","holder":"0123456789abcdef0123456789abcdef","token":9007199254740991,"ttl_ms":4294967295,` +
	`"attempt":"0123456789abcdef0123456789abcdef","stamp":18446744073709551615,"broken":true,` +
	`"owner":{"label":"","site":"","host":"","pid":4294967295},"attributes":"","acquired_at":"2006-01-02T15:04:05.000Z"},`)

// cost is how many bytes a lease takes up in its shard's register at most: however
// often it is renewed, or broken, it keeps the room that it was granted with. Every
// release has to come to the same, since grants are refused by it (W9): a release that
// encodes leases otherwise goes on counting so, and encodes them no longer than this.
func cost(name string, o Owner, attributes []byte) uint32 {
	n := leaseCost + textCost(name) + textCost(o.Label) + textCost(o.Site) + textCost(o.Host)
	return uint32(n + (len(attributes)+2)/3*4)
}

// textCost is what appendText appends, without the quotes.
func textCost(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			n++
		case c < ' ':
			n += len(`\u0000`) - 1
		}
	}
	return n
}

// registered is a shard as JSON says it.
type registered struct {
	Format  uint32            `json:"format"`
	Epoch   uint32            `json:"epoch"`
	Closed  bool              `json:"closed"`
	Counter uint32            `json:"counter"`
	Leases  []registeredLease `json:"leases"`
}

type registeredLease struct {
	Name       string `json:"name"`
	Holder     ID     `json:"holder"`
	Token      uint64 `json:"token"`
	TTL        uint32 `json:"ttl_ms"`
	Attempt    ID     `json:"attempt"`
	Stamp      uint64 `json:"stamp"`
	Broken     bool   `json:"broken"`
	Owner      Owner  `json:"owner"`
	Attributes []byte `json:"attributes"`
	AcquiredAt string `json:"acquired_at"`
}

// DecodeShard reads what EncodeShard has written; no bytes are the zero Shard. A
// later release's is an *UnreadableError, everything else that EncodeShard would not
// have written matches ErrCorrupt.
func DecodeShard(b []byte) (Shard, error) {
	if len(b) == 0 {
		return Shard{}, nil
	}
	s, err := decodeShard(b)
	if err == nil {
		return s, nil
	}
	var head struct {
		Format uint32 `json:"format"`
	}
	if json.Unmarshal(b, &head) == nil && head.Format > ShardVersion {
		return Shard{}, &UnreadableError{What: "shard register", Version: head.Format, Reads: ShardVersion}
	}
	return Shard{}, fmt.Errorf("shard register: %w: %w", ErrCorrupt, err)
}

func decodeShard(b []byte) (Shard, error) {
	var r registered
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Shard{}, err
	}
	s := Shard{Epoch: r.Epoch, Closed: r.Closed, Counter: r.Counter}
	for i := range r.Leases {
		l, err := r.Leases[i].lease()
		if err != nil {
			return Shard{}, err
		}
		s.Leases = append(s.Leases, l)
	}
	if err := s.invalid(); err != nil {
		return Shard{}, err
	}
	if again := appendShard(make([]byte, 0, len(b)), s); !bytes.Equal(again, b) {
		return Shard{}, fmt.Errorf("byte %d is not as this release writes it", 1+common(again, b))
	}
	return s, nil
}

// common is how many bytes a and b begin with alike.
func common(a, b []byte) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func (r *registeredLease) lease() (*Lease, error) {
	l := &Lease{
		Name: r.Name, Session: r.Holder, Attempt: r.Attempt, Token: tokens.Token(r.Token), TTL: time.Duration(r.TTL) * time.Millisecond,
		Owner: r.Owner, Stamp: r.Stamp, Broken: r.Broken,
	}
	if len(r.Attributes) > 0 {
		l.Attributes = r.Attributes
	}
	if r.AcquiredAt != "" {
		at, err := time.Parse(registeredTime, r.AcquiredAt)
		if err != nil {
			return nil, err
		}
		l.AcquiredAt = at
	}
	return l, nil
}

// invalid looks for what no table of a shard comes to.
func (s *Shard) invalid() error {
	switch {
	case s.Epoch > tokens.MaxEpoch:
		return fmt.Errorf("its epoch is %d: at most %d", s.Epoch, tokens.MaxEpoch)
	case s.Epoch == 0 && (s.Closed || s.Counter != 0 || len(s.Leases) > 0):
		return errors.New("it has no epoch, but a mark, a counter or leases")
	}
	var last string // names are never empty, so the first is greater
	for _, l := range s.Leases {
		if err := l.invalid(); err != nil {
			return err
		}
		switch {
		case l.Name <= last:
			return fmt.Errorf("lease %q follows lease %q", clip(l.Name, 40), clip(last, 40))
		case l.Name[0] == '@':
			return fmt.Errorf("lease %q has a reserved name", clip(l.Name, 40))
		case !isText(l.Name, l.Owner):
			return fmt.Errorf("lease %q, or its owner, is not UTF-8", clip(l.Name, 40))
		case l.Token.Epoch() > s.Epoch:
			return fmt.Errorf("lease %q has token %v, of an epoch after %d", clip(l.Name, 40), l.Token, s.Epoch)
		case l.Stamp == 0:
			return fmt.Errorf("lease %q has no stamp", clip(l.Name, 40))
		case !l.AcquiredAt.Equal(fromMillis(toMillis(l.AcquiredAt))):
			return fmt.Errorf("lease %q has a time of day that is not kept", clip(l.Name, 40))
		}
		last = l.Name
	}
	return nil
}
