package main

import (
	"net/http/httptest"
	"os"
	"testing"

	"github.com/coordd/coordd/internal/dynamolocal"
	fake "github.com/coordd/coordd/internal/registers"
)

// stores is as it was when the process began: TestMain clears the environment.
var stores = os.Getenv("COORDD_STORES")

// table is where the nodes of a test find their registers: its endpoint.
type table struct{ endpoint string }

// eachStore runs a test with a table of internal/registers and, under make
// test-stores, with one of DynamoDB Local.
func eachStore(t *testing.T, test func(t *testing.T, at table)) {
	t.Run("registers", func(t *testing.T) {
		at, _ := emptyTable(t)
		test(t, at)
	})
	t.Run("DynamoDB Local", func(t *testing.T) {
		if stores != "1" {
			t.Skip("make test-stores runs it")
		}
		withTable(t)
		if got := command(t, "arbiter", "create-table", "--emulator"); got.code != 0 {
			t.Fatalf("got %+v, want a table", got)
		}
		test(t, table{dynamolocal.Endpoint(t)})
	})
}

// emptyTable returns a table that the test may look into, for its processes.
func emptyTable(t *testing.T) (table, *fake.Table) {
	t.Helper()
	const name = "registers"
	t.Setenv("COORDD_ARBITER_REGION", "local")
	t.Setenv("COORDD_ARBITER_TABLE", name)
	t.Setenv("AWS_ACCESS_KEY_ID", "local")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "local")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	empty := fake.New(name)
	server := httptest.NewServer(empty)
	t.Cleanup(server.Close)
	return table{server.URL}, empty
}
