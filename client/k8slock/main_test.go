package k8slock

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(asProcess); role != "" {
		roles[role](os.Args[1:])
	}
	goleak.VerifyTestMain(m)
}
