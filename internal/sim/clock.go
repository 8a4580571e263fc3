package sim

import (
	"math/rand/v2"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// skew is the clock of one process: it shows any time, and runs at nearly the true
// rate. It goes on while the process stands still.
type skew struct {
	origin clock.Instant
	ppb    int64 // how much faster than true time, in parts of 10⁹
}

// newSkew draws a clock. Any two differ in rate by at most ρ; many are at its ends.
func newSkew(rng *rand.Rand) skew {
	const rho = leases.Rho * 1_000_000_000
	const most = int64(rho / 2 * 99 / 100)
	k := skew{origin: clock.Instant(time.Hour) + clock.Instant(rng.Int64N(int64(1000*time.Hour)))}
	switch rng.IntN(4) {
	case 0:
		k.ppb = most
	case 1:
		k.ppb = -most
	default:
		k.ppb = rng.Int64N(2*most) - most
	}
	return k
}

// at is what the clock shows at t.
func (k skew) at(t Time) clock.Instant {
	return k.origin.Add(t + time.Duration(int64(t)*k.ppb/1_000_000_000)) // for half an hour
}

// when is the first instant of true time at which the clock shows at least i.
func (k skew) when(i clock.Instant) Time {
	t := Time(float64(i.Sub(k.origin)) / (1 + float64(k.ppb)/1e9))
	for t = max(t-2*time.Microsecond, 0); k.at(t) < i; t += 100 {
	}
	return t
}
