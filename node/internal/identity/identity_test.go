package identity

import (
	"reflect"
	"strings"
	"sync"
	"testing"
)

func TestNewDrawsAnIncarnation(t *testing.T) {
	a, b := New("a"), New("a")
	if a.Incarnation == b.Incarnation {
		t.Errorf("two new nodes got the same incarnation %s", a.Incarnation)
	}
	if err := a.Validate(); err != nil {
		t.Errorf("a new identity is invalid: %v", err)
	}
	if got, want := a.ServerID(), "a."+a.Incarnation; got != want {
		t.Errorf("server id: got %q, want %q", got, want)
	}
}

func TestNameOf(t *testing.T) {
	for serverID, want := range map[string]string{"a.0123": "a", "eu.west.0123": "eu.west", "a": "a", "": ""} {
		if got := NameOf(serverID); got != want {
			t.Errorf("NameOf(%q): got %q, want %q", serverID, got, want)
		}
	}
}

func TestSortMembers(t *testing.T) {
	got := []Member{{ServerID: "c"}, {ServerID: "a"}, {ServerID: "b"}}
	SortMembers(got)
	if want := []Member{{ServerID: "a"}, {ServerID: "b"}, {ServerID: "c"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Identity)
		says   string
	}{
		{"no name", func(id *Identity) { id.Name = "" }, "name"},
		{"long name", func(id *Identity) { id.Name = strings.Repeat("x", MaxName+1) }, "name"},
		{"space", func(id *Identity) { id.Name = "a b" }, "name"},
		{"line break", func(id *Identity) { id.Name = "a\nb" }, "name"},
		{"path", func(id *Identity) { id.Name = "../a" }, "name"},
		{"bad UTF-8", func(id *Identity) { id.Name = "a\xff" }, "name"},
		{"no incarnation", func(id *Identity) { id.Incarnation = "" }, "incarnation"},
		{"upper case", func(id *Identity) { id.Incarnation = "0123456789ABCDEF" }, "incarnation"},
		{"long incarnation", func(id *Identity) { id.Incarnation += "00" }, "incarnation"},
		{"member without an address", func(id *Identity) { id.Members = []Member{{ServerID: "b.01"}} }, "member"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := New("a")
			tt.change(&id)
			err := id.Validate()
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v, want an error that names the %s", err, tt.says)
			}
			if len(err.Error()) > 300 {
				t.Errorf("the message grows with bad input: %d bytes", len(err.Error()))
			}
		})
	}
}

func TestMemory(t *testing.T) {
	m := NewMemory()
	if _, found, err := m.Load(); found || err != nil {
		t.Fatalf("found %v, error %v, want neither", found, err)
	}
	want := member()
	if err := m.Save(want); err != nil {
		t.Fatal(err)
	}
	saved := want.clone()
	want.Members[0].Address = "changed after Save"
	got, found, err := m.Load()
	if err != nil || !found || !reflect.DeepEqual(got, saved) {
		t.Fatalf("got %+v, %v, %v, want %+v", got, found, err, saved)
	}
	if err := m.Save(Identity{}); err == nil {
		t.Error("an identity without a name was saved")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m.Save(saved)
			m.Load()
		})
	}
	wg.Wait()
}
