//go:build unix && !linux

package warden

import "github.com/coordd/coordd/clock"

// alarm sends on c when clock.System has reached the instant that it was set
// to last, in suspend up to 500 ms after the resume.
type alarm struct {
	c     chan struct{}
	timer *clock.Timer
}

func newAlarm() (*alarm, error) { return &alarm{c: make(chan struct{}, 1)}, nil }

func (a *alarm) set(at clock.Instant) {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.timer = clock.AfterFunc(clock.System(), at, func() {
		select {
		case a.c <- struct{}{}:
		default:
		}
	})
}
