package main

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"
)

// roleVariable, in a process's environment, is the role that it plays. It then
// serves RPC on its standard input and output, and ends when that does: so none
// outlives the bench, however that ends.
const roleVariable = "COORDD_BENCH_ROLE"

// roles are what a process of the bench can be.
var roles = map[string]func() role{
	"driver":   func() role { return new(Driver) },
	"echo":     func() role { return new(Echo) },
	"leader":   func() role { return new(Replicator) },
	"stream":   func() role { return new(Streamer) },
	"raft":     func() role { return new(Applier) },
	"member":   func() role { return new(Member) },
	"measurer": func() role { return new(Measurer) },
}

// role is a part in the bench: a receiver of net/rpc. close ends what it has started.
type role interface{ close() }

// None is the argument or the reply of a call that has none.
type None struct{}

// closeTime bounds how long a role may take to close.
const closeTime = 5 * time.Second

// play serves the role of this process, if it has one, and reports whether it had.
func play() bool {
	name, ok := os.LookupEnv(roleVariable)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt) // the bench ends its processes itself
	in, out := &input{File: os.Stdin, role: name}, os.Stdout
	os.Stdout = os.Stderr // what is printed must not get into the RPC
	r := roles[name]()
	server := rpc.NewServer()
	if err := server.RegisterName("Role", r); err != nil {
		fmt.Fprintf(os.Stderr, "role %s: %v\n", name, err)
		os.Exit(1)
	}
	server.ServeConn(stdio{in, out}) // until in has ended and the calls are answered
	r.close()
	if in.late != nil {
		in.late.Stop()
	}
	return true
}

// input is a role's standard input. From its end on the process has closeTime.
type input struct {
	*os.File
	role string
	late *time.Timer
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.File.Read(p)
	if err != nil && i.late == nil {
		i.late = time.AfterFunc(closeTime, func() {
			fmt.Fprintf(os.Stderr, "role %s: it did not close within %v\n", i.role, closeTime)
			os.Exit(1)
		})
	}
	return n, err
}

// stdio is both ways of a conversation over pipes.
type stdio struct {
	io.ReadCloser
	out io.WriteCloser
}

func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.out.Close(), s.ReadCloser.Close()) }

// Usage is what a process has used since its start.
type Usage struct {
	At      time.Duration // by its own monotonic clock
	CPU     time.Duration // user and system
	Mallocs uint64        // objects on the heap
}

var started = time.Now()

func usage() Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // it fails for bad arguments only
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Usage{At: time.Since(started), CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), Mallocs: m.Mallocs}
}

// Sample is what a process did between Begin and End.
type Sample struct {
	Took           time.Duration // by its own clock
	CPU            time.Duration
	Mallocs        uint64
	Steps          uint64 // of the load that it made
	P50, P99, P999 time.Duration
	Trouble        string // what went wrong with the load
}

// Base is the part that all roles have: they load, if they are told to, and
// measure themselves. Calls come one at a time.
type Base struct {
	began   Usage
	profile *os.File // of the CPU, while one is taken
	load    *load
}

// Begin begins a sample and, with a path, a profile of the CPU at
// path.cpu.pprof; End writes what was allocated since the process's start
// beside it.
func (b *Base) Begin(path string, _ *None) error {
	if path != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		f, err := os.Create(path + ".cpu.pprof")
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		b.profile = f
	}
	if b.load != nil {
		b.load.counts.Store(new(histogram))
	}
	b.began = usage()
	return nil
}

// End ends the sample, not before a worker is done with a step.
func (b *Base) End(path string, s *Sample) error {
	if b.load != nil {
		b.load.stepped()
	}
	now := usage()
	*s = Sample{Took: now.At - b.began.At, CPU: now.CPU - b.began.CPU, Mallocs: now.Mallocs - b.began.Mallocs}
	if b.load != nil {
		h := b.load.counts.Load()
		s.Steps, s.P50, s.P99, s.P999 = h.count(), h.quantile(.5), h.quantile(.99), h.quantile(.999)
		s.Trouble = b.load.trouble()
	}
	if b.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	err := b.profile.Close()
	b.profile = nil
	if err != nil {
		return err
	}
	f, err := os.Create(path + ".allocs.pprof")
	if err != nil {
		return err
	}
	defer f.Close()
	return pprof.Lookup("allocs").WriteTo(f, 0)
}

// begin starts a load on t, which is closed with it.
func (b *Base) begin(workers int, t target, err error) error {
	if err != nil {
		return err
	}
	b.load, err = startLoad(workers, t)
	return err
}

// Unload ends the load.
func (b *Base) Unload(None, *None) error {
	if b.load == nil {
		return nil
	}
	l := b.load
	b.load = nil
	return l.end()
}

func (b *Base) close() { _ = b.Unload(None{}, nil) }
