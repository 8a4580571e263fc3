package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coordd/coordd/internal/dynamolocal"
)

// asCoordd lets the test's own binary be coordd. Unlike the one that binary
// builds it has the race detector in it whenever the test has.
const asCoordd = "TEST_RUNS_AS_COORDD"

func TestMain(m *testing.M) {
	if os.Getenv(asCoordd) != "" {
		main()
	}
	if signal.Ignored(syscall.SIGHUP) { // as under nohup: what the tests start would ignore it too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	for _, v := range os.Environ() { // the tests' own, and none of the caller's
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "COORDD_") {
			os.Unsetenv(name)
		}
	}
	code := dynamolocal.Main(m).Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// built is the one binary that all black-box tests run. once guards the rest.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// binary returns the path of coordd, built from this source at the first call.
func binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "coordd-test-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", built.dir, ".")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("build coordd: %v", built.err)
	}
	return filepath.Join(built.dir, "coordd")
}

// itself is this test's binary as coordd.
func itself(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), asCoordd+"=1")
	return cmd
}

// result is what a command line came to.
type result struct {
	code           int
	stdout, stderr string
}

// inProcess carries a command line out in this process.
func inProcess(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}
