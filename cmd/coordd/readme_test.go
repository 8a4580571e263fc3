package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The commands in the README's blocks, and their flags, are ours.
func TestREADME(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var (
		block = regexp.MustCompile("(?s)```(?:sh|ini)\n(.*?)```")
		call  = regexp.MustCompile(`(?m)(?:^|[ /])coordd ([a-z-]+)(.*)$`)
		flag  = regexp.MustCompile(`--([a-z][a-z-]+)`)
	)
	calls := 0
	text := strings.ReplaceAll(string(b), "\\\n", "")
	for _, block := range block.FindAllStringSubmatch(text, -1) {
		for _, call := range call.FindAllStringSubmatch(block[1], -1) {
			calls++
			cmd, _, err := newRoot().Find(strings.Fields(call[1] + call[2]))
			if err != nil || cmd.HasSubCommands() {
				t.Errorf("coordd has no command %s", call[1])
				continue
			}
			ours, _, _ := strings.Cut(call[2], " -- ")
			for _, flag := range flag.FindAllStringSubmatch(ours, -1) {
				if cmd.Flags().Lookup(flag[1]) == nil {
					t.Errorf("coordd %s has no --%s", call[1], flag[1])
				}
			}
		}
	}
	if calls < 8 {
		t.Errorf("got %d commands in the README, want those that are there to be found", calls)
	}
}
