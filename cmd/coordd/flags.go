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

// fromEnvAnnotation marks a flag that was set by its environment variable.
const fromEnvAnnotation = "from env"

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
			problems = append(problems, fmt.Errorf("invalid environment variable %s=%q: %s", env[0], value, wanted(f, err)))
			return
		}
		f.Changed = true
		f.Annotations[fromEnvAnnotation] = env
	})
	return errors.Join(problems...)
}

// withEnv adds to an error that names flags which of them come from the
// environment: whoever reads it may not have typed them.
func withEnv(fs *pflag.FlagSet, err error) error {
	named := strings.FieldsFunc(err.Error(), func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
	var from []string
	fs.VisitAll(func(f *pflag.Flag) {
		if env := f.Annotations[fromEnvAnnotation]; len(env) > 0 && slices.Contains(named, "--"+f.Name) {
			from = append(from, fmt.Sprintf("--%s is from %s", f.Name, env[0]))
		}
	})
	if len(from) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(from, ", "))
}

// wanted says what values a flag takes that refused one with err. Where the
// flag's type is pflag's own, err speaks of Go.
func wanted(f *pflag.Flag, err error) string {
	switch kind := f.Value.Type(); {
	case kind == "duration":
		return "want a duration such as 500ms, 15s or 2m"
	case kind == "bool":
		return "want true or false"
	case (kind == "int" || kind == "uint32") && errors.Is(err, strconv.ErrRange):
		return "want a number that is not so large"
	case kind == "int":
		return "want a whole number"
	case kind == "uint32":
		return "want a whole number that is not negative"
	}
	return err.Error()
}

// address is a flag's host:port.
type address string

func (a *address) String() string { return string(*a) }
func (a *address) Type() string   { return "host:port" }

func (a *address) Set(s string) error {
	if _, _, err := splitAddress(s); err != nil {
		return err
	}
	*a = address(s)
	return nil
}

// addresses is a flag's list of host:port, separated by commas. A later one on
// the command line replaces it. Somebody is to be found at each of them.
type addresses []string

func (a *addresses) String() string { return strings.Join(*a, ",") }
func (a *addresses) Type() string   { return "host:port,..." }

func (a *addresses) Set(s string) error {
	var list addresses
	for field := range strings.SplitSeq(s, ",") {
		field = strings.TrimSpace(field)
		host, port, err := splitAddress(field)
		if err == nil && (host == "" || port == 0) {
			err = errAddress
		}
		switch {
		case err != nil && field != s: // one of several
			return fmt.Errorf("%q: %w", field, err)
		case err != nil:
			return err
		}
		list = append(list, field)
	}
	*a = list
	return nil
}

var errAddress = errors.New("want host:port, such as 10.0.0.1:7420, with a port from 1 to 65535")

func splitAddress(s string) (host string, port uint64, err error) {
	host, text, err := net.SplitHostPort(s)
	if err == nil {
		port, err = strconv.ParseUint(text, 10, 16)
	}
	if err != nil {
		return "", 0, errAddress
	}
	return host, port, nil
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
