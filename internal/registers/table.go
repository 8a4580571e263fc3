// Package registers serves, to tests that run real processes, a DynamoDB table with
// as much of DynamoDB as arbiter/dynamodb asks for. It needs nothing but this module,
// and refuses what it does not know, so it proves nothing about DynamoDB itself: for
// that there is internal/dynamolocal.
package registers

import (
	"maps"
	"slices"
	"sync"
)

// Key is the attribute that is the table's hash key, a string.
const Key = "LockKey"

// Value is an attribute's: its type, "S" or "N", and what it is.
type Value map[string]string

// Item is the attributes of one item.
type Item map[string]Value

// Table is one table, in memory. As an http.Handler it is the DynamoDB that has this
// table and no other; an httptest.Server is enough around it. It is safe for
// concurrent use.
type Table struct {
	name string

	mu    sync.Mutex // guards items
	items map[string]Item
}

// New returns an empty table.
func New(name string) *Table { return &Table{name: name, items: map[string]Item{}} }

// Get returns the item of a key; nil: there is none.
func (t *Table) Get(key string) Item {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.items[key].clone()
}

// Put writes an item, whatever was there, as somebody else's program may.
func (t *Table) Put(item Item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items[item.key()] = item.clone()
}

// Keys returns those of all items, sorted.
func (t *Table) Keys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.items))
}

// putIf writes an item if what is there satisfies the condition. It returns what was
// there before.
func (t *Table) putIf(item Item, holds func(old Item) bool) (old Item, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old = t.items[item.key()].clone()
	if !holds(old) {
		return old, false
	}
	t.items[item.key()] = item.clone()
	return old, true
}

func (i Item) key() string { return i[Key]["S"] }

// clone shares nothing that is written to: values are never changed in place.
func (i Item) clone() Item { return maps.Clone(i) }
