package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// envAnnotation marks a flag with the environment variable that it is read from.
const envAnnotation = "env"

// bindEnv gives every flag of fs an environment variable and says so in its
// help: --max-claims is COORDD_MAX_CLAIMS.
func bindEnv(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		name := envName(f.Name)
		f.Annotations = map[string][]string{envAnnotation: {name}}
		f.Usage += " [" + name + "]"
	})
}

func envName(flag string) string {
	return "COORDD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyEnv sets every flag that the command line does not set from its
// environment variable. One that is empty counts as not set.
func applyEnv(fs *pflag.FlagSet) error {
	var problems []error
	fs.VisitAll(func(f *pflag.Flag) {
		env := f.Annotations[envAnnotation]
		if len(env) == 0 || f.Changed {
			return
		}
		value := os.Getenv(env[0])
		if value == "" {
			return
		}
		if err := f.Value.Set(value); err != nil {
			problems = append(problems, fmt.Errorf("invalid environment variable %s=%q: %w", env[0], value, err))
			return
		}
		f.Changed = true
	})
	return errors.Join(problems...)
}

// address is a flag's host:port.
type address string

func (a *address) String() string { return string(*a) }
func (a *address) Type() string   { return "host:port" }

func (a *address) Set(s string) error {
	if err := checkAddress(s); err != nil {
		return err
	}
	*a = address(s)
	return nil
}

// addresses is a flag's list of host:port, separated by commas. A later one on
// the command line replaces it.
type addresses []string

func (a *addresses) String() string { return strings.Join(*a, ",") }
func (a *addresses) Type() string   { return "host:port,..." }

func (a *addresses) Set(s string) error {
	var list addresses
	for field := range strings.SplitSeq(s, ",") {
		field = strings.TrimSpace(field)
		if err := checkAddress(field); err != nil {
			return err
		}
		list = append(list, field)
	}
	*a = list
	return nil
}

func checkAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("address %q: want host:port, such as 10.0.0.1:7420", s)
	}
	return nil
}

// choice is a flag with a few words as its values.
type choice struct {
	value string
	among []string
}

func newChoice(among ...string) choice { return choice{value: among[0], among: among} }

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.among, "|") }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.among, s) {
		return fmt.Errorf("want %s", strings.Join(c.among, " or "))
	}
	c.value = s
	return nil
}
