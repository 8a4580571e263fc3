package dynamodb

import (
	"errors"
	"fmt"

	"github.com/coordd/coordd/arbiter"
)

// resolve tells what it means for a write from version from that its condition has
// failed on an item; lost: an earlier try of the same write may have taken effect.
//
//   - The next version with the write's own nonce: an earlier try has won.
//   - The next version with another nonce: another write has won from there, so this
//     one has not, and cannot any more.
//   - A later version: if an earlier try was lost, it may have won and been overwritten.
//   - An older version is none that a sound table can show.
func resolve(key string, from arbiter.Version, nonce arbiter.Nonce, i item, lost bool) error {
	found, err := decode(i)
	if err == nil && found.Version == from {
		err = errors.New("the condition of a write has failed, and yet the item that came with the failure has the version asked for, or none came")
	}
	switch {
	case err != nil && lost:
		return &arbiter.UnknownError{Key: key, Err: err}
	case err != nil:
		return arbiter.Unreachable(key, err)
	case found.Version == from+1 && found.Nonce == nonce:
		return nil
	case !lost || found.Version == from+1:
		return &arbiter.ConflictError{Key: key, From: from, Found: found}
	case found.Version < from:
		return &arbiter.UnknownError{Key: key, Found: found, Err: arbiter.SetBack(key, from, found.Version)}
	default:
		return &arbiter.UnknownError{Key: key, Found: found, Err: fmt.Errorf(
			"a try had no answer, and the register has come to version %d since, so it cannot be told who made version %d", found.Version, from+1)}
	}
}
