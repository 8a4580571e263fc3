package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/dynamodb"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// registers is a store of a cluster named billing.
type registers struct {
	t       *testing.T
	store   *arbiter.Memory
	cluster leases.ID
}

func newRegisters(t *testing.T) *registers {
	return &registers{t: t, store: arbiter.NewMemory(), cluster: leases.ID{0: 1, 15: 2}}
}

// write writes a register once.
func (r *registers) write(key string, data []byte) {
	r.t.Helper()
	reg, err := r.store.Load(r.t.Context(), key)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.store.CompareAndSwap(r.t.Context(), key, reg.Version, arbiter.Write{Nonce: arbiter.NewNonce(), Data: data}); err != nil {
		r.t.Fatal(err)
	}
}

// root writes a root register in fallback, changed.
func (r *registers) root(change func(*authority.Root)) {
	r.t.Helper()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	root := authority.Root{
		Cluster: r.cluster, Epoch: 8, RaftEpoch: 7, Mode: authority.Fallback, Group: leases.ID{0: 3, 15: 4},
		Params: authority.Params{LeaseMs: 10000, Rho: leases.Rho, Hash: leases.ShardHash, Shards: leases.Shards{Count: 4, Bytes: 1024}, FloorMs: 30000},
		Owner:  authority.Owner{Node: "n1"}, Takers: []string{"n1", "n2"}, CeilingMs: 60000,
		Members: []authority.Member{
			{Name: "n1", ServerID: "n1.0a0b", Address: "10.0.0.1:7420"},
			{Name: "n2", ServerID: "n2.0c0d", Address: "10.0.0.2:7420"},
		},
		History: []authority.Transferral{
			{Epoch: 1, Mode: authority.Importing, Node: "n2", Why: authority.Birth, At: at},
			{Epoch: 8, Mode: authority.Fallback, Node: "n1", Why: authority.Takeover, At: at.Add(time.Hour)},
		},
	}
	if change != nil {
		change(&root)
	}
	r.write(authority.RootKey("billing"), root.Encode())
}

// shard writes a shard register.
func (r *registers) shard(index uint32, s leases.Shard) {
	r.t.Helper()
	r.write(authority.ShardKey("billing", r.cluster, index), leases.EncodeShard(s))
}

func heldLease(name string, epoch, n uint32) *leases.Lease {
	return &leases.Lease{
		Name: name, Session: leases.ID{1}, Attempt: leases.ID{2}, Token: tokens.New(epoch, n), TTL: 15 * time.Second,
		Owner: leases.Owner{Label: "backup", Host: "host7", PID: 12}, Stamp: 1,
	}
}

func TestArbiterShow(t *testing.T) {
	broken := heldLease("nightly", 8, 5)
	broken.Broken = true
	full := func(r *registers) {
		r.shard(0, leases.Shard{Epoch: 8, Leases: []*leases.Lease{heldLease("billing/a", 7, 41)}})
		r.shard(1, leases.Shard{Epoch: 8, Closed: true, Counter: 1, Leases: []*leases.Lease{heldLease("billing/b", 7, 42), broken}})
		r.shard(2, leases.Shard{Epoch: 8})
		r.shard(3, leases.Shard{Epoch: 6, Closed: true, Leases: []*leases.Lease{heldLease("weekly", 5, 43)}})
	}
	for _, c := range []struct {
		name string
		fill func(*registers)
		all  bool
		code int
	}{
		{name: "absent", fill: func(*registers) {}},
		{name: "grace", fill: func(r *registers) { r.root(nil) }},
		{name: "fallback", fill: func(r *registers) {
			r.root(nil)
			r.root(func(root *authority.Root) { root.GraceDone, root.Held = true, true })
			full(r)
		}},
		{name: "fallback-leases", all: true, fill: func(r *registers) {
			r.root(func(root *authority.Root) { root.GraceDone = true })
			full(r)
		}},
		{name: "raft", fill: func(r *registers) {
			r.root(func(root *authority.Root) {
				root.Mode, root.Epoch, root.RaftEpoch, root.Owner.Term, root.GraceDone = authority.Raft, 9, 9, 3, false
			})
			full(r)
		}},
		{name: "garbage", code: exitForeign, fill: func(r *registers) { r.write(authority.RootKey("billing"), []byte("hello")) }},
		{name: "foreign", code: exitForeign, fill: func(r *registers) { r.write(authority.RootKey("billing"), []byte(`{"format":1,"owner":"terraform"}`)) }},
		{name: "later-release", code: exitForeign, fill: func(r *registers) { r.write(authority.RootKey("billing"), []byte(`{"format":99,"x":1}`)) }},
		{name: "garbage-shard", code: exitForeign, fill: func(r *registers) {
			r.root(nil)
			r.write(authority.ShardKey("billing", r.cluster, 2), []byte("[]"))
		}},
	} {
		r := newRegisters(t)
		c.fill(r)
		compare(t, filepath.Join("testdata", "arbiter", c.name), c.code, func(w io.Writer, out output) error {
			view, err := inspect(t.Context(), r.store, "billing", c.all)
			if err != nil {
				return err
			}
			return out.print(w, view)
		})
	}
}

// A store that does not answer is not reached, also in the midst of the shards.
func TestArbiterShowUnreachable(t *testing.T) {
	r := newRegisters(t)
	r.root(nil)
	for _, after := range []int64{0, 2} {
		store := &failing{Store: r.store}
		store.left.Store(after)
		_, err := inspect(t.Context(), store, "billing", false)
		if got := exitCode(err); got != exitUnavailable || !strings.Contains(err.Error(), "no route") {
			t.Errorf("got code %d (%v), want %d", got, err, exitUnavailable)
		}
	}
}

// failing is a store that answers so often.
type failing struct {
	arbiter.Store
	left atomic.Int64
}

func (f *failing) Load(ctx context.Context, key string) (arbiter.Register, error) {
	if f.left.Add(-1) < 0 {
		return arbiter.Register{}, arbiter.Unreachable(key, errors.New("no route"))
	}
	return f.Store.Load(ctx, key)
}

func TestArbiterCheckOutput(t *testing.T) {
	report := dynamodb.Report{
		Table: "coordd", Reads: 10, Min: 900 * time.Microsecond, Median: 1200 * time.Microsecond, Max: 31 * time.Millisecond,
		Findings: []dynamodb.Finding{
			{What: "table", Grade: dynamodb.Good, Detail: "arn:aws:dynamodb:eu-central-1:1:table/coordd"},
			{What: "deletion protection", Grade: dynamodb.Warning, Detail: "off"},
			{What: "GetItem", Grade: dynamodb.Good, Detail: "10 reads took 0.9ms to 31ms, 1.2ms at the median"},
		},
	}
	bad := report
	bad.Findings = append(bad.Findings[:2:2], dynamodb.Finding{What: "PutItem", Grade: dynamodb.Bad, Detail: "AccessDeniedException"})
	for _, c := range []struct {
		name   string
		report dynamodb.Report
		code   int
	}{{"check", report, 0}, {"check-failed", bad, exitUnavailable}} {
		compare(t, filepath.Join("testdata", "arbiter", c.name), c.code, func(w io.Writer, out output) error {
			return printReport(w, out, c.report)
		})
	}
}

// The flags are read from the environment of coordd serve.
func TestArbiterEnvironment(t *testing.T) {
	t.Setenv("COORDD_ARBITER_REGION", "local")
	t.Setenv("COORDD_ARBITER_ENDPOINT", "nowhere")
	t.Setenv("COORDD_NAME", "n1")
	got := inProcess(t, "arbiter", "show")
	failed(t, got, exitUsage, `"nowhere"`, "want a URL")
	if help := inProcess(t, "arbiter", "show", "--help").stdout; !strings.Contains(help, "[COORDD_ARBITER_NAME]") || strings.Contains(help, "[COORDD_NAME]") {
		t.Errorf("got %s, want the variables of serve's flags", help)
	}
}
