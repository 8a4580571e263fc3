package gateway_test

import (
	"testing"

	"github.com/coordd/coordd/transport/gateway/gatewaytest"
)

func TestManual(t *testing.T) {
	s := serveToy(t, newToy())
	gatewaytest.Manual(t, "../../docs/http.md", s.url)
}
