package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Over the true service: what it refuses is named as a client has written it.
func TestValuesOutOfBounds(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	long := strings.Repeat("n", leases.MaxName+1)
	for _, tt := range []struct{ path, body, field string }{
		{"/v1/acquire", `{}`, "name"},
		{"/v1/acquire", `{"name":""}`, "name"},
		{"/v1/acquire", `{"name":null}`, "name"},
		{"/v1/acquire", `{"name":"@a"}`, "name"},
		{"/v1/acquire", `{"name":"a\nb"}`, "name"},
		{"/v1/acquire", `{"name":"a\u0000"}`, "name"},
		{"/v1/acquire", `{"name":"` + long + `"}`, "name"},
		{"/v1/acquire", `{"name":"a","ttl_ms":1}`, "ttl_ms"},
		{"/v1/acquire", `{"name":"a","ttl_ms":999}`, "ttl_ms"},
		{"/v1/acquire", `{"name":"a","ttl_ms":300001}`, "ttl_ms"},
		{"/v1/acquire", `{"name":"a","ttl_ms":1000,"session":"x"}`, "session"},
		{"/v1/acquire", `{"name":"a","ttl_ms":1000,"attempt":"` + strings.Repeat("0", 32) + `"}`, "attempt"},
		{"/v1/acquire", `{"name":"a","ttl_ms":1000,"attempt":"` + session + `"}`, "session"},
		{"/v1/acquire", `{"name":"a","ttl_ms":1000,"owner":{"label":"` + strings.Repeat("l", leases.MaxLabel+1) + `"}}`, "owner.label"},
		{"/v1/acquire", `{"name":"a","ttl_ms":1000,"attributes":"` + strings.Repeat("AAAA", 171) + `"}`, "attributes"},
		{"/v1/renew", `{"name":"a","session":"` + session + `"}`, "token"},
		{"/v1/renew", `{"name":"a","session":"` + session + `","token":"9007199254740992"}`, "token"},
		{"/v1/renew", `{"name":"a","token":"1"}`, "session"},
		{"/v1/reclaim", `{"name":"a","session":"` + session + `","token":"1","ttl_ms":1000}`, "epoch"},
		{"/v1/reclaim", `{"name":"a","session":"` + session + `","token":"1","epoch":2}`, "ttl_ms"},
		{"/v1/reclaim", `{"name":"a","session":"` + session + `","token":"1","epoch":2,"ttl_ms":1000,"acquired_at_unix_ms":"-1"}`, "acquired_at_unix_ms"},
		{"/v1/reclaim", `{"name":"a","session":"` + session + `","epoch":2,"ttl_ms":1000}`, "token"},
		{"/v1/release", `{"session":"` + session + `","token":"1"}`, "name"},
		{"/v1/transfer", `{"name":"a","session":"` + session + `","token":"1"}`, "to"},
		{"/v1/withdraw", `{"name":"a","session":"` + session + `"}`, "attempt"},
		{"/v1/lease", ``, "name"},
		{"/v1/lease?name=%40a", ``, "name"},
		{"/v1/lease?name=" + long, ``, "name"},
		{"/v1/leases?limit=1001", ``, "limit"},
		{"/v1/leases?prefix=" + long, ``, "prefix"},
		{"/v1/queue", ``, "name"},
		{"/v1/watch?revision=1", ``, "epoch"},
		{"/v1/status?name=%0A", ``, "name"},
	} {
		method := http.MethodGet
		if tt.body != "" {
			method = http.MethodPost
		}
		resp, body := s.do(t, s.request(t, method, tt.path, tt.body))
		f := failed(t, body)
		if resp.StatusCode != http.StatusBadRequest || f.Code != "INVALID" || f.Details["field"] != tt.field || f.Details["bounds"] == "" {
			t.Errorf("%s %.100s: got %d %+v, want 400 INVALID for %s", tt.path, tt.body, resp.StatusCode, f, tt.field)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.table.Revision(); n != 1 { // its birth
		t.Errorf("got %d ops, want none", n-1)
	}
}

// Any name that leases permit comes through, in bodies and in queries.
func TestNames(t *testing.T) {
	s := serveToy(t, newToy())
	for i, name := range []string{"a", "a/b", "/", "//a//", "..", "a:b", "a b", "100%", "%2F", "a&b=c", "a+b", "a?b#c", `"\`, "<a>", "dü", "日本", "🔒", "a;b", "{a}", strings.Repeat("ü", 256)} {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		code, body := s.post(t, "/v1/acquire", fmt.Sprintf(`{"name":%s,"ttl_ms":1000}`, quoted))
		var got struct{ Name, Token string }
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK || got.Name != name || got.Token != tokens.New(1, uint32(i+1)).String() {
			t.Errorf("acquire %q: got %d %s", name, code, body)
		}
		r := s.request(t, "GET", "/v1/lease", "")
		q := r.URL.Query()
		q.Set("name", name)
		r.URL.RawQuery = q.Encode()
		_, body = s.do(t, r)
		var state struct{ Lease struct{ Name, Token string } }
		if err := json.Unmarshal([]byte(body), &state); err != nil || state.Lease.Name != name || state.Lease.Token != got.Token {
			t.Errorf("get %q: got %s", name, body)
		}
	}
}

// A waiter goes with its connection; a lease that comes too late for it is
// withdrawn where the node has drawn the attempt.
func TestHangUpOfAWaiter(t *testing.T) {
	b := newToy()
	s := serveToy(t, b)
	_, held := b.holder(t)
	for range 5 {
		conn := s.raw(t, "POST", "/v1/acquire", `{"name":"nightly","ttl_ms":1000,"wait_ms":4294967295}`)
		b.await(t, "it waits", func() bool { return len(b.waiting) == 1 })
		conn.Close()
		b.await(t, "nobody waits", func() bool { return len(b.waiting) == 0 })
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l, ok := b.table.Get("nightly"); !ok || l.Token != held.Token || b.table.Counter() != 1 {
		t.Errorf("got %v and %d grants, want the same holder", l, b.table.Counter())
	}
}
