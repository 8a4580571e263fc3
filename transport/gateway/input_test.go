package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway"
)

// untouchable is a cluster that must not be asked.
func untouchable(t *testing.T) *cluster {
	return refusing(func() error {
		t.Error("the cluster was asked")
		return nil
	})
}

func TestBadBodies(t *testing.T) {
	s := serve(t, untouchable(t))
	for _, tt := range []struct{ name, body, want string }{
		{"empty", ``, "unexpected token"},
		{"null", `null`, "unexpected token"},
		{"a list", `[]`, "unexpected token"},
		{"a string", `"name"`, "unexpected token"},
		{"not JSON", `name=a`, "invalid value name"},
		{"cut off", `{"name": "a"`, "unexpected EOF"},
		{"a comma too many", `{"name": "a",}`, "unexpected token"},
		{"no quotes", `{name: "a"}`, "invalid value name"},
		{"single quotes", `{'name': 'a'}`, "syntax error"},
		{"something after it", `{"name": "a"} {"name": "b"}`, "unexpected token"},
		{"NUL", "{\"name\": \"a\x00\"}", "invalid character"},
		{"an unknown field", `{"name": "a", "ttl": 1000}`, `unknown field "ttl"`},
		{"an unknown field within", `{"owner": {"name": "a"}}`, `unknown field "name"`},
		{"a case of its own", `{"Name": "a"}`, `unknown field "Name"`},
		{"an extension", `{"[coordd.x]": 1}`, `coordd.x`},
		{"a field twice", `{"name": "a", "name": "b"}`, `duplicate field "name"`},
		{"a field under both names", `{"ttl_ms": 1000, "ttlMs": 1000}`, `duplicate field "ttlMs"`},
		{"a field twice within", `{"owner": {"pid": 1, "pid": 2}}`, `duplicate field "pid"`},
		{"a number for a string", `{"name": 1}`, "string field name"},
		{"an object for a string", `{"name": {}}`, "string field name"},
		{"a word for a number", `{"ttl_ms": "soon"}`, "field ttlMs"},
		{"a boolean for a number", `{"ttl_ms": true}`, "field ttlMs"},
		{"a duration", `{"ttl_ms": "15s"}`, "field ttlMs"},
		{"negative", `{"ttl_ms": -1}`, "field ttlMs"},
		{"above 32 bits", `{"ttl_ms": 4294967296}`, "field ttlMs"},
		{"a fraction", `{"ttl_ms": 1000.5}`, "field ttlMs"},
		{"infinite", `{"ttl_ms": 1e400}`, "field ttlMs"},
		{"a number with a space", `{"ttl_ms": " 1000"}`, "field ttlMs"},
		{"a string for an object", `{"owner": "billing"}`, `unexpected token "billing"`},
		{"no base64", `{"attributes": "!"}`, "bytes field attributes"},
		{"bad UTF-8", "{\"name\": \"\xff\"}", "UTF-8"},
		{"half a pair", `{"name": "\ud800"}`, "unexpected EOF"},
		{"a bad escape", `{"name": "\x41"}`, "invalid escape"},
		{"UTF-16", "\xff\xfe{\x00}\x00", "syntax error"},
		{"a byte order mark", "\xef\xbb\xbf{}", "syntax error"},
		{"deep", strings.Repeat(`{"owner":`, 5000) + "1" + strings.Repeat("}", 5000), `unknown field "owner"`},
	} {
		code, body := s.post(t, "/v1/acquire", tt.body)
		f := failed(t, body)
		if code != http.StatusBadRequest || f.Code != "INVALID" || !strings.Contains(f.Message, tt.want) || !strings.HasPrefix(f.Message, "invalid body: ") || f.Details["field"] != "body" {
			t.Errorf("%s: got %d %+v, want 400 INVALID that says %q", tt.name, code, f, tt.want)
		}
	}
	for _, tt := range []struct{ name, body, want string }{
		{"a token above 64 bits", `{"token": "18446744073709551616"}`, "field token"},
		{"a token in hexadecimal", `{"token": "0x10"}`, "field token"},
		{"a token with a sign", `{"token": "+1"}`, "field token"},
		{"an empty token", `{"token": ""}`, "field token"},
		{"a list of tokens", `{"token": [1]}`, "field token"},
	} {
		for _, path := range []string{"/v1/renew", "/v1/reclaim", "/v1/release", "/v1/transfer"} {
			code, body := s.post(t, path, tt.body)
			if f := failed(t, body); code != http.StatusBadRequest || f.Code != "INVALID" || !strings.Contains(f.Message, tt.want) {
				t.Errorf("%s, %s: got %d %+v, want 400 INVALID that says %q", path, tt.name, code, f, tt.want)
			}
		}
	}
}

func TestLongBodies(t *testing.T) {
	asked := 0
	s := serve(t, &cluster{acquire: func(_ context.Context, r *coorddv1.AcquireRequest) (*coorddv1.AcquireResponse, error) {
		asked++
		return &coorddv1.AcquireResponse{Name: r.Name}, nil
	}})
	fill := func(n int) string {
		const around = `{"name":""}`
		return strings.Replace(around, `""`, `"`+strings.Repeat("n", n-len(around))+`"`, 1)
	}
	if code, body := s.post(t, "/v1/acquire", fill(gateway.MaxBody)); code != http.StatusOK || asked != 1 {
		t.Errorf("as long as may be: got %d %.100s, want 200", code, body)
	}
	code, body := s.post(t, "/v1/acquire", fill(gateway.MaxBody+1))
	if f := failed(t, body); code != http.StatusRequestEntityTooLarge || f.Code != "INVALID" || !strings.Contains(f.Message, "at most 65536 bytes") || asked != 1 {
		t.Errorf("one byte more: got %d %+v, want 413 and the bound", code, f)
	}
	r := s.request(t, "POST", "/v1/acquire", fill(gateway.MaxBody+1))
	r.ContentLength = -1 // in chunks
	if resp, body := s.do(t, r); resp.StatusCode != http.StatusRequestEntityTooLarge || asked != 1 {
		t.Errorf("in chunks: got %d %.100s, want 413", resp.StatusCode, body)
	}
	code, body = s.post(t, "/v1/acquire", `{"`+strings.Repeat("f", 50_000)+`":1}`)
	if f := failed(t, body); code != http.StatusBadRequest || len(f.Message) > 3000 {
		t.Errorf("a long unknown field: got %d and a message of %d bytes, want it cut", code, len(f.Message))
	}
}

func TestBadQueries(t *testing.T) {
	s := serve(t, untouchable(t))
	for _, tt := range []struct{ path, field, want string }{
		{"/v1/lease?nam=a", "query parameter", `invalid query parameter "nam": want one of name`},
		{"/v1/lease?name=a&x=", "query parameter", `"x"`},
		{"/v1/lease?Name=a", "query parameter", `"Name"`},
		{"/v1/lease?name[a]=b", "query parameter", `"name[a]"`},
		{"/v1/lease?name=a&name=b", "name", "want one value"},
		{"/v1/lease?name=%ff", "name", "UTF-8"},
		{"/v1/lease?name=%zz", "query", "%zz"},
		{"/v1/lease?name=a;b", "query", "semicolon"},
		{"/v1/queue?prefix=a", "query parameter", "prefix"},
		{"/v1/leases?limit=ten", "query", `parsing field "limit"`},
		{"/v1/leases?limit=-1", "query", `parsing field "limit"`},
		{"/v1/leases?limit=4294967296", "query", "out of range"},
		{"/v1/leases?limit=", "query", `parsing field "limit"`},
		{"/v1/leases?limit=1.5", "query", `parsing field "limit"`},
		{"/v1/watch?revision=18446744073709551616", "query", "out of range"},
		{"/v1/watch?epoch=one", "query", `parsing field "epoch"`},
		{"/v1/watch?from=1", "query parameter", "prefix, epoch, revision"},
		{"/v1/status?lease=a", "query parameter", "lease"},
		{"/healthz?verbose", "query parameter", "none here"},
		{"/v1/openapi.json?v=1", "query parameter", "none here"},
	} {
		code, body := s.get(t, tt.path)
		f := failed(t, body)
		if code != http.StatusBadRequest || f.Code != "INVALID" || f.Details["field"] != tt.field || !strings.Contains(f.Message, tt.want) {
			t.Errorf("%s: got %d %+v, want 400 INVALID for %s that says %q", tt.path, code, f, tt.field, tt.want)
		}
	}
	for _, path := range []string{"/v1/lease?", "/v1/lease?name=%zz&", "/v1/lease?name=a&name=", "/"} { // however long, it is said what is wanted
		code, body := s.get(t, path+strings.Repeat("é", 1000))
		if f := failed(t, body); code == http.StatusOK || f.Code != "INVALID" || !strings.HasSuffix(f.Message, fmt.Sprint(": want ", f.Details["bounds"])) || len(f.Message) > 400 {
			t.Errorf("%s with 2000 bytes: got %d %+v, want a short error that says what is wanted", path, code, f)
		}
	}
	code, body := s.post(t, "/v1/acquire?name=a", `{}`)
	if f := failed(t, body); code != http.StatusBadRequest || f.Details["field"] != "query parameter" {
		t.Errorf("a query with POST: got %d %+v, want 400", code, f)
	}
}

func TestBadRequests(t *testing.T) {
	s := serve(t, untouchable(t))
	for _, tt := range []struct {
		method, path, kind, body string
		status                   int
		field, allow             string
	}{
		{"GET", "/", "", "", 404, "path", ""},
		{"GET", "/v1", "", "", 404, "path", ""},
		{"GET", "/v1/", "", "", 404, "path", ""},
		{"GET", "/v2/lease", "", "", 404, "path", ""},
		{"GET", "/v1/lease/a", "", "", 404, "path", ""},
		{"GET", "/v1/lease/", "", "", 404, "path", ""},
		{"GET", "/v1//lease", "", "", 404, "path", ""},
		{"GET", "/v1/../v1/lease", "", "", 404, "path", ""},
		{"GET", "/V1/lease", "", "", 404, "path", ""},
		{"GET", "/metrics", "", "", 404, "path", ""},
		{"GET", "/debug/pprof/", "", "", 404, "path", ""},
		{"POST", "/v1/nonsense", "application/json", "{}", 404, "path", ""},
		{"GET", "/v1/acquire", "", "", 405, "method", "POST"},
		{"PUT", "/v1/acquire", "application/json", "{}", 405, "method", "POST"},
		{"OPTIONS", "/v1/acquire", "", "", 405, "method", "POST"},
		{"POST", "/v1/lease?name=a", "application/json", "{}", 405, "method", "GET"},
		{"POST", "/v1/lease?name=a", "application/x-www-form-urlencoded", "", 405, "method", "GET"},
		{"DELETE", "/v1/lease?name=a", "", "", 405, "method", "GET"},
		{"POST", "/healthz", "application/json", "", 405, "method", "GET"},
		{"FOO", "/v1/lease?name=a", "", "", 405, "method", "GET"},
		{"POST", "/v1/acquire", "", "{}", 415, "content-type", ""},
		{"POST", "/v1/acquire", "text/plain", "{}", 415, "content-type", ""},
		{"POST", "/v1/acquire", "application/x-www-form-urlencoded", "name=a", 415, "content-type", ""},
		{"POST", "/v1/acquire", "multipart/form-data; boundary=x", "{}", 415, "content-type", ""},
		{"POST", "/v1/acquire", "application/jsonx", "{}", 415, "content-type", ""},
		{"POST", "/v1/acquire", "application/json, text/plain", "{}", 415, "content-type", ""},
		{"GET", "/v1/lease?name=a", "application/json", "{}", 400, "body", ""},
	} {
		r := s.request(t, tt.method, tt.path, tt.body)
		r.Header.Del("Content-Type")
		if tt.kind != "" {
			r.Header.Set("Content-Type", tt.kind)
		}
		resp, body := s.do(t, r)
		if f := failed(t, body); resp.StatusCode != tt.status || f.Code != "INVALID" || f.Details["field"] != tt.field || resp.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s as %s: got %d %+v, want %d for its %s", tt.method, tt.path, tt.kind, resp.StatusCode, f, tt.status, tt.field)
		}
	}
}

// say sends bytes and returns the first answer's status and body.
func (s *server) say(t testing.TB, request string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.100q: %v", request, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHost(t *testing.T) {
	s := serve(t, &cluster{})
	for host, ok := range map[string]bool{
		"localhost": true, "LOCALHOST:7421": true, "127.0.0.1": true, "127.0.0.1:1": true, "127.8.7.6:7421": true, "[::1]": true, "[::1]:7421": true,
		"": false, "example.com": false, "example.com:7421": false, "localhost.example.com": false, "127.0.0.1.example.com": false, "10.0.0.1": false,
		"[::2]:80": false, "0.0.0.0": false, "localhost:80:80": false, "127.1": false, "xlocalhost": false,
	} {
		for _, path := range []string{"/v1/leases", "/healthz", "/nonsense"} {
			code, body := s.say(t, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host))
			if (code != http.StatusForbidden) != ok {
				t.Errorf("%s at %q: got %d %s, want it let in: %v", path, host, code, body, ok)
			}
			if !ok {
				if f := failed(t, body); f.Code != "INVALID" || f.Details["field"] != "host" {
					t.Errorf("%s at %q: got %+v, want INVALID for its host", path, host, f)
				}
			}
		}
	}
	if code, body := s.say(t, "GET http://example.com/v1/leases HTTP/1.1\r\nHost: localhost\r\n\r\n"); code != http.StatusForbidden {
		t.Errorf("another host in the request line: got %d %s, want 403", code, body)
	}
}

// elsewhere is a listener whose address is not on loopback.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7421} }

func TestHostBeyondLoopback(t *testing.T) {
	s := serve(t, &cluster{}, func(cfg *gateway.Config) { cfg.Listener = elsewhere{cfg.Listener} })
	if code, body := s.say(t, "GET /v1/leases HTTP/1.1\r\nHost: coordd.example.com\r\n\r\n"); code != http.StatusOK {
		t.Errorf("got %d %s, want 200: the name of this machine is not known", code, body)
	}
}

func TestWhatIsNoHTTP(t *testing.T) {
	s := serve(t, untouchable(t))
	for request, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 2*gateway.MaxHeader) + "\r\n\r\n": 431,
		"GET /" + strings.Repeat("x", 2*gateway.MaxHeader) + " HTTP/1.1\r\nHost: localhost\r\n\r\n":        431,
		"nonsense\r\n\r\n": 400,
		"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n":                                                                   400,
		"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: x\r\n\r\n":                   501,
		"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n": 400,
		"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                                                    404,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                                                                 403, // it names no host
		"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n":                                                                                 505,
	} {
		if code, body := s.say(t, request); code != want {
			t.Errorf("%.60q: got %d %s, want %d", request, code, body, want)
		}
	}
}
