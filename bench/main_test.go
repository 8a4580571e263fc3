package main

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// benchVariable lets a process of the tests be the bench itself.
const benchVariable = "COORDD_BENCH_MAIN"

// The processes that tests start are this binary, in a role or as the bench. In
// a role it has to leave no goroutine either.
func TestMain(m *testing.M) {
	switch {
	case play():
		// The Raft library leaves accepted connections to the other end.
		library := goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*NetworkTransport).handleConn")
		if err := goleak.Find(library); err != nil {
			fmt.Fprintln(os.Stderr, os.Getenv(roleVariable), err)
			os.Exit(1)
		}
	case os.Getenv(benchVariable) != "":
		main()
	default:
		goleak.VerifyTestMain(m)
	}
}
