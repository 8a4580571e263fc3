package identity

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/coordd/coordd/leases"
)

const helperDir = "COORDD_TEST_LOCK_DIR"

func member() Identity {
	id := New("a")
	id.Cluster, id.Group, id.Founders, id.FirstEpoch, id.Starts = leases.NewID(), leases.NewID(), 3, 7, 4
	id.Members = []Member{{"b.0123456789abcdef", "10.0.0.2:7420", 9}, {"c.0123456789abcdef", "10.0.0.3:7420", 1}}
	return id
}

func open(t *testing.T, dir, name string) *Folder {
	t.Helper()
	f, err := Open(dir, name)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func load(t *testing.T, f *Folder) Identity {
	t.Helper()
	id, found, err := f.Load()
	if err != nil || !found {
		t.Fatalf("Load: found %v, error %v", found, err)
	}
	return id
}

func put(t *testing.T, content string, path ...string) {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// folderOf makes a folder that holds id, and a log unless told otherwise.
func folderOf(t *testing.T, id Identity, withLog bool) string {
	t.Helper()
	dir := t.TempDir()
	f := open(t, dir, id.Name)
	if err := f.Save(id); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if withLog {
		put(t, "log", dir, LogFile)
	}
	return dir
}

func TestFolderKeepsTheIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	f := open(t, dir, "a")
	if _, found, err := f.Load(); found || err != nil {
		t.Fatalf("new folder: found %v, error %v, want neither", found, err)
	}
	want := member()
	for range 2 { // the second replaces the first
		want.Starts++
		if err := f.Save(want); err != nil {
			t.Fatal(err)
		}
	}
	put(t, "log", dir, LogFile)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := load(t, open(t, dir, "a")); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, identityFile): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s: got %o, want %o", path, got, want)
		}
	}
}

func TestFileIsForPeople(t *testing.T) {
	id := Identity{Name: "a", Incarnation: "00000000000000ff", Starts: 1, Members: []Member{{"b.01", "10.0.0.2:7420", 2}}}
	got, err := encode(id)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "version": 1,
  "name": "a",
  "incarnation": "00000000000000ff",
  "starts": 1,
  "members": [
    {
      "server_id": "b.01",
      "address": "10.0.0.2:7420",
      "starts": 2
    }
  ]
}
`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSaveThatFailsKeepsTheOldIdentity(t *testing.T) {
	want := member()
	dir := folderOf(t, want, true)
	f := open(t, dir, "a")
	// A folder in the way of the temporary file.
	put(t, "", dir, identityFile+".new", "x")
	next := want
	next.Starts++
	if err := f.Save(next); err == nil {
		t.Fatal("Save succeeded, want an error")
	}
	next.Incarnation = "short"
	if err := f.Save(next); err == nil || !strings.Contains(err.Error(), "incarnation") {
		t.Errorf("Save of an invalid identity: got %v, want an error that names the incarnation", err)
	}
	if got := load(t, f); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSaveAfterClose(t *testing.T) {
	f := open(t, t.TempDir(), "a")
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Save(New("a")); err == nil {
		t.Error("Save succeeded on a folder that somebody else may hold by now")
	}
}

func TestLostLog(t *testing.T) {
	founding := member()
	founding.Founding = true
	tests := []struct {
		name  string
		id    Identity
		files map[string]string
		kept  bool
	}{
		{"log", member(), map[string]string{LogFile: "log"}, true},
		{"log and snapshots", member(), map[string]string{LogFile: "log", SnapshotsDir + "/1/state.bin": ""}, true},
		{"no log", member(), nil, false},
		{"empty log", member(), map[string]string{LogFile: ""}, false},
		{"snapshots only", member(), map[string]string{SnapshotsDir + "/1/state.bin": ""}, false},
		{"founding, no log yet", founding, nil, true},
		{"founding, log", founding, map[string]string{LogFile: "log"}, true},
		{"founding, but there was a log", founding, map[string]string{SnapshotsDir + "/1/state.bin": ""}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := folderOf(t, tt.id, false)
			for name, content := range tt.files {
				put(t, content, dir, name)
			}
			f := open(t, dir, "a")
			got := load(t, f)
			if tt.kept {
				if !reflect.DeepEqual(got, tt.id) {
					t.Errorf("got %+v, want %+v", got, tt.id)
				}
				return
			}
			if got.Incarnation == tt.id.Incarnation {
				t.Error("the incarnation outlives its log")
			}
			want := Identity{Name: "a", Incarnation: got.Incarnation, Members: tt.id.Members}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if has, err := holds(filepath.Join(dir, SnapshotsDir)); has || err != nil {
				t.Errorf("snapshots of the lost log: there %v, error %v, want them gone", has, err)
			}
		})
	}
}

func TestUnusableFolder(t *testing.T) {
	good, err := encode(New("a"))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		files map[string]string
		want  error
		says  []string
	}{
		{"log without identity", map[string]string{LogFile: "log"}, ErrUnusable, []string{LogFile, "no identity.json", "move the whole folder away"}},
		{"snapshots without identity", map[string]string{SnapshotsDir + "/1/meta.json": ""}, ErrUnusable, []string{SnapshotsDir, "no identity.json"}},
		{"not JSON", map[string]string{identityFile: "name = a"}, ErrUnusable, []string{"identity.json cannot be read"}},
		{"empty", map[string]string{identityFile: ""}, ErrUnusable, nil},
		{"cut off", map[string]string{identityFile: string(good[:len(good)/2])}, ErrUnusable, nil},
		{"trailing", map[string]string{identityFile: string(good) + "{}"}, ErrUnusable, nil},
		{"too long", map[string]string{identityFile: string(good) + strings.Repeat(" ", maxFile)}, ErrUnusable, []string{"longer than"}},
		{"newer version", map[string]string{identityFile: `{"version": 2, "soul": "x"}`}, ErrVersion, []string{"unknown version 2", "reads version 1"}},
		{"unknown field", map[string]string{identityFile: strings.Replace(string(good), `"starts"`, `"begins"`, 1)}, ErrUnusable, []string{"begins"}},
		{"bad incarnation", map[string]string{identityFile: `{"version": 1, "name": "a", "incarnation": "XYZ", "starts": 1}`}, ErrUnusable, []string{"incarnation", "XYZ"}},
		{"other name", map[string]string{identityFile: strings.Replace(string(good), `"a"`, `"b"`, 1)}, ErrName, []string{`"a"`, `"b"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tt.files {
				put(t, content, dir, name)
			}
			f, err := Open(dir, "a")
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			for _, s := range append(tt.says, dir) {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("got %q, want it to say %q", err, s)
				}
			}
			lock, err := takeLock(dir)
			if err != nil {
				t.Fatalf("the refused folder stays locked: %v", err)
			}
			lock.Close()
		})
	}
}

func TestLockWithinAProcess(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir, "a")
	_, err := Open(dir, "a")
	var locked *LockedError
	if !errors.As(err, &locked) || !errors.Is(err, ErrLocked) {
		t.Fatalf("got %v, want %v", err, ErrLocked)
	}
	if locked.Dir != dir || locked.PID != os.Getpid() || !strings.Contains(err.Error(), "this process") {
		t.Errorf("got %+v: %v, want %s held by pid %d, this process", locked, err, dir, os.Getpid())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, "a")
}

func TestLockBetweenProcesses(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldLock$")
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	var word string
	if _, err := fmt.Fscan(stdout, &word); err != nil || word != "locked" {
		t.Fatalf("helper said %q: %v", word, err)
	}
	_, err = Open(dir, "a")
	for _, s := range []string{dir, fmt.Sprintf("pid %d", cmd.Process.Pid)} {
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), s) {
			t.Errorf("got %v, want %v that says %q", err, ErrLocked, s)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	open(t, dir, "a") // the lock ends with its process
}

// TestHoldLock is the other process of TestLockBetweenProcesses.
func TestHoldLock(t *testing.T) {
	dir := os.Getenv(helperDir)
	if dir == "" {
		t.Skip("runs in a process of its own")
	}
	open(t, dir, "a")
	fmt.Println("locked")
	os.Stdin.Read(make([]byte, 1))
}
