package dynamolocal

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable makes a process of the tests print where it has started a server, and
// wait until it is killed.
const roleVariable = "COORDD_DYNAMOLOCAL_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		s, err := start()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(s.endpoint)
		select {}
	}
	goleak.VerifyTestMain(Main(m))
}

func TestEndpointAnswers(t *testing.T) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(Endpoint(t))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if id := resp.Header.Get("X-Amzn-Requestid"); resp.StatusCode != http.StatusBadRequest || id == "" {
		t.Errorf("got %s, request id %q, want 400 and an id", resp.Status, id)
	}
	if again := Endpoint(t); again != shared.server.endpoint {
		t.Errorf("got a second endpoint, %s", again)
	}
}

// Where a part is missing a test is skipped, and says what is to be done; under
// make test-stores it fails.
func TestMissingPart(t *testing.T) {
	for _, tt := range []struct{ stores, want string }{
		{"", "--- SKIP"},
		{"0", "--- SKIP"},
		{"1", "--- FAIL"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEndpointAnswers$", "-test.v")
		cmd.Env = append(os.Environ(), folderVariable+"="+t.TempDir(), storesVariable+"="+tt.stores)
		out, err := cmd.CombinedOutput()
		if (err != nil) != (tt.want == "--- FAIL") || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s=%q: got %v, want %s:\n%s", storesVariable, tt.stores, err, tt.want, out)
		}
		if hint := "make deps"; tt.stores != "0" && !strings.Contains(string(out), hint) {
			t.Errorf("%s=%q: the test does not name %s:\n%s", storesVariable, tt.stores, hint, out)
		}
	}
}

// The server does not outlive tests that are killed.
func TestEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a process with its parent")
	}
	Endpoint(t) // skips
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	endpoint, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := client.Get(strings.TrimSpace(endpoint))
		if err != nil {
			return
		}
		resp.Body.Close()
		select {
		case <-ctx.Done():
			t.Fatalf("%s still answers after its parent was killed", endpoint)
		case <-tick.C:
		}
	}
}
