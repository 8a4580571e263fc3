package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/internal/version"
	"github.com/coordd/coordd/leases"
)

func newVersion() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the release and the formats that it reads",
		Long: `The release, the commit that it was built from, and the newest formats of log
entries and snapshots that it reads. A member with a newer format in its log
than it reads stops, and says which release can read it.

With -o json the fields are release, commit, go, platform, reads {op, snapshot}.`,
		Example: `  coordd version
  coordd version -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return out.print(cmd.OutOrStdout(), newVersionView())
		},
	}
	out.register(cmd)
	return cmd
}

type versionView struct {
	Release  string      `json:"release"`
	Commit   string      `json:"commit,omitempty"`
	Go       string      `json:"go"`
	Platform string      `json:"platform"`
	Reads    formatsView `json:"reads"`
}

type formatsView struct {
	Op       uint32 `json:"op"`
	Snapshot uint32 `json:"snapshot"`
}

func newVersionView() versionView {
	return versionView{
		Release:  version.Release,
		Commit:   version.Commit(),
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Reads:    formatsView{Op: leases.OpVersion, Snapshot: leases.TableVersion},
	}
}

func (v versionView) writeText(w io.Writer) {
	writeFields(w,
		"coordd", v.Release,
		"commit", v.Commit,
		"built by", v.Go+" for "+v.Platform,
		"reads", fmt.Sprintf("ops up to version %d, snapshots up to version %d", v.Reads.Op, v.Reads.Snapshot))
}
