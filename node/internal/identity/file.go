package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

func readBounded(path string, bound int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, bound+1))
	if err == nil && int64(len(b)) > bound {
		err = fmt.Errorf("it is longer than %d bytes", bound)
	}
	return b, err
}

// holds reports whether there is anything in the file or folder at path.
func holds(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.IsDir() {
		return err == nil && info.Size() > 0, err
	}
	entries, err := os.ReadDir(path)
	return len(entries) > 0, err
}

// replace writes the file name in dir so that a crash leaves the old content or
// the new one, and that the new one is on the disk when it returns. One call at
// a time.
func replace(dir, name string, content []byte) error {
	path := filepath.Join(dir, name)
	temp := path + ".new"
	if err := writeSynced(temp, content); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(dir)
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename or a removal in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
