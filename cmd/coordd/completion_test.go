package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// completions is what the shell is offered for the last word; the last line of
// it is how it goes on.
func completions(t *testing.T, words ...string) string {
	t.Helper()
	got := inProcess(t, append([]string{"__complete"}, words...)...)
	if got.code != 0 {
		t.Fatalf("__complete %q: got %+v", words, got)
	}
	return got.stdout
}

func TestCompletionScripts(t *testing.T) {
	for shell, want := range map[string]string{"bash": "__start_coordd", "zsh": "#compdef coordd", "fish": "complete -c coordd", "powershell": "Register-ArgumentCompleter"} {
		if got := inProcess(t, "completion", shell); got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: got %d, %q and %d bytes, want a script", shell, got.code, got.stderr, len(got.stdout))
		}
	}
	failed(t, inProcess(t, "completion", "tcsh"), exitUsage, `unknown command "tcsh"; did you mean bash`, "coordd completion --help")
}

// The script is one that a shell can read, and offers what coordd does.
func TestBashCompletion(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash")
	}
	bash := exec.Command("bash", "-c", `eval "$(coordd completion bash)"
COMP_WORDS=(coordd lease ""); COMP_CWORD=2; COMP_LINE="coordd lease "; COMP_POINT=${#COMP_LINE}; COMP_TYPE=63
_get_comp_words_by_ref() { while [[ $1 == -* ]]; do shift 2; done; cur=""; prev=lease; words=("${COMP_WORDS[@]}"); cword=2; }
__start_coordd coordd "" lease 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"`)
	bash.Env = []string{"PATH=" + strings.TrimSuffix(binary(t), "/coordd") + ":/usr/bin:/bin"}
	out, err := bash.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "acquire\n") || !strings.Contains(string(out), "watch\n") {
		t.Errorf("got %q (%v), want the commands under lease", out, err)
	}
}

func TestCompletions(t *testing.T) {
	const (
		noFiles = ":4\n"
		files   = ":0\n"
		folders = ":16\n"
	)
	for _, c := range []struct{ line, want string }{
		{"status -o ", "text\njson\n" + noFiles},
		{"lease acquire job -o ", "text\njson\nshell\n" + noFiles},
		{"lease acquire job --wait ", "forever\n" + noFiles},
		{"lease acquire job --ttl ", noFiles},
		{"lease renew --token ", noFiles},
		{"serve --log-level ", "debug\ninfo\nwarn\nerror\n" + noFiles},
		{"serve --http ", "off\n" + noFiles},
		{"serve --bootstrap ", noFiles},
		{"serve --data ", folders},
		{"serve --config ", files},
		{"serve --ca ", files},
		{"remove n1 --socket ", files},
		{"run job ", files},
		{"remove ", noFiles},
		{"copy-to ", folders},
		{"lease get job ", noFiles},
		{"lease get --addr " + nowhere + " ", noFiles}, // nobody can be asked
	} {
		words := strings.Split(c.line, " ")
		if got := completions(t, words...); got != c.want {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
	for word, want := range map[string]string{"lea": "lease\t", "ser": "serve\t"} {
		if got := completions(t, word); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", word, got, want)
		}
	}
}

// Every flag says what it takes: the shell offers no files where none belong.
func TestEveryFlagCompletes(t *testing.T) {
	for _, cmd := range below(newRoot()) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if _, ok := cmd.GetFlagCompletionFunc(f.Name); !ok {
				t.Errorf("%s --%s has no completion", cmd.CommandPath(), f.Name)
			}
		})
	}
}
