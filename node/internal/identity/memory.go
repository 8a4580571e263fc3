package identity

import "sync"

// Memory keeps an identity for as long as the process runs: for tests and for
// nodes whose log is in memory as well. It is safe for concurrent use.
type Memory struct {
	mu    sync.Mutex // guards both
	id    Identity
	saved bool
}

// NewMemory returns an empty one.
func NewMemory() *Memory { return &Memory{} }

// Load returns what was saved last, or false if nothing was.
func (m *Memory) Load() (Identity, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id.clone(), m.saved, nil
}

// Save keeps a copy of id.
func (m *Memory) Save(id Identity) error {
	if err := id.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id, m.saved = id.clone(), true
	return nil
}
