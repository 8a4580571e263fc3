package warden

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/clock"
)

// alarm sends on c when clock.System has reached the instant that it was set
// to last. It is a timerfd: unlike Go's timers it goes on in suspend.
type alarm struct {
	c  <-chan struct{}
	fd int
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timer that counts suspend: %w", err)
	}
	c := make(chan struct{}, 1)
	go func() {
		timer := os.NewFile(uintptr(fd), "timerfd")
		for b := make([]byte, 8); ; {
			if _, err := timer.Read(b); err != nil {
				return
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return &alarm{c: c, fd: fd}, nil
}

func (a *alarm) set(at clock.Instant) {
	// Zero would disarm it; an instant that is past fires at once.
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at), 1))}
	if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		panic(fmt.Sprintf("warden: set the timer to %d: %v", at, err)) // the wrapper then kills everything
	}
}
