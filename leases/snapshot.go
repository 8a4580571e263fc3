package leases

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"

	"github.com/google/btree"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/tokens"
)

// TableVersion is the version of the table's encoding, the greatest that this
// release reads and the one that it writes.
const TableVersion = 1

// tableMagic is what a table's header begins with.
const tableMagic = 'T'

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot is a table as it was at one moment. It never changes, and may be
// read while the table goes on.
type Snapshot struct {
	cluster  ID
	founders uint32
	epoch    uint32
	counter  uint32
	revision uint64
	shards   Shards
	leases   *btree.BTreeG[entry]
	ended    []Ending
	staging  uint32               // the epoch that what is staged will begin; 0: nothing is
	staged   *btree.BTreeG[entry] // nil if nothing is
}

// Snapshot returns the table of a Raft group as it is now. It copies the remembered endings,
// at most EndedKept, and shares the leases, so that it takes well below a
// millisecond however many leases there are.
func (t *Table) Snapshot() *Snapshot {
	s := &Snapshot{
		cluster: t.cluster, founders: t.founders, epoch: t.epoch, counter: t.counter, revision: t.revision,
		shards: t.held.shards, leases: t.held.leases.Clone(), ended: t.ended.list(), staging: t.staged.epoch,
	}
	if t.staged.epoch != 0 {
		s.staged = t.staged.leases.Clone()
	}
	return s
}

// WriteTo writes the snapshot's encoding, in pieces: its need of memory does
// not grow with the table.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := &sumWriter{w: w, sum: crc32.New(castagnoli)}
	buf := bufio.NewWriterSize(out, 64<<10)
	b := AppendHeader(nil, tableMagic, TableVersion, FirstRelease)
	b = append(b, s.cluster[:]...)
	b = binary.AppendUvarint(b, uint64(s.founders))
	b = binary.AppendUvarint(b, uint64(s.epoch))
	b = binary.AppendUvarint(b, uint64(s.counter))
	b = binary.AppendUvarint(b, s.revision)
	b = appendShards(b, s.shards)
	buf.Write(b) // an error stays until Flush returns it
	writeLeases(buf, s.leases, appendLease)
	b = binary.AppendUvarint(b[:0], uint64(len(s.ended)))
	buf.Write(b)
	var record []byte
	for _, e := range s.ended {
		record = appendEnding(record[:0], e)
		b = appendRecord(b[:0], record)
		buf.Write(b)
	}
	buf.Write(binary.AppendUvarint(b[:0], uint64(s.staging)))
	if s.staging != 0 {
		writeLeases(buf, s.staged, appendStaged)
	}
	if err := buf.Flush(); err != nil {
		return out.n, err
	}
	_, err := out.Write(binary.BigEndian.AppendUint32(nil, out.sum.Sum32()))
	return out.n, err
}

// sumWriter counts and sums up what it passes on.
type sumWriter struct {
	w   io.Writer
	sum hash.Hash32
	n   int64
}

func (s *sumWriter) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.sum.Write(b[:n])
	s.n += int64(n)
	return n, err
}

// writeLeases writes how many leases there are, and each in a record.
func writeLeases(w *bufio.Writer, leases *btree.BTreeG[entry], encode func([]byte, *Lease) []byte) {
	b := binary.AppendUvarint(nil, uint64(leases.Len()))
	w.Write(b)
	var record []byte
	leases.Ascend(func(e entry) bool {
		record = encode(record[:0], e.lease)
		b = appendRecord(b[:0], record)
		_, err := w.Write(b)
		return err == nil
	})
}

func appendLease(b []byte, l *Lease) []byte {
	return binary.AppendUvarint(appendStaged(b, l), l.Stamp)
}

// appendStaged appends all but the stamp, which an Import gives.
func appendStaged(b []byte, l *Lease) []byte {
	b = appendString(b, l.Name)
	b = append(append(b, l.Session[:]...), l.Attempt[:]...)
	b = binary.AppendUvarint(b, uint64(l.Token))
	b = appendTerms(b, l.TTL, l.Owner, l.Attributes, l.AcquiredAt)
	return appendMark(b, l.Broken)
}

func (d *decoder) staged() *Lease {
	l := &Lease{Name: d.string("name", MaxName), Session: d.id("session"), Attempt: d.id("attempt"), Token: d.token("token")}
	l.TTL, l.Owner, l.Attributes, l.AcquiredAt = d.terms()
	l.Attributes = bytes.Clone(l.Attributes)
	l.Broken = d.mark("mark broken")
	if d.err == nil {
		if err := l.invalid(); err != nil {
			d.fail("%w", err)
		}
	}
	return l
}

func appendEnding(b []byte, e Ending) []byte {
	b = appendString(b, e.Name)
	b = binary.AppendUvarint(b, uint64(e.Token))
	b = append(b, byte(e.Why))
	return binary.AppendUvarint(b, uint64(e.Next))
}

func (d *decoder) ending() Ending {
	e := Ending{Name: d.string("name", MaxName), Token: d.token("token"), Why: Why(d.byte()), Next: d.token("next token")}
	if d.err == nil {
		if err := first(nameSize(e.Name), positiveToken(e.Token), positive("why", uint64(e.Why), uint64(WhyTransferred))); err != nil {
			d.fail("%w", err)
		}
	}
	return e
}

// ReadTable reads a table that Snapshot.WriteTo has written, up to the end of
// r. An encoding of a later release is an *UnreadableError; whatever else
// WriteTo would not have written, such as a part of a snapshot, matches
// ErrCorrupt. An error of r's is passed on.
func ReadTable(r io.Reader) (*Table, error) { return ReadTableUnder(rules.Set{}, r) }

// ReadTableUnder is ReadTable for this module's own tests, which switch rules off.
func ReadTableUnder(set rules.Set, r io.Reader) (*Table, error) {
	t := NewTableUnder(set)
	switch err := t.read(r); {
	case errors.Is(err, ErrUnreadable):
		return nil, err // it names the table itself
	case err != nil:
		return nil, fmt.Errorf("lease table: %w", err)
	}
	return t, nil
}

// read fills the new table t.
func (t *Table) read(r io.Reader) error {
	in := &tableReader{r: bufio.NewReaderSize(r, 64<<10)}
	in.begin(t)
	in.leases(t)
	in.endings(t)
	in.staging(t)
	in.end()
	return in.err
}

// tableReader takes a table off a stream. After the first error it does nothing.
type tableReader struct {
	r   *bufio.Reader
	sum uint32 // of what was taken
	err error
}

// take lets f decode a value of at most size bytes. The decoder's bytes are
// only good until f returns.
func (in *tableReader) take(size int, f func(*decoder)) {
	if in.err != nil {
		return
	}
	b, err := in.r.Peek(size)
	if err != nil && err != io.EOF { // at the end there are fewer bytes; the decoder notices if they are too few
		in.err = err
		return
	}
	d := decoder{b: b}
	f(&d)
	if in.err = d.err; in.err != nil {
		return
	}
	n := len(b) - len(d.b)
	in.sum = crc32.Update(in.sum, castagnoli, b[:n])
	_, in.err = in.r.Discard(n)
}

// record lets f decode a length-prefixed record of what.
func (in *tableReader) record(what string, f func(*decoder)) {
	in.take(binary.MaxVarintLen64+maxRecord, func(d *decoder) {
		body := decoder{b: d.bytes(what, maxRecord), err: d.err}
		f(&body)
		if body.err == nil && len(body.b) > 0 {
			body.fail("%d bytes follow the last field of a %s", len(body.b), what)
		}
		d.err = body.err
	})
}

func (in *tableReader) begin(t *Table) {
	in.take(maxHeader, func(d *decoder) {
		version, since, rest, err := ReadHeader(d.b, tableMagic)
		if err == nil {
			err = Readable("lease table", version, TableVersion, since)
		}
		if err == nil && since != FirstRelease {
			err = fmt.Errorf("%w: version %d came with release %s, not with %s", ErrCorrupt, version, FirstRelease, since)
		}
		d.b, d.err = rest, err
	})
	in.take(len(t.cluster)+6*binary.MaxVarintLen64, func(d *decoder) {
		t.cluster = d.id("cluster")
		t.founders = d.uint32("founders")
		t.epoch = uint32(d.uvarint("epoch", uint64(tokens.MaxEpoch)))
		t.counter = d.uint32("counter")
		t.revision = d.uvarint("revision", math.MaxUint64)
		shards := d.shards()
		if shards != (Shards{}) && d.err == nil {
			if err := shards.invalid(); err != nil {
				d.fail("%w", err)
			}
		}
		if born := t.epoch != 0 && t.founders != 0 && t.revision != 0; t.cluster.IsZero() {
			if t.epoch != 0 || t.founders != 0 || t.counter != 0 || t.revision != 0 || shards != (Shards{}) {
				d.fail("it has no cluster, but an epoch, founders, a counter, a revision or shards")
			}
		} else if !born {
			d.fail("it has a cluster, but no epoch, founders or revision")
		}
		if d.err == nil {
			t.held.share(shards)
		}
	})
}

func (in *tableReader) leases(t *Table) {
	in.each("lease", true, func(l *Lease) error {
		switch {
		case l.Token > t.Newest():
			return fmt.Errorf("lease %q has token %v, beyond the table's %v", clip(l.Name, 40), l.Token, t.Newest())
		case l.Stamp == 0 || l.Stamp > t.revision:
			return fmt.Errorf("lease %q has stamp %d, outside of the table's revisions 1 to %d", clip(l.Name, 40), l.Stamp, t.revision)
		}
		t.held.put(l)
		return nil
	})
}

// each takes leases in the order of their names, with their stamps or without. keep
// may still refuse each of them.
func (in *tableReader) each(what string, stamped bool, keep func(*Lease) error) {
	var last string // names are never empty, so the first is greater
	for range in.count(what+"s", math.MaxInt) {
		in.record(what, func(d *decoder) {
			l := d.staged()
			if stamped {
				l.Stamp = d.uvarint("stamp", math.MaxUint64)
			}
			if d.err != nil {
				return
			}
			if l.Name <= last {
				d.fail("%s %q follows %s %q", what, clip(l.Name, 40), what, clip(last, 40))
			} else if err := keep(l); err != nil {
				d.fail("%w", err)
			}
			last = l.Name
		})
		if in.err != nil {
			return
		}
	}
}

func (in *tableReader) staging(t *Table) {
	in.take(binary.MaxVarintLen64, func(d *decoder) {
		t.staged.epoch = uint32(d.uvarint("staged epoch", uint64(tokens.MaxEpoch)))
		if t.staged.epoch != 0 && (t.staged.epoch <= t.epoch || t.epoch == 0) && t.rules.On(rules.ImportGreater) {
			d.fail("an import to epoch %d is staged, but its own is %d", t.staged.epoch, t.epoch)
		}
	})
	if in.err != nil || t.staged.epoch == 0 {
		return
	}
	t.staged.holding = newHolding()
	t.staged.share(t.held.shards)
	in.each("staged lease", false, func(l *Lease) error {
		if !importable(l, t.staged.epoch) {
			return fmt.Errorf("lease %q of token %v is staged for epoch %d", clip(l.Name, 40), l.Token, t.staged.epoch)
		}
		t.staged.put(l)
		return nil
	})
}

func (in *tableReader) endings(t *Table) {
	for range in.count("ended leases", uint64(t.ended.kept)) {
		in.record("ended lease", func(d *decoder) {
			e := d.ending()
			if d.err != nil {
				return
			}
			l, held := t.Get(e.Name)
			before, again := t.ended.last(e.Name)
			switch {
			case held && l.Token <= e.Token:
				d.fail("ended lease %q has token %v, but is held under %v", clip(e.Name, 40), e.Token, l.Token)
			case e.Token > t.Newest() || e.Next > t.Newest():
				d.fail("ended lease %q has token %v, then %v, beyond the table's %v", clip(e.Name, 40), e.Token, e.Next, t.Newest())
			case e.Next != 0 && e.Next <= e.Token:
				d.fail("ended lease %q has token %v, then %v", clip(e.Name, 40), e.Token, e.Next)
			}
			if again && e.Token <= before.Token {
				d.fail("ended lease %q has token %v after %v", clip(e.Name, 40), e.Token, before.Token)
			}
			t.ended.add(e)
		})
		if in.err != nil {
			return
		}
	}
}

func (in *tableReader) count(what string, most uint64) (n uint64) {
	in.take(binary.MaxVarintLen64, func(d *decoder) { n = d.uvarint("number of "+what, most) })
	return n
}

func (in *tableReader) end() {
	want := in.sum
	in.take(crc32.Size, func(d *decoder) {
		if b := d.take("checksum", crc32.Size); b != nil && binary.BigEndian.Uint32(b) != want {
			d.fail("its checksum is %#08x, the content's %#08x", binary.BigEndian.Uint32(b), want)
		}
	})
	if in.err != nil {
		return
	}
	if _, err := in.r.Peek(1); err == nil {
		in.err = fmt.Errorf("%w: something follows its end", ErrCorrupt)
	} else if err != io.EOF {
		in.err = err
	}
}
