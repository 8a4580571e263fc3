package leases

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/coordd/coordd/tokens"
)

// The encodings of ops and tables are canonical: a value has exactly one, and
// whatever else is read is refused. Numbers are the shortest unsigned varints,
// strings and records carry their length before them.

// FirstRelease is the first release that reads what this one writes. It
// belongs to the versions, OpVersion and TableVersion, and changes with them.
const FirstRelease = "0.1.0"

var (
	// ErrUnreadable: a later release wrote this. See *UnreadableError.
	ErrUnreadable = errors.New("written by a later release")
	// ErrCorrupt: the bytes are not what any release writes.
	ErrCorrupt = errors.New("corrupt")
)

// UnreadableError says which release can read what this one cannot. It matches
// ErrUnreadable.
type UnreadableError struct {
	What    string // what was to be read, such as "log entry"
	Version uint32 // its version; 0: it has none of its own
	Reads   uint32 // the greatest version that this release reads; 0: not said
	Since   string // the first release that reads it; empty: not known
}

func (e *UnreadableError) Error() string {
	s := e.What
	if e.Version != 0 {
		s += fmt.Sprintf(" of version %d", e.Version)
	}
	if e.Reads != 0 {
		s += fmt.Sprintf(": this release reads up to %d", e.Reads)
	} else {
		s += ": this release does not know it"
	}
	if e.Since == "" {
		return s + "; a later release can read it"
	}
	return s + fmt.Sprintf("; release %s or later can read it", e.Since)
}

// Is matches ErrUnreadable.
func (e *UnreadableError) Is(target error) bool { return target == ErrUnreadable }

// maxSince bounds the name of a release in a header, maxHeader the header.
const (
	maxSince  = 32
	maxHeader = 1 + binary.MaxVarintLen32 + 1 + maxSince
)

// AppendHeader appends what log entries and snapshots begin with. magic tells
// the two apart; since is the first release that reads this version, 1 to 32
// letters, digits, dots, hyphens and plus signs. It panics on another since or
// on version 0.
func AppendHeader(b []byte, magic byte, version uint32, since string) []byte {
	if version == 0 || !validRelease(since) {
		panic(fmt.Sprintf("leases: header of version %d, release %q", version, since))
	}
	b = append(b, magic)
	b = binary.AppendUvarint(b, uint64(version))
	return appendString(b, since)
}

// ReadHeader reads what AppendHeader has written and returns what follows it.
// It takes every version: Readable judges it. Errors match ErrCorrupt.
func ReadHeader(b []byte, magic byte) (version uint32, since string, rest []byte, err error) {
	d := decoder{b: b}
	if got := d.byte(); d.err == nil && got != magic {
		d.fail("it begins with %#02x, not with %#02x", got, magic)
	}
	version = d.uint32("version")
	since = d.string("release", maxSince)
	if d.err == nil && (version == 0 || !validRelease(since)) {
		d.fail("version %d, release %q", version, since)
	}
	if d.err != nil {
		return 0, "", nil, fmt.Errorf("header: %w", d.err)
	}
	return version, since, d.b, nil
}

// Readable returns an *UnreadableError if version exceeds what can be read.
func Readable(what string, version, reads uint32, since string) error {
	if version > reads {
		return &UnreadableError{What: what, Version: version, Reads: reads, Since: since}
	}
	return nil
}

// validRelease reports whether s can be the name of a release. Whoever reads it puts
// it into a message, so it is held to harmless letters.
func validRelease(s string) bool {
	for _, c := range []byte(s) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '.' || c == '-' || c == '+') {
			return false
		}
	}
	return s != "" && len(s) <= maxSince
}

// maxRecord bounds the body of an op and of a lease; maxPart, that of an ImportPart.
// The longest of each have less than half of the one, and three quarters of the other.
const (
	maxRecord = 4 << 10
	maxPart   = 256 << 10
)

// maxBody bounds the body of an op.
func (k Kind) maxBody() int {
	if k == KindImportPart {
		return maxPart
	}
	return maxRecord
}

// AppendOp appends op's encoding: its kind, and the length-prefixed fields that
// the kind uses. It panics if op.Validate fails, since an op that nobody can
// decode would stop every node that finds it in its log.
func AppendOp(b []byte, op Op) []byte {
	if err := op.invalid(); err != nil {
		panic("leases: " + err.Error())
	}
	var space [512]byte
	b = append(b, byte(op.Kind))
	return appendRecord(b, appendBody(space[:0], &op))
}

func appendBody(b []byte, op *Op) []byte {
	b = binary.AppendUvarint(b, uint64(op.Epoch))
	switch op.Kind {
	case KindBirth:
		b = append(b, op.Cluster[:]...)
		b = binary.AppendUvarint(b, uint64(op.Founders))
		b = appendShards(b, op.Shards)
	case KindAcquire:
		b = appendString(b, op.Name)
		b = append(append(b, op.Session[:]...), op.Attempt[:]...)
		b = appendTerms(b, op.TTL, op.Owner, op.Attributes, op.AcquiredAt)
	case KindWithdraw:
		b = appendString(b, op.Name)
		b = append(append(b, op.Session[:]...), op.Attempt[:]...)
	case KindRelease, KindRenew:
		b = appendString(b, op.Name)
		b = append(b, op.Session[:]...)
		b = binary.AppendUvarint(b, uint64(op.Token))
	case KindExpire:
		b = appendString(b, op.Name)
		b = binary.AppendUvarint(b, uint64(op.Token))
		b = binary.AppendUvarint(b, op.Stamp)
	case KindBreak:
		b = appendString(b, op.Name)
		b = binary.AppendUvarint(b, uint64(op.Token))
		b = appendMark(b, op.Now)
	case KindTransfer:
		b = appendString(b, op.Name)
		b = append(b, op.Session[:]...)
		b = binary.AppendUvarint(b, uint64(op.Token))
		b = append(append(b, op.Heir[:]...), op.Attempt[:]...)
		b = appendTerms(b, op.TTL, op.Owner, op.Attributes, op.AcquiredAt)
	case KindReclaim:
		b = appendString(b, op.Name)
		b = append(b, op.Session[:]...)
		b = binary.AppendUvarint(b, uint64(op.Token))
		b = appendTerms(b, op.TTL, op.Owner, op.Attributes, op.AcquiredAt)
	case KindImportPart:
		b = binary.AppendUvarint(b, uint64(len(op.Leases)))
		for _, l := range op.Leases {
			b = appendStaged(b, l)
		}
	case KindImport:
		b = binary.AppendUvarint(b, uint64(op.Count))
	case KindAdopt:
		b = appendShards(b, op.Shards)
	}
	return b
}

// DecodeOp reads one op and returns what follows it. The op's Attributes are part
// of b, those of its Leases are not. A kind that this release does not know is an *UnreadableError,
// everything else that AppendOp would not have written matches ErrCorrupt.
func DecodeOp(b []byte) (op Op, rest []byte, err error) {
	d := decoder{b: b}
	op.Kind = Kind(d.byte())
	if d.err == nil && !op.Kind.known() {
		return Op{}, nil, &UnreadableError{What: fmt.Sprintf("op of %v", op.Kind)}
	}
	body := decoder{b: d.bytes("body", op.Kind.maxBody()), err: d.err}
	body.op(&op)
	if body.err == nil && len(body.b) > 0 {
		body.fail("%d bytes follow its last field", len(body.b))
	}
	if body.err == nil {
		if err := op.invalid(); err != nil {
			body.fail("%w", err)
		}
	}
	if body.err != nil {
		return Op{}, nil, fmt.Errorf("%v: %w", op.Kind, body.err)
	}
	return op, d.b, nil
}

func (d *decoder) op(op *Op) {
	op.Epoch = d.uint32("epoch")
	switch op.Kind {
	case KindBirth:
		op.Cluster = d.id("cluster")
		op.Founders = d.uint32("founders")
		op.Shards = d.shards()
	case KindAcquire:
		op.Name = d.string("name", MaxName)
		op.Session, op.Attempt = d.id("session"), d.id("attempt")
		op.TTL, op.Owner, op.Attributes, op.AcquiredAt = d.terms()
	case KindWithdraw:
		op.Name = d.string("name", MaxName)
		op.Session, op.Attempt = d.id("session"), d.id("attempt")
	case KindRelease, KindRenew:
		op.Name = d.string("name", MaxName)
		op.Session = d.id("session")
		op.Token = d.token("token")
	case KindExpire:
		op.Name = d.string("name", MaxName)
		op.Token = d.token("token")
		op.Stamp = d.uvarint("stamp", math.MaxUint64)
	case KindBreak:
		op.Name = d.string("name", MaxName)
		op.Token = d.token("token")
		op.Now = d.mark("mark now")
	case KindTransfer:
		op.Name = d.string("name", MaxName)
		op.Session = d.id("session")
		op.Token = d.token("token")
		op.Heir, op.Attempt = d.id("heir"), d.id("attempt")
		op.TTL, op.Owner, op.Attributes, op.AcquiredAt = d.terms()
	case KindReclaim:
		op.Name = d.string("name", MaxName)
		op.Session = d.id("session")
		op.Token = d.token("token")
		op.TTL, op.Owner, op.Attributes, op.AcquiredAt = d.terms()
	case KindImportPart:
		for range d.uvarint("number of leases", MaxPart) {
			op.Leases = append(op.Leases, d.staged())
		}
	case KindImport:
		op.Count = d.uint32("count")
	case KindAdopt:
		op.Shards = d.shards()
	}
}

func appendShards(b []byte, s Shards) []byte {
	b = binary.AppendUvarint(b, uint64(s.Count))
	return binary.AppendUvarint(b, uint64(s.Bytes))
}

func (d *decoder) shards() Shards {
	return Shards{Count: d.uint32("number of shards"), Bytes: d.uint32("shard bytes")}
}

// appendTerms appends what Acquire and the lease that it grants have in common.
func appendTerms(b []byte, ttl time.Duration, o Owner, attributes []byte, at time.Time) []byte {
	b = binary.AppendUvarint(b, uint64(ttl/time.Millisecond))
	b = appendString(b, o.Label)
	b = appendString(b, o.Site)
	b = appendString(b, o.Host)
	b = binary.AppendUvarint(b, uint64(o.PID))
	b = appendRecord(b, attributes)
	return binary.AppendUvarint(b, toMillis(at))
}

func (d *decoder) terms() (ttl time.Duration, o Owner, attributes []byte, at time.Time) {
	ttl = time.Duration(d.uvarint("ttl", math.MaxUint32)) * time.Millisecond
	o.Label = d.string("owner label", MaxLabel)
	o.Site = d.string("owner site", MaxLabel)
	o.Host = d.string("owner host", MaxLabel)
	o.PID = d.uint32("pid")
	attributes = d.bytes("attributes", MaxAttributes)
	at = fromMillis(d.uvarint("time of day", maxMillis))
	return ttl, o, attributes, at
}

// maxMillis is the end of the year 9999, the last that RFC 3339 can write.
const maxMillis = 253402300799999

// toMillis is the time of day as it is kept. A clock that is set to before 1970
// or after 9999 is no reason to refuse a lease.
func toMillis(t time.Time) uint64 { return uint64(min(max(t.UnixMilli(), 0), maxMillis)) }

func fromMillis(ms uint64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendRecord(b, record []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(record)))
	return append(b, record...)
}

// decoder takes values off b. After the first error it only returns zero values.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	}
	d.b = nil
}

func (d *decoder) take(field string, n int) []byte {
	if d.err == nil && len(d.b) < n {
		d.fail("it ends within its %s", field)
	}
	if d.err != nil {
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if v := d.take("first byte", 1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) uvarint(field string, most uint64) uint64 { return d.number(field, "", most) }

// number takes what is called field and suffix in a message.
func (d *decoder) number(field, suffix string, most uint64) uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	switch {
	case n == 0:
		d.fail("it ends within its %s%s", field, suffix)
	case n < 0 || n > 1 && d.b[n-1] == 0:
		d.fail("its %s%s is no shortest varint", field, suffix)
	case v > most:
		d.fail("its %s%s is %d: at most %d", field, suffix, v, most)
	}
	if d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return v
}

func appendMark(b []byte, set bool) []byte {
	if set {
		return append(b, 1)
	}
	return append(b, 0)
}

func (d *decoder) mark(field string) bool { return d.uvarint(field, 1) == 1 }

func (d *decoder) uint32(field string) uint32 { return uint32(d.uvarint(field, math.MaxUint32)) }

func (d *decoder) token(field string) tokens.Token {
	return tokens.Token(d.uvarint(field, uint64(tokens.Max)))
}

// bytes returns a part of d.b, nil if it is empty.
func (d *decoder) bytes(field string, most int) []byte {
	n := d.number(field, " length", uint64(most))
	if n == 0 {
		return nil
	}
	return d.take(field, int(n))
}

func (d *decoder) string(field string, most int) string { return string(d.bytes(field, most)) }

func (d *decoder) id(field string) (id ID) {
	copy(id[:], d.take(field, len(id)))
	return id
}
