package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxReason and maxDetail bound the texts of a status, in bytes.
const (
	maxReason = 2048
	maxDetail = leases.MaxName
)

// row is one kind of error: its sentinel, its code on the wire and as a gRPC
// status, and, where a typed error goes with it, how that travels.
type row struct {
	sentinel error
	code     coorddv1.Code
	grpc     codes.Code
	// encode puts the typed error in err's tree, if there is one, into s.
	encode func(err error, s *coorddv1.Status)
	// decode returns the typed error that s carries, or nil.
	decode func(s *coorddv1.Status) error
}

// table is the one table of errors. An error that matches several sentinels is
// the first of them, so what promises least comes first.
var table = []row{
	{leases.ErrUnknownOutcome, coorddv1.Code_CODE_UNKNOWN_OUTCOME, codes.DeadlineExceeded, nil, nil},
	{leases.ErrGrace, coorddv1.Code_CODE_GRACE, codes.Unavailable, encodeGrace, decodeGrace},
	{leases.ErrHeld, coorddv1.Code_CODE_HELD, codes.FailedPrecondition, encodeHeld, decodeHeld},
	{leases.ErrNotHeld, coorddv1.Code_CODE_NOT_HELD, codes.NotFound, encodeNotHeld, decodeNotHeld},
	{leases.ErrWrongCluster, coorddv1.Code_CODE_WRONG_CLUSTER, codes.FailedPrecondition, encodeWrongCluster, decodeWrongCluster},
	{leases.ErrInvalid, coorddv1.Code_CODE_INVALID, codes.InvalidArgument, encodeInvalid, decodeInvalid},
	{leases.ErrMissed, coorddv1.Code_CODE_MISSED, codes.OutOfRange, encodeMissed, decodeMissed},
	{leases.ErrExhausted, coorddv1.Code_CODE_EXHAUSTED, codes.ResourceExhausted, encodeExhausted, decodeExhausted},
	{leases.ErrNotLeader, coorddv1.Code_CODE_NOT_LEADER, codes.FailedPrecondition, encodeNotLeader, decodeNotLeader},
	{leases.ErrNoQuorum, coorddv1.Code_CODE_NO_QUORUM, codes.Unavailable, nil, nil},
	{leases.ErrExpired, coorddv1.Code_CODE_EXPIRED, codes.Aborted, nil, nil},
	{leases.ErrReleased, coorddv1.Code_CODE_RELEASED, codes.Aborted, nil, nil},
	{leases.ErrLost, coorddv1.Code_CODE_LOST, codes.Aborted, nil, nil},
	{leases.ErrClosed, coorddv1.Code_CODE_CLOSED, codes.Unavailable, nil, nil},
	{leases.ErrUnavailable, coorddv1.Code_CODE_UNAVAILABLE, codes.Unavailable, nil, decodeUnavailable},
}

// InternalError is an error of the other side that has no row in the table: a
// fault of the program's, or a code of a later release. What was asked for may
// have been carried out, so it matches leases.ErrUnknownOutcome.
type InternalError struct{ Reason string }

func (e *InternalError) Error() string { return "internal error: " + e.Reason }

// Is matches leases.ErrUnknownOutcome.
func (e *InternalError) Is(target error) bool { return target == leases.ErrUnknownOutcome }

// told is an error as the other side worded it, around the one that it is.
type told struct {
	text string
	err  error
}

func (e *told) Error() string { return e.text }
func (e *told) Unwrap() error { return e.err }

// ToStatus returns the status that carries err over the wire, nil for nil. The
// text of an error that matches no sentinel is kept under CODE_INTERNAL; a
// context's end by itself is an unknown outcome.
func ToStatus(err error) *coorddv1.Status {
	if err == nil {
		return nil
	}
	var internal *InternalError
	if errors.As(err, &internal) {
		return &coorddv1.Status{Code: coorddv1.Code_CODE_INTERNAL, Reason: text(reasonOf(err, internal, internal.Reason), maxReason)}
	}
	for _, r := range table {
		if errors.Is(err, r.sentinel) {
			s := &coorddv1.Status{Code: r.code}
			if r.encode != nil {
				r.encode(err, s)
			}
			s.Reason = text(err.Error(), maxReason)
			return s
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &coorddv1.Status{Code: coorddv1.Code_CODE_UNKNOWN_OUTCOME, Reason: text(fmt.Sprintf("%v: no answer in time (%v)", leases.ErrUnknownOutcome, err), maxReason)}
	case errors.Is(err, context.Canceled):
		return &coorddv1.Status{Code: coorddv1.Code_CODE_UNKNOWN_OUTCOME, Reason: text(fmt.Sprintf("%v: given up before the answer (%v)", leases.ErrUnknownOutcome, err), maxReason)}
	}
	return &coorddv1.Status{Code: coorddv1.Code_CODE_INTERNAL, Reason: text(err.Error(), maxReason)}
}

// reasonOf is bare where err is inner itself, and all of err's text where it
// says more.
func reasonOf(err, inner error, bare string) string {
	if err == inner {
		return bare
	}
	return err.Error()
}

// FromStatus returns the error that s carries, nil for nil and for OK. It
// matches the same sentinel as on the other side, has the same typed error in
// its tree and the same text.
func FromStatus(s *coorddv1.Status) error {
	if s.GetCode() == coorddv1.Code_CODE_UNSPECIFIED {
		return nil
	}
	reason := text(s.Reason, maxReason)
	for _, r := range table {
		if s.Code != r.code {
			continue
		}
		err := r.sentinel
		if r.decode != nil {
			if typed := r.decode(s); typed != nil {
				err = typed
			}
		}
		if reason == "" || reason == err.Error() {
			return err
		}
		return &told{reason, err}
	}
	if s.Code != coorddv1.Code_CODE_INTERNAL {
		reason = fmt.Sprintf("code %d, which this release does not know: %s", s.Code, reason)
	}
	return &InternalError{reason}
}

// ToGRPC returns err as a gRPC status error whose one detail is ToStatus(err),
// nil for nil. A gRPC status that matches no sentinel is returned as it is.
func ToGRPC(err error) error {
	if err == nil {
		return nil
	}
	s := ToStatus(err)
	if s.Code == coorddv1.Code_CODE_INTERNAL {
		if st, ok := status.FromError(err); ok {
			return st.Err()
		}
	}
	st := status.New(codes.Internal, s.Reason)
	for _, r := range table {
		if r.code == s.Code {
			st = status.New(r.grpc, s.Reason)
		}
	}
	detailed, failed := st.WithDetails(s)
	if failed != nil {
		return st.Err()
	}
	return detailed.Err()
}

// FromGRPC returns the error that ToGRPC was given on the other side. What gRPC
// itself has to say, about a connection that broke for instance, is an unknown
// outcome; an error that is no gRPC status is returned as it is.
func FromGRPC(err error) error {
	st, ok := status.FromError(err)
	switch {
	case err == nil:
		return nil
	case !ok && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) && !errors.Is(err, leases.ErrUnknownOutcome):
		return fmt.Errorf("%w: no answer (%w)", leases.ErrUnknownOutcome, err)
	case !ok:
		return err
	}
	for _, d := range st.Details() {
		if s, ok := d.(*coorddv1.Status); ok {
			if err := FromStatus(s); err != nil {
				return err
			}
		}
	}
	msg := text(st.Message(), maxReason)
	switch st.Code() {
	case codes.OK:
		return nil
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: no answer in time (%s)", leases.ErrUnknownOutcome, msg)
	case codes.Canceled:
		return fmt.Errorf("%w: given up before the answer (%s)", leases.ErrUnknownOutcome, msg)
	case codes.Unavailable:
		return fmt.Errorf("%w: the connection broke (%s)", leases.ErrUnknownOutcome, msg)
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: %s", leases.ErrExhausted, msg)
	case codes.InvalidArgument:
		return fmt.Errorf("%w: %s", leases.ErrInvalid, msg)
	case codes.Unimplemented:
		return &leases.UnavailableError{Reason: "the node does not know this call; it may run another release (" + msg + ")"}
	}
	return &InternalError{msg}
}

func encodeHeld(err error, s *coorddv1.Status) {
	var e *leases.HeldError
	if !errors.As(err, &e) {
		return
	}
	s.Details = &coorddv1.Status_HeldBy{HeldBy: &coorddv1.HeldBy{
		Name:        text(e.Name, maxDetail),
		Owner:       toOwner(e.By),
		SinceUnixMs: toUnixMillis(e.Since),
		AtMostMs:    MillisUp(e.AtMost),
		Waiters:     count(e.Waiters),
	}}
}

func decodeHeld(s *coorddv1.Status) error {
	d := s.GetHeldBy()
	if d == nil {
		return nil
	}
	return &leases.HeldError{Name: d.Name, By: fromOwner(d.Owner), Since: fromUnixMillis(d.SinceUnixMs), AtMost: fromMillis(d.AtMostMs), Waiters: int(d.Waiters)}
}

func encodeNotHeld(err error, s *coorddv1.Status) {
	var e *leases.NotHeldError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_NotHeld{NotHeld: &coorddv1.NotHeld{
			Name: text(e.Name, maxDetail), Token: uint64(e.Token), Why: coorddv1.Why(e.Why), NextToken: uint64(e.Next),
		}}
	}
}

func decodeNotHeld(s *coorddv1.Status) error {
	d := s.GetNotHeld()
	if d == nil {
		return nil
	}
	return &leases.NotHeldError{Name: d.Name, Token: tokens.Token(d.Token), Why: fromWhy(d.Why), Next: tokens.Token(d.NextToken)}
}

func encodeNotLeader(err error, s *coorddv1.Status) {
	var e *leases.NotLeaderError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_NotLeader{NotLeader: &coorddv1.NotLeader{Node: text(e.Node, maxDetail), Leader: text(e.Leader, maxDetail)}}
	}
}

func decodeNotLeader(s *coorddv1.Status) error {
	d := s.GetNotLeader()
	if d == nil {
		return nil
	}
	return &leases.NotLeaderError{Node: d.Node, Leader: d.Leader}
}

func encodeWrongCluster(err error, s *coorddv1.Status) {
	var e *leases.WrongClusterError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_WrongCluster{WrongCluster: &coorddv1.WrongCluster{Want: e.Want[:], Got: e.Got[:]}}
	}
}

func decodeWrongCluster(s *coorddv1.Status) error {
	want, err1 := leases.IDFromBytes("wanted cluster", s.GetWrongCluster().GetWant())
	got, err2 := leases.IDFromBytes("cluster", s.GetWrongCluster().GetGot())
	if err1 != nil || err2 != nil {
		return nil
	}
	return &leases.WrongClusterError{Want: want, Got: got}
}

func encodeInvalid(err error, s *coorddv1.Status) {
	var e *leases.InvalidError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_Invalid{Invalid: &coorddv1.Invalid{Field: text(e.Field, maxDetail), Value: text(e.Value, maxDetail), Bounds: text(e.Bounds, maxDetail)}}
	}
}

func decodeInvalid(s *coorddv1.Status) error {
	d := s.GetInvalid()
	if d == nil {
		return nil
	}
	return &leases.InvalidError{Field: d.Field, Value: d.Value, Bounds: d.Bounds}
}

func encodeExhausted(err error, s *coorddv1.Status) {
	var e *leases.ExhaustedError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_Exhausted{Exhausted: &coorddv1.Exhausted{What: text(e.What, maxDetail), Bound: e.Bound, Flag: text(e.Flag, maxDetail)}}
	}
}

func decodeExhausted(s *coorddv1.Status) error {
	d := s.GetExhausted()
	if d == nil {
		return nil
	}
	return &leases.ExhaustedError{What: d.What, Bound: d.Bound, Flag: d.Flag}
}

func encodeGrace(err error, s *coorddv1.Status) {
	var e *leases.GraceError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_Grace{Grace: &coorddv1.Grace{Epoch: e.Epoch, FreshInMs: MillisUp(e.FreshIn)}}
	}
}

func decodeGrace(s *coorddv1.Status) error {
	d := s.GetGrace()
	if d == nil {
		return nil
	}
	return &leases.GraceError{Epoch: d.Epoch, FreshIn: fromMillis(d.FreshInMs)}
}

func encodeMissed(err error, s *coorddv1.Status) {
	var e *leases.MissedError
	if errors.As(err, &e) {
		s.Details = &coorddv1.Status_Missed{Missed: &coorddv1.Missed{From: toPosition(e.From), Oldest: toPosition(e.Oldest), Newest: toPosition(e.Newest)}}
	}
}

func decodeMissed(s *coorddv1.Status) error {
	d := s.GetMissed()
	if d == nil {
		return nil
	}
	return &leases.MissedError{From: fromPosition(d.From), Oldest: fromPosition(d.Oldest), Newest: fromPosition(d.Newest)}
}

// decodeUnavailable needs no detail: an *UnavailableError is its text.
func decodeUnavailable(s *coorddv1.Status) error {
	_, reason, ok := strings.Cut(text(s.Reason, maxReason), leases.ErrUnavailable.Error()+": ")
	if !ok {
		return nil
	}
	return &leases.UnavailableError{Reason: reason}
}
