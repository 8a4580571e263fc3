package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/clock"
)

const (
	// adminLimit bounds one call about the table, with the SDK's own retries.
	adminLimit = 15 * time.Second
	// tableLimit bounds the wait for a table, and for its backups, to be ready.
	tableLimit = 3 * time.Minute
	tableEvery = 500 * time.Millisecond
)

// What findings are about.
const (
	aboutTable      = "table"
	aboutKey        = "key"
	aboutProtection = "deletion protection"
	aboutRecovery   = "point-in-time recovery"
)

// patient lets the SDK repeat calls that may be repeated blindly.
func patient(o *sdk.Options) { o.Retryer = retry.NewStandard() }

// admin makes one call about the table.
func admin[In, Out any](ctx context.Context, call func(context.Context, In, ...func(*sdk.Options)) (Out, error), in In) (Out, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, adminLimit, fmt.Errorf("no answer within %v", adminLimit))
	defer cancel()
	return call(ctx, in, patient)
}

// CreateTable creates the table: paid by the request, with point-in-time recovery
// and deletion protection. If it exists, its key is checked, and the other two are
// switched on if they are off. It waits until all is done, and returns what it did,
// also when it fails. With emulator, it passes over what the store does not know, as
// DynamoDB Local does not know point-in-time recovery.
func (s *Store) CreateTable(ctx context.Context, emulator bool) (done []Finding, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tableLimit, fmt.Errorf("it is not ready after %v", tableLimit))
	defer cancel()
	for _, step := range []func(context.Context) (Finding, error){s.create, s.checkKey, s.protect, s.recoverable} {
		f, err := step(ctx)
		switch {
		case emulator && coded(err, codeUnknownOperation):
			f = warning(f.What, "passed over: this emulator does not know it")
		case coded(err, codeUnknownOperation):
			return done, fmt.Errorf("table %s: %s: this store does not know it; if it is an emulator, say so: %w", s.table, f.What, err)
		case err != nil:
			return done, fmt.Errorf("table %s: %s: %w", s.table, f.What, err)
		}
		done = append(done, f)
	}
	return done, nil
}

// create makes the table, if it is not there, and waits until it is active.
func (s *Store) create(ctx context.Context) (Finding, error) {
	f := good(aboutTable, "it existed")
	_, err := s.describe(ctx)
	if _, absent := errors.AsType[*types.ResourceNotFoundException](err); absent {
		f = good(aboutTable, "created")
		_, err = admin(ctx, s.client.CreateTable, &sdk.CreateTableInput{
			TableName:                 &s.table,
			BillingMode:               types.BillingModePayPerRequest,
			DeletionProtectionEnabled: aws.Bool(true),
			AttributeDefinitions:      []types.AttributeDefinition{{AttributeName: aws.String(keyAttribute), AttributeType: types.ScalarAttributeTypeS}},
			KeySchema:                 []types.KeySchemaElement{{AttributeName: aws.String(keyAttribute), KeyType: types.KeyTypeHash}},
		})
		if _, raced := errors.AsType[*types.ResourceInUseException](err); raced {
			f, err = good(aboutTable, "another has created it just now"), nil
		}
	}
	if err != nil {
		return f, err
	}
	return f, s.until(ctx, func() (bool, error) {
		t, err := s.describe(ctx)
		return err == nil && t.TableStatus == types.TableStatusActive, err
	})
}

func (s *Store) checkKey(ctx context.Context) (Finding, error) {
	f := good(aboutKey, "%s, a string", keyAttribute)
	t, err := s.describe(ctx)
	if err != nil {
		return f, err
	}
	return f, wrongKey(t)
}

func (s *Store) protect(ctx context.Context) (Finding, error) {
	f := good(aboutProtection, "on")
	t, err := s.describe(ctx)
	if err != nil || aws.ToBool(t.DeletionProtectionEnabled) {
		return f, err
	}
	f.Detail = "switched on"
	_, err = admin(ctx, s.client.UpdateTable, &sdk.UpdateTableInput{TableName: &s.table, DeletionProtectionEnabled: aws.Bool(true)})
	return f, err
}

// recoverable switches point-in-time recovery on. A table that was just created is
// not ready for that.
func (s *Store) recoverable(ctx context.Context) (Finding, error) {
	f := good(aboutRecovery, "on")
	on, err := s.recovery(ctx)
	if err != nil || on {
		return f, err
	}
	f.Detail = "switched on"
	return f, s.until(ctx, func() (bool, error) {
		_, err := admin(ctx, s.client.UpdateContinuousBackups, &sdk.UpdateContinuousBackupsInput{
			TableName:                        &s.table,
			PointInTimeRecoverySpecification: &types.PointInTimeRecoverySpecification{PointInTimeRecoveryEnabled: aws.Bool(true)},
		})
		if _, early := errors.AsType[*types.ContinuousBackupsUnavailableException](err); early {
			return false, nil
		}
		return err == nil, err
	})
}

// until repeats try, with pauses, until it is done, fails, or ctx ends.
func (s *Store) until(ctx context.Context, try func() (done bool, err error)) error {
	for {
		done, err := try()
		if done || err != nil {
			return err
		}
		if err := clock.Wait(ctx, s.clock, s.clock.Now().Add(tableEvery)); err != nil {
			return err
		}
	}
}

func (s *Store) describe(ctx context.Context) (*types.TableDescription, error) {
	out, err := admin(ctx, s.client.DescribeTable, &sdk.DescribeTableInput{TableName: &s.table})
	if err != nil {
		return nil, err
	}
	return out.Table, nil
}

// recovery reports whether point-in-time recovery is on.
func (s *Store) recovery(ctx context.Context) (bool, error) {
	out, err := admin(ctx, s.client.DescribeContinuousBackups, &sdk.DescribeContinuousBackupsInput{TableName: &s.table})
	if err != nil || out.ContinuousBackupsDescription == nil || out.ContinuousBackupsDescription.PointInTimeRecoveryDescription == nil {
		return false, err
	}
	status := out.ContinuousBackupsDescription.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus
	return status == types.PointInTimeRecoveryStatusEnabled, nil
}

// wrongKey returns an error unless the table has the key that registers need.
func wrongKey(t *types.TableDescription) error {
	kinds := map[string]types.ScalarAttributeType{}
	for _, a := range t.AttributeDefinitions {
		kinds[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	var found []string
	for _, k := range t.KeySchema {
		name := aws.ToString(k.AttributeName)
		found = append(found, fmt.Sprintf("%s %s (%s)", k.KeyType, name, kinds[name]))
	}
	got, want := strings.Join(found, ", "), fmt.Sprintf("HASH %s (S)", keyAttribute)
	if got != want {
		return fmt.Errorf("it has the key %s, want %s: the key of a table cannot be changed, so name another table", got, want)
	}
	return nil
}
