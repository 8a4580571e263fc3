package main

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	failed := term{failed: true, ran: time.Second}
	pause := minBackoff
	for i, c := range []struct {
		term term
		want time.Duration
	}{
		{term{}, time.Second},
		{failed, time.Second},
		{failed, 2 * time.Second},
		{failed, 4 * time.Second},
		{failed, 8 * time.Second},
		{failed, 16 * time.Second},
		{failed, 30 * time.Second},
		{failed, 30 * time.Second},
		{term{failed: true, ran: maxBackoff}, time.Second},
		{failed, time.Second},
		{failed, 2 * time.Second},
		{term{ran: time.Second}, time.Second}, // it has ended well, or its lease was lost
		{failed, time.Second},
	} {
		var got time.Duration
		if got, pause = backoff(pause, c.term); got != c.want {
			t.Errorf("after term %d: got a pause of %v, want %v", i, got, c.want)
		}
	}
}
