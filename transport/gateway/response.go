package gateway

import (
	"context"
	"net/http"
	"time"
)

// response ends the call when its client takes no more of the answer, instead
// of telling grpc-gateway, which would write that to stderr.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	hangUp  context.CancelCauseFunc
}

func (w *response) Write(b []byte) (int, error) {
	w.control.SetWriteDeadline(time.Now().Add(writeTime))
	if _, err := w.ResponseWriter.Write(b); err != nil {
		w.hangUp(err)
	}
	return len(b), nil
}

// FlushError is what http.ResponseController calls.
func (w *response) FlushError() error {
	if err := w.control.Flush(); err != nil {
		w.hangUp(err)
	}
	return nil
}
