// Command coordd is the one binary: a node of a cluster that grants leases, and
// the tools of those who work under them. See coordd help.
package main

import (
	"context"
	"os"

	"github.com/coordd/coordd/cmd/coordd/internal/warden"
)

func main() {
	warden.Hook()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
