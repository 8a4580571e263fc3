package gateway_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway/gatewaytest"
)

const manual = "../../docs/http.md"

func TestManual(t *testing.T) {
	s := serveToy(t, newToy())
	gatewaytest.Manual(t, manual, s.url)
}

// There is no takeover while the manual's commands run: what it shows of a grace
// is compared here.
func TestManualOfAGrace(t *testing.T) {
	content, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	block := func(like string) string {
		t.Helper()
		found := regexp.MustCompile("(?m)^```json\n("+like+".*)\n```$").FindAllSubmatch(content, -1)
		if len(found) != 1 {
			t.Fatalf("the manual has %d blocks like %s, want one", len(found), like)
		}
		return string(found[0][1])
	}
	const id, token = "0d6e1a7bf3c94f52a8c0de5b7a91c3e4", 1<<32 + 1
	var got proto.Message
	if status, answer := serve(t, heard(&got)).post(t, "/v1/reclaim", block(`{"name".*"epoch"`)); status != http.StatusOK {
		t.Errorf("the reclaim: got %d %s, want 200", status, answer)
	}
	want := &coorddv1.ReclaimRequest{
		Name: "nightly", Session: id, Token: token, Epoch: 2, TtlMs: 15000, Owner: &coorddv1.Owner{Label: "docs", Host: "host7"}, AcquiredAtUnixMs: 1767225600000,
	}
	if !proto.Equal(got, want) {
		t.Errorf("the cluster was asked\n%v, want\n%v", got, want)
	}
	grace := &leases.GraceError{Epoch: 2, FreshIn: leases.Stretch(leases.DefaultTTL)}
	status, answer := serve(t, refusing(func() error { return transport.ToGRPC(grace) })).post(t, "/v1/renew", "{}")
	if says := block(`{"error":{"code":"GRACE"`); status != http.StatusServiceUnavailable || strings.TrimSpace(answer) != says {
		t.Errorf("a renewal in a grace: got %d\n%s, and the manual says\n%s", status, answer, says)
	}
}
