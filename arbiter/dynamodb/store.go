// Package dynamodb keeps the arbiter's registers in a DynamoDB table, one item
// each: strongly consistent reads, writes under a condition on the version. It
// makes its own retries, since those of the SDK hide whether an earlier try may have
// taken effect.
package dynamodb

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
)

// Store is an arbiter.Store in one table. It is to be closed. Beyond the contract:
//
//   - a call takes no longer than Config.Timeout, its retries included;
//   - a write that was throttled, or found no connection, was certainly not made:
//     ErrUnreachable. Only where a request has left and no answer came is the
//     outcome unknown;
//   - when three calls in a row have brought no answer, calls fail at once with
//     ErrUnreachable, but for one a second: see Health;
//   - an item that is not a register is ErrUnreachable and ErrNotRegister, and the
//     error says what it is.
type Store struct {
	client  *sdk.Client
	idle    func() // closes connections that nobody uses
	table   string
	region  string
	timeout time.Duration
	clock   clock.Clock
	log     *slog.Logger
	circuit *circuit
}

var _ arbiter.Store = (*Store)(nil)

// Close closes idle connections. Calls under way go on.
func (s *Store) Close() { s.idle() }

// Health tells how the calls have fared.
func (s *Store) Health() arbiter.Health {
	h := s.circuit.Health()
	return arbiter.Health{
		Store: "DynamoDB table " + s.table + " in " + s.region, Reachable: h.Err == nil, RoundTrip: h.RoundTrip, Errors: h.Failed, Err: h.Err,
	}
}

// Load implements arbiter.Store.
func (s *Store) Load(ctx context.Context, key string) (arbiter.Register, error) {
	var item item
	if _, err := s.ask(ctx, func(ctx context.Context) error {
		out, err := s.client.GetItem(ctx, &sdk.GetItemInput{
			TableName:      &s.table,
			Key:            keyOf(key),
			ConsistentRead: aws.Bool(true),
		})
		if err == nil {
			item = out.Item
		}
		return err
	}); err != nil {
		return arbiter.Register{}, arbiter.Unreachable(key, err)
	}
	r, err := decode(item)
	if err != nil {
		return arbiter.Register{}, arbiter.Unreachable(key, err)
	}
	return r, nil
}

// CompareAndSwap implements arbiter.Store.
func (s *Store) CompareAndSwap(ctx context.Context, key string, from arbiter.Version, w arbiter.Write) error {
	if err := arbiter.Validate(key, w.Data); err != nil {
		return err
	}
	in := &sdk.PutItemInput{
		TableName:                           &s.table,
		Item:                                encode(key, from+1, w),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	condition(in, from)
	var (
		failed bool // the condition
		item   item
	)
	lost, err := s.ask(ctx, func(ctx context.Context) error {
		_, err := s.client.PutItem(ctx, in)
		if c, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
			failed, item = true, c.Item
			return nil
		}
		return err
	})
	switch {
	case err != nil && lost:
		return &arbiter.UnknownError{Key: key, Err: err}
	case err != nil:
		return arbiter.Unreachable(key, err)
	case failed:
		return resolve(key, from, w.Nonce, item, lost)
	default:
		return nil
	}
}

// condition lets a write through only where the register holds version from.
func condition(in *sdk.PutItemInput, from arbiter.Version) {
	if from == 0 {
		in.ConditionExpression = aws.String("attribute_not_exists(#key)")
		in.ExpressionAttributeNames = map[string]string{"#key": keyAttribute}
		return
	}
	in.ConditionExpression = aws.String("#version = :from")
	in.ExpressionAttributeNames = map[string]string{"#version": versionAttribute}
	in.ExpressionAttributeValues = item{":from": number(from)}
}

// wire sends the requests, and notes for each try whether its request may have left.
type wire struct{ client *http.Client }

func (w wire) Do(r *http.Request) (*http.Response, error) {
	return w.client.Do(r.WithContext(traced(r.Context())))
}
