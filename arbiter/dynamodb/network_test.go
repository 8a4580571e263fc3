package dynamodb

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/internal/dynamolocal"
)

const secret = "topsecret"

var discard = slog.New(slog.DiscardHandler)

func staticCredentials(o *config.LoadOptions) error {
	o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "dummy", SecretAccessKey: secret}, nil
	})
	return nil
}

// openLocal opens a table of DynamoDB Local that does not exist yet. If faults is
// not nil, it stands between.
func openLocal(t *testing.T, faults *network, table string) *Store {
	t.Helper()
	c := Config{Table: table, Endpoint: dynamolocal.Endpoint(t), Region: "eu-central-1", Timeout: 20 * time.Second}
	var rt http.RoundTripper
	if faults != nil {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		faults.beyond = transport
		rt = faults
	}
	s, err := open(t.Context(), c, rt, staticCredentials)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// createLocal opens a table of DynamoDB Local that was made for this test.
func createLocal(t *testing.T, faults *network) *Store {
	t.Helper()
	s := openLocal(t, faults, "registers-"+rand.Text())
	if _, err := s.CreateTable(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	return s
}

// openFake opens a table whose DynamoDB is what n answers.
func openFake(t *testing.T, n *network, c Config) *Store {
	t.Helper()
	c.Table, c.Region = "registers", "eu-central-1"
	s, err := open(t.Context(), c, n, staticCredentials)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// leg is one request on its way.
type leg struct {
	*http.Request
	n  int // the how manieth of its operation, from 1
	op string
}

// network is an http.RoundTripper that does with each request what a test says.
type network struct {
	beyond http.RoundTripper // what is behind it, if anything

	mu     sync.Mutex // guards what follows
	do     func(leg) (*http.Response, error)
	counts map[string]int
}

// on sets what is done with requests; nil: they are passed on.
func (n *network) on(do func(leg) (*http.Response, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.do, n.counts = do, map[string]int{}
}

// seen is how many requests of an operation there were since the last on.
func (n *network) seen(op string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts[op]
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	n.mu.Lock()
	if n.counts == nil {
		n.counts = map[string]int{}
	}
	n.counts[op]++
	do, l := n.do, leg{r, n.counts[op], op}
	n.mu.Unlock()
	if do == nil {
		return n.beyond.RoundTrip(r)
	}
	return do(l)
}

// connected says that the request has got a connection, as http.Transport would.
func (l leg) connected() {
	if trace := httptrace.ContextClientTrace(l.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
}

// reset is what a broken connection gives.
func reset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// lose loses the request before the store sees it.
func (l leg) lose() (*http.Response, error) {
	l.connected()
	return nil, reset()
}

// loseAnswer passes the request on and loses the answer.
func (n *network) loseAnswer(l leg) (*http.Response, error) {
	resp, err := n.beyond.RoundTrip(l.Request)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return nil, reset()
}

// answer answers in DynamoDB's place.
func (l leg) answer(status int, body string) (*http.Response, error) {
	l.connected()
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:  http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body:    io.NopCloser(bytes.NewReader([]byte(body))),
		Request: l.Request,
	}, nil
}

// exception answers with an error that DynamoDB names.
func (l leg) exception(status int, name string) (*http.Response, error) {
	return l.answer(status, fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"so it is"}`, name))
}

// hang never answers.
func (l leg) hang() (*http.Response, error) {
	l.connected()
	<-l.Context().Done()
	return nil, l.Context().Err()
}

func write(data string) arbiter.Write {
	return arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte(data), By: "a test"}
}
