package stall

import (
	"fmt"
	"runtime"
)

// Run calls f, which builds or bootstraps Raft on the guarded stores, in a
// goroutine of its own and returns f's error. Where f could not return, it
// returns the error of the fatal write that ended it, or ErrUnreadable with
// what Raft panicked over when it read its log.
func (g *Guard) Run(f func() error) error {
	err := fmt.Errorf("%w: Raft has given up on it", ErrUnreadable)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			p := recover()
			if _, bug := p.(runtime.Error); bug {
				panic(p)
			}
			if fatal := g.Err(); fatal != nil {
				err = fatal
			} else if p != nil {
				err = fmt.Errorf("%w: %v: bring the data folder's files back if they were moved (never an older copy of them), or move the whole folder away and start the node again: it then joins its cluster as a new member", ErrUnreadable, p)
			}
		}()
		err = f()
	}()
	<-done
	return err
}
