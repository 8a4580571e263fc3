// Package gatewaytest runs the commands that docs/http.md shows, against a
// gateway, so that the manual says what is so.
package gatewaytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// example is a block of commands in the manual, and what it says that they print.
type example struct {
	commands string
	prints   []string // lines; nil: it does not say
}

var examples = regexp.MustCompile("(?ms)^```sh\n(.*?)^```\n(?:\n```json\n(.*?)^```\n)?")

// Manual runs all commands of the manual in file against the gateway at url, in
// their order and in one shell, and compares what they print with what stands
// there: which fields there are, and of what kind; of a few also the value.
func Manual(t *testing.T, file, url string) {
	t.Helper()
	Need(t, "bash", "curl")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []example
	for _, m := range examples.FindAllStringSubmatch(string(content), -1) {
		e := example{commands: strings.ReplaceAll(m[1], "http://127.0.0.1:7421", url)}
		if m[2] != "" {
			e.prints = strings.Split(strings.TrimSpace(m[2]), "\n")
		}
		all = append(all, e)
	}
	if len(all) < 10 {
		t.Fatalf("%s has %d blocks of commands, want those that are there to be found", file, len(all))
	}
	for i, printed := range run(t, all) {
		if err := compare(all[i].prints, printed); err != nil {
			t.Errorf("%v\n%sprinted\n%s\nand the manual says\n%s", err, all[i].commands, printed, strings.Join(all[i].prints, "\n"))
		}
	}
}

// Need skips the test where a tool is missing; on a machine that is there to run
// all tests (CI) it fails.
func Need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("this test needs %s, which is not installed", tool)
			}
			t.Skipf("this test needs %s, which is not installed", tool)
		}
	}
}

// mark stands in the output before that of each example.
const mark = "--- example ---"

// run returns what each example has printed.
func run(t *testing.T, all []example) []string {
	t.Helper()
	var script strings.Builder
	for _, e := range all {
		fmt.Fprintf(&script, "echo; echo '%s'\n%s", mark, e.commands)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-u", "-c", script.String())
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		t.Fatalf("the manual's commands did not end: %v\n%s%s", context.Cause(ctx), out, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("the manual's commands complained (%v): %s", err, stderr.String())
	}
	printed := strings.Split(string(out), mark+"\n")[1:]
	if len(printed) != len(all) {
		t.Fatalf("%d of %d examples ran (%v): %s", len(printed), len(all), err, out)
	}
	for i := range printed {
		printed[i] = strings.TrimSpace(printed[i])
	}
	return printed
}

// compare returns what printed has that want has not, or the other way round. A
// stream may tell the same in more lines or fewer.
func compare(want []string, printed string) error {
	if want == nil {
		return nil
	}
	lines := strings.Split(printed, "\n")
	var missing error
	found := make([]bool, len(want))
	for _, line := range lines {
		known := false
		for i, w := range want {
			err := alike(w, line)
			known = known || err == nil
			found[i] = found[i] || err == nil
			if err != nil {
				missing = err
			}
		}
		if !known {
			return fmt.Errorf("a line that the manual does not have: %w", missing)
		}
	}
	if i := slices.Index(found, false); i >= 0 {
		return fmt.Errorf("line %d of the manual is missing: %w", i+1, missing)
	}
	return nil
}

func alike(want, got string) error {
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		return fmt.Errorf("%q: %w", want, err)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		return fmt.Errorf("%q: %w", got, err)
	}
	if n, ok := w.(float64); ok && n != g {
		return fmt.Errorf("got %v, want %v", g, w)
	}
	return same("", w, g)
}

// exact are the fields whose values the manual tells something by.
var exact = []string{"code", "why", "waited", "transferred", "ready", "held", "position"}

// same compares kinds. null is any object's.
func same(where string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if got == nil {
			return nil
		}
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s: got %v, want the fields of %v", where, got, want)
		}
		for field, value := range w {
			other, ok := g[field]
			switch {
			case !ok:
				return fmt.Errorf("%s.%s: it is not there", where, field)
			case slices.Contains(exact, field) && other != value:
				return fmt.Errorf("%s.%s: got %v, want %v", where, field, other, value)
			}
			if err := same(where+"."+field, value, other); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || (len(g) == 0) != (len(w) == 0) {
			return fmt.Errorf("%s: got %v, want one like %v", where, got, want)
		}
		for i, element := range g {
			if err := same(fmt.Sprintf("%s[%d]", where, i), w[0], element); err != nil {
				return err
			}
		}
		return nil
	case nil:
		if _, ok := got.(map[string]any); ok || got == nil {
			return nil
		}
	}
	if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) {
		return fmt.Errorf("%s: got %v, want one like %v", where, got, want)
	}
	return nil
}
