package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Load says what a process is to do over and over. Each worker is a goroutine
// that does one step at a time.
type Load struct {
	Kind    string   // of the target, see the roles' Load
	Addrs   []string // where it is
	Workers int
	Conns   int // connections, streams and clients that the workers share, at most
	Leases  int // of each worker's to renew, or to hold meanwhile
}

// target is what a load is put on.
type target interface {
	// worker prepares the worker i.
	worker(ctx context.Context, i int) (worker, error)
	close() error
}

// worker does one step, and tells how long its first part took: of a pair of
// acquire and release that is the acquire.
type worker func(context.Context) (time.Duration, error)

// endTime bounds the last steps of a load, prepareTime its first.
const (
	endTime     = 5 * time.Second
	prepareTime = 30 * time.Second
)

// load is the workers at work.
type load struct {
	target target
	counts atomic.Pointer[histogram] // of the steps
	ending atomic.Bool               // a worker that sees it ends after its step
	ctx    context.Context
	cancel context.CancelCauseFunc // the cause is the first worker's trouble
	run    sync.WaitGroup
}

var errEnded = errors.New("the load is over")

// startLoad returns when each worker has done its first step.
func startLoad(workers int, t target) (*load, error) {
	l := &load{target: t}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.counts.Store(new(histogram))
	if err := l.start(workers); err != nil {
		return nil, errors.Join(err, l.end())
	}
	return l, nil
}

func (l *load) start(workers int) error {
	ctx, cancel := context.WithTimeoutCause(l.ctx, prepareTime, fmt.Errorf("the load did not begin within %v", prepareTime))
	defer cancel()
	var prepared []worker
	for i := range workers {
		w, err := l.target.worker(ctx, i)
		if err != nil {
			return fmt.Errorf("worker %d: %w", i, err)
		}
		prepared = append(prepared, w)
	}
	stepped := make(chan struct{}, workers)
	for _, w := range prepared {
		l.run.Go(func() { l.work(w, stepped) })
	}
	for range prepared {
		select {
		case <-stepped:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (l *load) work(w worker, stepped chan<- struct{}) {
	for first := true; !l.ending.Load(); first = false {
		took, err := w(l.ctx)
		if err != nil {
			l.cancel(err)
			return
		}
		l.counts.Load().add(took)
		if first {
			stepped <- struct{}{}
		}
	}
}

// stepped waits for a step since the counts began anew, on a machine that is
// busy with something else.
func (l *load) stepped() {
	for began := time.Now(); l.counts.Load().count() == 0 && l.ctx.Err() == nil && time.Since(began) < prepareTime; {
		time.Sleep(time.Millisecond)
	}
}

// trouble is why the load has ended by itself, or empty.
func (l *load) trouble() string {
	if l.ctx.Err() == nil {
		return ""
	}
	return context.Cause(l.ctx).Error()
}

// end lets every worker finish its step, within endTime.
func (l *load) end() error {
	l.ending.Store(true)
	late := time.AfterFunc(endTime, func() { l.cancel(errEnded) })
	defer late.Stop()
	if l.ctx.Err() != nil { // some worker had trouble: the others may wait in vain
		defer l.run.Wait()
		return l.target.close()
	}
	l.run.Wait()
	l.cancel(errEnded)
	return l.target.close()
}
