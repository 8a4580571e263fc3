package arbiter

import (
	"bytes"
	"context"
	"sync"
)

// Memory is a Store in this process's memory, for development and tests: it goes
// with the process.
type Memory struct {
	mu        sync.Mutex // guards registers
	registers map[string]Register
}

var _ Store = (*Memory)(nil)

// NewMemory returns a store without registers.
func NewMemory() *Memory { return &Memory{registers: map[string]Register{}} }

// Load implements Store.
func (m *Memory) Load(ctx context.Context, key string) (Register, error) {
	if err := Ended(ctx); err != nil {
		return Register{}, Unreachable(key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.registers[key], nil
}

// CompareAndSwap implements Store.
func (m *Memory) CompareAndSwap(ctx context.Context, key string, from Version, w Write) error {
	if err := Validate(key, w.Data); err != nil {
		return err
	}
	if err := Ended(ctx); err != nil {
		return Unreachable(key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.registers[key]
	if found.Version != from {
		if found.Version == from+1 && found.Nonce == w.Nonce {
			return nil // a repeat
		}
		return &ConflictError{Key: key, From: from, Found: found}
	}
	m.registers[key] = Register{Version: from + 1, Nonce: w.Nonce, Data: bytes.Clone(w.Data)}
	return nil
}
