package node_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/transport"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// caller speaks to a node as a peer does.
func caller(t *testing.T, address string, tls *transport.TLS) peerv1.PeerClient {
	t.Helper()
	conn, err := transport.NewClientConn(address, tls, transport.TCP())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return peerv1.NewPeerClient(conn)
}

// However many introduce themselves in the name of the cluster, a node keeps
// members alone in mind: else its folder would soon hold more than it can read.
func TestStrangersAreNotKept(t *testing.T) {
	config := site(t)[0]
	config.Join, config.Data = nil, filepath.Join(t.TempDir(), "data")
	n := start(t, config)
	serving(t, []*node.Node{n})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cluster, stranger := n.Status().Cluster, caller(t, config.Listen, nil)
	hello := func(i int) *peerv1.HelloResponse {
		name := fmt.Sprintf("x%d", i)
		resp, err := stranger.Hello(ctx, &peerv1.HelloRequest{
			Self:    &peerv1.Node{Name: name, ServerId: name + ".0123456789abcdef", Address: strings.Repeat("a", 290) + ":7420", Starts: 1},
			Cluster: cluster[:], Reads: leases.OpVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for i := range 3000 {
		hello(i)
	}
	// It saves whom it knows once in an election timeout.
	never(t, 2*config.ElectionTimeout, "it keeps strangers in mind", func() bool { return len(hello(0).GetPeers()) > 0 })
	stop(t, n)
	serving(t, []*node.Node{start(t, config)})
}

// Under TLS a client can neither say where a member is nor become one: its
// certificate is good for no address.
func TestClientPassesForNoMember(t *testing.T) {
	issue := authority(t)
	configs := site(t)
	var nodes []*node.Node
	for i := range configs {
		configs[i].TLS = issue(configs[i].Name, net.IPv4(127, 0, 0, 1))
		nodes = append(nodes, start(t, configs[i]))
	}
	leader, other, _ := rank(nodes, allVote(t, nodes...))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cluster, client := nodes[leader].Status().Cluster, caller(t, configs[leader].Listen, issue("client"))
	before := member(nodes[leader], configs[other].Name)
	if _, err := client.Hello(ctx, &peerv1.HelloRequest{
		Self:    &peerv1.Node{Name: before.Name, ServerId: before.ServerID, Address: "127.0.0.2:1", Starts: math.MaxUint64},
		Cluster: cluster[:], Reads: leases.OpVersion,
	}); err != nil {
		t.Fatal(err)
	}
	if got := member(nodes[leader], before.Name).Address; got != before.Address {
		t.Errorf("the address of %s: got %s, want %s", before.Name, got, before.Address)
	}
	_, err := client.Join(ctx, &peerv1.JoinRequest{
		Self:    &peerv1.Node{Name: "n9", ServerId: "n9.0123456789abcdef", Address: "127.0.0.2:1", Starts: 1},
		Cluster: cluster[:], Reads: leases.OpVersion,
	})
	refused(t, "join as a client", err, "invalid certificate", "127.0.0.2:1")
	if got := names(nodes[leader].Status().Members); len(got) != 3 {
		t.Errorf("got members %v, want the three alone", got)
	}
}

// However many ask to be taken in, there is an end to it.
func TestMembersAreBounded(t *testing.T) {
	n := start(t, node.Config{Name: "n1", InMemory: true, Listen: freeAddress(t), Bootstrap: true})
	serving(t, []*node.Node{n})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cluster, stranger := n.Status().Cluster, caller(t, n.Address(), nil)
	var err error
	for i := 0; i <= node.MaxMembers && err == nil; i++ {
		name := fmt.Sprintf("x%d", i)
		_, err = stranger.Join(ctx, &peerv1.JoinRequest{
			Self:    &peerv1.Node{Name: name, ServerId: name + ".0123456789abcdef", Address: "127.0.0.1:1", Starts: 1},
			Cluster: cluster[:], Reads: leases.OpVersion,
		})
	}
	if err := transport.FromGRPC(err); !errors.Is(err, leases.ErrExhausted) {
		t.Errorf("got %v, want %v", err, leases.ErrExhausted)
	}
	if got := len(n.Status().Members); got != node.MaxMembers {
		t.Errorf("got %d members, want %d", got, node.MaxMembers)
	}
}
