package leases

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestErrors(t *testing.T) {
	billing := Owner{Label: "billing", Host: "host7"}
	one, other := ID{0: 1}, ID{0: 2}
	for _, c := range []struct {
		err  error
		is   error
		want string
	}{
		{&HeldError{Name: "job"}, ErrHeld, `lease "job" is held by somebody`},
		{
			&HeldError{Name: "job", By: billing, Since: noon.In(time.FixedZone("far", 3600)), AtMost: 4*time.Second + 1, Waiters: 3}, ErrHeld,
			`lease "job" is held by billing on host7 since 2026-03-01T12:00:00Z, for at most 4s more unless renewed; 3 waiting`,
		},
		{&NotHeldError{Name: "job"}, ErrNotHeld, `lease "job" is not held`},
		{&NotHeldError{Name: "job", Token: 7}, ErrNotHeld, `lease "job" is not held under token 7`},
		{&NotHeldError{Name: "job", Token: 7, Why: WhyReleased}, ErrNotHeld, `lease "job" is not held under token 7: it was released`},
		{&NotHeldError{Name: "job", Token: 7, Why: WhyExpired, Next: 9}, ErrNotHeld, `lease "job" is not held under token 7: it has expired; token 9 came next`},
		{&NotHeldError{Name: "job", Why: WhyWithdrawn}, ErrNotHeld, `lease "job" is not held: it was withdrawn`},
		{&NotHeldError{Name: "job", Token: 7, Why: WhyBroken}, ErrNotHeld, `lease "job" is not held under token 7: an operator has broken it`},
		{&NotHeldError{Name: "job", Token: 7, Why: WhyTransferred, Next: 9}, ErrNotHeld, `lease "job" is not held under token 7: it was transferred; token 9 came next`},
		{&NotLeaderError{Node: "n1"}, ErrNotLeader, "node n1 is not the leader and knows of none yet"},
		{&NotLeaderError{Node: "n1", Leader: "10.0.0.2:7420"}, ErrNotLeader, "node n1 is not the leader; ask 10.0.0.2:7420"},
		{&UnavailableError{Reason: "the leader is starting"}, ErrUnavailable, "unavailable: the leader is starting"},
		{&WrongClusterError{Want: one, Got: other}, ErrWrongCluster, "wrong cluster: the node belongs to 02000000000000000000000000000000, not to 01000000000000000000000000000000"},
		{&WrongClusterError{Want: one}, ErrWrongCluster, "wrong cluster: the node belongs to none, not to 01000000000000000000000000000000"},
		{&InvalidError{Field: "ttl", Value: "1ms", Bounds: "from 1s to 5m0s"}, ErrInvalid, `invalid ttl "1ms": want from 1s to 5m0s`},
		{&ExhaustedError{What: "claims in flight", Bound: 4096, Flag: "--max-claims"}, ErrExhausted, "exhausted: claims in flight: the bound is 4096 (--max-claims)"},
		{&ExhaustedError{What: "fencing tokens of this epoch", Bound: 1 << 32}, ErrExhausted, "exhausted: fencing tokens of this epoch: the bound is 4294967296"},
		{
			&MissedError{From: Position{1, 20}, Oldest: Position{1, 100}, Newest: Position{2, 10100}}, ErrMissed,
			"the changes since 1/20 cannot be told: this node remembers those since 1/100, it is at 2/10100; list the leases anew, and watch from there",
		},
		{
			&MissedError{From: Position{1, 200}, Oldest: Position{1, 100}, Newest: Position{1025, 151}}, ErrMissed,
			"the changes since 1/200 cannot be told: this node's history never came through there, it is at 1025/151; list the leases anew, and watch from there",
		},
		{
			&GraceError{Epoch: 4, FreshIn: 9*time.Second + 1}, ErrGrace,
			"the arbiter has taken over in epoch 4: holders reclaim their leases, fresh grants begin within 9s",
		},
		{&UnreadableError{What: "log entry", Version: 2, Reads: 1, Since: "0.4.0"}, ErrUnreadable, "log entry of version 2: this release reads up to 1; release 0.4.0 or later can read it"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%T: got %q, want %q", c.err, got, c.want)
		}
		wrapped := fmt.Errorf("acquire: %w", c.err)
		for _, sentinel := range []error{
			ErrHeld, ErrNotHeld, ErrLost, ErrExpired, ErrReleased, ErrNotLeader, ErrNoQuorum, ErrUnavailable, ErrUnknownOutcome,
			ErrWrongCluster, ErrInvalid, ErrExhausted, ErrGrace, ErrMissed, ErrClosed, ErrUnreadable, ErrCorrupt,
		} {
			if got, want := errors.Is(wrapped, sentinel), sentinel == c.is; got != want {
				t.Errorf("%T is %v: got %v, want %v", c.err, sentinel, got, want)
			}
		}
	}
}

func TestWhy(t *testing.T) {
	for why, want := range map[Why]string{
		WhyUnknown: "unknown", WhyReleased: "released", WhyExpired: "expired", WhyWithdrawn: "withdrawn", WhyBroken: "broken",
		WhyTransferred: "transferred", 99: "unknown",
	} {
		text, err := why.MarshalText()
		if why.String() != want || string(text) != want || err != nil {
			t.Errorf("%d: got %v, %s, %v, want %s", uint8(why), why, text, err, want)
		}
	}
	// These numbers are in snapshots.
	for n, why := range []Why{WhyUnknown, WhyReleased, WhyExpired, WhyWithdrawn, WhyBroken, WhyTransferred} {
		if int(why) != n {
			t.Errorf("%v: got number %d, want %d", why, why, n)
		}
	}
}
