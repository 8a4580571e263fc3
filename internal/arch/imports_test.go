package arch

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/coordd/coordd"

// Third-party packages, by what they are for.
const (
	raft     = "github.com/hashicorp/raft"
	hclog    = "github.com/hashicorp/go-hclog"
	boltdb   = "github.com/hashicorp/raft-boltdb/v2"
	bbolt    = "go.etcd.io/bbolt/..."
	btree    = "github.com/google/btree"
	grpc     = "google.golang.org/grpc/..."
	protobuf = "google.golang.org/protobuf/..."
	status   = "google.golang.org/genproto/googleapis/rpc/status"
	cobra    = "github.com/spf13/cobra"
	pflag    = "github.com/spf13/pflag"
	sys      = "golang.org/x/sys/..."
	sync     = "golang.org/x/sync/..."
	checker  = "github.com/anishathalye/porcupine"
	gateway  = "github.com/grpc-ecosystem/grpc-gateway/v2/..."
	metrics  = "github.com/prometheus/client_golang/prometheus/..."
	yaml     = "go.yaml.in/yaml/v3"
	aws      = "github.com/aws/aws-sdk-go-v2/..."
	smithy   = "github.com/aws/smithy-go/..."
)

// arrows has, for each package of the module, all that it may import beside the
// standard library: packages of the module by their folder, others by their
// path. "/..." stands for the package and all below it.
var arrows = map[string][]string{
	"tokens": {},
	"clock":  {sys},
	"leases": {"tokens", "internal/rules", btree},
	"fsm":    {"leases", "internal/rules", raft},

	"arbiter":             {},
	"arbiter/arbitertest": {"arbiter"},
	"arbiter/faulty":      {"arbiter", "clock"},
	"arbiter/dynamodb":    {"arbiter", "clock", aws, smithy},

	"authority": {"arbiter", "clock", "leases", "tokens", "internal/rules"},
	"fallback":  {"leases", "arbiter", "clock", "internal/rules"},

	"transport":        {"leases", "tokens", "internal/rules", "transport/api/...", "transport/mux", grpc, protobuf, status, sync},
	"transport/mux":    {"leases"},
	"transport/faults": {"transport"},

	"transport/gateway":             {"leases", "transport", "transport/api/coordd/v1", "transport/gateway/...", gateway, grpc, protobuf, status},
	"transport/gateway/coordd/v1":   {"transport/api/coordd/v1", gateway, grpc, protobuf},
	"transport/gateway/gatewaytest": {},

	"transport/api/coordd/v1":       {grpc, protobuf},
	"transport/api/coordd/peer/v1":  {grpc, protobuf},
	"transport/api/coordd/admin/v1": {grpc, protobuf},

	"client": {"leases", "tokens", "clock", "transport", "internal/holder", "internal/rules", sync},

	"node": {
		"tokens", "clock", "leases", "fsm", "arbiter", "authority", "fallback", "transport", "transport/api/...", "transport/mux", "transport/gateway", "node/internal/...",
		"internal/rules", "internal/version", raft, hclog, grpc, protobuf, sync, metrics,
	},
	"node/internal/boltstore":       {"node/internal/identity", raft, hclog, boltdb, bbolt},
	"node/internal/hook":            {"clock", "fsm", "internal/rules", "node/internal/identity", raft},
	"node/internal/identity":        {"leases", sys},
	"node/internal/raftlog":         {raft, hclog},
	"node/internal/stall":           {"clock", raft},
	"node/internal/stall/stalltest": {"node/internal/stall", raft},
	"node/nodetest":                 {"tokens", "clock", "arbiter", "arbiter/faulty", "authority", "leases", "client", "node", "node/internal/...", "fsm", "transport/...", "internal/...", raft, grpc, sync},

	"node/storetest": {},

	"cmd/coordd": {
		"tokens", "clock", "leases", "client", "node", "transport", "transport/api/...", "arbiter", "arbiter/dynamodb", "authority",
		"internal/drill/...", "internal/version", "cmd/coordd/internal/warden", cobra, pflag, sync, sys, yaml, metrics,
	},
	"cmd/coordd/internal/warden": {"clock", sys},

	"bench": {"clock", "leases", "fsm", "transport", "client", "node", "internal/rules", raft, hclog, grpc, protobuf, sys},

	"internal/arch": {},
	"internal/drill": {
		"arbiter", "arbiter/faulty", "authority", "client", "clock", "internal/drill/loopback", "internal/history", "leases", "node", "tokens", "transport", sync,
	},
	"internal/drill/loopback": {"clock", "transport"},
	"internal/drill/report":   {"internal/drill", "leases"},
	"internal/dynamolocal":    {},
	"internal/history":        {"tokens", "leases", "clock", checker},
	"internal/holder":         {"clock", "leases", "tokens", "internal/rules"},
	"internal/registers":      {},
	"internal/rules":          {},
	"internal/sim":            {"arbiter", "authority", "clock", "fallback", "leases", "tokens", "internal/holder", "internal/rules"},
	"internal/version":        {},
}

// confined has the third-party packages that tests too may import in few places
// only: a second importer would spread what one package is there to hide.
var confined = map[string][]string{
	raft:                              {"fsm", "node", "node/...", "bench"},
	boltdb:                            {"node/internal/boltstore"},
	aws:                               {"arbiter/dynamodb"},
	"github.com/hashicorp/memberlist": {},
}

type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// folder is the package's path below the module's root.
func (p listed) folder() string { return below(p.ImportPath) }

func below(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags", "hashicorpmetrics", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		switch err := d.Decode(&p); {
		case err == io.EOF:
			return all
		case err != nil:
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

// root is the module's folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestArrows(t *testing.T) {
	for _, p := range packages(t) {
		may, ok := arrows[p.folder()]
		if !ok {
			t.Errorf("package %s is not on the map: say in docs/architecture.md what its one job is, and in arrows of internal/arch/imports_test.go what it may import", p.folder())
			continue
		}
		for _, path := range p.Imports {
			if path != "C" && !standard(path) && !slices.ContainsFunc(may, func(m string) bool { return matches(m, below(path)) }) {
				t.Errorf("package %s imports %s: dependencies point one way, so move the code to where it belongs; if the arrow is right, add it to docs/architecture.md and to arrows of internal/arch/imports_test.go", p.folder(), below(path))
			}
		}
	}
}

func TestConfinedImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			for what, where := range confined {
				if matches(what+"/...", path) && !slices.ContainsFunc(where, func(m string) bool { return matches(m, p.folder()) }) {
					t.Errorf("package %s, or a test of it, imports %s, which only these may: %q", p.folder(), path, where)
				}
			}
		}
	}
}

// matches reports whether path is what pattern says: itself or, with "/..." at
// its end, all below it too.
func matches(pattern, path string) bool {
	tree, ok := strings.CutSuffix(pattern, "/...")
	return path == tree || ok && strings.HasPrefix(path, tree+"/")
}

// standard reports whether path is of the standard library: its first element
// has no dot.
func standard(path string) bool {
	host, _, _ := strings.Cut(path, "/")
	return !strings.Contains(host, ".")
}

// The map that people read names every package.
func TestMap(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for folder := range arrows {
		if !strings.Contains(string(text), "`"+folder+"`") {
			t.Errorf("docs/architecture.md does not name `%s`", folder)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"node", "node", true},
		{"node", "node/internal/hook", false},
		{"node/...", "node", true},
		{"node/...", "node/internal/hook", true},
		{"node/...", "nodes", false},
	} {
		if got := matches(tt.pattern, tt.path); got != tt.want {
			t.Errorf("matches(%q, %q): got %v, want %v", tt.pattern, tt.path, got, tt.want)
		}
	}
}
