//go:build linux || darwin

package clock

import "golang.org/x/sys/unix"

type system struct{}

// System is the clock of this machine: time since boot, suspend included. A
// reading costs about 0.4 µs.
func System() Clock { return system{} }

func (system) Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(bootClock, &ts); err != nil {
		panic("clock: this kernel has no clock that counts suspend: " + err.Error())
	}
	return Instant(ts.Nano())
}
