package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is one of the bench's own processes, in a role.
type process struct {
	role  string
	cmd   *exec.Cmd
	rpc   *rpc.Client
	ended chan struct{} // closed when it has, and exit is set
	exit  error
}

// launch starts this program once more, in a role. It is in a process group of
// its own, so that a Ctrl-C comes to the bench alone.
func launch(role string, stderr io.Writer) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{role: role, cmd: exec.Command(self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p.cmd.Stderr = stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.rpc = rpc.NewClient(stdio{out, in})
	go func() {
		p.exit = p.cmd.Wait() // calls that it had not answered fail
		close(p.ended)
	}()
	return p, nil
}

// call calls the role until ctx ends.
func (p *process) call(ctx context.Context, method string, args, reply any) error {
	if reply == nil {
		reply = new(None)
	}
	call := p.rpc.Go("Role."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			return fmt.Errorf("%s of %s (process %d): %w", method, p.role, p.cmd.Process.Pid, call.Error)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s of %s (process %d): no answer: %w", method, p.role, p.cmd.Process.Pid, context.Cause(ctx))
	}
}

// end lets the process end, and kills it if it does not. The error is of one
// that did not end well.
func (p *process) end() error {
	p.rpc.Close() // its standard input
	select {
	case <-p.ended:
	case <-time.After(closeTime + time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	if p.exit != nil {
		return fmt.Errorf("process %d, a %s, has ended with: %w", p.cmd.Process.Pid, p.role, p.exit)
	}
	return nil
}

// fleet is all processes of the bench, started when they are first needed. One
// goroutine uses it.
type fleet struct {
	dir    string // for the members' data
	stderr io.Writer
	all    []*process
	rigs   map[string]*rig
	driver *process
}

func newFleet(dir string, stderr io.Writer) *fleet {
	return &fleet{dir: dir, stderr: stderr, rigs: map[string]*rig{}}
}

// start launches a process in a role and calls the role's Start.
func (f *fleet) start(ctx context.Context, role string, args any) (p *process, addr string, err error) {
	if p, err = launch(role, f.stderr); err != nil {
		return nil, "", err
	}
	f.all = append(f.all, p)
	return p, addr, p.call(ctx, "Start", args, &addr)
}

// each calls a method of all processes at once. reply makes a place for the
// answer of each.
func (f *fleet) each(ctx context.Context, method string, args func(*process) any, reply func(*process) any) error {
	var calling sync.WaitGroup
	errs := make([]error, len(f.all))
	for i, p := range f.all {
		a, r := args(p), reply(p)
		calling.Go(func() { errs[i] = p.call(ctx, method, a, r) })
	}
	calling.Wait()
	return errors.Join(errs...)
}

// end ends every process.
func (f *fleet) end() error {
	var ending sync.WaitGroup
	errs := make([]error, len(f.all))
	for i, p := range f.all {
		ending.Go(func() { errs[i] = p.end() })
	}
	ending.Wait()
	f.all, f.driver, f.rigs = nil, nil, map[string]*rig{}
	return errors.Join(errs...)
}
