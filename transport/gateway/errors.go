package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// statuses has the HTTP status of every code. What is wrong with a request as
// such (its path, its size) has a status of its own, under CODE_INVALID.
var statuses = map[coorddv1.Code]int{
	coorddv1.Code_CODE_HELD:            http.StatusConflict,
	coorddv1.Code_CODE_NOT_HELD:        http.StatusNotFound,
	coorddv1.Code_CODE_NOT_LEADER:      http.StatusServiceUnavailable,
	coorddv1.Code_CODE_NO_QUORUM:       http.StatusServiceUnavailable,
	coorddv1.Code_CODE_UNAVAILABLE:     http.StatusServiceUnavailable,
	coorddv1.Code_CODE_UNKNOWN_OUTCOME: http.StatusGatewayTimeout,
	coorddv1.Code_CODE_WRONG_CLUSTER:   http.StatusConflict,
	coorddv1.Code_CODE_INVALID:         http.StatusBadRequest,
	coorddv1.Code_CODE_EXHAUSTED:       http.StatusTooManyRequests,
	coorddv1.Code_CODE_CLOSED:          http.StatusServiceUnavailable,
	coorddv1.Code_CODE_LOST:            http.StatusGone,
	coorddv1.Code_CODE_EXPIRED:         http.StatusGone,
	coorddv1.Code_CODE_RELEASED:        http.StatusGone,
	coorddv1.Code_CODE_MISSED:          http.StatusGone,
	coorddv1.Code_CODE_GRACE:           http.StatusServiceUnavailable,
	coorddv1.Code_CODE_INTERNAL:        http.StatusInternalServerError,
}

// failure is what every error is answered with.
func failure(s *coorddv1.Status) []byte {
	var body struct {
		Error struct {
			Code    string          `json:"code"`
			Message string          `json:"message"`
			Details json.RawMessage `json:"details"`
		} `json:"error"`
	}
	body.Error.Code = strings.TrimPrefix(s.Code.String(), "CODE_")
	body.Error.Message = s.Reason
	body.Error.Details = json.RawMessage("{}")
	if d := details(s); d != nil {
		if b, err := marshal(d); err == nil {
			body.Error.Details = b
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(body); err != nil {
		panic(fmt.Sprintf("gateway: an error that cannot be told: %v", err)) // it has texts alone
	}
	return bytes.TrimSpace(out.Bytes())
}

// details is whichever message s carries beside code and reason, nil if none.
func details(s *coorddv1.Status) proto.Message {
	m := s.ProtoReflect()
	f := m.WhichOneof(m.Descriptor().Oneofs().ByName("details"))
	if f == nil || f.Kind() != protoreflect.MessageKind {
		return nil
	}
	return m.Get(f).Message().Interface()
}

// refuse answers with err under an HTTP status of its own.
func refuse(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, failure(transport.ToStatus(err)))
}

// handleError answers with the error of a call, or of grpc-gateway's own.
func handleError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(cutOff(ctx, r.Method, err))
	s := toStatus(st)
	if st.Code() == codes.InvalidArgument && len(st.Details()) == 0 { // so says grpc-gateway alone
		s = unreadable(r.Method, st.Message())
	}
	code, ok := statuses[s.Code]
	if !ok {
		code = http.StatusInternalServerError
	}
	retryAfter(ctx, w.Header(), s)
	writeJSON(w, code, failure(s))
}

// retryAfter tells when an acquire that a grace has refused can be granted, in
// whole seconds. Whoever renews or reclaims must not wait for the end of the grace.
func retryAfter(ctx context.Context, h http.Header, s *coorddv1.Status) {
	method, _ := runtime.RPCMethod(ctx)
	if g := s.GetGrace(); g != nil && method == coorddv1.Coordd_Acquire_FullMethodName {
		h.Set("Retry-After", strconv.FormatUint((uint64(g.FreshInMs)+999)/1000, 10))
	}
}

// handleStreamError returns the error that becomes a stream's last line.
func handleStreamError(ctx context.Context, err error) *status.Status {
	return status.Convert(cutOff(ctx, http.MethodGet, err))
}

// cutOff is err, unless Close has ended the call: then who has asked for a
// change does not know what became of it.
func cutOff(ctx context.Context, method string, err error) error {
	if status.Code(err) != codes.Canceled || !errors.Is(context.Cause(ctx), transport.ErrClosing) {
		return err
	}
	if method == http.MethodGet {
		return transport.ToGRPC(transport.ErrClosing)
	}
	return transport.ToGRPC(fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, transport.ErrClosing))
}

// toStatus is the status that st carries, or what it comes to where it is of
// gRPC's or grpc-gateway's own.
func toStatus(st *status.Status) *coorddv1.Status {
	for _, d := range st.Details() {
		if s, ok := d.(*coorddv1.Status); ok && s.Code != coorddv1.Code_CODE_UNSPECIFIED {
			return s
		}
	}
	return transport.ToStatus(transport.FromGRPC(st.Err()))
}

// unreadable is the status of a request that cannot be read as the call's.
func unreadable(method, why string) *coorddv1.Status {
	where := "body"
	if method == http.MethodGet {
		where = "query"
	}
	s := transport.ToStatus(fmt.Errorf("%w %s: %s", leases.ErrInvalid, where, why))
	s.Details = &coorddv1.Status_Invalid{Invalid: &coorddv1.Invalid{Field: where}}
	return s
}
