package client

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
)

func TestDefaultOwner(t *testing.T) {
	if o := newOptions(nil).owner; o.Label != "client.test" || o.PID != uint32(os.Getpid()) {
		t.Errorf("got %+v, want the program's name and this process's id", o)
	}
	program := os.Args[0]
	defer func() { os.Args[0] = program }()
	os.Args[0] = strings.Repeat("long", 100)
	if got, want := newOptions(nil).owner, (leases.Owner{PID: uint32(os.Getpid())}); got != want {
		t.Errorf("with a name that cannot be shown: got %+v, want %+v", got, want)
	}
}

func TestOptions(t *testing.T) {
	id := leases.NewID()
	o := newOptions([]Option{WithSession(id), WithLog(nil), WithOwner(leases.Owner{Label: "me"})})
	if o.session != id || o.owner.Label != "me" || o.log == nil {
		t.Errorf("got %+v", o)
	}
	if a, b := newOptions(nil).session, newOptions(nil).session; a == b || a.IsZero() {
		t.Errorf("got sessions %v and %v, want two drawn at random", a, b)
	}
	if l := slog.Default(); newOptions([]Option{WithLog(l)}).log != l {
		t.Error("the log is not the one that was set")
	}
}

func TestAttributesAreCopied(t *testing.T) {
	b := []byte("before")
	option := Attributes(b)
	copy(b, "after!")
	var w wish
	if option(&w); string(w.attributes) != "before" {
		t.Errorf("got %q, want %q", w.attributes, "before")
	}
}

func TestLabelKeepsTheRest(t *testing.T) {
	w := wish{owner: leases.Owner{Label: "program", Host: "host7", PID: 12}}
	Label("billing")(&w)
	if want := (leases.Owner{Label: "billing", Host: "host7", PID: 12}); w.owner != want {
		t.Errorf("got %+v, want %+v", w.owner, want)
	}
}

func TestDial(t *testing.T) {
	_, err := Dial(nil)
	mustBe(t, "Dial without addresses", err, leases.ErrInvalid)
	began := time.Now()
	c, err := Dial([]string{"192.0.2.1:7420"})
	if err != nil || time.Since(began) > 5*time.Second {
		t.Fatalf("Dial: got %v after %v, want no error and no I/O", err, time.Since(began))
	}
	closing(t, c)
}
