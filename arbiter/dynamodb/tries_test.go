package dynamodb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
)

// inBubble runs a test in virtual time against what do answers.
func inBubble(t *testing.T, do func(leg) (*http.Response, error), f func(*testing.T, *Store, *network, clock.Clock)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewRuntime()
		n := &network{}
		n.on(do)
		f(t, openFake(t, n, Config{Clock: c}), n, c)
	})
}

// What each answer says about a write, and whether it is tried again.
func TestAnswers(t *testing.T) {
	exception := func(status int, name string) func(leg) (*http.Response, error) {
		return func(l leg) (*http.Response, error) { return l.exception(status, name) }
	}
	plain := func(status int, body string) func(leg) (*http.Response, error) {
		return func(l leg) (*http.Response, error) { return l.answer(status, body) }
	}
	for _, tt := range []struct {
		name  string
		do    func(leg) (*http.Response, error)
		want  error
		tries int
	}{
		{"success", plain(200, `{}`), nil, 1},

		{"throughput", exception(400, "ProvisionedThroughputExceededException"), arbiter.ErrUnreachable, maxTries},
		{"throttling", exception(400, "ThrottlingException"), arbiter.ErrUnreachable, maxTries},
		{"request limit", exception(400, "RequestLimitExceeded"), arbiter.ErrUnreachable, maxTries},
		{"a transaction on the item", exception(400, "TransactionConflictException"), arbiter.ErrUnreachable, maxTries},
		{"another region writes", exception(400, "ReplicatedWriteConflictException"), arbiter.ErrUnreachable, maxTries},

		{"no permission", exception(400, "AccessDeniedException"), arbiter.ErrUnreachable, 1},
		{"no table", exception(400, "ResourceNotFoundException"), arbiter.ErrUnreachable, 1},
		{"bad request", exception(400, "ValidationException"), arbiter.ErrUnreachable, 1},
		{"unknown key id", exception(400, "UnrecognizedClientException"), arbiter.ErrUnreachable, 1},
		{"expired credentials", exception(400, "ExpiredTokenException"), arbiter.ErrUnreachable, 1},
		{"a name of its own", exception(400, "SomethingNewException"), arbiter.ErrUnreachable, 1},

		{"server error", exception(500, "InternalServerError"), arbiter.ErrUnknown, maxTries},
		{"throttling as a server error", exception(503, "ThrottlingException"), arbiter.ErrUnknown, maxTries},
		{"unavailable", plain(503, `<html>`), arbiter.ErrUnknown, maxTries},
		{"bad gateway", plain(502, ``), arbiter.ErrUnknown, maxTries},
		{"a 4xx that is not DynamoDB's", plain(403, `<html>`), arbiter.ErrUnknown, maxTries},
		{"an empty 4xx", plain(404, ``), arbiter.ErrUnknown, maxTries},
		{"request timeout", exception(408, "RequestTimeoutException"), arbiter.ErrUnknown, maxTries},
		{"a redirect", plain(307, ``), arbiter.ErrUnknown, maxTries},
		{"a success that cannot be read", plain(200, `{"Attributes":`), arbiter.ErrUnknown, maxTries},
		{"a reset connection", func(l leg) (*http.Response, error) { return l.lose() }, arbiter.ErrUnknown, maxTries},
		{"no connection", func(leg) (*http.Response, error) { return nil, reset() }, arbiter.ErrUnreachable, maxTries},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.do, func(t *testing.T, s *Store, n *network, c clock.Clock) {
				begin := c.Now()
				err := s.CompareAndSwap(t.Context(), "k", 0, write("x"))
				if !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if errors.Is(err, arbiter.ErrUnknown) && errors.Is(err, arbiter.ErrUnreachable) {
					t.Errorf("%v is both unknown and certain", err)
				}
				if got := n.seen("PutItem"); got != tt.tries {
					t.Errorf("got %d tries, want %d", got, tt.tries)
				}
				if took := c.Now().Sub(begin); took > DefaultTimeout {
					t.Errorf("it took %v, want at most %v", took, DefaultTimeout)
				}
				if h := s.circuit.Health(); (h.State == Healthy) != (tt.want == nil) || (h.Err == nil) != (tt.want == nil) {
					t.Errorf("got health %+v", h)
				}
			})
		})
	}
}

// One try without an answer is enough for the outcome to be unknown, whatever is
// said to the others.
func TestLostTryIsNotForgotten(t *testing.T) {
	for _, last := range []string{"ThrottlingException", "AccessDeniedException"} {
		inBubble(t, func(l leg) (*http.Response, error) {
			if l.n == 1 {
				return l.lose()
			}
			return l.exception(400, last)
		}, func(t *testing.T, s *Store, _ *network, _ clock.Clock) {
			err := s.CompareAndSwap(t.Context(), "k", 0, write("x"))
			if !errors.Is(err, arbiter.ErrUnknown) || !strings.Contains(err.Error(), last) {
				t.Errorf("got %v, want ErrUnknown, and %s in it", err, last)
			}
		})
	}
}

func TestThrottledThenServed(t *testing.T) {
	inBubble(t, func(l leg) (*http.Response, error) {
		if body, err := io.ReadAll(l.Body); err != nil || !strings.Contains(string(body), `"ConsistentRead":true`) {
			t.Errorf("got %s, %v, want a strongly consistent read", body, err)
		}
		if l.n < 4 {
			return l.exception(400, "ThrottlingException")
		}
		return l.answer(200, `{"Item":{"Version":{"N":"7"},"Nonce":{"S":"000102030405060708090a0b0c0d0e0f"},"Value":{"S":"seven"}}}`)
	}, func(t *testing.T, s *Store, _ *network, c clock.Clock) {
		begin := c.Now()
		r, err := s.Load(t.Context(), "k")
		if err != nil || r.Version != 7 || string(r.Data) != "seven" {
			t.Errorf("got %+v, %v", r, err)
		}
		if took := c.Now().Sub(begin); took <= 0 || took > pause+2*pause+4*pause+3 {
			t.Errorf("three waits took %v", took)
		}
	})
}

// Each wait is random, at most doubles, and is never nothing.
func TestBackoff(t *testing.T) {
	for n := 1; n < maxTries; n++ {
		limit, least, most := pause<<(n-1), time.Hour, time.Duration(0)
		for range 1000 {
			d := backoff(n)
			least, most = min(least, d), max(most, d)
		}
		if least <= 0 || least > limit/4 || most > limit || most < limit*3/4 {
			t.Errorf("before try %d: waits from %v to %v, want from almost 0 to %v", n+1, least, most, limit)
		}
	}
}

func TestTimeBounds(t *testing.T) {
	inBubble(t, func(l leg) (*http.Response, error) { return l.hang() }, func(t *testing.T, s *Store, n *network, c clock.Clock) {
		begin := c.Now()
		err := s.CompareAndSwap(t.Context(), "k", 0, write("x"))
		if took := c.Now().Sub(begin); took != DefaultTimeout || !errors.Is(err, arbiter.ErrUnknown) {
			t.Errorf("got %v after %v, want ErrUnknown after %v", err, took, DefaultTimeout)
		}
		if got := n.seen("PutItem"); got != 2 {
			t.Errorf("got %d tries, want 2 of half the time each", got)
		}

		begin = c.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = s.Load(ctx, "k")
		if took := c.Now().Sub(begin); took != 100*time.Millisecond || !errors.Is(err, arbiter.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v after %v, want ErrUnreachable as the caller's context ends", err, took)
		}
		if want := "register k: the arbiter gives no usable answer: try 1 of 5: the caller waits no longer: context deadline exceeded"; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	})
}

// What cannot be in a register is not sent.
func TestRefusedBeforeSent(t *testing.T) {
	inBubble(t, func(l leg) (*http.Response, error) { return l.answer(200, `{}`) }, func(t *testing.T, s *Store, n *network, _ clock.Clock) {
		for _, tt := range []struct {
			key, data string
			want      error
		}{
			{"k", strings.Repeat("x", arbiter.MaxData+1), arbiter.ErrTooLarge},
			{"k", "\xff", arbiter.ErrInvalid},
			{"", "x", arbiter.ErrInvalid},
		} {
			if err := s.CompareAndSwap(t.Context(), tt.key, 0, write(tt.data)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		}
		if got := n.seen("PutItem"); got != 0 {
			t.Errorf("%d requests were sent", got)
		}
		if err := s.CompareAndSwap(t.Context(), "k", 0, write(strings.Repeat("x", arbiter.MaxData))); err != nil || n.seen("PutItem") != 1 {
			t.Errorf("got %v and %d requests for the largest data", err, n.seen("PutItem"))
		}
	})
}

// Nothing that is logged tells the credentials.
func TestLogHoldsNoSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		n := &network{}
		n.on(func(l leg) (*http.Response, error) { return l.exception(500, "InternalServerError") })
		log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
		s := openFake(t, n, Config{Clock: clock.NewRuntime(), Log: log})
		var told []string
		for range patience + 1 {
			_, err := s.Load(t.Context(), "k")
			told = append(told, fmt.Sprint(err))
		}
		if !strings.Contains(said.String(), "a try has failed") || !strings.Contains(said.String(), "is asked once a second") {
			t.Errorf("the log is too short: %s", said.String())
		}
		if all := said.String() + strings.Join(told, "\n"); strings.Contains(all, secret) || strings.Contains(all, "Signature") {
			t.Errorf("a secret was told: %s", all)
		}
	})
}
