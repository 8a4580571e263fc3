package dynamodb

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/arbitertest"
)

func TestConformance(t *testing.T) {
	s := createLocal(t, nil)
	arbitertest.Run(t, func(*testing.T) arbiter.Store { return s })
	if h := s.circuit.Health(); h.State != Healthy || h.RoundTrip <= 0 || h.Failed != 0 || h.Calls == 0 {
		t.Errorf("got health %+v", h)
	}
}

// Where each third answer is lost the store finds out by itself.
func TestEachThirdAnswerIsLost(t *testing.T) {
	n := &network{}
	s := createLocal(t, n)
	n.on(func(l leg) (*http.Response, error) {
		if l.n%3 == 0 {
			return n.loseAnswer(l)
		}
		return n.beyond.RoundTrip(l.Request)
	})
	const key = "k"
	for v := range arbiter.Version(30) {
		w := write("x")
		if err := s.CompareAndSwap(t.Context(), key, v, w); err != nil {
			t.Fatal(err)
		}
		r, err := s.Load(t.Context(), key)
		if err != nil || r.Version != v+1 || r.Nonce != w.Nonce {
			t.Fatalf("got version %d, %v, want %d", r.Version, err, v+1)
		}
		if err := s.CompareAndSwap(t.Context(), key, v, write("y")); !errors.Is(err, arbiter.ErrConflict) {
			t.Fatalf("got %v, want a conflict", err)
		}
	}
	if got := n.seen("PutItem"); got < 75 {
		t.Errorf("got %d writes: no answer was lost", got)
	}
}

// What a write says when some of its tries are lost, and others write meanwhile.
func TestLostTries(t *testing.T) {
	n := &network{}
	s := createLocal(t, n)
	pass := func(l leg) (*http.Response, error) { return n.beyond.RoundTrip(l.Request) }
	before := func(l leg) (*http.Response, error) { return l.lose() }
	for _, tt := range []struct {
		name    string
		tries   []func(leg) (*http.Response, error)
		between int // writes of others after the first try
		want    error
		version arbiter.Version // that the register has then
		mine    bool            // by this write
	}{
		{"the request is lost once", []func(leg) (*http.Response, error){before, pass}, 0, nil, 2, true},
		{"the answer is lost once", []func(leg) (*http.Response, error){n.loseAnswer, pass}, 0, nil, 2, true},
		{"the answer is lost, then throttled", []func(leg) (*http.Response, error){
			n.loseAnswer, func(l leg) (*http.Response, error) { return l.exception(400, "ThrottlingException") }, pass,
		}, 0, nil, 2, true},
		{"two answers are lost", []func(leg) (*http.Response, error){n.loseAnswer, n.loseAnswer, pass}, 0, nil, 2, true},
		{"the request is lost, another wins", []func(leg) (*http.Response, error){before, pass}, 1, arbiter.ErrConflict, 2, false},
		{"the request is lost, two others win", []func(leg) (*http.Response, error){before, pass}, 2, arbiter.ErrUnknown, 3, false},
		{"the answer is lost, another overwrites", []func(leg) (*http.Response, error){n.loseAnswer, pass}, 1, arbiter.ErrUnknown, 3, false},
		{"nothing is lost, two others win", []func(leg) (*http.Response, error){
			func(l leg) (*http.Response, error) { return l.exception(400, "ThrottlingException") }, pass,
		}, 2, arbiter.ErrConflict, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := t.Name()
			n.on(nil)
			if err := s.CompareAndSwap(t.Context(), key, 0, write("first")); err != nil {
				t.Fatal(err)
			}
			direct := openLocal(t, nil, s.table)
			n.on(func(l leg) (*http.Response, error) {
				resp, err := tt.tries[l.n-1](l)
				for range tt.between * (2 - min(l.n, 2)) {
					r, err := direct.Load(t.Context(), key)
					if err != nil {
						return nil, err
					}
					if err := direct.CompareAndSwap(t.Context(), key, r.Version, write("another's")); err != nil {
						return nil, err
					}
				}
				return resp, err
			})
			mine := write("mine")
			err := s.CompareAndSwap(t.Context(), key, 1, mine)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			r, loadErr := direct.Load(t.Context(), key)
			if loadErr != nil || r.Version != tt.version || (r.Nonce == mine.Nonce) != tt.mine {
				t.Errorf("got version %d, mine %v, %v, want %d, %v", r.Version, r.Nonce == mine.Nonce, loadErr, tt.version, tt.mine)
			}
			if u, ok := errors.AsType[*arbiter.UnknownError](err); ok && u.Found.Version != tt.version {
				t.Errorf("got an unknown outcome with version %d found, want %d", u.Found.Version, tt.version)
			}
			if got := n.seen("PutItem"); got != len(tt.tries) {
				t.Errorf("got %d tries, want %d", got, len(tt.tries))
			}
		})
	}
}

// Where no request leaves, nothing was written, and that is certain.
func TestNoConnectionIsCertain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there
	s, err := open(t.Context(), Config{Table: "t", Region: "eu-central-1", Endpoint: "http://" + l.Addr().String(), Timeout: 400 * time.Millisecond}, nil, staticCredentials)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.CompareAndSwap(t.Context(), "k", 0, write("x"))
	if !errors.Is(err, arbiter.ErrUnreachable) || errors.Is(err, arbiter.ErrUnknown) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
	if !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want the reason in it", err)
	}
}

// Over a real connection that has no answer, nothing is known.
func TestNoAnswerIsUnknown(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client goes
		<-r.Context().Done()
	}))
	defer silent.Close()
	s, err := open(t.Context(), Config{Table: "t", Region: "eu-central-1", Endpoint: silent.URL, Timeout: 400 * time.Millisecond}, nil, staticCredentials)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CompareAndSwap(t.Context(), "k", 0, write("x")); !errors.Is(err, arbiter.ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, arbiter.ErrUnreachable) || !strings.Contains(err.Error(), "the 400ms for a call are over") {
		t.Errorf("got %v, want ErrUnreachable and its bound", err)
	}
}

// A connection lost while the request is written is no certainty either.
func TestServerThatClosesIsUnknown(t *testing.T) {
	rude := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	}))
	defer rude.Close()
	s, err := open(t.Context(), Config{Table: "t", Region: "eu-central-1", Endpoint: rude.URL, Timeout: 400 * time.Millisecond}, nil, staticCredentials)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CompareAndSwap(t.Context(), "k", 0, write("x")); !errors.Is(err, arbiter.ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
}

// Items that something else has written are told, not guessed at.
func TestGarbageItems(t *testing.T) {
	s := createLocal(t, nil)
	whole := func(without string, other types.AttributeValue) item {
		i := encode("", 1, write("{}"))
		delete(i, without)
		if other != nil {
			i[without] = other
		}
		return i
	}
	for _, tt := range []struct {
		name string
		item item
		want string
	}{
		{"only a key", item{}, "attribute Version is missing"},
		{"no version", whole(versionAttribute, nil), "attribute Version is missing, want a number from 1"},
		{"a version that is text", whole(versionAttribute, text("1")), `attribute Version is the string "1"`},
		{"version 0", whole(versionAttribute, number(0)), "attribute Version is the number 0"},
		{"a negative version", whole(versionAttribute, &types.AttributeValueMemberN{Value: "-1"}), "attribute Version is the number -1"},
		{"half a version", whole(versionAttribute, &types.AttributeValueMemberN{Value: "1.5"}), "attribute Version is the number 1.5"},
		{"no nonce", whole(nonceAttribute, nil), "attribute Nonce is missing"},
		{"a short nonce", whole(nonceAttribute, text("abc")), `attribute Nonce is the string "abc", want a string of 32`},
		{"a nonce of letters", whole(nonceAttribute, text(strings.Repeat("z", 32))), "attribute Nonce is the string"},
		{"no value", whole(valueAttribute, nil), "attribute Value is missing"},
		{"a binary value", whole(valueAttribute, &types.AttributeValueMemberB{Value: []byte("{}")}), "attribute Value is of type B"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := t.Name()
			tt.item[keyAttribute] = text(key)
			if _, err := s.client.PutItem(t.Context(), &sdk.PutItemInput{TableName: &s.table, Item: tt.item}); err != nil {
				t.Fatal(err)
			}
			_, err := s.Load(t.Context(), key)
			if !errors.Is(err, arbiter.ErrUnreachable) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("load: got %v, want %q in it", err, tt.want)
			}
			err = s.CompareAndSwap(t.Context(), key, 0, write("x"))
			if !errors.Is(err, arbiter.ErrUnreachable) || errors.Is(err, arbiter.ErrUnknown) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("compare and swap: got %v, want %q in it", err, tt.want)
			}
		})
	}
	if h := s.circuit.Health(); h.State != Healthy {
		t.Errorf("garbage is an answer: got health %+v", h)
	}
}

// A register that was deleted, or set back, is told from one that was written.
func TestSetBack(t *testing.T) {
	s := createLocal(t, nil)
	for v := range arbiter.Version(3) {
		if err := s.CompareAndSwap(t.Context(), "k", v, write("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.DeleteItem(t.Context(), &sdk.DeleteItemInput{TableName: aws.String(s.table), Key: keyOf("k")}); err != nil {
		t.Fatal(err)
	}
	err := s.CompareAndSwap(t.Context(), "k", 3, write("x"))
	if !errors.Is(err, arbiter.ErrSetBack) || !strings.Contains(err.Error(), "holds version 0, and has held 3") {
		t.Errorf("got %v, want ErrSetBack", err)
	}
}

// What the caller's end means depends on whether the request had left.
func TestCallerLeaves(t *testing.T) {
	left := make(chan struct{}, 1)
	n := &network{}
	s := openFake(t, n, Config{Timeout: time.Minute})
	for _, tt := range []struct {
		name string
		sent bool
		want error
	}{
		{"before a connection", false, arbiter.ErrUnreachable},
		{"with the request sent", true, arbiter.ErrUnknown},
	} {
		n.on(func(l leg) (*http.Response, error) {
			left <- struct{}{}
			if tt.sent {
				return l.hang()
			}
			<-l.Context().Done()
			return nil, l.Context().Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-left
			cancel()
		}()
		err := s.CompareAndSwap(ctx, "k", 0, write("x"))
		if !errors.Is(err, tt.want) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want %v and context.Canceled", tt.name, err, tt.want)
		}
		if h := s.circuit.Health(); h.Failures != 0 {
			t.Errorf("%s: it counts as a failure of the store: %+v", tt.name, h)
		}
	}
}
