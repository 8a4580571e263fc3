package dynamodb

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
)

// about returns the finding about something.
func about(t *testing.T, all []Finding, what string) Finding {
	t.Helper()
	i := slices.IndexFunc(all, func(f Finding) bool { return f.What == what })
	if i < 0 {
		t.Fatalf("there is no finding about %q in %v", what, all)
	}
	return all[i]
}

func TestCreateTable(t *testing.T) {
	s := openLocal(t, nil, "registers-"+rand.Text())
	for run, want := range []string{"created", "it existed", "it existed"} {
		done, err := s.CreateTable(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		if f := about(t, done, aboutTable); f.Detail != want || f.Grade != Good {
			t.Errorf("run %d: got %v, want %q", run, f, want)
		}
		if f := about(t, done, aboutProtection); f.Grade != Good {
			t.Errorf("run %d: got %v", run, f)
		}
		if f := about(t, done, aboutRecovery); f.Grade != Warning || !strings.Contains(f.Detail, "emulator") {
			t.Errorf("run %d: got %v, want it passed over", run, f)
		}
		if err := s.CompareAndSwap(t.Context(), "k", arbiter.Version(run), write("x")); err != nil {
			t.Errorf("run %d: %v", run, err)
		}
	}
	d, err := s.describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.BillingModeSummary == nil || d.BillingModeSummary.BillingMode != types.BillingModePayPerRequest || !aws.ToBool(d.DeletionProtectionEnabled) {
		t.Errorf("got billing %+v, deletion protection %v", d.BillingModeSummary, aws.ToBool(d.DeletionProtectionEnabled))
	}
}

// What the store does not know is an error, unless it may be an emulator.
func TestCreateTableOfNoEmulator(t *testing.T) {
	s := openLocal(t, nil, "registers-"+rand.Text())
	done, err := s.CreateTable(t.Context(), false)
	if err == nil {
		t.Fatal("it succeeded without point-in-time recovery")
	}
	for _, want := range []string{"UnknownOperationException", "point-in-time recovery", "emulator", s.table} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if f := about(t, done, aboutTable); f.Detail != "created" {
		t.Errorf("got %v, want it told what was done before", f)
	}
}

func TestCreateTableCompletesAnother(t *testing.T) {
	s := openLocal(t, nil, "registers-"+rand.Text())
	bare(t, s, keyAttribute, types.ScalarAttributeTypeS)
	done, err := s.CreateTable(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if f := about(t, done, aboutProtection); f.Detail != "switched on" {
		t.Errorf("got %v", f)
	}
	d, err := s.describe(t.Context())
	if err != nil || !aws.ToBool(d.DeletionProtectionEnabled) {
		t.Errorf("deletion protection is off, or %v", err)
	}
}

func TestCreateTableRefusesAnotherKey(t *testing.T) {
	for _, tt := range []struct {
		name string
		kind types.ScalarAttributeType
		want string
	}{
		{"Id", types.ScalarAttributeTypeS, "HASH Id (S), want HASH LockKey (S)"},
		{keyAttribute, types.ScalarAttributeTypeN, "HASH LockKey (N), want HASH LockKey (S)"},
	} {
		s := openLocal(t, nil, "registers-"+rand.Text())
		bare(t, s, tt.name, tt.kind)
		if _, err := s.CreateTable(t.Context(), true); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q in it", err, tt.want)
		}
		if f := about(t, s.Check(t.Context(), "a test").Findings, aboutKey); f.Grade != Bad || !strings.Contains(f.Detail, tt.want) {
			t.Errorf("got %v, want %q in it", f, tt.want)
		}
	}
}

// bare creates a table as another would: provisioned, not protected.
func bare(t *testing.T, s *Store, key string, kind types.ScalarAttributeType) {
	t.Helper()
	if _, err := s.client.CreateTable(t.Context(), &sdk.CreateTableInput{
		TableName:             &s.table,
		ProvisionedThroughput: &types.ProvisionedThroughput{ReadCapacityUnits: aws.Int64(5), WriteCapacityUnits: aws.Int64(6)},
		AttributeDefinitions:  []types.AttributeDefinition{{AttributeName: &key, AttributeType: kind}},
		KeySchema:             []types.KeySchemaElement{{AttributeName: &key, KeyType: types.KeyTypeHash}},
	}); err != nil {
		t.Fatal(err)
	}
}

// backups answers the calls that DynamoDB Local does not know as DynamoDB does:
// for a while after a table was made its backups are not ready. The test says which
// other calls it answers.
func backups(n *network, more func(leg) (*http.Response, error)) func(leg) (*http.Response, error) {
	on := false
	return func(l leg) (*http.Response, error) {
		switch {
		case l.op == "UpdateContinuousBackups" && l.n == 1:
			return l.exception(400, "ContinuousBackupsUnavailableException")
		case l.op == "UpdateContinuousBackups":
			on = true
			return l.answer(200, `{}`)
		case l.op == "DescribeContinuousBackups" && on:
			return l.answer(200, `{"ContinuousBackupsDescription":{"PointInTimeRecoveryDescription":{"PointInTimeRecoveryStatus":"ENABLED"}}}`)
		case l.op == "DescribeContinuousBackups":
			return l.answer(200, `{"ContinuousBackupsDescription":{"PointInTimeRecoveryDescription":{"PointInTimeRecoveryStatus":"DISABLED"}}}`)
		case more != nil:
			if resp, err := more(l); resp != nil || err != nil {
				return resp, err
			}
		}
		return n.beyond.RoundTrip(l.Request)
	}
}

func TestPointInTimeRecovery(t *testing.T) {
	n := &network{}
	s := openLocal(t, n, "registers-"+rand.Text())
	n.on(backups(n, nil))
	for run, want := range []string{"switched on", "on"} {
		done, err := s.CreateTable(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if f := about(t, done, aboutRecovery); f.Detail != want || f.Grade != Good {
			t.Errorf("run %d: got %v, want %q", run, f, want)
		}
	}
	if got := n.seen("UpdateContinuousBackups"); got != 2 {
		t.Errorf("got %d tries to switch it on, want 2", got)
	}
	r := s.Check(t.Context(), "a test")
	if r.Grade() != Good {
		t.Errorf("got %v, want nothing to complain about", r.Findings)
	}
	if r.Reads != 10 || r.Min <= 0 || r.Min > r.Median || r.Median > r.Max {
		t.Errorf("got round trips %v, %v, %v of %d reads", r.Min, r.Median, r.Max, r.Reads)
	}
}

func TestCheck(t *testing.T) {
	t.Run("no table", func(t *testing.T) {
		s := openLocal(t, nil, "registers-"+rand.Text())
		r := s.Check(t.Context(), "a test")
		if f := about(t, r.Findings, aboutTable); f.Grade != Bad || r.Grade() != Bad {
			t.Errorf("got %v", f)
		}
		if f := about(t, r.Findings, "GetItem"); f.Grade != Bad {
			t.Errorf("got %v", f)
		}
	})
	t.Run("an emulator's table", func(t *testing.T) {
		s := createLocal(t, nil)
		for range 3 {
			r := s.Check(t.Context(), "a test")
			if r.Grade() != Warning || len(r.Findings) != 9 {
				t.Errorf("got %v", r.Findings)
			}
			for _, f := range r.Findings {
				if want := f.What != aboutRecovery; (f.Grade == Good) != want {
					t.Errorf("got %v", f)
				}
			}
		}
		r, err := s.Load(t.Context(), ScratchKey)
		if err != nil || r.Version != 3 {
			t.Errorf("the scratch register has version %d, %v, want 3", r.Version, err)
		}
	})
	t.Run("another's table", func(t *testing.T) {
		s := openLocal(t, nil, "registers-"+rand.Text())
		bare(t, s, keyAttribute, types.ScalarAttributeTypeS)
		if _, err := s.client.UpdateTimeToLive(t.Context(), &sdk.UpdateTimeToLiveInput{
			TableName:               &s.table,
			TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("Expires"), Enabled: aws.Bool(true)},
		}); err != nil {
			t.Fatal(err)
		}
		r := s.Check(t.Context(), "a test")
		for what, want := range map[string]Finding{
			"billing":       {Grade: Warning, Detail: "5 reads and 6 writes"},
			aboutProtection: {Grade: Warning, Detail: "off"},
			"time to live":  {Grade: Bad, Detail: "by attribute Expires"},
			"PutItem":       {Grade: Good, Detail: "was refused"},
		} {
			if f := about(t, r.Findings, what); f.Grade != want.Grade || !strings.Contains(f.Detail, want.Detail) {
				t.Errorf("got %v, want %s with %q", f, want.Grade, want.Detail)
			}
		}
	})
	t.Run("recovery is off", func(t *testing.T) {
		n := &network{}
		s := createLocal(t, n)
		n.on(backups(n, nil))
		if f := about(t, s.Check(t.Context(), "a test").Findings, aboutRecovery); f.Grade != Warning || !strings.Contains(f.Detail, "off") {
			t.Errorf("got %v", f)
		}
	})
}

// Nodes may have fewer permissions than whoever creates the table.
func TestCheckWithoutPermissions(t *testing.T) {
	n := &network{}
	s := createLocal(t, n)
	denied := func(ops ...string) func(leg) (*http.Response, error) {
		return func(l leg) (*http.Response, error) {
			if slices.Contains(ops, l.op) {
				return l.exception(400, "AccessDeniedException")
			}
			return n.beyond.RoundTrip(l.Request)
		}
	}
	n.on(denied("DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups"))
	r := s.Check(t.Context(), "a test")
	if r.Grade() != Warning {
		t.Errorf("got %v, want warnings only", r.Findings)
	}
	if f := about(t, r.Findings, aboutTable); !strings.Contains(f.Detail, "dynamodb:DescribeTable") {
		t.Errorf("got %v, want the permission named", f)
	}
	n.on(denied("PutItem"))
	if f := about(t, s.Check(t.Context(), "a test").Findings, "PutItem"); f.Grade != Bad || !strings.Contains(f.Detail, "AccessDenied") {
		t.Errorf("got %v", f)
	}
	n.on(denied("GetItem"))
	if f := about(t, s.Check(t.Context(), "a test").Findings, "GetItem"); f.Grade != Bad {
		t.Errorf("got %v", f)
	}
}

// A store that writes without looking at the condition is found out.
func TestCheckFindsIgnoredConditions(t *testing.T) {
	n := &network{}
	s := createLocal(t, n)
	n.on(func(l leg) (*http.Response, error) {
		if l.op == "PutItem" {
			return l.answer(200, `{}`)
		}
		return n.beyond.RoundTrip(l.Request)
	})
	if f := about(t, s.Check(t.Context(), "a test").Findings, "PutItem"); f.Grade != Bad || !strings.Contains(f.Detail, "does not keep conditions") {
		t.Errorf("got %v", f)
	}
}

func TestCheckBesideOthers(t *testing.T) {
	s := createLocal(t, nil)
	reports := make(chan Report, 4)
	for range cap(reports) {
		go func() { reports <- s.Check(context.WithoutCancel(t.Context()), "a test") }()
	}
	for range cap(reports) {
		if f := about(t, (<-reports).Findings, "PutItem"); f.Grade != Good {
			t.Errorf("got %v", f)
		}
	}
}

func TestRegions(t *testing.T) {
	replicas := []types.ReplicaDescription{{RegionName: aws.String("eu-west-1")}}
	for _, tt := range []struct {
		table types.TableDescription
		want  Grade
	}{
		{types.TableDescription{}, Good},
		{types.TableDescription{Replicas: replicas}, Bad},
		{types.TableDescription{Replicas: replicas, MultiRegionConsistency: types.MultiRegionConsistencyEventual}, Bad},
		{types.TableDescription{GlobalTableVersion: aws.String("2017.11.29")}, Bad},
		{types.TableDescription{Replicas: replicas, MultiRegionConsistency: types.MultiRegionConsistencyStrong}, Warning},
	} {
		if f := tableRegions(&tt.table); f.Grade != tt.want {
			t.Errorf("%+v: got %v, want %s", tt.table, f, tt.want)
		}
	}
}

func TestReportGrade(t *testing.T) {
	for _, tt := range []struct {
		grades []Grade
		want   Grade
	}{
		{nil, Good},
		{[]Grade{Good, Warning, Good}, Warning},
		{[]Grade{Warning, Bad, Warning}, Bad},
	} {
		var r Report
		for _, g := range tt.grades {
			r.Findings = append(r.Findings, Finding{Grade: g})
		}
		if got := r.Grade(); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.grades, got, tt.want)
		}
	}
}

// The caller's context ends a creation that waits.
func TestCreateTableEnds(t *testing.T) {
	cause := errors.New("the operator has left")
	ctx, cancel := context.WithCancelCause(t.Context())
	inBubble(t, func(l leg) (*http.Response, error) {
		if l.n == 30 {
			cancel(cause)
		}
		return l.answer(200, `{"Table":{"TableStatus":"CREATING"}}`)
	}, func(t *testing.T, s *Store, n *network, _ clock.Clock) {
		if _, err := s.CreateTable(ctx, true); !errors.Is(err, cause) || n.seen("DescribeTable") != 30 {
			t.Errorf("got %v after %d looks, want %v", err, n.seen("DescribeTable"), cause)
		}
	})
}
