package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// document is what a command prints: to people by writeText, to programs by
// its JSON fields, whose names are stable.
type document interface{ writeText(w io.Writer) }

// script is a document that a shell can read too.
type script interface {
	document
	writeShell(w io.Writer)
}

// output has the flag that says in which form a command prints.
type output struct{ format choice }

func (o *output) register(cmd *cobra.Command) { o.registerForms(cmd, "text", "json") }

// registerForms is register for a command that prints in other forms too. With
// shell among them, its document is a script.
func (o *output) registerForms(cmd *cobra.Command, forms ...string) {
	o.format = newChoice(forms...)
	cmd.Flags().VarP(&o.format, "output", "o", "in which form to print")
}

func (o *output) json() bool { return o.format.value == "json" }

func (o *output) print(w io.Writer, d document) error {
	var b bytes.Buffer
	switch o.format.value {
	case "json":
		enc := json.NewEncoder(&b)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(d); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	case "shell":
		d.(script).writeShell(&b)
	default:
		d.writeText(&b)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// writeFields writes names and values in two aligned columns. Pairs without a
// value are left out; values that are not for a terminal are quoted.
func writeFields(w io.Writer, pairs ...string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", pairs[i], printable(pairs[i+1]))
		}
	}
}

// printable is s where it is text, and quoted otherwise: it may come from whoever holds
// a lease, or writes a register, and goes to a terminal.
func printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
