package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/arbiter"
)

// ScratchKey is the register that Check writes. It stays in the table.
const ScratchKey = "coordd-check"

const (
	checkReads  = 10
	checkWrites = 10 // tries, since others may check at the same time
)

// Check looks whether the table is fit to be the arbiter and makes each kind of call
// that a node makes, on ScratchKey. Where it may not look at a property it warns:
// nodes need no more than GetItem and PutItem.
func (s *Store) Check(ctx context.Context, by string) Report {
	r := Report{Table: s.table}
	r.Findings = append(r.Findings, s.checkTable(ctx)...)
	r.Findings = append(r.Findings, s.checkTTL(ctx), s.checkRecovery(ctx))
	reads := s.checkReads(ctx, &r)
	r.Findings = append(r.Findings, reads)
	if reads.Grade != Bad {
		r.Findings = append(r.Findings, s.checkWrites(ctx, by))
	}
	return r
}

// checkTable judges what DescribeTable tells.
func (s *Store) checkTable(ctx context.Context) []Finding {
	t, err := s.describe(ctx)
	if _, absent := errors.AsType[*types.ResourceNotFoundException](err); absent {
		return []Finding{bad(aboutTable, "there is none of this name in this account and region: create it, or correct name, region and credentials")}
	}
	if err != nil {
		return []Finding{unseen(aboutTable, "dynamodb:DescribeTable", err)}
	}
	return []Finding{tableStatus(t), tableKey(t), tableRegions(t), tableBilling(t), tableProtection(t)}
}

func tableStatus(t *types.TableDescription) Finding {
	if t.TableStatus != types.TableStatusActive && t.TableStatus != types.TableStatusUpdating {
		return bad(aboutTable, "its status is %s, want ACTIVE", t.TableStatus)
	}
	return good(aboutTable, "%s", aws.ToString(t.TableArn))
}

func tableKey(t *types.TableDescription) Finding {
	if err := wrongKey(t); err != nil {
		return bad(aboutKey, "%v", err)
	}
	return good(aboutKey, "%s, a string", keyAttribute)
}

// tableRegions refuses a table that several regions write, the last writer winning:
// then two nodes could both win one register.
func tableRegions(t *types.TableDescription) Finding {
	const what = "regions"
	switch {
	case len(t.Replicas) == 0 && t.GlobalTableVersion == nil:
		return good(what, "one")
	case t.MultiRegionConsistency == types.MultiRegionConsistencyStrong:
		return warning(what, "a global table with strong consistency: each write waits for another region, so look at the round trips")
	default:
		return bad(what, "a global table, where the last writer wins: conditions hold in one region only; name a table without replicas")
	}
}

func tableBilling(t *types.TableDescription) Finding {
	const what = "billing"
	if t.BillingModeSummary != nil && t.BillingModeSummary.BillingMode == types.BillingModePayPerRequest {
		return good(what, "on demand")
	}
	if p := t.ProvisionedThroughput; p != nil {
		return warning(what, "provisioned, %d reads and %d writes a second: beyond them calls are throttled, and a takeover needs many; choose on demand",
			aws.ToInt64(p.ReadCapacityUnits), aws.ToInt64(p.WriteCapacityUnits))
	}
	return warning(what, "not on demand")
}

func tableProtection(t *types.TableDescription) Finding {
	if !aws.ToBool(t.DeletionProtectionEnabled) {
		return warning(aboutProtection, "off: who deletes the table deletes the cluster's memory; creating the table once more switches it on")
	}
	return good(aboutProtection, "on")
}

// checkTTL refuses a table that deletes items by itself.
func (s *Store) checkTTL(ctx context.Context) Finding {
	const what = "time to live"
	out, err := admin(ctx, s.client.DescribeTimeToLive, &sdk.DescribeTimeToLiveInput{TableName: &s.table})
	if err != nil {
		return unseen(what, "dynamodb:DescribeTimeToLive", err)
	}
	if d := out.TimeToLiveDescription; d != nil && d.TimeToLiveStatus != types.TimeToLiveStatusDisabled && d.TimeToLiveStatus != "" {
		return bad(what, "%s, by attribute %s: registers must never be deleted; switch it off", d.TimeToLiveStatus, aws.ToString(d.AttributeName))
	}
	return good(what, "off")
}

func (s *Store) checkRecovery(ctx context.Context) Finding {
	on, err := s.recovery(ctx)
	switch {
	case coded(err, codeUnknownOperation):
		return warning(aboutRecovery, "this store does not know it: an emulator, not for production")
	case err != nil:
		return unseen(aboutRecovery, "dynamodb:DescribeContinuousBackups", err)
	case !on:
		return warning(aboutRecovery, "off: creating the table once more switches it on")
	}
	return good(aboutRecovery, "on")
}

// unseen is the finding where a property could not be looked at.
func unseen(what, permission string, err error) Finding {
	if coded(err, codeAccessDenied) {
		return warning(what, "not looked at: these credentials lack %s, which nodes do not need", permission)
	}
	return bad(what, "%v", err)
}

// checkReads reads the scratch register and measures the round trips.
func (s *Store) checkReads(ctx context.Context, r *Report) Finding {
	const what = "GetItem"
	var times []time.Duration
	for range checkReads {
		begin := s.clock.Now()
		if _, err := s.Load(ctx, ScratchKey); err != nil {
			return bad(what, "%v", err)
		}
		times = append(times, s.clock.Now().Sub(begin))
	}
	slices.Sort(times)
	r.Reads, r.Min, r.Median, r.Max = len(times), times[0], times[len(times)/2], times[len(times)-1]
	said := fmt.Sprintf("%d reads took %v to %v, %v at the median", r.Reads, r.Min, r.Max, r.Median)
	if limit := s.timeout / 4; r.Median > limit {
		return warning(what, "%s, want at most %v: a call has to end within %v, its retries included", said, limit, s.timeout)
	}
	return good(what, "%s", said)
}

// checkWrites writes the scratch register, and then once more from the version
// before, which has to be refused with what is there.
func (s *Store) checkWrites(ctx context.Context, by string) Finding {
	const what = "PutItem"
	for range checkWrites {
		r, err := s.Load(ctx, ScratchKey)
		if err != nil {
			return bad(what, "%v", err)
		}
		write := func() error {
			return s.CompareAndSwap(ctx, ScratchKey, r.Version, arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte("{}"), By: by})
		}
		err = write()
		if errors.Is(err, arbiter.ErrConflict) && !errors.Is(err, arbiter.ErrSetBack) {
			continue // somebody else has written
		}
		if err != nil {
			return bad(what, "%v", err)
		}
		switch err := write(); {
		case err == nil:
			return bad(what, "a second write from version %d was let through: this store does not keep conditions", r.Version)
		case !errors.Is(err, arbiter.ErrConflict) || errors.Is(err, arbiter.ErrSetBack):
			return bad(what, "a second write from version %d: got %v, want a conflict", r.Version, err)
		}
		return good(what, "a write succeeded, and a second from the same version was refused")
	}
	return bad(what, "others have written %s before this %d times; check again", ScratchKey, checkWrites)
}
