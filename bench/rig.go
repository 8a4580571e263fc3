package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// rig is the servers that rows of the bench have in common.
type rig struct {
	servers []*process
	addrs   []string // what a driver is given
	members bool     // one of the servers leads, and Leads tells which
}

// rigs are by what their processes are.
var rigs = map[string]func(context.Context, *fleet) (*rig, error){
	"echo":        echoRig,
	"replication": replicationRig,
	"stream":      streamRig,
	"raft":        raftRig,
	"memory":      func(ctx context.Context, f *fleet) (*rig, error) { return clusterRig(ctx, f, false) },
	"disk":        func(ctx context.Context, f *fleet) (*rig, error) { return clusterRig(ctx, f, true) },
}

const members = 3

// rig returns a rig, started when it is first asked for.
func (f *fleet) rig(ctx context.Context, name string) (*rig, error) {
	if r := f.rigs[name]; r != nil {
		return r, nil
	}
	r, err := rigs[name](ctx, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.rigs[name] = r
	return r, nil
}

func echoRig(ctx context.Context, f *fleet) (*rig, error) {
	p, addr, err := f.start(ctx, "echo", None{})
	return &rig{servers: []*process{p}, addrs: []string{addr}}, err
}

func streamRig(ctx context.Context, f *fleet) (*rig, error) {
	p, addr, err := f.start(ctx, "stream", None{})
	return &rig{servers: []*process{p}, addrs: []string{addr}}, err
}

func replicationRig(ctx context.Context, f *fleet) (*rig, error) {
	r := &rig{}
	var followers []string
	for range members - 1 {
		p, addr, err := f.start(ctx, "echo", None{})
		if err != nil {
			return nil, err
		}
		r.servers, followers = append(r.servers, p), append(followers, addr)
	}
	p, addr, err := f.start(ctx, "leader", followers)
	r.servers, r.addrs = append(r.servers, p), []string{addr}
	return r, err
}

func raftRig(ctx context.Context, f *fleet) (*rig, error) {
	r := &rig{members: true}
	for range members {
		p, addr, err := f.start(ctx, "raft", None{})
		if err != nil {
			return nil, err
		}
		r.servers, r.addrs = append(r.servers, p), append(r.addrs, addr)
	}
	return r, r.servers[0].call(ctx, "Found", r.addrs, nil)
}

func clusterRig(ctx context.Context, f *fleet, disk bool) (*rig, error) {
	r := &rig{members: true}
	for i := range members {
		c := MemberConfig{Name: fmt.Sprintf("n%d", i+1)}
		if i > 0 {
			c.Join = r.addrs[0]
		}
		if disk {
			c.Data = filepath.Join(f.dir, c.Name)
			if err := os.MkdirAll(c.Data, 0o700); err != nil {
				return nil, err
			}
		}
		p, addr, err := f.start(ctx, "member", c)
		if err != nil {
			return nil, err
		}
		r.servers, r.addrs = append(r.servers, p), append(r.addrs, addr)
	}
	return r, nil
}

// leader waits until a member leads and the others vote, and returns it.
func (r *rig) leader(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, prepareTime, fmt.Errorf("no member led the %d others within %v", members-1, prepareTime))
	defer cancel()
	for {
		for _, p := range r.servers {
			var leads bool
			if err := p.call(ctx, "Leads", members, &leads); err != nil {
				return nil, err
			}
			if leads {
				return p, nil
			}
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// from returns the process that is to make a load on the rig: embedded ones are
// made by the leader itself.
func (f *fleet) from(ctx context.Context, r *rig, embedded bool) (*process, error) {
	if r.members {
		leader, err := r.leader(ctx)
		if err != nil || embedded {
			return leader, err
		}
	}
	if f.driver == nil {
		p, err := launch("driver", f.stderr)
		if err != nil {
			return nil, err
		}
		f.all, f.driver = append(f.all, p), p
	}
	return f.driver, nil
}

// pause waits for d or for ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
