package boltstore

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/node/internal/identity"
)

func open(t *testing.T, dir string) Storage {
	t.Helper()
	s, err := Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func closed(t *testing.T, s Storage) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func entries(first, last uint64) []*raft.Log {
	var logs []*raft.Log
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: 3, Data: []byte(strings.Repeat("x", 300)), AppendedAt: time.Unix(1700000000, 12345)})
	}
	return logs
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLogSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	must(t, s.Logs.StoreLogs(entries(1, 100)))
	must(t, s.Logs.DeleteRange(1, 10))
	must(t, s.Stable.SetUint64([]byte("CurrentTerm"), 3))
	must(t, s.Stable.Set([]byte("LastVoteCand"), []byte("a.01")))
	closed(t, s)

	s = open(t, dir)
	first, err := s.Logs.FirstIndex()
	must(t, err)
	last, err := s.Logs.LastIndex()
	must(t, err)
	if first != 11 || last != 100 {
		t.Errorf("entries: got %d to %d, want 11 to 100", first, last)
	}
	var got raft.Log
	must(t, s.Logs.GetLog(50, &got))
	want := entries(50, 50)[0]
	if got.Index != 50 || got.Term != want.Term || string(got.Data) != string(want.Data) || !got.AppendedAt.Equal(want.AppendedAt) {
		t.Errorf("entry 50: got %+v, want %+v", got, *want)
	}
	if err := s.Logs.GetLog(5, &got); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("deleted entry: got %v, want %v", err, raft.ErrLogNotFound)
	}
	if term, err := s.Stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 3 {
		t.Errorf("term: got %d, %v, want 3", term, err)
	}
	if vote, err := s.Stable.Get([]byte("LastVoteCand")); err != nil || string(vote) != "a.01" {
		t.Errorf("vote: got %q, %v, want a.01", vote, err)
	}
	// Raft tells "no vote yet" from a failure by this very text.
	if _, err := s.Stable.Get([]byte("nothing")); err == nil || err.Error() != "not found" {
		t.Errorf("missing key: got %v, want %q", err, "not found")
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	if _, err := os.Stat(filepath.Join(dir, identity.SnapshotsDir)); err != nil {
		t.Errorf("the snapshots are not where package identity looks for them: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, identity.LogFile))
	must(t, err)
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode of the log: got %o, want 600", got)
	}
}

func TestLogInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	_, err := Open(dir, hclog.NewNullLogger())
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), filepath.Join(dir, identity.LogFile)) {
		t.Errorf("got %v, want %v that names the file", err, ErrLocked)
	}
}

func TestMissingFolder(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none"), hclog.NewNullLogger())
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}

func TestDamagedLog(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	must(t, s.Logs.StoreLogs(entries(1, 500)))
	must(t, s.Stable.SetUint64([]byte("CurrentTerm"), 3))
	closed(t, s)
	whole, err := os.ReadFile(filepath.Join(dir, identity.LogFile))
	must(t, err)

	page := os.Getpagesize()
	zeroed := func(first, pages int) []byte {
		b := append([]byte(nil), whole...)
		clear(b[first*page : (first+pages)*page])
		return b
	}
	type damage struct {
		name    string
		content []byte
	}
	tests := []damage{
		{"something else", []byte("this is not a log")},
		{"zeros", make([]byte, 1<<16)},
		{"both meta pages", zeroed(0, 2)},
		{"half of it", whole[:len(whole)/2]},
		{"a tenth of it", whole[:len(whole)/10]},
		{"the first pages", whole[:2*page]},
		{"all but the meta pages", zeroed(2, len(whole)/page-2)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, identity.LogFile)
			must(t, os.WriteFile(path, tt.content, 0o600))
			s, err := Open(dir, hclog.NewNullLogger())
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("got %v, want %v", err, ErrCorrupt)
			}
			for _, says := range []string{path, "move the whole folder away"} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("got %q, want it to say %q", err, says)
				}
			}
			after, err := os.ReadFile(path)
			must(t, err)
			if string(after) != string(tt.content) {
				t.Error("the damaged file was changed")
			}
		})
	}
}

// TestAnyDamagedPage damages one page after the other. The log opens whole where
// the page was a free one or a meta page, of which there are two, else not.
func TestAnyDamagedPage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	must(t, s.Logs.StoreLogs(entries(1, 60)))
	closed(t, s)
	path := filepath.Join(dir, identity.LogFile)
	whole, err := os.ReadFile(path)
	must(t, err)
	page, damaged := os.Getpagesize(), 0
	for i := 2; i < len(whole)/page; i++ {
		b := append([]byte(nil), whole...)
		clear(b[i*page : (i+1)*page])
		if bytes.Equal(b, whole) {
			continue // never written
		}
		must(t, os.WriteFile(path, b, 0o600))
		err := check(path)
		if err != nil {
			damaged++
			continue
		}
		s := open(t, dir)
		for index := uint64(1); index <= 60; index++ {
			if err := s.Logs.GetLog(index, new(raft.Log)); err != nil {
				t.Fatalf("page %d is damaged, the log opens, but entry %d: %v", i, index, err)
			}
		}
		closed(t, s)
	}
	if damaged == 0 {
		t.Error("no damage was noticed")
	}
}

func TestSnapshots(t *testing.T) {
	for name, s := range map[string]Storage{"folder": open(t, t.TempDir()), "memory": Memory()} {
		t.Run(name, func(t *testing.T) {
			_, trans := raft.NewInmemTransport("a.01")
			for index := uint64(1); index <= 3; index++ {
				sink, err := s.Snapshots.Create(1, index, 1, raft.Configuration{}, 1, trans)
				must(t, err)
				_, err = sink.Write([]byte{byte(index)})
				must(t, err)
				must(t, sink.Close())
			}
			kept, err := s.Snapshots.List()
			must(t, err)
			if len(kept) == 0 || len(kept) > retain || kept[0].Index != 3 {
				t.Fatalf("got %d snapshots, want at most %d, the one at 3 first", len(kept), retain)
			}
			_, r, err := s.Snapshots.Open(kept[0].ID)
			must(t, err)
			defer r.Close()
			if b, err := io.ReadAll(r); err != nil || string(b) != "\x03" {
				t.Errorf("got %q, %v, want the third", b, err)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	s := Memory()
	must(t, s.Logs.StoreLogs(entries(1, 3)))
	must(t, s.Stable.SetUint64([]byte("CurrentTerm"), 3))
	if last, err := s.Logs.LastIndex(); err != nil || last != 3 {
		t.Errorf("last index: got %d, %v, want 3", last, err)
	}
	closed(t, s)
	if last, err := Memory().Logs.LastIndex(); err != nil || last != 0 {
		t.Errorf("another storage: last index: got %d, %v, want 0", last, err)
	}
}
