package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/leases"
)

// Exit codes of every command. Where sysexits.h has a number for the meaning,
// it is that one. coordd run passes on its command's own code otherwise.
const (
	exitUsage         = 64  // a flag, argument, environment variable or configuration file is wrong
	exitForeign       = 65  // a register of the arbiter holds what is not this release's
	exitMissed        = 66  // changes that were asked for are no longer remembered
	exitUnavailable   = 69  // no node that serves leases was reached, or it is at a bound
	exitInternal      = 70  // coordd itself failed, or its disk stalled
	exitHeld          = 75  // somebody else holds the lease
	exitLost          = 76  // the lease was lost while the command ran, or --at-most was over, or it is not held
	exitNotExecutable = 126 // the command cannot be executed
	exitNotFound      = 127 // the command was not found
)

const exitTable = `Exit codes:
    0  done
    1  drill run: a promise was broken or could not be judged, or the cluster did not recover
   64  a flag, an argument, an environment variable or the configuration file is wrong
   65  arbiter show: a register holds what this release of coordd cannot read
   66  lease watch: changes were missed
   69  no node that serves leases was reached, there is no quorum, a bound is reached, such as
       --max-waiters, or the nodes belong to another cluster; the arbiter has taken over and
       nothing is granted anew yet; arbiter: the store was not reached, or refuses
   70  coordd itself failed, or its disk stalled
   75  run, lease acquire: somebody else holds the lease (run: another code by --held-exit)
   76  run: the lease was lost while the command ran, or --at-most was over; lease: it is not
       held; lease acquire: that --attempt was withdrawn, or its lease is over
  126  run: the command cannot be executed
  127  run: the command was not found
Otherwise run ends with its command's own code, 128+n where signal n ended it. So does
lease acquire where signal n ended its wait.`

// exit is an error that ends the process with a code of its own. Without an
// err nothing is printed: the command has said what there is to say.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// interrupted is the end of a job by Ctrl-C, or by SIGINT before it began. The
// process then ends by SIGINT too: a shell goes on with its script, or its loop,
// after a line that ends otherwise.
type interrupted struct{ error }

func (i *interrupted) Unwrap() error { return i.error }

// usagef is what a command returns when it was called wrongly.
func usagef(format string, args ...any) error {
	return &exit{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// exitCode is the code for a command's error.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exit](err); ok {
		return e.code
	}
	for _, row := range []struct {
		code int
		of   []error
	}{
		{exitUsage, []error{leases.ErrInvalid}},
		{exitLost, []error{leases.ErrLost, leases.ErrExpired, leases.ErrNotHeld}},
		{exitHeld, []error{leases.ErrHeld}},
		{exitMissed, []error{leases.ErrMissed}},
		{exitUnavailable, []error{
			leases.ErrUnavailable, leases.ErrNoQuorum, leases.ErrNotLeader, leases.ErrUnknownOutcome,
			leases.ErrWrongCluster, leases.ErrExhausted, leases.ErrGrace, arbiter.ErrUnreachable, context.DeadlineExceeded,
		}},
	} {
		for _, target := range row.of {
			if errors.Is(err, target) {
				return row.code
			}
		}
	}
	return exitInternal
}

// oneLine is an error's text without its line breaks.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
