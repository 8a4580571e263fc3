package mux

import (
	"bytes"
	"testing"
)

func FuzzHello(f *testing.F) {
	for _, h := range []Hello{{}, {To: "n1.1", From: "n2.2"}} {
		b, err := h.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(appendFrame(nil, b))
	}
	f.Add([]byte{0, 0})
	f.Add([]byte{0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := h.encode()
		if err != nil {
			t.Fatalf("%+v was read, but cannot be written: %v", h, err)
		}
		if framed := appendFrame(nil, again); !bytes.Equal(framed, b[:len(framed)]) {
			t.Errorf("%x was read as %+v, which is written as %x", b, h, framed)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 1, 0})
	f.Add([]byte{0, 3, 1, 'n', 'o'})
	f.Add([]byte{4, 2, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := readAnswer(bytes.NewReader(b)); err != nil && len(err.Error()) > 2*maxReason {
			t.Errorf("got an error of %d bytes", len(err.Error()))
		}
	})
}
