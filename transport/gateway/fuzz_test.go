package gateway_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzPort throws bytes at the port. The gateway stays up.
func FuzzPort(f *testing.F) {
	for _, seed := range []string{
		"", "G", "GET / HTTP/1.1\r\n\r\n", "GET /v1/leases HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"name\":\"a\"}",
		"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"GET /v1/leases HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", "GET /v1/leases HTTP/1.0\r\nHost: localhost\r\n\r\n",
		"GET /readyz HTTP/1.1\r\nHost: [::1\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x00\x05hello",
	} {
		f.Add([]byte(seed))
	}
	s := serve(f, &cluster{})
	f.Fuzz(func(t *testing.T, b []byte) {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(b)
		conn.Close()
		if code, body := s.get(t, "/healthz"); code != http.StatusOK {
			t.Fatalf("afterwards: got %d %s", code, body)
		}
	})
}

// FuzzRequest sends requests. Each is answered with JSON: what the cluster has
// said, or an error that has every field.
func FuzzRequest(f *testing.F) {
	for _, call := range everyCall {
		method, path, _ := strings.Cut(call, " ")
		path, query, _ := strings.Cut(path, "?")
		f.Add(method, path, query, "application/json", []byte(`{"name":"a","ttl_ms":15000,"token":"1","owner":{"label":"b"},"attributes":"eA=="}`))
	}
	f.Add("POST", "/v1/acquire", "", "application/json; charset=utf-8", []byte(`{"name":"\ud83d\udd12"}`))
	f.Add("GET", "/v1/leases", "limit=10&prefix=%2F&after=%ff", "", []byte(nil))
	f.Add("GET", "/readyz", "", "", []byte(nil))
	f.Add("HEAD", "/v1/openapi.json", "", "text/plain", []byte("x"))
	c := refusing(func() error { return nil })
	c.acquire, c.renew = nil, nil // so that some are answered with a message
	s := serve(f, c)
	f.Fuzz(func(t *testing.T, method, path, query, kind string, body []byte) {
		if strings.ContainsAny(method+path, " \r\n\t") || !utf8.ValidString(method+path) || method == "CONNECT" {
			return // it would be another request
		}
		r := httptest.NewRequest(http.MethodGet, "http://"+s.addr, strings.NewReader(string(body))).WithContext(t.Context())
		r.RequestURI, r.Method, r.URL.Path, r.URL.RawQuery = "", method, "/"+strings.TrimPrefix(path, "/"), query
		r.ContentLength = int64(len(body))
		r.Header.Set("Content-Type", kind)
		resp, err := s.client.Do(r)
		if err != nil {
			return // it is none that could be sent
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("the answer breaks off after %q: %v", answer, err)
		}
		switch {
		case resp.Header.Get("Content-Type") == "text/plain; charset=utf-8" && resp.StatusCode == http.StatusBadRequest: // no HTTP, says net/http
		case method == http.MethodHead:
		case resp.StatusCode != http.StatusOK:
			failed(t, string(answer))
		default:
			for lines := bufio.NewScanner(strings.NewReader(string(answer))); lines.Scan() && path != "/v1/openapi.json"; {
				if !json.Valid(lines.Bytes()) {
					t.Errorf("got the line %q, want JSON", lines.Bytes())
				}
			}
		}
		if strings.Contains(s.log.String(), "panic") {
			t.Fatalf("a panic: %s", s.log)
		}
	})
}
