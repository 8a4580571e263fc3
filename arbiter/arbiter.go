// Package arbiter defines the linearizable registers that decide who may bootstrap a
// cluster, and that take it over when its quorum is lost. Any store with a
// conditional write can become one; arbitertest is what each has to pass.
package arbiter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

const (
	// MaxData is how many bytes a register holds at most: an item of DynamoDB has
	// 400 KB, its key and other attributes included.
	MaxData = 399 << 10
	// MaxKey is how many bytes a key has at most.
	MaxKey = 512
)

// Version counts the writes of a register: the first makes it 1, each other one
// more. 0: there is no such register.
type Version uint64

// Nonce tells one write from every other. It is drawn at random for one
// CompareAndSwap and its repeats.
type Nonce [16]byte

// NewNonce draws one.
func NewNonce() (n Nonce) {
	rand.Read(n[:])
	return n
}

// String is 32 hexadecimal digits.
func (n Nonce) String() string { return hex.EncodeToString(n[:]) }

// Register is what a register holds.
type Register struct {
	Version Version
	Nonce   Nonce  // of the write that made it so
	Data    []byte // not to be written to
}

// Write is what a register is to hold.
type Write struct {
	Nonce Nonce
	Data  []byte // UTF-8 text, at most MaxData; not kept by the store
	By    string // who writes, for people only: a store may leave it out or cut it
}

// Store keeps registers by their keys: 1 to MaxKey bytes of UTF-8 text. It is safe
// for concurrent use, and linearizable: a Load that begins after a write was
// answered sees it, or a later one. Registers are never deleted, nor set back to
// older contents.
//
// A call whose ctx has ended before it began does nothing, and fails with ErrUnreachable.
type Store interface {
	// Load returns what a register holds; one that was never written has version 0.
	// Errors: ErrUnreachable.
	Load(ctx context.Context, key string) (Register, error)
	// CompareAndSwap writes a register that holds version from, which makes its
	// version from+1. To repeat a write is to call again with the same arguments.
	//
	// nil: it is written, by this call or by one that it repeats. *ConflictError:
	// certainly it was not, and will not be, by this call. ErrUnknown: it may have
	// been, or may yet be, also long after the call has returned. Any other error,
	// such as ErrUnreachable, ErrTooLarge and ErrInvalid: certainly it was not, and
	// will not be. When ctx ends first, the error matches ErrUnknown or ErrUnreachable.
	CompareAndSwap(ctx context.Context, key string, from Version, w Write) error
}

var (
	// ErrConflict: the register held another version. See *ConflictError.
	ErrConflict = errors.New("the register holds another version")
	// ErrUnknown: nobody knows whether a write took effect, or will. See *UnknownError.
	ErrUnknown = errors.New("the outcome of the write is unknown")
	// ErrUnreachable: the store did not answer, or would not, or not with a register;
	// nothing was changed.
	ErrUnreachable = errors.New("the arbiter gives no usable answer")
	// ErrNotRegister: what the store has under a key is no register: something else has
	// written it. It comes with ErrUnreachable, or with ErrUnknown.
	ErrNotRegister = errors.New("not a register")
	// ErrTooLarge: the data exceed MaxData.
	ErrTooLarge = errors.New("too large for a register")
	// ErrInvalid: no register can have this key, or hold this.
	ErrInvalid = errors.New("not for a register")
	// ErrSetBack: a register holds an older version than the caller has seen, which
	// no write can bring about: it was deleted, or restored from a backup.
	ErrSetBack = errors.New("the register was set back")
)

// ConflictError tells what a register held instead. It matches ErrConflict, and
// ErrSetBack if that is an older version than the one asked for.
type ConflictError struct {
	Key   string
	From  Version // that was asked for
	Found Register
}

func (e *ConflictError) Error() string {
	if e.Found.Version < e.From {
		return SetBack(e.Key, e.From, e.Found.Version).Error()
	}
	return fmt.Sprintf("register %s holds version %d, not %d", e.Key, e.Found.Version, e.From)
}

// Is matches ErrConflict and ErrSetBack.
func (e *ConflictError) Is(target error) bool {
	return target == ErrConflict || target == ErrSetBack && e.Found.Version < e.From
}

// SetBack returns an error that matches ErrSetBack and says what was expected, and
// what was found.
func SetBack(key string, seen, found Version) error {
	return fmt.Errorf("register %s: %w: it holds version %d, and has held %d: was it deleted, or its table restored from a backup?",
		key, ErrSetBack, found, seen)
}

// UnknownError says why the outcome of a write is unknown. It matches ErrUnknown.
type UnknownError struct {
	Key string
	// Found is what the register was seen to hold after the write was sent, if
	// anything was (Version 0: nothing). A version beyond from+1 says that the write
	// has no more effect to come, and nothing about whether it had one.
	Found Register
	Err   error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("write of register %s: %v: %v", e.Key, ErrUnknown, e.Err)
}

// Is matches ErrUnknown.
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Unwrap is the error of the newest try.
func (e *UnknownError) Unwrap() error { return e.Err }

// Unreachable returns an error that matches ErrUnreachable and err.
func Unreachable(key string, err error) error {
	return fmt.Errorf("register %s: %w: %w", key, ErrUnreachable, err)
}

// Ended says why ctx has ended; nil: it has not. The error matches the cause.
func Ended(ctx context.Context) error {
	switch cause := context.Cause(ctx); cause {
	case context.Canceled, context.DeadlineExceeded:
		return fmt.Errorf("the caller waits no longer: %w", cause)
	default:
		return cause
	}
}

// Validate returns an error if there can be no register with this key and data: it
// matches ErrTooLarge or ErrInvalid.
func Validate(key string, data []byte) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: its key is empty", ErrInvalid)
	case len(key) > MaxKey:
		return fmt.Errorf("%w: its key, %.40q…, has %d bytes, at most %d", ErrInvalid, key, len(key), MaxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: its key, %q, is not UTF-8 text", ErrInvalid, key)
	case !utf8.Valid(data):
		return fmt.Errorf("register %s: %w: the data are not UTF-8 text", key, ErrInvalid)
	}
	return CheckSize(key, data)
}

// CheckSize returns an error that matches ErrTooLarge if the data do not fit.
func CheckSize(key string, data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("register %s: %w: %d bytes, at most %d", key, ErrTooLarge, len(data), MaxData)
	}
	return nil
}

// Health is how a store has answered lately, for people and dashboards.
type Health struct {
	Store     string // such as "DynamoDB table coordd in eu-central-1"
	Reachable bool   // the newest call was answered
	RoundTrip time.Duration
	Errors    uint64 // calls without an answer, since the start
	Err       error  // the newest of them, while the store is not reachable
}
