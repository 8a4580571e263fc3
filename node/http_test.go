package node_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coordd/coordd/node"
)

// get returns the status and the body of a page, of which there must be one.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Any member answers over HTTP: one that does not serve passes calls on. Its
// metrics are its own, and leave the registry with it.
func TestHTTP(t *testing.T) {
	configs := site(t)
	registries := make([]*prometheus.Registry, len(configs))
	nodes := make([]*node.Node, len(configs))
	for i, c := range configs {
		registries[i] = prometheus.NewRegistry()
		c.HTTP, c.Metrics = "127.0.0.1:0", registries[i]
		nodes[i] = start(t, c)
	}
	allVote(t, nodes...)
	c := dial(t, addressesOf(nodes)...)
	acquire(t, c, "job")
	for _, n := range nodes {
		url := "http://" + n.HTTPAddress()
		eventually(t, n.Status().Node+" is ready", func() bool { code, _ := get(t, url+"/readyz"); return code == http.StatusOK })
		eventually(t, "any member tells of the lease", func() bool {
			code, body := get(t, url+"/v1/lease?name=job")
			return code == http.StatusOK && strings.Contains(body, "WHY_RELEASED")
		})
		eventually(t, n.Status().Node+" has applied all", func() bool { return n.Status().Revision >= 3 })
		code, body := get(t, url+"/metrics")
		granted := "coordd_grants_total 0"
		if n.Status().Serving {
			granted = "coordd_grants_total 1"
		}
		for _, want := range []string{granted, "coordd_voters 3", "coordd_apply_seconds_count", "coordd_leases 0"} {
			if code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s: the metrics have no %q:\n%d %s", n.Status().Node, want, code, body)
			}
		}
	}
	for i, n := range nodes {
		stop(t, n)
		if families, err := registries[i].Gather(); err != nil || len(families) > 0 {
			t.Errorf("after Close the registry has %d metrics, %v, want none", len(families), err)
		}
	}
}

// What listens for HTTP beyond loopback asks nobody who they are.
func TestHTTPBeyondLoopbackIsRefused(t *testing.T) {
	c := site(t)[0]
	c.HTTP = "0.0.0.0:0"
	if _, err := node.New(c); err == nil || !strings.Contains(err.Error(), "http") || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v, want a refusal that says why", err)
	}
	c.HTTP = "nonsense"
	if _, err := node.New(c); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("got %v, want a refusal that says what is wanted", err)
	}
}
