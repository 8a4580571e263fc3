package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
)

const (
	// maxTries bounds the tries of one call.
	maxTries = 5
	// pause is the longest wait before the second try. It doubles with each further one.
	pause = 50 * time.Millisecond
)

// verdict says what became of one try.
type verdict int

const (
	answered verdict = iota
	refused          // certainly not carried out, and the next try would not be either
	deferred         // certainly not carried out: throttled, or never sent
	lost             // nobody knows
)

// ask repeats a request until it is answered, refused, or the time is up. The
// request fails only where it has no answer. missed: some try of it was lost, and may
// have taken effect. A nil error says that the last one was answered.
func (s *Store) ask(ctx context.Context, request func(context.Context) error) (missed bool, err error) {
	if err := arbiter.Ended(ctx); err != nil {
		return false, err
	}
	probe, err := s.circuit.begin()
	if err != nil {
		return false, err
	}
	v, missed, err := s.tries(ctx, request)
	if errors.Is(ctx.Err(), context.Canceled) && err != nil {
		s.circuit.leave(probe) // the caller has left, which says nothing about the store
	} else {
		s.circuit.end(probe, v, err)
	}
	return missed, err
}

func (s *Store) tries(ctx context.Context, request func(context.Context) error) (v verdict, missed bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("the %v for a call are over", s.timeout))
	defer cancel()
	for n := 1; ; n++ {
		v, err = s.once(ctx, request)
		missed = missed || v == lost
		if v == answered || v == refused {
			return v, missed, err
		}
		err = fmt.Errorf("try %d of %d: %w", n, maxTries, err)
		if n == maxTries || clock.Wait(ctx, s.clock, s.clock.Now().Add(backoff(n))) != nil {
			break
		}
	}
	if ended := arbiter.Ended(ctx); ended != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w; then: %w", err, ended)
	}
	return v, missed, err
}

// backoff is a random time ("full jitter") before try n+1, so that many callers do
// not come back together.
func backoff(n int) time.Duration { return rand.N(pause<<(n-1)) + 1 }

// once makes one try, of at most half of the time for a call.
func (s *Store) once(ctx context.Context, request func(context.Context) error) (verdict, error) {
	limit := s.timeout / 2
	limited, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	t := &try{}
	begin := s.clock.Now()
	err := request(context.WithValue(limited, tryKey{}, t))
	v := judge(err, t.left.Load())
	if v == answered || v == refused {
		s.circuit.measured(s.clock.Now().Sub(begin))
		return v, err
	}
	if ended := arbiter.Ended(limited); ended != nil {
		err = ended // what the SDK makes of it says less
	}
	s.log.Debug("dynamodb: a try has failed", "error", err, "sent", t.left.Load())
	return v, err
}

// try is one request.
type try struct{ left atomic.Bool } // it had a connection, so it may have been sent

type tryKey struct{}

// traced notes on the try in ctx, if there is one, that its request has a connection.
func traced(ctx context.Context) context.Context {
	t, ok := ctx.Value(tryKey{}).(*try)
	if !ok {
		return ctx
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { t.left.Store(true) },
	})
}

// judge tells what an error of the SDK says about its request. What was sent was
// certainly not carried out only if DynamoDB says so: by a status of 4xx, with an
// error that it names. Anything else, a 5xx too, may have come after the effect.
func judge(err error, sent bool) verdict {
	if err == nil {
		return answered
	}
	if !sent {
		return deferred
	}
	response, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err)
	if !ok || response.HTTPStatusCode()/100 != 4 || response.HTTPStatusCode() == http.StatusRequestTimeout {
		return lost
	}
	named, ok := errors.AsType[smithy.APIError](err)
	if !ok || named.ErrorCode() == "" || named.ErrorCode() == "UnknownError" {
		return lost
	}
	if passing(err) {
		return deferred
	}
	return refused
}

// passing reports whether a refusal may be over at the next try: throttling, a
// clock that the SDK has meanwhile allowed for, or another write of the same item that
// is not a plain one.
func passing(err error) bool {
	if _, ok := errors.AsType[*types.TransactionConflictException](err); ok {
		return true
	}
	if _, ok := errors.AsType[*types.ReplicatedWriteConflictException](err); ok {
		return true
	}
	return retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) == aws.TrueTernary
}
