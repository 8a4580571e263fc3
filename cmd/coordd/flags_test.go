package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coordd/coordd/node"
)

func TestApplyEnv(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		args []string
		want time.Duration
		err  string
	}{
		{name: "default", want: time.Second},
		{name: "environment", env: map[string]string{"COORDD_ELECTION_TIMEOUT": "3s"}, want: 3 * time.Second},
		{name: "empty is not set", env: map[string]string{"COORDD_ELECTION_TIMEOUT": ""}, want: time.Second},
		{name: "the flag comes first", env: map[string]string{"COORDD_ELECTION_TIMEOUT": "3s"}, args: []string{"--election-timeout", "2s"}, want: 2 * time.Second},
		{name: "a wrong one does not matter beside a flag", env: map[string]string{"COORDD_ELECTION_TIMEOUT": "x"}, args: []string{"--election-timeout", "2s"}, want: 2 * time.Second},
		{name: "a wrong one is named", env: map[string]string{"COORDD_ELECTION_TIMEOUT": "soon"}, err: `COORDD_ELECTION_TIMEOUT="soon"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			got := fs.Duration("election-timeout", time.Second, "")
			bindEnv(fs)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			err := applyEnv(fs)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want an error that names %s", err, c.err)
				}
				return
			}
			if err != nil || *got != c.want {
				t.Errorf("got %v and %v, want %v", *got, err, c.want)
			}
		})
	}
}

// Every flag of every command of ours has an environment variable, but those that
// have to be typed. What is serve's --arbiter-table is coordd arbiter's --table: it is
// the same variable.
func TestEveryFlagHasEnv(t *testing.T) {
	serve := serveFlags(t).Flags()
	for _, cmd := range below(newRoot()) {
		if cmd.Hidden {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name := envName(f.Name)
			if long := arbiterPrefix + f.Name; cmd.Parent().Name() == "arbiter" && serve.Lookup(long) != nil {
				name = envName(long)
			}
			if slices.Contains(typedOnly, f.Name) {
				if len(f.Annotations[envAnnotation]) > 0 || strings.Contains(f.Usage, name) {
					t.Errorf("%s --%s: got %v and %q, want that it has to be typed", cmd.CommandPath(), f.Name, f.Annotations, f.Usage)
				}
				return
			}
			if got := f.Annotations[envAnnotation]; len(got) != 1 || got[0] != name {
				t.Errorf("%s --%s: got %v, want %s", cmd.CommandPath(), f.Name, got, name)
			}
			if !strings.Contains(f.Usage, "["+name+"]") {
				t.Errorf("%s --%s: its help %q does not say %s", cmd.CommandPath(), f.Name, f.Usage, name)
			}
		})
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	root := newRoot()
	for _, cmd := range append([]*cobra.Command{root}, below(root)...) {
		if !cmd.Hidden && (cmd.Example == "" || cmd.Long == "") {
			t.Errorf("%s has no example or no description", cmd.CommandPath())
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"127.0.0.1:7420", "127.0.0.1:7420"},
		{"a:1, b:2 ,[::1]:3", "a:1,b:2,[::1]:3"},
		{":7420", "error"},
		{"a:0", "error"},
		{"", "error"},
		{"a:1,", "error"},
		{"host", "error"},
		{"host:http", "error"},
		{"host:70000", "error"},
		{"host:-1", "error"},
	} {
		var a addresses
		err := a.Set(c.in)
		got := a.String()
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%q: got %s (%v), want %s", c.in, got, err, c.want)
		}
	}
	list := addresses{"default:1"}
	if err := errors.Join(list.Set("a:1"), list.Set("b:2")); err != nil || list.String() != "b:2" {
		t.Errorf("got %v (%v), want the later one to replace the earlier", list, err)
	}
}

func TestDevAddresses(t *testing.T) {
	got, err := devAddresses("127.0.0.1:7420")
	if want := "127.0.0.1:7420,127.0.0.1:7430,127.0.0.1:7440"; err != nil || strings.Join(got, ",") != want {
		t.Errorf("got %v and %v, want %s", got, err, want)
	}
	for _, bad := range []string{"127.0.0.1:0", "127.0.0.1:65530", "0.0.0.0:7420", ":7420", "example.com:7420"} {
		if got, err := devAddresses(bad); exitCode(err) != exitUsage {
			t.Errorf("%s: got %v and %v, want a usage error", bad, got, err)
		}
	}
}

func TestValidate(t *testing.T) {
	good := node.Config{Name: "n1", Data: "d", Listen: "127.0.0.1:7420"}
	for _, c := range []struct {
		name   string
		change func(*node.Config)
		want   string
	}{
		{"good", func(*node.Config) {}, ""},
		{"no name", func(c *node.Config) { c.Name = "" }, "--name (or COORDD_NAME) is missing"},
		{"bad name", func(c *node.Config) { c.Name = "a b" }, `invalid --name "a b"`},
		{"no data", func(c *node.Config) { c.Data = "" }, "--data (or COORDD_DATA) is missing"},
		{"timeout", func(c *node.Config) { c.ElectionTimeout = time.Hour }, `invalid --election-timeout "1h0m0s"`},
		{"claims", func(c *node.Config) { c.MaxClaims = -1 }, `invalid --max-claims "-1"`},
		{"plaintext", func(c *node.Config) { c.Listen = "0.0.0.0:7420"; c.Advertise = "10.0.0.1:7420" }, "give --cert, --key and --ca, or say --insecure"},
		{"insecure", func(c *node.Config) { c.Listen = "0.0.0.0:7420"; c.Advertise = "10.0.0.1:7420"; c.Insecure = true }, ""},
		{"two at once", func(c *node.Config) { c.Name, c.Data = "", "" }, "; --data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := good
			c.change(&config)
			err := validate(&config)
			if c.want == "" {
				if err != nil {
					t.Errorf("got %v, want none", err)
				}
				return
			}
			if exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a usage error that says %s", err, c.want)
			}
		})
	}
}
