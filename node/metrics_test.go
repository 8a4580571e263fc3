package node

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coordd/coordd/clock"
)

// docs/metrics.md names every metric that there is, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	m := newMetrics(clock.System(), func() Status { return Status{} })
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	close(descs)
	name := regexp.MustCompile(`coordd_[a-z_]+`)
	var made []string
	for d := range descs {
		made = append(made, name.FindString(d.String()))
	}
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	said := name.FindAllString(string(text), -1)
	for _, metric := range made {
		if !slices.Contains(said, metric) {
			t.Errorf("docs/metrics.md does not name %s", metric)
		}
	}
	for _, metric := range said {
		if !slices.Contains(made, metric) {
			t.Errorf("docs/metrics.md names %s, which is not there", metric)
		}
	}
	if len(made) < 15 {
		t.Errorf("got %d metrics, want all", len(made))
	}
}
