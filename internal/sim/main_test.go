package sim

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(800) // a run is short, and makes much garbage
	goleak.VerifyTestMain(m)
}
