package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway"
)

// refusing is a cluster that answers every call with what err returns.
func refusing(err func() error) *cluster {
	return &cluster{
		acquire:  refuse[coorddv1.AcquireRequest, coorddv1.AcquireResponse](err),
		withdraw: refuse[coorddv1.WithdrawRequest, coorddv1.WithdrawResponse](err),
		renew:    refuse[coorddv1.RenewRequest, coorddv1.RenewResponse](err),
		reclaim:  refuse[coorddv1.ReclaimRequest, coorddv1.ReclaimResponse](err),
		release:  refuse[coorddv1.ReleaseRequest, coorddv1.ReleaseResponse](err),
		transfer: refuse[coorddv1.TransferRequest, coorddv1.TransferResponse](err),
		get:      refuse[coorddv1.GetRequest, coorddv1.GetResponse](err),
		list:     refuse[coorddv1.ListRequest, coorddv1.ListResponse](err),
		queue:    refuse[coorddv1.QueueRequest, coorddv1.QueueResponse](err),
		status:   refuse[coorddv1.StatusRequest, coorddv1.StatusResponse](err),
		watch:    func(*coorddv1.WatchRequest, watchStream) error { return err() },
	}
}

func refuse[Q, R any](err func() error) func(context.Context, *Q) (*R, error) {
	return func(context.Context, *Q) (*R, error) { return nil, err() }
}

// everyCall are a method and a path of each call.
var everyCall = []string{
	"POST /v1/acquire", "POST /v1/withdraw", "POST /v1/renew", "POST /v1/reclaim", "POST /v1/release", "POST /v1/transfer",
	"GET /v1/lease?name=a", "GET /v1/leases", "GET /v1/queue?name=a", "GET /v1/watch", "GET /v1/status",
}

// send makes one of everyCall.
func (s *server) send(t testing.TB, call string) (*http.Response, string) {
	t.Helper()
	method, path, _ := strings.Cut(call, " ")
	body := ""
	if method == http.MethodPost {
		body = "{}"
	}
	return s.do(t, s.request(t, method, path, body))
}

// ask makes one of everyCall.
func (s *server) ask(t testing.TB, call string) (int, string) {
	t.Helper()
	resp, answer := s.send(t, call)
	if kind := resp.Header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("%s: got the Content-Type %q, want application/json", call, kind)
	}
	return resp.StatusCode, answer
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for number, name := range coorddv1.Code_name {
		code := coorddv1.Code(number)
		want, ok := gateway.Statuses[code]
		if code == coorddv1.Code_CODE_UNSPECIFIED {
			if ok {
				t.Errorf("%s: got a status, want none: it is no error", name)
			}
			continue
		}
		if !ok {
			t.Errorf("%s has no HTTP status", name)
			continue
		}
		st, err := status.New(codes.Unknown, "of gRPC").WithDetails(&coorddv1.Status{Code: code, Reason: "why <it> is\nso"})
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, refusing(st.Err))
		for _, call := range everyCall {
			got, body := s.ask(t, call)
			f := failed(t, body)
			if got != want || "CODE_"+f.Code != name || f.Message != "why <it> is\nso" || len(f.Details) != 0 {
				t.Errorf("%s, %s: got %d %+v, want %d", name, call, got, f, want)
			}
		}
		s.stop()
	}
}

// The table of the manual is the table of the code.
func TestManualHasEveryCode(t *testing.T) {
	manual, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (\\d+) \\|").FindAllStringSubmatch(string(manual), -1)
	if len(rows) != len(gateway.Statuses) {
		t.Errorf("got %d rows, want %d", len(rows), len(gateway.Statuses))
	}
	for _, row := range rows {
		code, ok := coorddv1.Code_value["CODE_"+row[1]]
		if got, _ := strconv.Atoi(row[2]); !ok || got != gateway.Statuses[coorddv1.Code(code)] {
			t.Errorf("%s: the manual says %s, the code %d", row[1], row[2], gateway.Statuses[coorddv1.Code(code)])
		}
	}
}

func TestErrorsHaveDetails(t *testing.T) {
	owner := leases.Owner{Label: "billing", Host: "host7", PID: 12}
	for _, tt := range []struct {
		err     error
		status  int
		code    string
		details map[string]any
	}{
		{
			&leases.HeldError{Name: "a", By: owner, Since: time.UnixMilli(1767225600000), AtMost: 1500 * time.Microsecond, Waiters: 2},
			409, "HELD",
			map[string]any{
				"name": "a", "owner": map[string]any{"label": "billing", "site": "", "host": "host7", "pid": 12.0},
				"since_unix_ms": "1767225600000", "at_most_ms": 2.0, "waiters": 2.0,
			},
		},
		{
			&leases.NotHeldError{Name: "a", Token: tokens.Max, Why: leases.WhyBroken}, 404, "NOT_HELD",
			map[string]any{"name": "a", "token": "9007199254740991", "why": "WHY_BROKEN", "next_token": "0"},
		},
		{&leases.NotLeaderError{Node: "n1", Leader: "10.0.0.1:7420"}, 503, "NOT_LEADER", map[string]any{"node": "n1", "leader": "10.0.0.1:7420"}},
		{&leases.InvalidError{Field: "ttl_ms", Value: "1", Bounds: "more"}, 400, "INVALID", map[string]any{"field": "ttl_ms", "value": "1", "bounds": "more"}},
		{&leases.ExhaustedError{What: "waiters", Bound: 7, Flag: "--max-waiters"}, 429, "EXHAUSTED", map[string]any{"what": "waiters", "bound": "7", "flag": "--max-waiters"}},
		{
			&leases.MissedError{From: leases.Position{Epoch: 1, Revision: 2}, Oldest: leases.Position{Epoch: 1, Revision: 5}, Newest: leases.Position{Epoch: 1, Revision: 9}},
			410, "MISSED",
			map[string]any{
				"from": map[string]any{"epoch": 1.0, "revision": "2"}, "oldest": map[string]any{"epoch": 1.0, "revision": "5"}, "newest": map[string]any{"epoch": 1.0, "revision": "9"},
			},
		},
		{&leases.GraceError{Epoch: 2, FreshIn: 4001 * time.Millisecond}, 503, "GRACE", map[string]any{"epoch": 2.0, "fresh_in_ms": 4001.0}},
		{leases.ErrNoQuorum, 503, "NO_QUORUM", map[string]any{}},
		{fmt.Errorf("%w: %w", leases.ErrUnknownOutcome, leases.ErrUnavailable), 504, "UNKNOWN_OUTCOME", map[string]any{}},
		{errors.New("a fault"), 500, "INTERNAL", map[string]any{}},
		{fmt.Errorf("%w: no more is known of it", leases.ErrInvalid), 400, "INVALID", map[string]any{}},
	} {
		s := serve(t, refusing(func() error { return tt.err }))
		for _, call := range everyCall {
			got, body := s.ask(t, call)
			f := failed(t, body)
			if got != tt.status || f.Code != tt.code || !reflect.DeepEqual(f.Details, tt.details) || f.Message != tt.err.Error() {
				t.Errorf("%v, %s: got %d %+v, want %d %s %v", tt.err, call, got, f, tt.status, tt.code, tt.details)
			}
		}
		s.stop()
	}
}

// An acquire that a grace has refused is told when to come again. Whoever renews
// or reclaims then must not wait so long, and no other error says when it is over.
func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string // of an acquire
	}{
		{&leases.GraceError{Epoch: 2, FreshIn: 4 * time.Second}, "4"},
		{&leases.GraceError{Epoch: 2, FreshIn: 4*time.Second + 1}, "5"},
		{&leases.GraceError{Epoch: 2, FreshIn: time.Millisecond}, "1"},
		{&leases.GraceError{Epoch: 2}, "0"},
		{leases.ErrGrace, ""}, // it does not say
		{&leases.UnavailableError{Reason: "starting"}, ""},
	} {
		s := serve(t, refusing(func() error { return transport.ToGRPC(tt.err) }))
		for _, call := range everyCall {
			want := ""
			if call == "POST /v1/acquire" {
				want = tt.want
			}
			resp, _ := s.send(t, call)
			if got := strings.Join(resp.Header.Values("Retry-After"), ", "); resp.StatusCode != http.StatusServiceUnavailable || got != want {
				t.Errorf("%v, %s: got %d and Retry-After %q, want 503 and %q", tt.err, call, resp.StatusCode, got, want)
			}
		}
		s.stop()
	}
}

// What gRPC itself has to say has the same form.
func TestErrorsOfGRPC(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		code   string
	}{
		{status.Error(codes.Unavailable, "the connection is gone"), 504, "UNKNOWN_OUTCOME"},
		{status.Error(codes.Unimplemented, "no such call"), 503, "UNAVAILABLE"},
		{status.Error(codes.ResourceExhausted, "too long"), 429, "EXHAUSTED"},
		{status.Error(codes.Internal, "a fault"), 500, "INTERNAL"},
		{context.DeadlineExceeded, 504, "UNKNOWN_OUTCOME"},
		{context.Canceled, 504, "UNKNOWN_OUTCOME"},
	} {
		s := serve(t, refusing(func() error { return tt.err }))
		for _, call := range everyCall {
			if got, body := s.ask(t, call); got != tt.status || failed(t, body).Code != tt.code {
				t.Errorf("%v, %s: got %d %s, want %d %s", tt.err, call, got, body, tt.status, tt.code)
			}
		}
		s.stop()
	}
}

func TestPanicsAreErrors(t *testing.T) {
	s := serve(t, refusing(func() error { panic("ouch") }))
	for _, call := range everyCall {
		got, body := s.ask(t, call)
		if f := failed(t, body); got != http.StatusInternalServerError || f.Code != "INTERNAL" || !strings.Contains(f.Message, "ouch") {
			t.Errorf("%s: got %d %+v, want 500 and what it was", call, got, f)
		}
	}
	if n := strings.Count(s.log.String(), "ouch"); n < len(everyCall) {
		t.Errorf("got %d lines in the log, want one for each of %d calls: %s", n, len(everyCall), s.log)
	}
}
