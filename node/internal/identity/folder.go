package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Names within a data folder.
const (
	LogFile      = "raft.db"       // Raft's log, term and vote
	SnapshotsDir = "snapshots"     // Raft's snapshots
	identityFile = "identity.json" // who the node is
	lockFile     = "lock"          // held by the process that uses the folder
)

// maxFile bounds how much of an identity file is read.
const maxFile = 1 << 20

var (
	// ErrLocked: another process uses the folder. See *LockedError.
	ErrLocked = errors.New("data folder is in use")
	// ErrUnusable: what the folder holds cannot be used as it is. See *UnusableError.
	ErrUnusable = errors.New("data folder cannot be used")
	// ErrName: the folder belongs to a node of another name. See *NameError.
	ErrName = errors.New("data folder of another node")
)

// LockedError tells who uses the folder. It matches ErrLocked.
type LockedError struct {
	Dir string
	PID int // 0: not known
}

func (e *LockedError) Error() string {
	by := "another process"
	switch e.PID {
	case 0:
	case os.Getpid():
		by = fmt.Sprintf("another node in this process (pid %d)", e.PID)
	default:
		by = fmt.Sprintf("the process with pid %d", e.PID)
	}
	return fmt.Sprintf("data folder %s is in use by %s: stop that one first, or give this node a folder of its own", e.Dir, by)
}

// Is matches ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// UnusableError says what is wrong with a folder. It matches ErrUnusable.
type UnusableError struct {
	Dir   string
	Cause error
}

func (e *UnusableError) Error() string {
	return fmt.Sprintf("data folder %s cannot be used: %v: bring its files back if they were moved (never an older copy of them), or move the whole folder away and start the node again: it then joins its cluster as a new member", e.Dir, e.Cause)
}

// Is matches ErrUnusable.
func (e *UnusableError) Is(target error) bool { return target == ErrUnusable }

// Unwrap is the cause.
func (e *UnusableError) Unwrap() error { return e.Cause }

// NameError tells that the name a node is started under is not the one in its
// folder. It matches ErrName.
type NameError struct{ Want, Found string }

func (e *NameError) Error() string {
	return fmt.Sprintf("the data folder belongs to node %q, but this node is started as %q: start it under that name, or with a folder of its own", e.Found, e.Want)
}

// Is matches ErrName.
func (e *NameError) Is(target error) bool { return target == ErrName }

// Folder is a node's data folder, locked for this process. It is safe for
// concurrent use.
type Folder struct {
	dir  string
	mu   sync.Mutex // guards lock, and makes one of the saves at a time
	lock *os.File   // nil once closed
}

// Open makes the folder of the node called name if there is none, readable by
// its owner only, and locks it. Where the identity's log is gone, the node gets a new incarnation, which
// belongs to no cluster yet and knows the members that the old one knew; only a
// node that was Founding, and so may not have had a log yet, stays who it was.
// Errors: ErrLocked; ErrName; ErrUnusable where there is a log but no identity,
// or an identity that cannot be read; those of the file system.
func Open(dir, name string) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	f := &Folder{dir: dir, lock: lock}
	if err := f.settle(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Peek returns the identity in a data folder, without a lock: for messages, and
// to learn its name.
func Peek(dir string) (Identity, bool, error) { return (&Folder{dir: dir}).Load() }

// HasLog reports whether there is a log in a data folder.
func HasLog(dir string) (bool, error) { return holds(filepath.Join(dir, LogFile)) }

func takeLock(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = &LockedError{Dir: dir, PID: readPID(lock)}
	} else if err != nil {
		err = fmt.Errorf("data folder: lock %s: %w", lock.Name(), err)
	} else {
		err = writePID(lock)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// readPID is 0 if the holder has not written it yet.
func readPID(lock *os.File) int {
	b := make([]byte, 32)
	n, _ := lock.ReadAt(b, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

func writePID(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if _, err := lock.WriteAt(fmt.Appendln(nil, os.Getpid()), 0); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

// settle makes identity and log agree.
func (f *Folder) settle(name string) error {
	id, found, err := f.Load()
	if err != nil {
		return err
	}
	hasLog, err := HasLog(f.dir)
	if err != nil {
		return err
	}
	hasSnapshots, err := holds(filepath.Join(f.dir, SnapshotsDir))
	if err != nil {
		return err
	}
	switch {
	case !found && hasLog:
		return &UnusableError{Dir: f.dir, Cause: fmt.Errorf("it has a log (%s) but no %s", LogFile, identityFile)}
	case !found && hasSnapshots:
		return &UnusableError{Dir: f.dir, Cause: fmt.Errorf("it has snapshots (%s) but no %s", SnapshotsDir, identityFile)}
	case !found:
		return nil
	}
	if err := id.CheckName(name); err != nil {
		return fmt.Errorf("data folder %s: %w", f.dir, err)
	}
	if hasLog || id.Founding && !hasSnapshots {
		return nil
	}
	return f.reincarnate(id)
}

// reincarnate is for a node whose log is gone. Its old snapshots go last: until
// they are gone they show that a log was there.
func (f *Folder) reincarnate(old Identity) error {
	id := New(old.Name)
	id.Members = old.Members
	if err := f.Save(id); err != nil {
		return err
	}
	err := os.RemoveAll(filepath.Join(f.dir, SnapshotsDir))
	if err == nil {
		err = syncDir(f.dir)
	}
	if err != nil {
		return fmt.Errorf("data folder: cannot remove the snapshots of a log that is gone: %w", err)
	}
	return nil
}

// Path is the folder's absolute path.
func (f *Folder) Path() string { return f.dir }

// Load returns what was saved last, or false if nothing was. Its error matches
// ErrUnusable, and ErrVersion too if a newer release has written the file.
func (f *Folder) Load() (Identity, bool, error) {
	path := filepath.Join(f.dir, identityFile)
	b, err := readBounded(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, false, nil
	}
	var id Identity
	if err == nil {
		id, err = decode(b)
	}
	if err != nil {
		return Identity{}, false, &UnusableError{Dir: f.dir, Cause: fmt.Errorf("%s cannot be read: %w", identityFile, err)}
	}
	return id, true, nil
}

// Save replaces the identity durably: after a crash the file holds the old one
// or the new one, whole.
func (f *Folder) Save(id Identity) error {
	if err := id.Validate(); err != nil {
		return err
	}
	b, err := encode(id)
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return fmt.Errorf("data folder %s is closed", f.dir)
	}
	if err := replace(f.dir, identityFile, b); err != nil {
		return fmt.Errorf("data folder: cannot save the node's identity: %w", err)
	}
	return nil
}

// Close gives the folder back, once. The log in it must have been closed.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return nil
	}
	lock := f.lock
	f.lock = nil
	return lock.Close()
}
