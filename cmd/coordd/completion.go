package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	// completionTimeout bounds how long somebody who has pressed Tab waits for the
	// cluster.
	completionTimeout = time.Second
	completedNames    = 200
)

// addCompletion adds cobra's command, which prints to where root prints now.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if cmd, _, err := root.Find([]string{"completion"}); err == nil {
		group(cmd)
	}
}

// completeValues tells the shell which values the flags of cmd take, and that its
// arguments are no files unless it says otherwise.
func completeValues(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		words := strings.Split(f.Value.Type(), "|")
		if _, ok := f.Value.(*choice); !ok {
			words = words[1:] // the first names a kind of values
		}
		complete := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		switch kind, _ := pflag.UnquoteUsage(f); kind {
		case "folder":
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case "file":
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
		}
		// It fails only for a flag that does not exist, or that has a completion already.
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
	})
}

// completeLease completes the first argument with the names that are held, as far
// as the cluster tells them at once.
func completeLease(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return heldNames(cmd, prefix), cobra.ShellCompDirectiveNoFileComp
}

// completeRun completes the name of a lease, and then the words of a command.
func completeRun(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return completeLease(cmd, args, prefix)
}

// heldNames asks the cluster that cmd's flags and the environment name. A command
// line that is not complete yet may be wrong in other ways: there are no errors.
func heldNames(cmd *cobra.Command, prefix string) (names []string) {
	var conn connection
	fs := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	conn.register(fs)
	bindEnv(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if given := cmd.Flags().Lookup(f.Name); given != nil && given.Changed {
			_ = fs.Set(f.Name, given.Value.String())
		}
	})
	_ = applyEnv(fs)
	c, err := conn.dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	page, _ := c.List(ctx, prefix, "", completedNames)
	for _, l := range page.Leases {
		names = append(names, l.Name)
	}
	return names
}
