package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docs/cli.md is what the commands say of themselves.
func TestCLIDocs(t *testing.T) {
	golden(t, "../../docs/cli.md", []byte(cliDocs(newRoot())))
	if t.Failed() {
		t.Log("make generate-cli writes it anew")
	}
}

// cliDocs is all commands' help, as Markdown.
func cliDocs(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# coordd on the command line\n\n`make generate-cli` writes this from the commands: change it there.\n\n")
	writeLong(&b, root.Long)
	b.WriteString("| command | what it does |\n|---|---|\n")
	for _, cmd := range below(root) {
		fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", cmd.CommandPath(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
	}
	b.WriteString("\n`coordd completion --help` tells how to make a shell complete all this.\n")
	for _, cmd := range below(root) {
		writeCommand(&b, cmd)
	}
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n", cmd.CommandPath(), cmd.Short)
	writeBlock(b, "", cmd.UseLine())
	writeLong(b, cmd.Long)
	if cmd.HasExample() {
		writeBlock(b, "sh", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	}
	if !cmd.LocalFlags().HasFlags() {
		return
	}
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { writeFlag(b, f) })
}

// writeLong writes paragraphs. One with indented lines stays as it is.
func writeLong(b *strings.Builder, long string) {
	for paragraph := range strings.SplitSeq(long, "\n\n") {
		if strings.Contains(paragraph, "\n  ") {
			writeBlock(b, "", paragraph)
			continue
		}
		fmt.Fprintf(b, "%s\n\n", markdown.Replace(paragraph))
	}
}

func writeBlock(b *strings.Builder, language, text string) {
	fmt.Fprintf(b, "```%s\n%s\n```\n\n", language, text)
}

func writeFlag(b *strings.Builder, f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	for _, env := range f.Annotations[envAnnotation] {
		usage, _, _ = strings.Cut(usage, " ["+env+"]")
	}
	flag := strings.TrimSpace("--" + f.Name + " " + value)
	if f.Shorthand != "" {
		flag = "-" + f.Shorthand + ", " + flag
	}
	byDefault := ""
	if f.DefValue != "" && f.DefValue != "false" && (f.DefValue != "0s" || f.Value.Type() != "duration") {
		byDefault = cell.Replace("`" + f.DefValue + "`")
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", cell.Replace(flag), byDefault, cell.Replace(markdown.Replace(usage)))
}

var (
	markdown = strings.NewReplacer("*", `\*`, "<", `\<`)
	cell     = strings.NewReplacer("|", `\|`)
)
