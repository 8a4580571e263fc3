package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/internal/version"
)

func newCopyTo() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "copy-to DIR",
		Short: "Copy this program into a folder",
		Long: `Copies this program into the folder DIR under the name coordd, for everybody to
execute. It is written aside and renamed: whoever looks sees the old program, if
there was one, or the whole new one.

It is for an init container that shares a volume with the container of a job,
which then runs under coordd run without having coordd in its image.

With -o json the fields are path, bytes, release.`,
		Example: `  coordd copy-to /shared        # the job's command is then: /shared/coordd run nightly -- ./backup.sh`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			view, err := copyTo(args[0])
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
	}
	out.register(cmd)
	return cmd
}

type copiedView struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	Release string `json:"release"`
}

func (v copiedView) writeText(w io.Writer) {
	fmt.Fprintf(w, "copied coordd %s to %s (%d bytes)\n", v.Release, v.Path, v.Bytes)
}

// copyTo copies this program into a folder that is there.
func copyTo(dir string) (copiedView, error) {
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return copiedView{}, usagef("folder %s is not there: make it, or mount the volume, first", dir)
	case err != nil:
		return copiedView{}, fmt.Errorf("copy coordd: %w", err)
	case !info.IsDir():
		return copiedView{}, usagef("%s is not a folder", dir)
	}
	self, err := os.Executable()
	if err != nil {
		return copiedView{}, fmt.Errorf("copy coordd: where this program is cannot be told: %w", err)
	}
	view := copiedView{Path: filepath.Join(dir, "coordd"), Release: version.Release}
	if view.Bytes, err = copyProgram(self, view.Path); err != nil {
		return copiedView{}, fmt.Errorf("copy coordd: %w", err)
	}
	return view, nil
}

// copyProgram makes to an executable copy of the file from, or leaves it as it is.
func copyProgram(from, to string) (bytes int64, err error) {
	program, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer program.Close()
	aside, err := os.CreateTemp(filepath.Dir(to), ".coordd-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			aside.Close()
			os.Remove(aside.Name())
		}
	}()
	if bytes, err = io.Copy(aside, program); err != nil {
		return 0, err
	}
	if err := aside.Chmod(0o755); err != nil {
		return 0, err
	}
	if err := aside.Sync(); err != nil {
		return 0, err
	}
	if err := aside.Close(); err != nil {
		return 0, err
	}
	if err := os.Rename(aside.Name(), to); err != nil {
		return 0, err
	}
	return bytes, syncFolder(filepath.Dir(to))
}

// syncFolder makes a rename in dir last.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
