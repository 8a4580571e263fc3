package warden

import (
	"encoding/binary"
	"io"
)

// frame is one message on the pipes between wrapper and warden. It is far
// smaller than PIPE_BUF, so a write is all or nothing.
type frame struct {
	kind  kind
	value int64
}

type kind int64

// Orders come from the wrapper. Their pipe at its end says that it is gone.
const (
	orderDeadline kind = iota // value: nanoseconds of clock.System
	orderSignal               // value: the signal for the command's process group
)

// Reports come from the warden: started, later ended or lost, or one of those
// that say that nothing was started. Their pipe at its end without a final one
// says that the warden was killed.
const (
	reportStarted  kind = iota // value: the command's process id
	reportStopped              // the command was stopped; value: the signal
	reportLate                 // nothing was started: the deadline is too near
	reportFailed               // nothing was started; value: the errno of executing the command
	reportUnable               // nothing was started; value: the errno of something before that
	reportEnded                // none is left; value: the command's wait status
	reportLost                 // the same, for the lease's sake
	reportOvertime             // the same, because the command has run for long enough
)

const frameSize = 16

func (f frame) writeTo(w io.Writer) error {
	b := make([]byte, 0, frameSize)
	b = binary.NativeEndian.AppendUint64(b, uint64(f.kind))
	b = binary.NativeEndian.AppendUint64(b, uint64(f.value))
	_, err := w.Write(b)
	return err
}

func readFrame(r io.Reader) (frame, error) {
	var b [frameSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return frame{}, err
	}
	return frame{
		kind:  kind(binary.NativeEndian.Uint64(b[:8])),
		value: int64(binary.NativeEndian.Uint64(b[8:])),
	}, nil
}
