package version

import (
	"runtime/debug"
	"testing"
)

func TestCommit(t *testing.T) {
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}
	for _, c := range []struct {
		name     string
		settings []debug.BuildSetting
		want     string
	}{
		{"none recorded", nil, ""},
		{"clean", []debug.BuildSetting{revision, {Key: "vcs.modified", Value: "false"}}, "0123456789ab"},
		{"changed", []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, revision}, "0123456789ab+changes"},
		{"short", []debug.BuildSetting{{Key: "vcs.revision", Value: "01"}}, "01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := commit(c.settings); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestString(t *testing.T) {
	if got := String(); got[:len(Release)] != Release {
		t.Errorf("got %q, want it to begin with %q", got, Release)
	}
}
