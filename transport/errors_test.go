package transport_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// sentinels are all of package leases; TestEverySentinelIsListed keeps it so.
var sentinels = map[string]error{
	"ErrHeld": leases.ErrHeld, "ErrNotHeld": leases.ErrNotHeld, "ErrLost": leases.ErrLost, "ErrExpired": leases.ErrExpired,
	"ErrReleased": leases.ErrReleased, "ErrNotLeader": leases.ErrNotLeader, "ErrNoQuorum": leases.ErrNoQuorum,
	"ErrUnavailable": leases.ErrUnavailable, "ErrUnknownOutcome": leases.ErrUnknownOutcome, "ErrWrongCluster": leases.ErrWrongCluster,
	"ErrInvalid": leases.ErrInvalid, "ErrExhausted": leases.ErrExhausted, "ErrClosed": leases.ErrClosed,
	"ErrMissed": leases.ErrMissed, "ErrGrace": leases.ErrGrace,
}

// local are the sentinels that end a node, whose clients see it gone.
var local = map[string]error{"ErrUnreadable": leases.ErrUnreadable, "ErrCorrupt": leases.ErrCorrupt}

func TestEverySentinelIsListed(t *testing.T) {
	var declared []string
	for _, file := range parse(t, "../leases") {
		for _, decl := range file.Decls {
			vars, ok := decl.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			for _, spec := range vars.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(name.Name, "Err") {
						declared = append(declared, name.Name)
					}
				}
			}
		}
	}
	if len(declared) < 14 {
		t.Errorf("found the sentinels %v in ../leases, want at least 14 of them", declared)
	}
	for _, name := range declared {
		if sentinels[name] == nil && local[name] == nil {
			t.Errorf("leases.%s is not in this test: give it a row in the table of errors, and add it here", name)
		}
	}
}

func parse(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// overTheWire is what err is on the other side: as a status, as a gRPC status,
// and as a gRPC status that has been serialized.
func overTheWire(t *testing.T, err error) map[string]error {
	t.Helper()
	b, failed := proto.Marshal(transport.ToStatus(err))
	if failed != nil {
		t.Fatalf("the status of %q cannot be encoded: %v", err, failed)
	}
	s := new(coorddv1.Status)
	if failed := proto.Unmarshal(b, s); failed != nil {
		t.Fatal(failed)
	}
	st := status.Convert(transport.ToGRPC(err))
	return map[string]error{
		"status":         transport.FromStatus(s),
		"gRPC":           transport.FromGRPC(st.Err()),
		"gRPC, wrapped":  transport.FromGRPC(fmt.Errorf("asked n1: %w", st.Err())),
		"back and forth": transport.FromStatus(transport.ToStatus(transport.FromStatus(s))),
	}
}

func TestSentinelsCrossTheWire(t *testing.T) {
	for name, sentinel := range sentinels {
		for how, err := range map[string]error{
			"bare":    sentinel,
			"wrapped": fmt.Errorf("lease %q: %w", "a", sentinel),
			"joined":  errors.Join(sentinel, context.DeadlineExceeded),
		} {
			if code := status.Code(transport.ToGRPC(err)); code == codes.OK || code == codes.Unknown || code == codes.Internal {
				t.Errorf("%s of %s: gRPC code %v, want one of its own", how, name, code)
			}
			for way, got := range overTheWire(t, err) {
				if !errors.Is(got, sentinel) {
					t.Errorf("%s of %s as %s: got %q, which is not it", how, name, way, got)
				}
				if got.Error() != err.Error() {
					t.Errorf("%s of %s as %s: got the text %q, want %q", how, name, way, got, err)
				}
				for other, s := range sentinels {
					if other != name && errors.Is(got, s) {
						t.Errorf("%s of %s as %s: got %q, which is %s too", how, name, way, got, other)
					}
				}
			}
		}
	}
}

func TestTypedErrorsCrossTheWire(t *testing.T) {
	for _, err := range []error{
		&leases.HeldError{Name: "a", By: leases.Owner{Label: "billing", Site: "aws", Host: "h7", PID: 12}, Since: time.UnixMilli(1_700_000_000_123), AtMost: 1500 * time.Millisecond, Waiters: 3},
		&leases.HeldError{Name: "a"},
		&leases.NotHeldError{Name: "ü", Token: 1<<32 + 5, Why: leases.WhyExpired, Next: 1<<32 + 7},
		&leases.NotHeldError{Name: "a", Why: leases.WhyTransferred},
		&leases.NotLeaderError{Node: "n1", Leader: "10.0.0.2:7420"},
		&leases.NotLeaderError{Node: "n1"},
		&leases.UnavailableError{Reason: "the node is starting"},
		&leases.WrongClusterError{Want: leases.NewID(), Got: leases.NewID()},
		&leases.WrongClusterError{Want: leases.NewID()},
		&leases.InvalidError{Field: "ttl", Value: "2h", Bounds: "from 1s to 5m0s"},
		&leases.ExhaustedError{What: "waiters for one name", Bound: 1000, Flag: "--max-waiters-per-name"},
		&leases.MissedError{From: leases.Position{Epoch: 1, Revision: 5}, Oldest: leases.Position{Epoch: 2, Revision: 70}, Newest: leases.Position{Epoch: 3, Revision: 1 << 60}},
		&leases.GraceError{Epoch: 2, FreshIn: 303 * time.Second},
		&leases.GraceError{},
		&transport.InternalError{Reason: "what nobody thought of"},
	} {
		for way, got := range overTheWire(t, err) {
			if !reflect.DeepEqual(got, err) {
				t.Errorf("%T as %s: got %#v, want %#v", err, way, got, err)
			}
		}
		wrapped := fmt.Errorf("renewing: %w", err)
		for way, got := range overTheWire(t, wrapped) {
			typed := reflect.New(reflect.TypeOf(err))
			if !errors.As(got, typed.Interface()) {
				t.Errorf("%T, wrapped, as %s: got %#v, which has none in its tree", err, way, got)
			}
			if _, internal := err.(*transport.InternalError); !internal && got.Error() != wrapped.Error() {
				t.Errorf("%T, wrapped, as %s: got the text %q, want %q", err, way, got, wrapped)
			}
		}
	}
}

func TestEveryWhyCrossesTheWire(t *testing.T) {
	for why := leases.WhyUnknown; why <= leases.WhyTransferred; why++ {
		got := transport.FromStatus(transport.ToStatus(&leases.NotHeldError{Name: "a", Why: why}))
		var e *leases.NotHeldError
		if !errors.As(got, &e) || e.Why != why {
			t.Errorf("got %v, want why %v", got, why)
		}
	}
	if name := (leases.WhyTransferred + 1).String(); name != "unknown" {
		t.Errorf("there is a further Why, %q: the wire needs it too", name)
	}
}

func TestErrorsWithoutARowKeepTheirText(t *testing.T) {
	for way, got := range overTheWire(t, errors.New("boom")) {
		if !errors.Is(got, leases.ErrUnknownOutcome) || got.Error() != "internal error: boom" {
			t.Errorf("as %s: got %q, want an unknown outcome that says boom", way, got)
		}
	}
	if s := transport.ToStatus(errors.New("boom")); s.Code != coorddv1.Code_CODE_INTERNAL {
		t.Errorf("got code %v, want CODE_INTERNAL", s.Code)
	}
	got := transport.FromStatus(&coorddv1.Status{Code: 4711, Reason: "of tomorrow"})
	if !errors.Is(got, leases.ErrUnknownOutcome) || !strings.Contains(got.Error(), "4711") || !strings.Contains(got.Error(), "of tomorrow") {
		t.Errorf("of a code that is not known: got %q, want an unknown outcome with code and reason", got)
	}
}

func TestNoErrorIsNone(t *testing.T) {
	if s := transport.ToStatus(nil); s != nil {
		t.Errorf("ToStatus(nil): got %v, want nil", s)
	}
	for _, err := range []error{transport.FromStatus(nil), transport.FromStatus(&coorddv1.Status{}), transport.ToGRPC(nil), transport.FromGRPC(nil)} {
		if err != nil {
			t.Errorf("got %v, want nil", err)
		}
	}
}

func TestContextErrorsAreUnknownOutcomes(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, fmt.Errorf("reading: %w", context.DeadlineExceeded)} {
		for way, got := range overTheWire(t, err) {
			if !errors.Is(got, leases.ErrUnknownOutcome) || got.Error() == err.Error() || !strings.Contains(got.Error(), "answer") {
				t.Errorf("%v as %s: got %q, want an unknown outcome that says that there was no answer", err, way, got)
			}
		}
	}
	for _, err := range []error{context.Canceled, status.FromContextError(context.DeadlineExceeded).Err(), status.Error(codes.Unavailable, "EOF")} {
		if got := transport.FromGRPC(err); !errors.Is(got, leases.ErrUnknownOutcome) {
			t.Errorf("%v: got %q, want an unknown outcome", err, got)
		}
	}
}

func TestGRPCsOwnErrorsKeepTheirText(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.ResourceExhausted: leases.ErrExhausted, codes.InvalidArgument: leases.ErrInvalid, codes.Unimplemented: leases.ErrUnavailable,
		codes.Internal: leases.ErrUnknownOutcome, codes.PermissionDenied: leases.ErrUnknownOutcome,
	} {
		got := transport.FromGRPC(status.Error(code, "such and such"))
		if !errors.Is(got, want) || !strings.Contains(got.Error(), "such and such") {
			t.Errorf("%v: got %q, want %v with the text", code, got, want)
		}
	}
	mine := status.Error(codes.NotFound, "no such method")
	if got := transport.ToGRPC(mine); status.Code(got) != codes.NotFound {
		t.Errorf("ToGRPC of a gRPC status: got %v, want it unchanged", got)
	}
}

func TestStatusesAreValidUTF8AndBounded(t *testing.T) {
	bad := strings.Repeat("\xff", 100) + strings.Repeat("ü", 5000)
	for _, err := range []error{
		errors.New(bad),
		fmt.Errorf("%s: %w", bad, leases.ErrNoQuorum),
		&leases.InvalidError{Field: bad, Value: bad, Bounds: bad},
		&leases.HeldError{Name: bad, By: leases.Owner{Label: bad, Site: bad, Host: bad}, AtMost: leases.Forever, Waiters: -1},
		&leases.NotHeldError{Name: bad},
		&leases.NotLeaderError{Node: bad, Leader: bad},
		&leases.ExhaustedError{What: bad, Flag: bad},
	} {
		b, failed := proto.Marshal(transport.ToStatus(err))
		if failed != nil {
			t.Errorf("%T: %v", err, failed)
		}
		if len(b) > 4500 {
			t.Errorf("%T: got a status of %d bytes, want at most 4500", err, len(b))
		}
		if got := transport.FromStatus(transport.ToStatus(err)); !utf8.ValidString(got.Error()) {
			t.Errorf("%T: got a text that is not UTF-8", err)
		}
	}
}

// Nobody is sent to ask for a fresh grant too early.
func TestFreshInIsNeverShortened(t *testing.T) {
	for _, want := range []struct{ from, to time.Duration }{
		{time.Second + time.Nanosecond, time.Second + time.Millisecond},
		{time.Nanosecond, time.Millisecond},
		{time.Second, time.Second},
		{-time.Second, 0},
		{leases.Forever, (1<<32 - 1) * time.Millisecond},
	} {
		got := transport.FromStatus(transport.ToStatus(&leases.GraceError{Epoch: 2, FreshIn: want.from}))
		var grace *leases.GraceError
		if !errors.As(got, &grace) || grace.FreshIn != want.to || grace.Epoch != 2 {
			t.Errorf("%v: got %+v, want %v", want.from, grace, want.to)
		}
	}
}

func TestAtMostIsNeverShortened(t *testing.T) {
	got := transport.FromStatus(transport.ToStatus(&leases.HeldError{Name: "a", AtMost: time.Second + time.Nanosecond}))
	var held *leases.HeldError
	if !errors.As(got, &held) || held.AtMost < time.Second+time.Nanosecond {
		t.Errorf("got %v, want at least 1s and 1ns", held)
	}
}
