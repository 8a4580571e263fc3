package gateway_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway"
)

// heard is a cluster that notes what it is asked, and gives the answers.
func heard(got *proto.Message, answers ...proto.Message) *cluster {
	find := func(into proto.Message) {
		for _, a := range answers {
			if a.ProtoReflect().Descriptor() == into.ProtoReflect().Descriptor() {
				proto.Merge(into, a)
			}
		}
	}
	return &cluster{
		acquire:  hear[coorddv1.AcquireRequest, coorddv1.AcquireResponse](got, find),
		withdraw: hear[coorddv1.WithdrawRequest, coorddv1.WithdrawResponse](got, find),
		renew:    hear[coorddv1.RenewRequest, coorddv1.RenewResponse](got, find),
		reclaim:  hear[coorddv1.ReclaimRequest, coorddv1.ReclaimResponse](got, find),
		release:  hear[coorddv1.ReleaseRequest, coorddv1.ReleaseResponse](got, find),
		transfer: hear[coorddv1.TransferRequest, coorddv1.TransferResponse](got, find),
		get:      hear[coorddv1.GetRequest, coorddv1.GetResponse](got, find),
		list:     hear[coorddv1.ListRequest, coorddv1.ListResponse](got, find),
		queue:    hear[coorddv1.QueueRequest, coorddv1.QueueResponse](got, find),
		status:   hear[coorddv1.StatusRequest, coorddv1.StatusResponse](got, find),
		watch: func(r *coorddv1.WatchRequest, stream watchStream) error {
			*got = r
			m := new(coorddv1.WatchResponse)
			find(m)
			return stream.Send(m)
		},
	}
}

func hear[Q, R any, PQ interface {
	*Q
	proto.Message
}, PR interface {
	*R
	proto.Message
}](got *proto.Message, find func(proto.Message)) func(context.Context, *Q) (*R, error) {
	return func(_ context.Context, q *Q) (*R, error) {
		*got = PQ(q)
		r := new(R)
		find(PR(r))
		return r, nil
	}
}

const (
	session = "0d6e1a7bf3c94f52a8c0de5b7a91c3e4"
	attempt = "9b1f4c02d7e8456fa3b6c8d90e1f2a3b"
)

func TestEveryCall(t *testing.T) {
	owner := &coorddv1.Owner{Label: "billing", Site: "aws", Host: "host7", Pid: 12}
	const ownerJSON = `{"label":"billing","site":"aws","host":"host7","pid":12}`
	// A token that no double holds: 2^53 would come out as another number.
	const token, tokenJSON = uint64(1<<53 - 1), `"9007199254740991"`
	for _, tt := range []struct {
		name, method, path, body string
		want, answer             proto.Message
		answerJSON               string
	}{
		{
			name: "acquire", method: "POST", path: "/v1/acquire",
			body: `{"name": "a/b:c d\u00fc\"", "session": "` + session + `", "attempt": "` + attempt + `", "ttl_ms": 15000, "wait_ms": 4294967295, "owner": ` + ownerJSON + `, "attributes": "AAH/"}`,
			want: &coorddv1.AcquireRequest{Name: `a/b:c dü"`, Session: session, Attempt: attempt, TtlMs: 15000, WaitMs: 1<<32 - 1, Owner: owner, Attributes: []byte{0, 1, 255}},
			answer: &coorddv1.AcquireResponse{
				Name: `a/b:c dü"`, Session: session, Attempt: attempt, Token: token, TtlMs: 15000, AcquiredAtUnixMs: 1767225600000, Waited: true,
			},
			answerJSON: `{"name":"a/b:c dü\"","session":"` + session + `","attempt":"` + attempt + `","token":` + tokenJSON + `,"ttl_ms":15000,"acquired_at_unix_ms":"1767225600000","waited":true}`,
		},
		{
			name: "acquire, the least", method: "POST", path: "/v1/acquire", body: `{"name":"a","ttl_ms":1000}`,
			want:       &coorddv1.AcquireRequest{Name: "a", TtlMs: 1000},
			answer:     &coorddv1.AcquireResponse{Name: "a", Token: 1},
			answerJSON: `{"name":"a","session":"","attempt":"","token":"1","ttl_ms":0,"acquired_at_unix_ms":"0","waited":false}`,
		},
		{
			name: "acquire, JSON's names", method: "POST", path: "/v1/acquire", body: `{"name":"a","ttlMs":1000,"waitMs":"7"}`,
			want:       &coorddv1.AcquireRequest{Name: "a", TtlMs: 1000, WaitMs: 7},
			answer:     &coorddv1.AcquireResponse{},
			answerJSON: `{"name":"","session":"","attempt":"","token":"0","ttl_ms":0,"acquired_at_unix_ms":"0","waited":false}`,
		},
		{
			name: "withdraw", method: "POST", path: "/v1/withdraw", body: `{"name":"a","session":"` + session + `","attempt":"` + attempt + `"}`,
			want: &coorddv1.WithdrawRequest{Name: "a", Session: session, Attempt: attempt}, answer: &coorddv1.WithdrawResponse{}, answerJSON: `{}`,
		},
		{
			name: "renew", method: "POST", path: "/v1/renew", body: `{"name":"a","session":"` + session + `","token":` + tokenJSON + `}`,
			want: &coorddv1.RenewRequest{Name: "a", Session: session, Token: token}, answer: &coorddv1.RenewResponse{}, answerJSON: `{}`,
		},
		{
			name: "renew, the token as a number", method: "POST", path: "/v1/renew", body: `{"name":"a","session":"` + session + `","token":9007199254740991}`,
			want: &coorddv1.RenewRequest{Name: "a", Session: session, Token: token}, answer: &coorddv1.RenewResponse{}, answerJSON: `{}`,
		},
		{
			name: "reclaim", method: "POST", path: "/v1/reclaim",
			body: `{"name":"a","session":"` + session + `","token":` + tokenJSON + `,"epoch":2,"ttl_ms":15000,"owner":` + ownerJSON + `,"attributes":"AAH/","acquired_at_unix_ms":"1767225600000"}`,
			want: &coorddv1.ReclaimRequest{
				Name: "a", Session: session, Token: token, Epoch: 2, TtlMs: 15000, Owner: owner, Attributes: []byte{0, 1, 255}, AcquiredAtUnixMs: 1767225600000,
			},
			answer: &coorddv1.ReclaimResponse{}, answerJSON: `{}`,
		},
		{
			name: "release", method: "POST", path: "/v1/release", body: `{"name":"a","session":"` + session + `","token":` + tokenJSON + `}`,
			want: &coorddv1.ReleaseRequest{Name: "a", Session: session, Token: token}, answer: &coorddv1.ReleaseResponse{}, answerJSON: `{}`,
		},
		{
			name: "transfer", method: "POST", path: "/v1/transfer", body: `{"name":"a","session":"` + session + `","token":` + tokenJSON + `,"to":"` + attempt + `"}`,
			want:   &coorddv1.TransferRequest{Name: "a", Session: session, Token: token, To: attempt},
			answer: &coorddv1.TransferResponse{}, answerJSON: `{"transferred":false}`,
		},
		{
			name: "get", method: "GET", path: "/v1/lease?name=a%2Fb%3Ac+d%C3%BC%26",
			want:       &coorddv1.GetRequest{Name: "a/b:c dü&"},
			answer:     &coorddv1.GetResponse{Lease: &coorddv1.LeaseStatus{Name: "a", Held: true, Token: token, Owner: owner, TtlMs: 1, Attributes: []byte("x"), AtMostMs: 2, Waiters: 3}},
			answerJSON: `{"lease":{"name":"a","held":true,"token":` + tokenJSON + `,"owner":` + ownerJSON + `,"acquired_at_unix_ms":"0","ttl_ms":1,"at_most_ms":2,"waiters":3,"attributes":"eA==","last":null,"broken":false}}`,
		},
		{
			name: "get, a free one", method: "GET", path: "/v1/lease?name=a",
			want:       &coorddv1.GetRequest{Name: "a"},
			answer:     &coorddv1.GetResponse{Lease: &coorddv1.LeaseStatus{Name: "a", Last: &coorddv1.NotHeld{Name: "a", Token: 3, Why: coorddv1.Why_WHY_EXPIRED}}},
			answerJSON: `{"lease":{"name":"a","held":false,"token":"0","owner":null,"acquired_at_unix_ms":"0","ttl_ms":0,"at_most_ms":0,"waiters":0,"attributes":"","last":{"name":"a","token":"3","why":"WHY_EXPIRED","next_token":"0"},"broken":false}}`,
		},
		{
			name: "list", method: "GET", path: "/v1/leases?prefix=a%2F&after=a%2Fb&limit=10",
			want:       &coorddv1.ListRequest{Prefix: "a/", After: "a/b", Limit: 10},
			answer:     &coorddv1.ListResponse{Epoch: 1, Revision: 1 << 60, Next: "a/z"},
			answerJSON: `{"epoch":1,"revision":"1152921504606846976","leases":[],"next":"a/z"}`,
		},
		{
			name: "list, all", method: "GET", path: "/v1/leases", want: &coorddv1.ListRequest{},
			answer: &coorddv1.ListResponse{}, answerJSON: `{"epoch":0,"revision":"0","leases":[],"next":""}`,
		},
		{
			name: "queue", method: "GET", path: "/v1/queue?name=a",
			want:       &coorddv1.QueueRequest{Name: "a"},
			answer:     &coorddv1.QueueResponse{Waiters: []*coorddv1.Waiter{{Position: 1, Attempt: attempt, Owner: owner, WaitingMs: 1234}}},
			answerJSON: `{"waiters":[{"position":1,"attempt":"` + attempt + `","owner":` + ownerJSON + `,"waiting_ms":"1234"}]}`,
		},
		{
			name: "status", method: "GET", path: "/v1/status", want: &coorddv1.StatusRequest{},
			answer: &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Node: "n1", Serving: true}},
			answerJSON: `{"cluster":{"cluster":"","node":"n1","version":"","leader":"","leader_address":"","serving":true,"state":"","term":"0","epoch":0,"revision":"0",` +
				`"leases":"0","waiters":"0","election_timeout_ms":0,"members":[],"authority":null},"lease":null}`,
		},
		{
			name: "status with an arbiter", method: "GET", path: "/v1/status", want: &coorddv1.StatusRequest{},
			answer: &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Authority: &coorddv1.Authority{
				Mode: "fallback", Epoch: 2, RaftEpoch: 1, Takers: []string{"n1"}, GraceLeftMs: 7, Rho: 0.01,
				History: []*coorddv1.AuthorityChange{{Epoch: 2, Mode: "fallback", Node: "n1", Why: "takeover", AtUnixMs: 1767225600000}},
			}}},
			answerJSON: `{"cluster":{"cluster":"","node":"","version":"","leader":"","leader_address":"","serving":false,"state":"","term":"0","epoch":0,"revision":"0",` +
				`"leases":"0","waiters":"0","election_timeout_ms":0,"members":[],"authority":{"mode":"fallback","epoch":2,"raft_epoch":1,"group":"","owner":"","owner_term":"0","sequence":"0",` +
				`"takers":["n1"],"ttl_ceiling_ms":0,"grace_done":false,"grace_left_ms":7,"held":false,"lease_ms":0,"rho":0.01,"window_left_ms":0,"window_by":"","arbiter":null,"shards":null,` +
				`"history":[{"epoch":2,"mode":"fallback","node":"n1","why":"takeover","at_unix_ms":"1767225600000"}]}},"lease":null}`,
		},
		{
			name: "status of a lease", method: "GET", path: "/v1/status?name=a", want: &coorddv1.StatusRequest{Name: "a"},
			answer: &coorddv1.StatusResponse{}, answerJSON: `{"cluster":null,"lease":null}`,
		},
		{
			name: "watch", method: "GET", path: "/v1/watch?prefix=a&epoch=1&revision=18446744073709551615",
			want: &coorddv1.WatchRequest{Prefix: "a", Epoch: 1, Revision: 1<<64 - 1},
			answer: &coorddv1.WatchResponse{Epoch: 1, Revision: 2, Changes: []*coorddv1.Change{
				{Revision: 2, Kind: coorddv1.ChangeKind_CHANGE_KIND_GRANTED, Name: "a", Token: token, Owner: owner, TtlMs: 1000, Attributes: []byte("x")},
			}},
			answerJSON: `{"result":{"epoch":1,"revision":"2","changes":[{"revision":"2","kind":"CHANGE_KIND_GRANTED","name":"a","token":` + tokenJSON +
				`,"next_token":"0","free":false,"owner":` + ownerJSON + `,"ttl_ms":1000,"attributes":"eA==","acquired_at_unix_ms":"0"}]}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got proto.Message
			s := serve(t, heard(&got, tt.answer))
			resp, body := s.do(t, s.request(t, tt.method, tt.path, tt.body))
			if resp.StatusCode != http.StatusOK || body != tt.answerJSON+"\n" {
				t.Errorf("got %d\n%q, want 200\n%q", resp.StatusCode, body, tt.answerJSON+"\n")
			}
			if !proto.Equal(got, tt.want) {
				t.Errorf("the cluster was asked\n%v, want\n%v", got, tt.want)
			}
			kind := "application/json"
			if tt.name == "watch" {
				kind = "application/x-ndjson"
			}
			for name, want := range map[string]string{"Content-Type": kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
				if got := resp.Header.Values(name); !slices.Equal(got, []string{want}) {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			for name := range resp.Header {
				if strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "Access-Control-") || name == "Content-Encoding" {
					t.Errorf("the answer has the header %s: %q", name, resp.Header[name])
				}
			}
		})
	}
}

// What a request says beside method, path and body changes nothing.
func TestHeadersSayNothing(t *testing.T) {
	var got proto.Message
	s := serve(t, heard(&got))
	r := s.request(t, "POST", "/v1/acquire", `{"name":"a"}`)
	for name, value := range map[string]string{
		"Grpc-Timeout": "nonsense", "Grpc-Metadata-X": "y", "X-HTTP-Method-Override": "GET", "TE": "trailers", "Accept-Encoding": "gzip",
		"Accept": "text/html", "Authorization": "Bearer \x80", "X-Forwarded-Host": "example.com", "Content-Type": `application/json; charset=utf-8`,
	} {
		r.Header.Set(name, value)
	}
	resp, body := s.do(t, r)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(body, "{") || len(resp.Trailer) != 0 {
		t.Errorf("got %d %q with the trailer %v, want 200 without any", resp.StatusCode, body, resp.Trailer)
	}
	if want := (&coorddv1.AcquireRequest{Name: "a"}); !proto.Equal(got, want) {
		t.Errorf("the cluster was asked %v, want %v", got, want)
	}
}

// The OpenAPI file is served as it is, names every path that is not a page, and
// describes what is answered.
func TestOpenAPI(t *testing.T) {
	s := serve(t, &cluster{})
	code, body := s.get(t, "/v1/openapi.json")
	if code != http.StatusOK || strings.TrimSpace(body) != strings.TrimSpace(string(gateway.OpenAPI)) {
		t.Errorf("got %d and %d bytes, want the file", code, len(body))
	}
	var doc struct {
		Swagger     string
		Paths       map[string]map[string]any
		Definitions map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	calls := map[string]string{
		"/v1/acquire": "post", "/v1/withdraw": "post", "/v1/renew": "post", "/v1/reclaim": "post", "/v1/release": "post", "/v1/transfer": "post",
		"/v1/lease": "get", "/v1/leases": "get", "/v1/queue": "get", "/v1/watch": "get", "/v1/status": "get",
	}
	if len(doc.Paths) != len(calls) || doc.Swagger != "2.0" {
		t.Errorf("got the paths %v of OpenAPI %s, want %v", slices.Sorted(maps.Keys(doc.Paths)), doc.Swagger, calls)
	}
	for path, method := range calls {
		if doc.Paths[path][method] == nil || len(doc.Paths[path]) != 1 {
			t.Errorf("%s: got %v, want %s alone", path, slices.Collect(maps.Keys(doc.Paths[path])), method)
		}
	}
	if doc.Definitions["AcquireResponse"].Properties["acquired_at_unix_ms"] == nil {
		t.Errorf("got the fields %v of an answer, want them named as in the answers", doc.Definitions["AcquireResponse"])
	}
}
