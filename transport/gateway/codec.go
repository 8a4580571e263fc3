package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	typeJSON  = "application/json"
	typeLines = "application/x-ndjson"
)

// format is how messages become JSON: under the names of the .proto file, which
// the command line uses too, and with every field, so that a script need not
// ask whether one is there.
var format = protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}

// codec translates between messages and JSON, for grpc-gateway.
type codec struct{}

var (
	_ runtime.Delimited         = codec{}
	_ runtime.StreamContentType = codec{}
)

// Marshal returns v on one line: a message, with a newline for who reads it in a
// terminal, or what grpc-gateway puts around one in a stream.
func (codec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case proto.Message:
		b, err := marshal(v)
		return append(b, '\n'), err
	case map[string]any: // a stream's line
		m, ok := v["result"].(proto.Message)
		if !ok {
			break
		}
		b, err := marshal(m)
		if err != nil {
			return nil, err
		}
		return append(append([]byte(`{"result":`), b...), '}'), nil
	case map[string]proto.Message: // its last line, if it ends with an error
		if s, ok := v["error"].(*spb.Status); ok {
			return failure(toStatus(status.FromProto(s))), nil
		}
	}
	return nil, fmt.Errorf("%T is no message", v)
}

// marshal is compact: protojson puts spaces here and there, as it likes.
func marshal(m proto.Message) ([]byte, error) {
	b, err := format.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Compact(&out, b)
	return out.Bytes(), err
}

// Unmarshal refuses what the message does not have, what stands twice, and what
// follows it.
func (codec) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	if err := protojson.Unmarshal(b, m); err != nil {
		return errors.New(strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0"))
	}
	return nil
}

func (c codec) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return c.Unmarshal(b, v)
	})
}

func (c codec) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		b, err := c.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
}

func (codec) ContentType(any) string       { return typeJSON }
func (codec) StreamContentType(any) string { return typeLines }
func (codec) Delimiter() []byte            { return []byte("\n") }

// writeJSON answers with b and a newline.
func writeJSON(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	w.Write(append(bytes.TrimRight(b, "\n"), '\n'))
}
