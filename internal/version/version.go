// Package version says which release of coordd this is.
package version

import "runtime/debug"

// Release is the release that this source belongs to. A build may set it:
//
//	go build -ldflags "-X github.com/coordd/coordd/internal/version.Release=0.1.1"
var Release = "0.1.0"

// commitDigits is how many digits of a commit people are shown.
const commitDigits = 12

// Commit is the beginning of the commit that the binary was built from,
// followed by "+changes" if the working tree differed from it. It is empty
// where the build recorded none, as in a test or outside of a repository.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return commit(info.Settings)
}

func commit(settings []debug.BuildSetting) string {
	var revision, suffix string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), commitDigits)]
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "+changes"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + suffix
}

// String is the release and, where it is known, the commit: "0.1.0 (1f0c2a9b7d3e)".
func String() string {
	if c := Commit(); c != "" {
		return Release + " (" + c + ")"
	}
	return Release
}
