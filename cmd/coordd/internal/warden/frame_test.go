package warden

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"
)

func TestFrame(t *testing.T) {
	var pipe bytes.Buffer
	sent := []frame{{orderDeadline, 0}, {orderSignal, 15}, {reportLost, -1}, {reportEnded, math.MaxInt64}}
	for _, f := range sent {
		if err := f.writeTo(&pipe); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range sent {
		if got, err := readFrame(&pipe); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := readFrame(&pipe); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v, want EOF", err)
	}
	pipe.WriteString("cut off")
	if _, err := readFrame(&pipe); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("of a part: got %v, want an unexpected EOF", err)
	}
}
