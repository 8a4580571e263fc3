package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// row is one kind of work.
type row struct {
	name     string
	what     string // for people
	rig      string
	kind     string // of the load
	embedded bool   // the load is made in the leader's process
	conns    int    // 0: as many as -conns
}

// cell is a row at one load.
type cell struct {
	row
	workers int
	leases  int // of each worker's to renew, or held by its client beside those of its pairs
}

// rows are in the order in which they are measured, so that what is compared is
// measured one after the other.
var rows = []row{
	{name: "floor/tcp", what: "64 bytes to a process and back over TCP", rig: "echo", kind: "ping"},
	{name: "floor/raft", what: "raft.Apply of the library as it comes, in memory, one op an entry, called in the leader's process", rig: "raft", kind: "apply", embedded: true},
	{name: "embedded/memory", what: "client.New over the node that leads", rig: "memory", kind: "client", embedded: true},
	{name: "embedded/memory/session", what: "the same without package client", rig: "memory", kind: "session", embedded: true},
	{name: "embedded/disk", what: "client.New over the node that leads, logs on disk", rig: "disk", kind: "client", embedded: true},
	{name: "remote/disk", what: "client.Dial, logs on disk", rig: "disk", kind: "client"},
	{name: "floor/replication", what: "64 bytes to a leader, which sends them to 2 followers, waits for one ack and answers; over TCP", rig: "replication", kind: "ping"},
	{name: "remote/memory", what: "client.Dial", rig: "memory", kind: "client"},
	{name: "floor/stream", what: "echo over gRPC streams, one message a request", rig: "stream", kind: "stream"},
	{name: "floor/coalesced", what: "the same, requests that wait go in one message", rig: "stream", kind: "coalesced"},
	{name: "remote/memory/session", what: "a session of transport.Dial, without package client", rig: "memory", kind: "session"},
}

// loads are the numbers of workers; in a quick run the first and the last.
var loads = []int{1, 16, 128, 512}

// singles are cells of one load each.
var singles = []cell{
	{row: row{name: "remote/memory/holding", what: "client.Dial, while the client holds 10,000 other leases", rig: "memory", kind: "holding", conns: 1}, workers: 1, leases: 10000},
	{row: row{name: "renew/1x1000", what: "one session renews 1,000 leases at a time", rig: "memory", kind: "renew", conns: 1}, workers: 1, leases: 1000},
	{row: row{name: "renew/1x10000", what: "one session renews 10,000 leases at a time", rig: "memory", kind: "renew", conns: 1}, workers: 1, leases: 10000},
	{row: row{name: "renew/64x100", what: "64 connections renew 100 leases at a time each", rig: "memory", kind: "renew", conns: 64}, workers: 64, leases: 100},
	{row: row{name: "renew/512x1", what: "512 connections renew one lease at a time each", rig: "memory", kind: "renew", conns: 512}, workers: 512, leases: 1},
	{row: row{name: "keep/1000", what: fmt.Sprintf("a client.Client keeps 1,000 leases of %v, at its own pace", keepTTL), rig: "memory", kind: "keep", conns: 1}, workers: 1000},
	{row: row{name: "keep/10000", what: fmt.Sprintf("a client.Client keeps 10,000 leases of %v, at its own pace", keepTTL), rig: "memory", kind: "keep", conns: 1}, workers: 10000},
}

func (c cell) renews() bool { return c.kind == "renew" || c.kind == "keep" }

// floor reports whether the cell measures what the machine and the libraries
// give, without coordd.
func (c cell) floor() bool { return strings.HasPrefix(c.name, "floor/") }

// String is the name that -only matches.
func (c cell) String() string {
	if c.renews() {
		return c.name
	}
	return fmt.Sprintf("%s/%d", c.name, c.workers)
}

// time is how long to measure the cell: kept leases are renewed about once a second.
func (c cell) time(d time.Duration) time.Duration {
	if c.kind == "keep" {
		return max(d, keepTTL/2)
	}
	return d
}

// held is how many leases there are at once.
func (c cell) held() int { return c.workers * max(c.leases, 1) }

// units is what a step counts for: pairs, or renewals.
func (c cell) units() float64 {
	if c.kind == "renew" {
		return float64(c.leases)
	}
	return 1
}

// Result is one measurement of a cell. Of a row whose load is made in the
// leader's process the client's part is in the servers'.
type Result struct {
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	P999         float64 `json:"p999_us"`
	Rate         float64 `json:"per_second"`         // pairs, or renewals
	ServerCPU    float64 `json:"server_cpu_s_10k"`   // seconds of all servers per 10,000
	ClientCPU    float64 `json:"client_cpu_s_10k"`   //
	ServerAllocs float64 `json:"server_allocs_each"` // objects, of all servers
	ClientAllocs float64 `json:"client_allocs_each"` //
	Others       float64 `json:"others_cpu_percent"` // of the machine, used by other processes meanwhile
}

// measure puts the load of c on its servers, waits for warm, and measures it
// for d. Each process's profile is written to a file in profiles, unless that
// is empty.
func (f *fleet) measure(ctx context.Context, c cell, warm, d time.Duration, conns int, profiles string) (r Result, err error) {
	rig, err := f.rig(ctx, c.rig)
	if err != nil {
		return r, err
	}
	driver, err := f.from(ctx, rig, c.embedded)
	if err != nil {
		return r, err
	}
	if c.conns > 0 {
		conns = c.conns
	}
	if err := driver.call(ctx, "Load", Load{Kind: c.kind, Addrs: rig.addrs, Workers: c.workers, Conns: conns, Leases: c.leases}, nil); err != nil {
		return r, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), prepareTime)
		defer cancel()
		err = errors.Join(err, driver.call(end, "Unload", None{}, nil))
	}()
	if err := pause(ctx, warm); err != nil {
		return r, err
	}
	samples, others, err := f.sample(ctx, c.time(d), func(p *process) any {
		if profiles == "" {
			return ""
		}
		return filepath.Join(profiles, strings.ReplaceAll(c.String(), "/", "-"), fmt.Sprintf("%s-%d", p.role, p.cmd.Process.Pid))
	})
	if err != nil {
		return r, err
	}
	if trouble := samples[driver].Trouble; trouble != "" {
		return r, errors.New(trouble)
	}
	if samples[driver].Steps == 0 {
		return r, fmt.Errorf("no worker was done with a step within %v", prepareTime)
	}
	return c.result(samples, rig.servers, driver, others), nil
}

// sample measures all processes for d, and what others use meanwhile.
func (f *fleet) sample(ctx context.Context, d time.Duration, path func(*process) any) (map[*process]*Sample, float64, error) {
	samples := map[*process]*Sample{}
	for _, p := range f.all {
		samples[p] = new(Sample)
	}
	own := usage()
	before, began := busy(), time.Now()
	if err := f.each(ctx, "Begin", path, func(*process) any { return new(None) }); err != nil {
		return nil, 0, err
	}
	if err := pause(ctx, d); err != nil {
		return nil, 0, err
	}
	if err := f.each(ctx, "End", path, func(p *process) any { return samples[p] }); err != nil {
		return nil, 0, err
	}
	used, took := busy()-before, time.Since(began)
	used -= usage().CPU - own.CPU
	for _, s := range samples {
		used -= s.CPU
	}
	return samples, 100 * used.Seconds() / (took.Seconds() * float64(cores)), nil
}

// result makes rates of samples: each process's by its own clock, since they
// neither begin nor end at the same instant.
func (c cell) result(samples map[*process]*Sample, servers []*process, driver *process, others float64) Result {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	s := samples[driver]
	r := Result{P50: micros(s.P50), P99: micros(s.P99), P999: micros(s.P999), Others: others}
	r.Rate = float64(s.Steps) * c.units() / s.Took.Seconds()
	each := func(p *process) (cpu, allocs float64) {
		s := samples[p]
		return s.CPU.Seconds() / s.Took.Seconds() / r.Rate * 10_000, float64(s.Mallocs) / s.Took.Seconds() / r.Rate
	}
	for _, p := range servers {
		cpu, allocs := each(p)
		r.ServerCPU += cpu
		r.ServerAllocs += allocs
	}
	if !c.embedded {
		r.ClientCPU, r.ClientAllocs = each(driver)
	}
	return r
}
