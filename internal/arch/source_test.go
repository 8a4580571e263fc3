package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// deterministic has the packages that give the same answers on every node, and
// their files that need not: those are never called from Apply.
var deterministic = map[string][]string{
	"leases": {"id.go"},                   // draws the ids of clients
	"fsm":    {"proposer.go", "watch.go"}, // the leader's side, and the watchers'
}

// What a deterministic file may not use: anything that differs from node to node.
var (
	bannedImports = []string{"math/rand", "math/rand/v2", "crypto/rand", "os", "runtime", "unsafe"}
	bannedTime    = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep", "Local"}
	mapOrder      = []string{"Keys", "Values", "All"} // of package maps
)

// anyOrder marks a range over a map whose order does not show in its result.
// It stands on the line of the range or on the one before.
const anyOrder = "//arch:any-order"

func TestDeterminism(t *testing.T) {
	exports := exported(t, deterministic)
	for folder, exempt := range deterministic {
		fset := token.NewFileSet()
		files := parseFolder(t, fset, folder)
		info := newInfo()
		conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
			return os.Open(exports[path])
		})}
		if _, err := conf.Check(module+"/"+folder, fset, files, info); err != nil {
			t.Fatalf("type-check %s: %v", folder, err)
		}
		for _, f := range files {
			name := filepath.Base(fset.Position(f.Package).Filename)
			if slices.Contains(exempt, name) {
				continue
			}
			for _, why := range differences(fset, f, info) {
				t.Errorf("%s: Apply must do the same on every node: %s", folder, why)
			}
		}
		for _, name := range exempt {
			if _, err := os.Stat(filepath.Join(root(t), folder, name)); err != nil {
				t.Errorf("deterministic exempts a file that is not there: %v", err)
			}
		}
	}
}

func newInfo() *types.Info {
	return &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
}

func TestDifferences(t *testing.T) {
	const begin = "package p\n\nimport (\n\t\"maps\"\n\t\"slices\"\n\t\"time\"\n)\n\n" +
		"var _, _, _ = maps.Clone[map[int]int], slices.Sort[[]int], time.Second\n\n" +
		"func f(m map[int]int, l []int, c chan int) {\n"
	for _, tt := range []struct{ body, want string }{
		{"for range m {\n}", "ranges over a map"},
		{"//arch:any-order it only counts\nfor range m {\n}", ""},
		{"//arch:any-order\nfor range m {\n}", "ranges over a map"}, // no reason
		{"for range l {\n}", ""},
		{"for range maps.Keys(m) {\n}", "maps.Keys unsorted"},
		{"_ = slices.Collect(maps.Values(m))", "maps.Values unsorted"},
		{"for range slices.Sorted(maps.Keys(m)) {\n}", ""},
		{"_ = time.Now()", "uses time.Now"},
		{"g := time.Since\n_ = g", "uses time.Since"},
		{"_ = time.Duration(1)", ""},
		{"go f(m, l, c)", "starts a goroutine"},
		{"select {\ncase <-c:\n}", "waits for channels"},
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", begin+tt.body+"\n}\n", parser.ParseComments)
		if err != nil {
			t.Fatalf("%s: %v", tt.body, err)
		}
		info := newInfo()
		conf := types.Config{Importer: importer.Default()}
		if _, err := conf.Check("p", fset, []*ast.File{file}, info); err != nil {
			t.Fatalf("%s: %v", tt.body, err)
		}
		got := strings.Join(differences(fset, file, info), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.body, got, tt.want)
		}
	}
}

// differences finds what could make a file's code do something else on another node.
func differences(fset *token.FileSet, f *ast.File, info *types.Info) (found []string) {
	report := func(n ast.Node, format string, args ...any) {
		found = append(found, fset.Position(n.Pos()).String()+": "+fmt.Sprintf(format, args...))
	}
	for _, imp := range f.Imports {
		if path := importPath(imp); slices.Contains(bannedImports, path) {
			report(imp, "it imports %s", path)
		}
	}
	marked := markedLines(fset, f)
	sorted := map[ast.Expr]bool{} // arguments of the functions of slices that sort
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "it starts a goroutine")
		case *ast.SelectStmt:
			report(n, "it waits for channels")
		case *ast.RangeStmt:
			_, isMap := info.Types[n.X].Type.Underlying().(*types.Map)
			if line := fset.Position(n.Pos()).Line; isMap && !marked[line] && !marked[line-1] {
				report(n, "it ranges over a map: sort the keys, or mark it with %s and a reason", anyOrder)
			}
		case *ast.CallExpr:
			pkg, name := called(info, n)
			if pkg == "slices" && strings.HasPrefix(name, "Sorted") && len(n.Args) > 0 {
				sorted[n.Args[0]] = true
			}
			if pkg == "maps" && slices.Contains(mapOrder, name) && !sorted[n] {
				report(n, "it takes maps.%s unsorted: use slices.Sorted", name)
			}
		case *ast.SelectorExpr:
			if pkg, name := selected(info, n); pkg == "time" && slices.Contains(bannedTime, name) {
				report(n, "it uses time.%s", name)
			}
		}
		return true
	})
	return found
}

// called returns the package and the name of a package's function that is called.
func called(info *types.Info, call *ast.CallExpr) (pkg, name string) {
	fun := call.Fun
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	if s, ok := fun.(*ast.SelectorExpr); ok {
		return selected(info, s)
	}
	return "", ""
}

// selected returns the package's path and the name of pkg.Name.
func selected(info *types.Info, s *ast.SelectorExpr) (pkg, name string) {
	if x, ok := s.X.(*ast.Ident); ok {
		if p, ok := info.Uses[x].(*types.PkgName); ok {
			return p.Imported().Path(), s.Sel.Name
		}
	}
	return "", ""
}

func markedLines(fset *token.FileSet, f *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, anyOrder+" ") {
				lines[fset.Position(c.Pos()).Line] = true
			}
		}
	}
	return lines
}

// exported returns the files of compiled export data of all that the packages
// in folders depend on, by import path.
func exported(t *testing.T, folders map[string][]string) map[string]string {
	t.Helper()
	args := []string{"list", "-tags", "hashicorpmetrics", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for folder := range folders {
		args = append(args, "./"+folder)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -export: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, file, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			files[path] = file
		}
	}
	return files
}

func parseFolder(t *testing.T, fset *token.FileSet, folder string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root(t), folder, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no Go files in %s (%v)", folder, err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, parse(t, fset, name))
		}
	}
	return files
}

func parse(t *testing.T, fset *token.FileSet, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func importPath(imp *ast.ImportSpec) string {
	path, _ := strconv.Unquote(imp.Path.Value)
	return path
}

// A test that sleeps is slow when it passes and fails when the machine is busy.
// In a bubble of testing/synctest time is virtual, and Sleep is how it passes;
// so the packages whose tests use that may sleep.
func TestNoSleepInTests(t *testing.T) {
	fset := token.NewFileSet()
	sleeps := map[string][]string{} // by folder
	virtual := map[string]bool{}
	walk(t, func(name string) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		f, folder := parse(t, fset, name), filepath.Dir(name)
		virtual[folder] = virtual[folder] || imports(f, "testing/synctest")
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && names(s, "time", "Sleep") {
				sleeps[folder] = append(sleeps[folder], fset.Position(s.Pos()).String())
			}
			return true
		})
	})
	for folder, places := range sleeps {
		if virtual[folder] {
			continue
		}
		for _, place := range places {
			t.Errorf("%s: a test sleeps: wait for a condition, or use testing/synctest", place)
		}
	}
}

// A rule is switched off only where a test shows that it is needed.
func TestRulesAreOffOnlyInTests(t *testing.T) {
	const path = module + "/internal/rules"
	fset := token.NewFileSet()
	walk(t, func(name string) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return
		}
		f := parse(t, fset, name)
		if !imports(f, path) {
			return
		}
		for _, imp := range f.Imports {
			if importPath(imp) == path && imp.Name != nil {
				t.Errorf("%s: import internal/rules under its own name, so that its uses can be found", fset.Position(imp.Pos()))
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && names(s, "rules", "Without") {
				t.Errorf("%s: only a test may switch a rule off", fset.Position(s.Pos()))
			}
			return true
		})
	})
}

func imports(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(imp *ast.ImportSpec) bool { return importPath(imp) == path })
}

// names reports whether s reads pkg.name.
func names(s *ast.SelectorExpr, pkg, name string) bool {
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg && s.Sel.Name == name
}

// foreign are words of machines that a file was written on: what is in the
// repository holds on any. They are put together here, so as not to be found.
var foreign = []string{
	"/wor" + "k/", "../" + "shared", "/tmp/" + "bash",
	"proxy." + "golang.org", "sum." + "golang.org", "registry." + "npmjs.org", "deb." + "debian.org",
}

func TestNoWordsOfTheWorkplace(t *testing.T) {
	walk(t, func(name string) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range foreign {
			if at := bytes.Index(content, []byte(word)); at >= 0 {
				t.Errorf("%s:%d: it says %q: a path or host of one machine", name, 1+bytes.Count(content[:at], []byte("\n")), word)
			}
		}
	})
}

// walk calls f for every file of the repository that git does not ignore; where
// there is no git, for every file.
func walk(t *testing.T, f func(name string)) {
	t.Helper()
	top := root(t)
	if out, err := exec.Command("git", "-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output(); err == nil {
		for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			name = filepath.Join(top, name)
			if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
				f(name)
			}
		}
		return
	}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			f(name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
