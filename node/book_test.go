package node

import (
	"fmt"
	"testing"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/node/internal/identity"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// However often the members change their addresses, or are replaced, there are
// connections to the addresses alone that they have.
func TestBookHangsUp(t *testing.T) {
	b := newBook("n1.00", clock.NewRuntime())
	defer b.close()
	dialed := func(id string) {
		t.Helper()
		e, ok := b.get(id)
		if !ok {
			t.Fatalf("%s is not known", id)
		}
		if _, err := b.dial(e.address, nil, transport.TCP()); err != nil {
			t.Fatal(err)
		}
	}
	for starts := range uint64(10) {
		b.heard(&peerv1.Node{Name: "n2", ServerId: "n2.00", Address: fmt.Sprintf("10.0.0.2:%d", starts), Starts: starts}, func(*entry) {})
		dialed("n2.00")
		b.hint(identity.Member{ServerID: "n3.00", Address: fmt.Sprintf("10.0.0.3:%d", starts), Starts: starts + 1})
		dialed("n3.00")
		former := fmt.Sprintf("n4.%02d", starts)
		b.hint(identity.Member{ServerID: former, Address: "10.0.0.4:" + former, Starts: 1})
		dialed(former)
		b.forget(func(e entry) bool { return e.id == former })
	}
	if got := len(b.conns); got != 2 {
		t.Errorf("got %d connections to 2 members", got)
	}
}
