package registers

import (
	"errors"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/arbitertest"
	"github.com/coordd/coordd/arbiter/dynamodb"
)

// open returns DynamoDB's client for a table that is served.
func open(t *testing.T, table *Table, name string) *dynamodb.Store {
	t.Helper()
	server := httptest.NewServer(table)
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "local")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "local")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	s, err := dynamodb.Open(t.Context(), dynamodb.Config{Table: name, Endpoint: server.URL, Region: "local"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestTableIsAnArbiter(t *testing.T) {
	arbitertest.Run(t, func(t *testing.T) arbiter.Store { return open(t, New("coordd"), "coordd") })
}

// What a node's own check of a table asks for is there.
func TestTableIsFit(t *testing.T) {
	report := open(t, New("coordd"), "coordd").Check(t.Context(), "a test")
	for _, f := range report.Findings {
		if f.Grade != dynamodb.Good && !strings.Contains(f.Detail, "an emulator") {
			t.Errorf("got %v", f)
		}
	}
}

func TestUnknownTable(t *testing.T) {
	_, err := open(t, New("coordd"), "other").Load(t.Context(), "a")
	if !errors.Is(err, arbiter.ErrUnreachable) || !strings.Contains(err.Error(), "Table: other not found") {
		t.Errorf("got %v, want that there is no such table", err)
	}
}

// Whatever somebody has put there is found, and stays.
func TestPut(t *testing.T) {
	table := New("coordd")
	strange := Item{Key: {"S": "a"}, "Version": {"S": "one"}}
	table.Put(strange)
	s := open(t, table, "coordd")
	if _, err := s.Load(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "attribute Version") {
		t.Errorf("got %v, want that it is no register", err)
	}
	for _, from := range []arbiter.Version{0, 1} {
		if err := s.CompareAndSwap(t.Context(), "a", from, arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte("x")}); !errors.Is(err, arbiter.ErrUnreachable) {
			t.Errorf("from version %d: got %v, want that nothing was written", from, err)
		}
	}
	if got := table.Get("a"); !reflect.DeepEqual(got, strange) || len(table.Keys()) != 1 {
		t.Errorf("got %v and the keys %q, want %v alone", got, table.Keys(), strange)
	}
}

// Calls that coordd must never make are refused.
func TestRefusals(t *testing.T) {
	const (
		item  = `"Item":{"LockKey":{"S":"a"}}`
		key   = `"Key":{"LockKey":{"S":"a"}}`
		table = `"TableName":"coordd"`
	)
	for _, c := range []struct{ operation, body, want string }{
		{"GetItem", `{` + table + `,` + key + `}`, "ConsistentRead"},
		{"GetItem", `{` + table + `,"ConsistentRead":true,"Key":{"Other":{"S":"a"}}}`, "the key is"},
		{"PutItem", `{` + table + `,` + item + `}`, "the condition is"},
		{"PutItem", `{` + table + `,"Item":{"Version":{"N":"1"}}}`, "the item has no LockKey"},
		{"PutItem", `{` + table + `,` + item + `,"ConditionExpression":"attribute_not_exists(#v)","ExpressionAttributeNames":{"#v":"Version"}}`, "want the key"},
		{"PutItem", `{` + table + `,` + item + `,"Expected":{}}`, "unknown field"},
		{"DeleteItem", `{` + table + `}`, "UnknownOperationException"},
		{"GetItem", `{"TableName":"other"}`, "ResourceNotFoundException"},
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(c.body))
		r.Header.Set("X-Amz-Target", api+c.operation)
		w := httptest.NewRecorder()
		New("coordd").ServeHTTP(w, r)
		if w.Code != 400 || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: got %d %s, want 400 and %q", c.operation, c.body, w.Code, w.Body, c.want)
		}
	}
}
