package dynamodb

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/arbiter"
)

// Who has written is cut to its bound, and stays text.
func TestEncodeCutsBy(t *testing.T) {
	w := arbiter.Write{Data: []byte("{}"), By: "x" + strings.Repeat("ü", maxBy)}
	by := encode("k", 1, w)[byAttribute].(*types.AttributeValueMemberS).Value
	if len(by) != maxBy-1 || !utf8.ValidString(by) || !strings.HasPrefix(w.By, by) {
		t.Errorf("got %d bytes, valid %v, want %d of what was given", len(by), utf8.ValidString(by), maxBy-1)
	}
}

func TestDecodeOfEncode(t *testing.T) {
	w := write(`{"a":"ü"}`)
	r, err := decode(encode("k", 1<<60, w))
	if err != nil || r.Version != 1<<60 || r.Nonce != w.Nonce || string(r.Data) != string(w.Data) {
		t.Errorf("got %+v, %v", r, err)
	}
}
