package dynamodb

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
)

// withoutAWS hides the AWS configuration of the machine and of whoever runs the tests.
func withoutAWS(t *testing.T) string {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	dir := t.TempDir()
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "config"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "credentials"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return dir
}

func TestOpenRefuses(t *testing.T) {
	withoutAWS(t)
	for _, tt := range []struct {
		name string
		c    Config
		want string
	}{
		{"no table", Config{Region: "eu-central-1"}, "no name"},
		{"no region", Config{Table: "t"}, "no AWS region"},
		{"an endpoint without scheme", Config{Table: "t", Region: "r", Endpoint: "127.0.0.1:8000"}, "want a URL"},
		{"an endpoint of files", Config{Table: "t", Region: "r", Endpoint: "file:///tmp"}, "want a URL"},
		{"a negative timeout", Config{Table: "t", Region: "r", Timeout: -time.Second}, "want more than 0"},
		{"a profile that is not there", Config{Table: "t", Region: "r", Profile: "nobody"}, "nobody"},
	} {
		s, err := Open(t.Context(), tt.c)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q in it", tt.name, err, tt.want)
		}
		if s != nil {
			s.Close()
		}
	}
}

// dynamo is an HTTP server that accepts every write and remembers who has signed.
func dynamo(t *testing.T) (url string, signed func() []string) {
	t.Helper()
	keys := make(chan string, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		_, _ = w.Write([]byte(`{}`))
	}))
	t.Cleanup(server.Close)
	return server.URL, func() []string {
		close(keys)
		var all []string
		for k := range keys {
			all = append(all, k)
		}
		return all
	}
}

// The ordinary chain of the SDK: a profile with its region, and a role by web
// identity, whose token the platform keeps in a file.
func TestCredentials(t *testing.T) {
	t.Run("profile", func(t *testing.T) {
		dir := withoutAWS(t)
		put(t, filepath.Join(dir, "config"), "[profile cluster]\nregion = eu-north-1\n")
		put(t, filepath.Join(dir, "credentials"), "[cluster]\naws_access_key_id = OFPROFILE\naws_secret_access_key = s\n")
		url, signed := dynamo(t)
		swap(t, Config{Table: "t", Endpoint: url, Profile: "cluster"})
		if got := signed(); len(got) != 1 || !strings.Contains(got[0], "Credential=OFPROFILE/") || !strings.Contains(got[0], "/eu-north-1/dynamodb/") {
			t.Errorf("got %q, want it signed with the profile's key for its region", got)
		}
	})
	t.Run("web identity", func(t *testing.T) {
		dir := withoutAWS(t)
		sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("WebIdentityToken") != "the token" {
				http.Error(w, "no", http.StatusBadRequest)
				return
			}
			_, _ = w.Write([]byte(`<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
				<AccessKeyId>OFROLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>session</SessionToken>
				<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`))
		}))
		defer sts.Close()
		put(t, filepath.Join(dir, "token"), "the token")
		t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", filepath.Join(dir, "token"))
		t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/coordd")
		t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
		url, signed := dynamo(t)
		swap(t, Config{Table: "t", Endpoint: url, Region: "eu-central-1"})
		if got := signed(); len(got) != 1 || !strings.Contains(got[0], "Credential=OFROLE/") {
			t.Errorf("got %q, want it signed with the role's key", got)
		}
	})
	// No credentials at all: nothing is sent, and that is certain.
	t.Run("none", func(t *testing.T) {
		withoutAWS(t)
		url, signed := dynamo(t)
		s, err := Open(t.Context(), Config{Table: "t", Endpoint: url, Region: "eu-central-1"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		err = s.CompareAndSwap(t.Context(), "k", 0, arbiter.Write{Nonce: arbiter.NewNonce()})
		if err == nil || !strings.Contains(err.Error(), "credentials") || len(signed()) != 0 {
			t.Errorf("got %v, want an error about credentials", err)
		}
	})
}

// The SDK's own settings reach the connections, such as a bundle of certificates.
// What is spoken there is HTTP/1.1, also where more is offered, and no redirect is
// followed: it would carry a signed request to another host.
func TestConnections(t *testing.T) {
	dir := withoutAWS(t)
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	protocols := make(chan string, 16)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocols <- r.Proto
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	bundle := filepath.Join(dir, "bundle.pem")
	put(t, bundle, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	t.Setenv("AWS_CA_BUNDLE", bundle)
	t.Setenv("AWS_ACCESS_KEY_ID", "OFENVIRONMENT")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")

	s, err := Open(t.Context(), Config{Table: "t", Endpoint: server.URL, Region: "eu-central-1", Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CompareAndSwap(t.Context(), "k", 0, write("{}")); !errors.Is(err, arbiter.ErrUnknown) || len(protocols) != maxTries {
		t.Fatalf("got %v after %d requests, want ErrUnknown after %d", err, len(protocols), maxTries)
	}
	if got := elsewhere.Load(); got != 0 {
		t.Errorf("%d requests were redirected", got)
	}
	if got := <-protocols; got != "HTTP/1.1" {
		t.Errorf("got %s, want HTTP/1.1", got)
	}
}

func put(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func swap(t *testing.T, c Config) {
	t.Helper()
	c.Timeout = 20 * time.Second
	s, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CompareAndSwap(t.Context(), "k", 0, write("{}")); err != nil {
		t.Fatal(err)
	}
}
