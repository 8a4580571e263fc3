package identity

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzDecode: whatever is in the file, reading it ends in an error or in a valid
// identity that is written and read back as the same.
func FuzzDecode(f *testing.F) {
	for _, id := range []Identity{New("a"), member()} {
		b, err := encode(id)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
		f.Add(bytes.ToUpper(b))
	}
	f.Add([]byte(`{"version":1,"name":"a","incarnation":"00000000000000ff","cluster":"zz","starts":-1}`))
	f.Add([]byte(`{"version":1e400}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := decode(b)
		if err != nil {
			return
		}
		if err := id.Validate(); err != nil {
			t.Fatalf("decoded %+v, which is invalid: %v", id, err)
		}
		written, err := encode(id)
		if err != nil {
			t.Fatalf("cannot write %+v: %v", id, err)
		}
		again, err := decode(written)
		if err != nil {
			t.Fatalf("cannot read %s: %v", written, err)
		}
		if len(id.Members) == 0 {
			id.Members = nil // an empty list is not written
		}
		if !reflect.DeepEqual(again, id) {
			t.Fatalf("got %+v, want %+v", again, id)
		}
	})
}
