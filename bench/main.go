// Command bench measures coordd beside the floors of the machine that it runs
// on: how long a lease takes to get and what it costs, embedded and remote, in
// memory and on disk, and how far that is from bare TCP, gRPC and Raft in the
// same minute. README.md says how to read what it prints.
//
// The servers, and what loads them, are processes of their own, which are this
// program in another role; so the CPU of each is its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

func main() {
	if play() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the bench at once, and its processes with it
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	time   time.Duration
	warm   time.Duration
	rounds int
	conns  int
	leases int
	quick  bool
	only   *regexp.Regexp
	list   bool
	json   string
	pprof  string
	dir    string
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.DurationVar(&s.time, "time", 3*time.Second, "how long to measure each cell in each round")
	f.IntVar(&s.rounds, "rounds", 3, "how often to measure each cell")
	f.IntVar(&s.conns, "conns", 4, "connections, streams and clients that the workers of a remote cell share, at most")
	f.IntVar(&s.leases, "leases", 100_000, "the greatest number of leases to measure memory and snapshots with")
	f.BoolVar(&s.quick, "quick", false, "one round of 0.3 s, with 1 and 512 workers: to see that it runs")
	only := f.String("only", "", "measure only the cells whose name matches this regular expression")
	f.BoolVar(&s.list, "list", false, "print the names of the cells and measure nothing")
	f.StringVar(&s.json, "json", "", "write all that is measured to this file")
	f.StringVar(&s.pprof, "pprof", "", "write profiles of the CPU and of allocations of each process and cell into this folder")
	f.StringVar(&s.dir, "dir", "", "the folder for a folder of data on disk, removed at the end (default: the system's for temporary files)")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("argument %q: there are none beside flags", f.Arg(0))
	}
	if s.quick {
		s.time, s.rounds, s.leases = 300*time.Millisecond, 1, min(s.leases, 1000)
	}
	s.warm = min(s.time/4, 500*time.Millisecond)
	for _, b := range []struct {
		flag        string
		value, most int
	}{{"rounds", s.rounds, 1000}, {"conns", s.conns, 512}, {"leases", s.leases, 10_000_000}} {
		if b.value < 1 || b.value > b.most {
			return s, fmt.Errorf("-%s %d: want 1 to %d", b.flag, b.value, b.most)
		}
	}
	if s.time < 50*time.Millisecond || s.time > time.Hour {
		return s, fmt.Errorf("-time %v: want 50ms to 1h", s.time)
	}
	var err error
	if s.only, err = regexp.Compile(*only); err != nil {
		return s, fmt.Errorf("-only: %w", err)
	}
	if s.pprof != "" { // the processes write there
		s.pprof, err = filepath.Abs(s.pprof)
	}
	return s, err
}

// cells are those to measure in each round: for each load all rows one after
// the other, so that a row and its floors are measured in the same minute.
func (s settings) cells() (chosen []cell) {
	take := func(c cell) {
		if s.only.MatchString(c.String()) {
			chosen = append(chosen, c)
		}
	}
	workers := loads
	if s.quick {
		workers = []int{loads[0], loads[len(loads)-1]}
	}
	for _, n := range workers {
		for _, r := range rows {
			take(cell{row: r, workers: n})
		}
	}
	for _, c := range singles {
		if c.held() < 10_000 || !s.quick {
			take(c)
		}
	}
	return chosen
}

// sizes are the numbers of leases to measure memory and snapshots with.
func (s settings) sizes() (chosen []int) {
	for n := 1000; n <= s.leases; n *= 10 {
		if s.only.MatchString(sizeName(n)) {
			chosen = append(chosen, n)
		}
	}
	return chosen
}

func sizeName(n int) string { return fmt.Sprintf("leases/%d", n) }

// longest is an ample bound of a run.
func (s settings) longest(cells, sizes int) time.Duration {
	return time.Duration(cells*s.rounds)*(s.time+s.warm+5*time.Second) + time.Duration(sizes)*5*time.Minute + 2*time.Minute
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	cells, sizes := s.cells(), s.sizes()
	if s.list {
		for _, c := range cells {
			fmt.Fprintf(stdout, "%s: %s\n", c, c.what)
		}
		for _, n := range sizes {
			fmt.Fprintf(stdout, "%s: memory and snapshots\n", sizeName(n))
		}
		return nil
	}
	if len(cells)+len(sizes) == 0 {
		return fmt.Errorf("-only %q matches no cell; -list tells their names", s.only)
	}
	longest := s.longest(len(cells), len(sizes))
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the run is not done within %v, several times of what it should take", longest))
	defer cancel()
	dir, err := os.MkdirTemp(s.dir, "coordd-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fleet := newFleet(dir, stderr)
	defer func() { err = errors.Join(err, fleet.end()) }() // in a panic too
	r := &Report{Machine: thisMachine(), At: time.Now(), Time: s.time, Warm: s.warm, Rounds: s.rounds, Conns: s.conns, Disk: filepath.Dir(dir)}
	if err := r.fill(ctx, fleet, s, cells, sizes, stderr); err != nil {
		return err
	}
	r.judge()
	r.write(stdout)
	if s.json != "" {
		if err := r.save(s.json); err != nil {
			return err
		}
	}
	if n := r.failed(); n > 0 {
		return fmt.Errorf("%d measurements failed", n)
	}
	return nil
}

// fill measures everything.
func (r *Report) fill(ctx context.Context, f *fleet, s settings, cells []cell, sizes []int, progress io.Writer) error {
	for _, c := range cells {
		r.Cells = append(r.Cells, &Cell{Name: c.String(), What: c.what, Workers: c.workers, cell: c})
	}
	for round := range s.rounds {
		for i, c := range cells {
			result, err := f.measure(ctx, c, s.warm, s.time, s.conns, s.pprof)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			prefix := fmt.Sprintf("round %d of %d, %3d of %d: %-26s", round+1, s.rounds, i+1, len(cells), c)
			if err != nil {
				r.Cells[i].Failed = append(r.Cells[i].Failed, fmt.Sprintf("round %d: %v", round+1, err))
				fmt.Fprintf(progress, "%s FAILED: %v\n", prefix, err)
				continue
			}
			r.Cells[i].add(round, result)
			fmt.Fprintf(progress, "%s %7.0f/s, p50 %6.0f µs, others %2.0f %% of the CPU\n", prefix, result.Rate, result.P50, result.Others)
		}
	}
	if err := f.end(); err != nil { // nothing else runs meanwhile
		return err
	}
	for _, n := range sizes {
		size, err := f.size(ctx, n)
		if err != nil {
			return fmt.Errorf("%s: %w", sizeName(n), err)
		}
		r.Sizes = append(r.Sizes, size)
		fmt.Fprintf(progress, "%s: %.0f B each in the table, %.0f B in a leader\n", sizeName(n), size.TableEach, size.NodeEach)
	}
	return nil
}

// size measures n leases in a fresh process.
func (f *fleet) size(ctx context.Context, n int) (size Size, err error) {
	dir := filepath.Join(f.dir, fmt.Sprintf("leases-%d", n))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return size, err
	}
	p, err := launch("measurer", f.stderr)
	if err != nil {
		return size, err
	}
	f.all = append(f.all, p)
	err = p.call(ctx, "Measure", Holding{Leases: n, Dir: dir}, &size)
	return size, errors.Join(err, f.end())
}
