package clock

import "golang.org/x/sys/unix"

// CLOCK_MONOTONIC counts sleep on macOS; Go's own monotonic clock does not.
const bootClock = unix.CLOCK_MONOTONIC
