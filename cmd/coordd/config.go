package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// configFlag is the flag that names a configuration file: a YAML mapping whose
// keys are the names of the other flags.
const configFlag = "config"

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 1 << 20

// notKeys are the flags that are no keys of a configuration file.
var notKeys = map[string]bool{configFlag: true, "check": true, "help": true}

// applyConfig sets every flag that neither the command line nor the environment
// sets from the file. All of the file is checked, also what does not count.
func applyConfig(flags *pflag.FlagSet, file string) error {
	root, err := readConfig(file)
	if err != nil {
		return usagef("%s: %w", file, err)
	}
	if root == nil {
		return nil
	}
	var problems []error
	lines := map[string]int{} // of the keys so far
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		err := setKey(flags, file, key, value)
		if first := lines[key.Value]; first != 0 {
			err = fmt.Errorf("%s is there twice: it is in line %d already", key.Value, first)
		}
		lines[key.Value] = key.Line
		if err != nil {
			problems = append(problems, fmt.Errorf("line %d: %w", key.Line, err))
		}
	}
	if len(problems) > 0 {
		return usagef("%s: %w", file, errors.Join(problems...))
	}
	return nil
}

// readConfig returns the file's mapping; nil: it is empty.
func readConfig(file string) (*yaml.Node, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	switch {
	case err != nil:
		return nil, withoutPath(err)
	case len(text) > maxConfig:
		return nil, fmt.Errorf("it is longer than %d bytes", maxConfig)
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := documents.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	case documents.Decode(&second) == nil:
		return nil, fmt.Errorf("line %d: a second document begins: want one", second.Line)
	}
	root := document.Content[0]
	switch {
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		return nil, nil
	case root.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: want lines of the form key: value", root.Line)
	}
	return root, nil
}

// withoutPath is what went wrong with a file that is named elsewhere.
func withoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// setKey sets a key's flag, unless it was set before.
func setKey(flags *pflag.FlagSet, file string, key, value *yaml.Node) error {
	f := flags.Lookup(key.Value)
	if f == nil || notKeys[f.Name] {
		near := nearest(flags, key.Value)
		near = slices.DeleteFunc(near, func(name string) bool { return notKeys[name] })
		return fmt.Errorf("unknown key %q%s", key.Value, didYouMean(near))
	}
	text, err := scalar(f, value)
	if err != nil {
		return fmt.Errorf("%s: %w", key.Value, err)
	}
	before := f.Value.String()
	if err := f.Value.Set(text); err != nil {
		return fmt.Errorf("invalid %s %q: %s", key.Value, text, wanted(f, err))
	}
	if f.Changed {
		return f.Value.Set(before)
	}
	f.Changed = true
	f.Annotations[fromAnnotation] = []string{fmt.Sprintf("%s, line %d", file, key.Line)}
	return nil
}

// scalar is a value in the form in which the flag reads it.
func scalar(f *pflag.Flag, value *yaml.Node) (string, error) {
	if _, list := f.Value.(*addresses); list && value.Kind == yaml.SequenceNode {
		var items []string
		for _, item := range value.Content {
			if item.ShortTag() != "!!str" {
				return "", fmt.Errorf("want a list of host:port, not %q", item.Value)
			}
			items = append(items, item.Value)
		}
		return strings.Join(items, ","), nil
	}
	tag, want := "!!str", "want text, in quotes where it looks like something else"
	switch f.Value.Type() {
	case "bool":
		tag, want = "!!bool", wanted(f, nil)
	case "int", "uint32":
		tag, want = "!!int", wanted(f, nil)
	case "duration":
		want = wanted(f, nil)
	}
	switch value.ShortTag() {
	case tag:
		return value.Value, nil
	case "!!null":
		return "", errors.New("it has no value: give it one, or leave the line out")
	case "!!seq", "!!map":
		return "", fmt.Errorf("%s, not a list or a mapping", want)
	}
	return "", fmt.Errorf("invalid value %q: %s", value.Value, want)
}
