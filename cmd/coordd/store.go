package main

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/dynamodb"
)

// The kinds of arbiter.
const (
	noArbiter       = "none"
	memoryArbiter   = "memory" // it goes with the process
	dynamoDBArbiter = "dynamodb"
)

const (
	defaultTable   = "coordd"
	defaultCluster = "coordd" // its name in the arbiter's store
)

// storeFlags name an arbiter's store, and the cluster in it.
type storeFlags struct {
	kind                      choice
	table, name               string
	region, endpoint, profile string
}

// arbiterPrefix begins the names of these flags where a command has others too.
const arbiterPrefix = "arbiter-"

// register registers the flags of a command that runs nodes. kinds are those of
// --arbiter, the default first; name is the cluster's by default.
func (s *storeFlags) register(fs *pflag.FlagSet, name string, kinds ...string) {
	s.kind = newChoice(kinds...)
	fs.Var(&s.kind, "arbiter", "the store whose registers decide who has authority")
	s.registerName(fs, arbiterPrefix, name)
	s.registerStore(fs, arbiterPrefix)
}

// registerBare registers the flags of a command that is about the store itself,
// without the prefix. Their environment variables are those of the others.
func (s *storeFlags) registerBare(fs *pflag.FlagSet) {
	s.kind = newChoice(dynamoDBArbiter)
	s.registerStore(fs, "")
	for _, name := range []string{"table", "region", "endpoint", "profile"} {
		shareEnv(fs, name)
	}
}

// registerBareName registers the flag for the cluster's name, as registerBare does.
func (s *storeFlags) registerBareName(fs *pflag.FlagSet) {
	s.registerName(fs, "", defaultCluster)
	shareEnv(fs, "name")
}

// shareEnv gives a flag the environment variable of the one with the prefix.
func shareEnv(fs *pflag.FlagSet, name string) {
	fs.Lookup(name).Annotations = map[string][]string{envAnnotation: {envName(arbiterPrefix + name)}}
}

func (s *storeFlags) registerName(fs *pflag.FlagSet, prefix, byDefault string) {
	usage := "`name` of the cluster, which tells it from others in the table"
	if byDefault == "" {
		usage += " (default: a new one)"
	}
	fs.StringVar(&s.name, prefix+"name", byDefault, usage)
}

func (s *storeFlags) registerStore(fs *pflag.FlagSet, prefix string) {
	fs.StringVar(&s.table, prefix+"table", defaultTable, "DynamoDB `table` with the registers")
	fs.StringVar(&s.region, prefix+"region", "", "AWS `region` of the table (default: as AWS's own tools find it)")
	fs.StringVar(&s.endpoint, prefix+"endpoint", "", "`URL` of DynamoDB, such as an emulator's (default: the region's)")
	fs.StringVar(&s.profile, prefix+"profile", "", "`profile` in AWS's configuration files (default: as AWS's own tools find it)")
}

// strays are the names of the flags that say something of a store, although none is
// meant: --arbiter was not given.
func (s *storeFlags) strays(fs *pflag.FlagSet) (names []string) {
	if s.given() || fs.Changed("arbiter") {
		return nil
	}
	for _, name := range []string{"table", "name", "region", "endpoint", "profile"} {
		if fs.Changed(arbiterPrefix + name) {
			names = append(names, "--"+arbiterPrefix+name)
		}
	}
	return names
}

// given reports whether there is an arbiter.
func (s *storeFlags) given() bool { return s.kind.value != noArbiter }

// open returns the store; nil: there is none. Whoever gets it hands it to closeStore.
func (s *storeFlags) open(ctx context.Context, log *slog.Logger) (arbiter.Store, error) {
	switch s.kind.value {
	case noArbiter:
		return nil, nil
	case memoryArbiter:
		return arbiter.NewMemory(), nil
	}
	table, err := s.dynamoDB(ctx, log)
	if err != nil {
		return nil, err
	}
	return table, nil
}

// dynamoDB returns the table's registers, which nobody has asked for anything yet.
func (s *storeFlags) dynamoDB(ctx context.Context, log *slog.Logger) (*dynamodb.Store, error) {
	table, err := dynamodb.Open(ctx, dynamodb.Config{
		Table: s.table, Endpoint: s.endpoint, Region: s.region, Profile: s.profile, Log: log,
	})
	if err != nil {
		return nil, usagef("the arbiter's store cannot be used: %w", err)
	}
	return table, nil
}

// look is the command line that shows the registers, but for coordd itself; empty: no
// other process can.
func (s *storeFlags) look() string {
	if s.kind.value != dynamoDBArbiter {
		return ""
	}
	line := "arbiter show --name " + s.name
	for _, f := range []struct{ name, value, byDefault string }{
		{"table", s.table, defaultTable}, {"region", s.region, ""}, {"endpoint", s.endpoint, ""}, {"profile", s.profile, ""},
	} {
		if f.value != f.byDefault {
			line += " --" + f.name + " " + f.value
		}
	}
	return line
}

// closeStore lets go of the connections of a store that has any.
func closeStore(s arbiter.Store) {
	if c, ok := s.(interface{ Close() }); ok {
		c.Close()
	}
}
