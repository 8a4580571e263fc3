// Package arbitertest is what every arbiter.Store has to pass.
package arbitertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordd/coordd/arbiter"
)

// limit is how long one check may take, also against a store on a busy machine.
const limit = 2 * time.Minute

// check is one rule. It uses fresh keys only, so a store may be shared, also by
// checks that run at the same time.
type check struct {
	name string
	run  func(context.Context, arbiter.Store) error
}

var checks = []check{
	{"a register that was never written has version 0", absent},
	{"each write adds one to the version", versions},
	{"a conflict carries what was found", conflict},
	{"contents come back as they were written", contents},
	{"the caller's buffer is its own again", buffer},
	{"of racing writers one wins", race},
	{"a repeat is known by its nonce", repeat},
	{"a later version proves nothing about a repeat", overwritten},
	{"what no register can hold is refused before it is sent", refused},
	{"who reads after a write sees it, and never an older one again", linearizable},
	{"nothing is done when the context has ended", ended},
	{"registers are independent", independent},
}

// Run checks the stores that open returns, one for each rule; it may return the
// same one each time. Their calls have to be answered within a few seconds, and none
// may fail by itself.
func Run(t *testing.T, open func(*testing.T) arbiter.Store) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the check took longer than %v", limit))
			defer cancel()
			if err := c.run(ctx, open(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// freshKey names a register that nobody has used.
func freshKey() string { return "arbitertest/" + rand.Text() }

// text makes a write.
func text(data string) arbiter.Write {
	return arbiter.Write{Nonce: arbiter.NewNonce(), Data: []byte(data), By: "arbitertest"}
}

// holds returns an error unless a register holds this.
func holds(ctx context.Context, s arbiter.Store, key string, version arbiter.Version, w arbiter.Write) error {
	r, err := s.Load(ctx, key)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return same("load", r, version, w)
}

// same returns an error unless r is what w made of a register.
func same(what string, r arbiter.Register, version arbiter.Version, w arbiter.Write) error {
	switch {
	case r.Version != version:
		return fmt.Errorf("%s: got version %d, want %d", what, r.Version, version)
	case r.Nonce != w.Nonce:
		return fmt.Errorf("%s: version %d: got nonce %v, want %v", what, version, r.Nonce, w.Nonce)
	case string(r.Data) != string(w.Data):
		return fmt.Errorf("%s: version %d: got %d bytes of data %.40q, want %d bytes %.40q",
			what, version, len(r.Data), r.Data, len(w.Data), w.Data)
	}
	return nil
}

// write writes fresh contents, one version after the other from version from on.
func write(ctx context.Context, s arbiter.Store, key string, from arbiter.Version, writes ...arbiter.Write) error {
	for i, w := range writes {
		from := from + arbiter.Version(i)
		if err := s.CompareAndSwap(ctx, key, from, w); err != nil {
			return fmt.Errorf("compare and swap from version %d: %w", from, err)
		}
	}
	return nil
}

// lost returns the conflict that err is, or an error.
func lost(err error) (*arbiter.ConflictError, error) {
	c, ok := errors.AsType[*arbiter.ConflictError](err)
	if !ok || !errors.Is(err, arbiter.ErrConflict) {
		return nil, fmt.Errorf("got %v, want a *ConflictError", err)
	}
	for _, other := range []error{arbiter.ErrUnknown, arbiter.ErrUnreachable} {
		if errors.Is(err, other) {
			return nil, fmt.Errorf("%v matches ErrConflict and %q", err, other)
		}
	}
	return c, nil
}
