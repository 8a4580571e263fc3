package nodetest

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
)

// A root register that is not the cluster's is said to be so, and never overwritten.
func TestForeignRoot(t *testing.T) {
	for name, tt := range map[string]struct {
		data string
		want string // in what the node is doing
		kind error
	}{
		"garbage":       {"hello", `it holds "hello"`, authority.ErrForeign},
		"other JSON":    {`{"lock":"nightly","owner":"cron"}`, `unknown field "lock"`, authority.ErrForeign},
		"later release": {`{"format":7,"cluster":"?"}`, "root register of version 7: this release reads up to 1", leases.ErrUnreadable},
		"no cluster":    {`{"format":1}`, "invalid cluster or group", authority.ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := arbitrated()
				cfg.Nodes = 1
				c := newCluster(t, cfg)
				key := authority.RootKey("coordd")
				if err := c.arbiter.CompareAndSwap(t.Context(), key, 0, arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte(tt.data)}); err != nil {
					t.Fatal(err)
				}
				c.Start(0)
				time.Sleep(time.Minute)
				s := c.Node(0).Status()
				if s.Serving || !strings.Contains(s.Doing, tt.want) {
					t.Errorf("serving %v, doing %q, want %q in it", s.Serving, s.Doing, tt.want)
				}
				if s.Authority == nil || !errors.Is(s.Authority.Err, tt.kind) {
					t.Errorf("authority: %+v, want an error that matches %v", s.Authority, tt.kind)
				}
				if reg, err := c.arbiter.Load(t.Context(), key); err != nil || reg.Version != 1 || !bytes.Equal(reg.Data, []byte(tt.data)) {
					t.Errorf("the register was changed: version %d, %q, %v", reg.Version, reg.Data, err)
				}
			})
		})
	}
}

// A running cluster does not adopt an arbiter that knows another one.
func TestAdoptionOfAForeignArbiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := arbitrated()
		cfg.Nodes, cfg.Unadopted = 3, true
		c := New(t, cfg)
		root := authority.Root{
			Cluster: leases.NewID(), Group: leases.NewID(), Epoch: 4, RaftEpoch: 4, Mode: authority.Raft, CeilingMs: 30_000,
			Params: authority.Params{LeaseMs: 10_000, Rho: leases.Rho, Hash: leases.ShardHash, Shards: leases.Shards{Count: 8, Bytes: 4096}, FloorMs: 30_000},
		}
		key, data := authority.RootKey("coordd"), root.Encode()
		if err := c.arbiter.CompareAndSwap(t.Context(), key, 0, arbiter.Write{Nonce: arbiter.NewNonce(), Data: data}); err != nil {
			t.Fatal(err)
		}
		_, err := c.Node(c.Leader()).Adopt(t.Context(), c.cfg.Arbiter.Shards)
		if !errors.Is(err, leases.ErrInvalid) || !strings.Contains(err.Error(), root.Cluster.String()) {
			t.Errorf("got %v, want a refusal that names cluster %v", err, root.Cluster)
		}
		if reg, _ := c.arbiter.Load(t.Context(), key); reg.Version != 1 || !bytes.Equal(reg.Data, data) {
			t.Errorf("the register was changed to %q", reg.Data)
		}
		c.grantable("as before")
	})
}
