package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is ample on a loaded machine.
const patience = 60 * time.Second

// One cell over a cluster, one floor, one renewal and one size, with all that
// the bench writes. run fails if one of its processes leaves a goroutine behind.
func TestQuick(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	file, profiles := filepath.Join(dir, "report.json"), filepath.Join(dir, "profiles")
	var out bytes.Buffer
	args := []string{"-quick", "-only", "^(floor/replication/1|remote/memory/1|renew/1x1000|leases/1000)$", "-json", file, "-pprof", profiles, "-dir", dir}
	if err := run(ctx, args, &out, t.Output()); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"| remote/memory/1", "remote/memory/1: p50 with 1 worker ÷ client + replication", "| 1000 "} {
		if !strings.Contains(strings.ReplaceAll(out.String(), "~", ""), want) {
			t.Errorf("got no %q in:\n%s", want, &out)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 3 || len(r.Sizes) != 1 || len(r.Verdicts) != 1 {
		t.Fatalf("got %d cells, %d sizes, %d verdicts; want 3, 1, 1", len(r.Cells), len(r.Sizes), len(r.Verdicts))
	}
	for _, c := range r.Cells {
		m := c.Median
		if m.P50 <= 0 || m.P99 < m.P50 || m.P999 < m.P99 || m.Rate <= 0 || m.ServerCPU <= 0 || m.ClientCPU <= 0 || m.ServerAllocs <= 0 {
			t.Errorf("%s: got %+v", c.Name, m)
		}
	}
	if s := r.Sizes[0]; s.TableEach < 100 || s.NodeEach < s.TableEach || s.Encoded < 50 || s.TakeUS <= 0 || s.WriteMS <= 0 || s.RestoreMS <= 0 {
		t.Errorf("sizes: got %+v", s)
	}
	for _, pattern := range []string{"remote-memory-1/member-*.cpu.pprof", "remote-memory-1/driver-*.allocs.pprof"} {
		if found, err := filepath.Glob(filepath.Join(profiles, pattern)); err != nil || len(found) == 0 {
			t.Errorf("profiles %s: got %v, %v", pattern, found, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "coordd-bench-*")); err != nil || len(left) > 0 {
		t.Errorf("data left: got %v, %v", left, err)
	}
}

func TestEmbeddedOnDisk(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, []string{"-quick", "-only", "^(embedded/disk|floor/raft)/1$", "-dir", t.TempDir()}, &out, t.Output()); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"embedded/disk/1", "floor/raft/1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got no %q in:\n%s", want, &out)
		}
	}
}

// A bench that ends in whatever way takes its processes with it: each has its
// standard error, which is at its end only when the last of them has ended.
func TestProcessesEndWithTheBench(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			bench := exec.Command(self, "-time", "100ms", "-rounds", "1000", "-only", "^floor/replication/1$", "-dir", t.TempDir())
			bench.Env = append(os.Environ(), benchVariable+"=1")
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			bench.Stderr = write
			if err := bench.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = bench.Process.Kill() // it has ended, mostly
				_ = bench.Wait()
			}()
			write.Close()
			_ = read.SetReadDeadline(time.Now().Add(patience))
			var said []byte
			for b := make([]byte, 1024); !measured.Match(said); {
				n, err := read.Read(b)
				if err != nil {
					t.Fatalf("%v after %s", err, said)
				}
				said = append(said, b[:n]...)
			}
			if err := bench.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(read)
			if err != nil {
				t.Errorf("some process has not ended: %v; they wrote:\n%s%s", err, said, rest)
			}
		})
	}
}

var measured = regexp.MustCompile(`(?m)^round 1 of 1000, +1 of 1: floor/replication/1 .*/s`)
