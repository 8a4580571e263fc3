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

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// envAnnotation marks a flag with the environment variable that it is read from.
const envAnnotation = "env"

// fromAnnotation marks a flag that was not set on the command line with where
// its value comes from.
const fromAnnotation = "from"

// typedOnly are the flags that let a command do what it would ask about or
// refuse: they are said aloud each time.
var typedOnly = []string{"yes", "now", "force", "holders-stopped"}

// bindEnv gives every flag of fs an environment variable and says so in its
// help: --max-claims is COORDD_MAX_CLAIMS. One that has a variable keeps it.
func bindEnv(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if slices.Contains(typedOnly, f.Name) {
			return
		}
		if len(f.Annotations[envAnnotation]) == 0 {
			f.Annotations = map[string][]string{envAnnotation: {envName(f.Name)}}
		}
		f.Usage += " [" + f.Annotations[envAnnotation][0] + "]"
	})
}

// envName is a flag's environment variable. A token's is the one under which it
// is handed out.
func envName(flag string) string {
	if flag == "token" {
		flag = "fencing-token"
	}
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
		f.Annotations[fromAnnotation] = env
	})
	return errors.Join(problems...)
}

// withSource adds to an error that names flags which of them come from the
// environment or a file: whoever reads it may not have typed them.
func withSource(fs *pflag.FlagSet, err error) error {
	named := strings.FieldsFunc(err.Error(), func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
	var from []string
	fs.VisitAll(func(f *pflag.Flag) {
		if source := f.Annotations[fromAnnotation]; len(source) > 0 && slices.Contains(named, "--"+f.Name) {
			from = append(from, fmt.Sprintf("--%s is from %s", f.Name, source[0]))
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

// idFlag is a flag's session or attempt; zero: none.
type idFlag leases.ID

func (i *idFlag) Type() string { return "id" }

func (i *idFlag) String() string {
	if leases.ID(*i).IsZero() {
		return ""
	}
	return leases.ID(*i).String()
}

func (i *idFlag) Set(s string) error {
	id, err := leases.ParseID(s)
	if err != nil || id.IsZero() {
		return errors.New("want 32 hexadecimal digits that are not all zero")
	}
	*i = idFlag(id)
	return nil
}

// tokenFlag is a flag's fencing token; zero: none.
type tokenFlag tokens.Token

func (t *tokenFlag) Type() string { return "token" }

func (t *tokenFlag) String() string {
	if *t == 0 {
		return ""
	}
	return tokens.Token(*t).String()
}

func (t *tokenFlag) Set(s string) error {
	token, err := tokens.Parse(s)
	if err != nil {
		return fmt.Errorf("want a decimal number from 1 to %d", uint64(tokens.Max))
	}
	*t = tokenFlag(token)
	return nil
}

// positionFlag is a flag's place in the history of all leases; zero: none.
type positionFlag leases.Position

func (p *positionFlag) Type() string { return "epoch/revision" }

func (p *positionFlag) String() string {
	if *p == (positionFlag{}) {
		return ""
	}
	return leases.Position(*p).String()
}

func (p *positionFlag) Set(s string) error {
	first, second, _ := strings.Cut(s, "/")
	epoch, err1 := strconv.ParseUint(first, 10, 32)
	revision, err2 := strconv.ParseUint(second, 10, 64)
	if err1 != nil || err2 != nil || epoch == 0 {
		return errors.New("want EPOCH/REVISION, such as 1/1234, as lease list and lease watch print it")
	}
	*p = positionFlag{Epoch: uint32(epoch), Revision: revision}
	return nil
}
