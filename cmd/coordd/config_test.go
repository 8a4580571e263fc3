package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// written is a file with that text.
func written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "coordd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// serveFlags is serve as coordd knows it.
func serveFlags(t *testing.T) *cobra.Command {
	t.Helper()
	cmd, _, err := newRoot().Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

// example is a value that a flag takes and that is not its default.
func example(t *testing.T, f *pflag.Flag) (yaml, want string) {
	t.Helper()
	switch f.Value.Type() {
	case "string":
		return "x", "x"
	case "host:port":
		return "10.0.0.9:1234", "10.0.0.9:1234"
	case "host:port,...":
		return "[10.0.0.1:1, \"10.0.0.2:2\"]", "10.0.0.1:1,10.0.0.2:2"
	case "host:port|off":
		return "off", "off"
	case "bool":
		return "true", "true"
	case "int", "uint32":
		return "42", "42"
	case "duration":
		return "1234ms", "1.234s"
	}
	if c, ok := f.Value.(*choice); ok {
		last := c.among[len(c.among)-1]
		return last, last
	}
	t.Fatalf("serve has a flag --%s of a type that this test does not know, %s: give it an example", f.Name, f.Value.Type())
	return "", ""
}

// Every flag of serve is a key, and a file may have them all.
func TestEveryFlagIsAKey(t *testing.T) {
	var (
		text strings.Builder
		want = map[string]string{}
		fs   = serveFlags(t).Flags()
	)
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" || f.Name == "check" || f.Name == "help" {
			return
		}
		value, read := example(t, f)
		want[f.Name] = read
		fmt.Fprintf(&text, "%s: %s # %s\n", f.Name, value, f.Usage)
	})
	if err := applyConfig(fs, written(t, text.String())); err != nil {
		t.Fatal(err)
	}
	for name, want := range want {
		if got := fs.Lookup(name).Value.String(); got != want || !fs.Changed(name) {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if len(want) < 15 {
		t.Errorf("got %d keys, want all of serve's", len(want))
	}
}

func TestConfigPrecedence(t *testing.T) {
	file := written(t, "election-timeout: 4s\nmax-claims: 4\nlisten: 127.0.0.1:4\njoin: 10.0.0.4:4,10.0.0.5:5\n")
	t.Setenv("COORDD_ELECTION_TIMEOUT", "3s")
	t.Setenv("COORDD_MAX_CLAIMS", "3")
	fs := serveFlags(t).Flags()
	if err := fs.Parse([]string{"--election-timeout", "2s"}); err != nil {
		t.Fatal(err)
	}
	if err := applyEnv(fs); err != nil {
		t.Fatal(err)
	}
	if err := applyConfig(fs, file); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"election-timeout": "2s",                          // the command line
		"max-claims":       "3",                           // the environment
		"listen":           "127.0.0.1:4",                 // the file
		"join":             "10.0.0.4:4,10.0.0.5:5",       // the file
		"max-waiters":      "100000", "log-level": "info", // nobody
	} {
		if got := fs.Lookup(name).Value.String(); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"unknown key", "name: n1\n\nelection_timeout: 1s\n", []string{`line 3: unknown key "election_timeout"; did you mean election-timeout?`}},
		{"unknown key unlike any", "zzzzzzzz: 1\n", []string{`line 1: unknown key "zzzzzzzz"`}},
		{"a flag that is no key", "config: other.yaml\n", []string{`unknown key "config"`}},
		{"the same key twice", "name: n1\nsite: a\nname: n2\n", []string{"line 3: name is there twice: it is in line 1 already"}},
		{"two problems", "nme: n1\nfirst-epoch: x\n", []string{"line 1", "did you mean name?", "; line 2", `first-epoch: invalid value "x": want a whole number that is not negative`}},
		{"number for text", "name: 7\n", []string{`line 1: name: invalid value "7": want text, in quotes`}},
		{"truth value for text", "site: true\n", []string{`invalid value "true": want text`}},
		{"number for a duration", "election-timeout: 5\n", []string{`invalid value "5": want a duration such as`}},
		{"bad duration", "election-timeout: soon\n", []string{`invalid election-timeout "soon": want a duration such as`}},
		{"text for a truth value", "bootstrap: yes please\n", []string{"bootstrap: invalid value \"yes please\": want true or false"}},
		{"fraction for a number", "max-claims: 1.5\n", []string{`invalid value "1.5": want a whole number`}},
		{"too large a number", "first-epoch: 5000000000\n", []string{`invalid first-epoch "5000000000": want a number that is not so large`}},
		{"bad address", "listen: nowhere\n", []string{`invalid listen "nowhere": want host:port`}},
		{"bad address in a list", "join:\n- 10.0.0.1:1\n- x\n", []string{`line 1: invalid join "10.0.0.1:1,x": "x": want host:port`}},
		{"number in a list", "join: [7420]\n", []string{`join: want a list of host:port, not "7420"`}},
		{"list for text", "name: [a]\n", []string{"line 1: name: want text, in quotes where it looks like something else, not a list or a mapping"}},
		{"mapping for text", "name:\n  x: 1\n", []string{"not a list or a mapping"}},
		{"no value", "site:\n", []string{"line 1: site: it has no value: give it one, or leave the line out"}},
		{"bad word", "log-level: loud\n", []string{`invalid log-level "loud": want debug or info or warn or error`}},
		{"no mapping", "- name\n", []string{"line 1: want lines of the form key: value"}},
		{"no YAML", "name: n1\n\tsite: x\n", []string{"line 2"}},
		{"two documents", "name: n1\n---\nname: n2\n", []string{"a second document begins"}},
		{"too long", "# " + strings.Repeat("x", maxConfig), []string{"longer than 1048576 bytes"}},
		{"out of bounds", "name: a b\ndata: d\n", []string{`invalid --name "a b"`, "(--name is from ", ", line 1)"}},
		{"a zero", "name: n1\ndata: d\nmax-claims: 0\n", []string{"invalid --max-claims 0: want at least 1", "line 3)"}},
		{"half of TLS", "name: n1\ndata: d\ncert: c.pem\n", []string{"--cert, --key and --ca belong together", "(--cert is from"}},
		{"empty", "", []string{"--name (or COORDD_NAME) is missing"}},
		{"comments alone", "# nothing\n", []string{"--name (or COORDD_NAME) is missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := inProcess(t, "serve", "--config", written(t, c.text))
			failed(t, got, exitUsage, c.want...)
		})
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	failed(t, inProcess(t, "serve", "--config", missing), exitUsage, missing+": no such file or directory")
	failed(t, inProcess(t, "serve", "--config", filepath.Dir(missing)), exitUsage, filepath.Dir(missing)+": is a directory")
}

// What does not count is checked all the same.
func TestConfigIsCheckedWhereItDoesNotCount(t *testing.T) {
	file := written(t, "name: n1\ndata: d\nelection-timeout: soon\n")
	failed(t, inProcess(t, "serve", "--config", file, "--election-timeout", "1s"), exitUsage, "line 3", `"soon"`)
}

func TestCheck(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	file := written(t, "name: n1\nbootstrap: true\nlisten: 127.0.0.1:1\ndata: "+data+"\n")
	if got := inProcess(t, "serve", "--config", file, "--check"); got != (result{}) {
		t.Errorf("got %+v, want that all is right", got)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("got %v, want that nothing was made", err)
	}
	failed(t, inProcess(t, "serve", "--config", file, "--check", "--name", "a b"), exitUsage, `invalid --name "a b"`)
	failed(t, inProcess(t, "serve", "--config", file, "--check", "--listen", "0.0.0.0:1", "--advertise", "10.0.0.1:1"), exitUsage, "--insecure")
}

// The sample is right, and has every key: those that are commented out with
// their defaults, where there are any.
func TestSampleConfig(t *testing.T) {
	const sample = "../../docs/examples/coordd.yaml"
	tls := newCertAuthority(t).issue("node")
	if got := inProcess(t, "serve", "--config", sample, "--check", "--cert", tls.cert, "--key", tls.key, "--ca", tls.ca); got != (result{}) {
		t.Errorf("got %+v, want that all is right", got)
	}
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile("(?m)^#([a-z-]+:)").ReplaceAllString(string(text), "$1")
	given, every := serveFlags(t).Flags(), serveFlags(t).Flags()
	if err := errors.Join(applyConfig(given, sample), applyConfig(every, written(t, all))); err != nil {
		t.Fatal(err)
	}
	every.VisitAll(func(f *pflag.Flag) {
		switch {
		case notKeys[f.Name]:
		case !f.Changed:
			t.Errorf("%s is not there", f.Name)
		case !given.Changed(f.Name) && f.DefValue != "" && f.Value.String() != f.DefValue:
			t.Errorf("%s: got %s, want the default, %s", f.Name, f.Value, f.DefValue)
		}
	})
}

func TestServeByConfig(t *testing.T) {
	addr := loopbackAddr(freePorts(t, 1))
	file := written(t, "name: n1\nbootstrap: true\nlisten: "+addr+"\nelection-timeout: 300ms\nlog-format: json\ndata: "+filepath.Join(t.TempDir(), "data")+"\n")
	m := launch(t, "serve", "--config", file, "--name", "n7")
	eventually(t, 20*time.Second, "it serves under the name of the command line", func() bool {
		view, ok := cluster(t, addr)
		return ok && view.Leader == "n7" && view.ElectionTimeoutMS == 300
	})
	m.says(`"level":"INFO"`, time.Second)
	m.signal(syscall.SIGTERM)
	if got := m.wait(20 * time.Second); got != 0 {
		t.Errorf("got code %d, want 0", got)
	}
}
