package node_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/transport"
	adminv1 "github.com/coordd/coordd/transport/api/coordd/admin/v1"
	peerv1 "github.com/coordd/coordd/transport/api/coordd/peer/v1"
)

// operator speaks to a node over the socket in its data folder.
type operator struct {
	t      *testing.T
	client adminv1.AdminClient
}

func operatorOf(t *testing.T, cfg node.Config) operator {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///coordd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(cfg.Data, node.AdminSocket))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return operator{t, adminv1.NewAdminClient(conn)}
}

func (o operator) remove(name string, force bool) (serverID string, err error) {
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	resp, err := o.client.Remove(ctx, &adminv1.RemoveRequest{Name: name, Force: force})
	return resp.GetServerId(), transport.FromGRPC(err)
}

func (o operator) transfer(to string) (leader string, err error) {
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	resp, err := o.client.TransferLeadership(ctx, &adminv1.TransferLeadershipRequest{To: to})
	return resp.GetLeader(), transport.FromGRPC(err)
}

func (o operator) breaks(h leases.Held, now bool) (leases.Broken, error) {
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	resp, err := o.client.Break(ctx, &adminv1.BreakRequest{Name: h.Name, Token: uint64(h.Token), Now: now})
	return leases.Broken{Ended: resp.GetEnded(), AtMost: time.Duration(resp.GetAtMostMs()) * time.Millisecond}, transport.FromGRPC(err)
}

// lead makes a member the leader, as soon as that goes well: on a busy machine
// the members' time for it can be too short.
func (o operator) lead(name string) {
	o.t.Helper()
	eventually(o.t, name+" leads", func() bool {
		leader, err := o.transfer(name)
		if errors.Is(err, leases.ErrInvalid) || err == nil && leader != name {
			o.t.Fatalf("transfer the leadership to %s: got %q, %v", name, leader, err)
		}
		return err == nil
	})
}

// removeDead removes a member that has just ended, as soon as it counts as gone
// and somebody leads.
func (o operator) removeDead(name string) {
	o.t.Helper()
	eventually(o.t, name+" is removed", func() bool {
		_, err := o.remove(name, false)
		if errors.Is(err, leases.ErrInvalid) && !strings.Contains(err.Error(), "just heard") {
			o.t.Fatalf("remove %s: %v", name, err)
		}
		return err == nil
	})
}

// refused checks that an operator's call was refused, with all that it should say.
func refused(t *testing.T, call string, err error, says ...string) {
	t.Helper()
	if !errors.Is(err, leases.ErrInvalid) {
		t.Errorf("%s: got %v, want %v", call, err, leases.ErrInvalid)
		return
	}
	for _, want := range says {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, want it to say %q", call, err, want)
		}
	}
}

// rank returns the places of the leader and of the two others.
func rank(nodes []*node.Node, leader *node.Node) (first, second, third int) {
	first = slices.Index(nodes, leader)
	return first, (first + 1) % 3, (first + 2) % 3
}

func names(members []node.Member) (names []string) {
	for _, m := range members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// ends waits until a node cannot go on, and returns why.
func ends(t *testing.T, n *node.Node) error {
	t.Helper()
	select {
	case <-n.Done():
		return n.Err()
	case <-time.After(30 * time.Second):
		t.Fatalf("%s has not ended in 30 s; it is %s", n.Status().Node, n.Status().Doing)
		return nil
	}
}

// An operator's calls are carried out by the leader, whose socket ever they come
// in by.
func TestRemoveADeadMember(t *testing.T) {
	configs := site(t)
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, start(t, c))
	}
	leader, by, gone := rank(nodes, allVote(t, nodes...))
	for _, c := range configs {
		info, err := os.Stat(filepath.Join(c.Data, node.AdminSocket))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode(); got != os.ModeSocket|0o600 {
			t.Errorf("the socket's mode: got %v, want a socket of its owner alone", got)
		}
	}
	for _, i := range []int{leader, by} { // directly, and passed on
		o, name := operatorOf(t, configs[i]), configs[gone].Name
		_, err := o.remove(name, false)
		refused(t, "remove a living member", err, name, configs[gone].Listen, "force")
		_, err = o.remove(configs[leader].Name, true)
		refused(t, "remove the leader", err, configs[leader].Name, "transfer the leadership first")
		_, err = o.remove("n9", true)
		refused(t, "remove who is no member", err, "n9", "[n1 n2 n3]")
	}
	stop(t, nodes[gone])
	operatorOf(t, configs[by]).removeDead(configs[gone].Name)
	if got := names(nodes[leader].Status().Members); len(got) != 2 || slices.Contains(got, configs[gone].Name) {
		t.Errorf("got members %v, want all but %s", got, configs[gone].Name)
	}
	_, err := operatorOf(t, configs[by]).remove(configs[gone].Name, false)
	refused(t, "remove a member twice", err, configs[gone].Name)
}

// A member that was removed ends by itself, whether it was there to hear of it
// or not, and does not come back with its old data. Without, it joins anew.
func TestRemovedMemberEnds(t *testing.T) {
	for _, alive := range []bool{true, false} {
		t.Run(fmt.Sprintf("alive %v", alive), func(t *testing.T) {
			t.Parallel()
			configs := site(t)
			var nodes []*node.Node
			for _, c := range configs {
				nodes = append(nodes, start(t, c))
			}
			leader, by, gone := rank(nodes, allVote(t, nodes...))
			name := configs[gone].Name
			if alive {
				id, err := operatorOf(t, configs[by]).remove(name, true)
				if err != nil || !strings.HasPrefix(id, name+".") {
					t.Fatalf("remove %s by force: got %q, %v, want its server id", name, id, err)
				}
				said(t, ends(t, nodes[gone]))
				stop(t, nodes[gone])
			} else {
				stop(t, nodes[gone])
				operatorOf(t, configs[by]).removeDead(name)
			}
			again := start(t, configs[gone])
			said(t, ends(t, again))
			stop(t, again)
			if got := names(nodes[leader].Status().Members); len(got) != 2 {
				t.Errorf("got members %v, want that %s did not come back with its old data", got, name)
			}
			if err := os.RemoveAll(configs[gone].Data); err != nil {
				t.Fatal(err)
			}
			nodes[gone] = start(t, configs[gone])
			allVote(t, nodes...)
		})
	}
}

func said(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, node.ErrRemoved) || !strings.Contains(fmt.Sprint(err), "empty the data folder") {
		t.Errorf("got %v, want %v and what to do", err, node.ErrRemoved)
	}
}

// What remains after a removal has to be able to go on.
func TestRemoveKeepsAQuorum(t *testing.T) {
	configs := site(t)
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, start(t, c))
	}
	leader, alive, gone := rank(nodes, allVote(t, nodes...))
	o := operatorOf(t, configs[leader])
	stop(t, nodes[gone])
	eventually(t, "the leader misses the one that has ended", func() bool {
		for _, m := range nodes[leader].Status().Members {
			if m.Name == configs[gone].Name {
				return !m.Reachable
			}
		}
		return false
	})
	_, err := o.remove(configs[alive].Name, true)
	refused(t, "remove the wrong one", err, configs[alive].Name, "1 of the 2 voters")
	if _, err := o.remove(configs[gone].Name, false); err != nil {
		t.Errorf("remove %s: %v", configs[gone].Name, err)
	}
	if _, err := o.remove(configs[alive].Name, true); err != nil {
		t.Errorf("remove %s, with which the leader was left: %v", configs[alive].Name, err)
	}
	said(t, ends(t, nodes[alive]))
	if got := names(nodes[leader].Status().Members); len(got) != 1 {
		t.Errorf("got members %v, want the leader alone", got)
	}
}

func TestTransferLeadership(t *testing.T) {
	configs := site(t)
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, start(t, c))
	}
	old, by, to := rank(nodes, allVote(t, nodes...))
	operatorOf(t, configs[by]).lead(configs[to].Name) // passed on
	eventually(t, "the new leader serves", func() bool { return nodes[to].Status().Serving })
	eventually(t, "another leads", func() bool {
		before := serving(t, nodes).Status().Node
		leader, err := operatorOf(t, configs[old]).transfer("")
		return err == nil && leader != "" && leader != before
	})
	leader := slices.Index(nodes, allVote(t, nodes...))
	operatorOf(t, configs[(leader+1)%3]).lead(configs[leader].Name) // already
	_, err := operatorOf(t, configs[(leader+1)%3]).transfer("n9")
	refused(t, "to who is no member", err, "n9", "[n1 n2 n3]")
	gone := (leader + 2) % 3
	stop(t, nodes[gone])
	eventually(t, "the one that has ended cannot lead", func() bool {
		_, err = operatorOf(t, configs[leader]).transfer(configs[gone].Name)
		return errors.Is(err, leases.ErrUnavailable) && strings.Contains(err.Error(), configs[gone].Name+" is not heard")
	})
	serving(t, nodes)
}

// holder is a conversation with the cluster over one of its nodes, and what it
// is told.
type holder struct {
	t       *testing.T
	session leases.Session
	told    chan leases.Event
}

func holderOf(t *testing.T, b leases.Backend) *holder {
	t.Helper()
	h := &holder{t: t, told: make(chan leases.Event, 100)}
	id := leases.NewID()
	eventually(t, "a conversation begins", func() (ok bool) {
		var err error
		h.session, err = b.Open(t.Context(), id, func(e leases.Event) { h.told <- e })
		return err == nil
	})
	t.Cleanup(func() { h.session.Close() })
	return h
}

// want asks for a lease that lasts for long.
func (h *holder) want(name string, wait time.Duration) (leases.Held, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	g, err := h.session.Acquire(ctx, leases.Claim{Name: name, Attempt: leases.NewID(), TTL: leases.MaxTTL, Wait: wait})
	return leases.Held{Name: name, Token: g.Token}, err
}

// hears waits until it is told something other than its place in line.
func (h *holder) hears() leases.Event {
	h.t.Helper()
	for {
		select {
		case e := <-h.told:
			if _, place := e.(leases.Queued); !place {
				return e
			}
		case <-time.After(20 * time.Second):
			h.t.Fatal("nothing was told")
		}
	}
}

func (h *holder) renew(held leases.Held) error {
	h.t.Helper()
	errs, err := h.session.Renew(h.t.Context(), []leases.Held{held})
	if err != nil {
		h.t.Fatal(err)
	}
	return errs[0]
}

func broken(t *testing.T, what string, err error) {
	t.Helper()
	var gone *leases.NotHeldError
	if !errors.As(err, &gone) || gone.Why != leases.WhyBroken {
		t.Errorf("%s: got %v, want that it is broken", what, err)
	}
}

// A break is carried out by the leader, whose socket ever it comes in by. It
// names the token: who holds the name now is not harmed by one that comes late.
func TestBreak(t *testing.T) {
	configs := site(t)
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, start(t, c))
	}
	leader, by, _ := rank(nodes, allVote(t, nodes...))
	directly, passedOn := operatorOf(t, configs[leader]), operatorOf(t, configs[by])
	for _, mark := range []operator{directly, passedOn} {
		now := directly
		if mark == directly {
			now = passedOn
		}
		first, second, third := holderOf(t, nodes[by]), holderOf(t, nodes[leader]), holderOf(t, nodes[by])
		held, err := first.want("job", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []operator{directly, passedOn} {
			_, err = o.breaks(leases.Held{Name: "job"}, true)
			refused(t, "break without a token", err, "token")
			_, err = o.breaks(leases.Held{Name: "@job", Token: 1}, true)
			refused(t, "break of a name that cannot be", err, "name")
			for _, h := range []leases.Held{{Name: "job", Token: held.Token + 1}, {Name: "free", Token: held.Token}} {
				if _, err := o.breaks(h, true); !errors.Is(err, leases.ErrNotHeld) {
					t.Errorf("break %v: got %v, want %v", h, err, leases.ErrNotHeld)
				}
			}
		}
		if err := first.renew(held); err != nil {
			t.Fatalf("a lease that was not broken: %v", err)
		}
		for range 2 { // a copy is answered alike
			b, err := mark.breaks(held, false)
			if err != nil || b.Ended || b.AtMost <= 0 || b.AtMost > leases.Stretch(leases.MaxTTL) {
				t.Errorf("break: got %+v, %v, want that it lasts for some time", b, err)
			}
			if e := first.hears(); e != leases.Event(leases.Breaking{Held: held}) {
				t.Errorf("the holder hears %+v, want that it is broken", e)
			}
		}
		broken(t, "a renewal", first.renew(held))
		if _, err := second.want("job", 0); !errors.Is(err, leases.ErrHeld) {
			t.Errorf("a broken lease that was not released: got %v, want %v", err, leases.ErrHeld)
		}
		if err := first.session.Release(t.Context(), held); err != nil {
			t.Errorf("release: %v", err)
		}
		next, err := second.want("job", 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []bool{false, true} { // late
			if _, err := mark.breaks(held, at); !errors.Is(err, leases.ErrNotHeld) {
				t.Errorf("a late break: got %v, want %v", err, leases.ErrNotHeld)
			}
		}
		if err := second.renew(next); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		if b, err := now.breaks(next, true); err != nil || !b.Ended {
			t.Errorf("break now: got %+v, %v, want a free name", b, err)
		}
		if e, ok := second.hears().(leases.Ended); !ok || e.Held != next {
			t.Errorf("the holder hears %+v, want that it has ended", e)
		} else {
			broken(t, "what the holder hears", e.Err)
		}
		broken(t, "a renewal", second.renew(next))
		last, err := third.want("job", 0)
		if err != nil || last.Token <= next.Token {
			t.Fatalf("the third: got %v, %v, want a greater token than %v", last, err, next.Token)
		}
		if err := third.session.Release(t.Context(), last); err != nil {
			t.Error(err)
		}
	}
}

// Without a quorum a break is not carried out, and nothing is said of the lease.
func TestBreakWithoutAQuorum(t *testing.T) {
	configs := site(t)
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, start(t, c))
	}
	leader, second, third := rank(nodes, allVote(t, nodes...))
	held, err := holderOf(t, nodes[leader]).want("job", 0)
	if err != nil {
		t.Fatal(err)
	}
	stop(t, nodes[second])
	stop(t, nodes[third])
	for _, at := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := operatorOf(t, configs[leader]).client.Break(ctx, &adminv1.BreakRequest{Name: held.Name, Token: uint64(held.Token), Now: at})
		cancel()
		if err := transport.FromGRPC(err); !nothingKnown(err) {
			t.Errorf("break, now %v: got %v, want that nothing is known", at, err)
		}
	}
}

// Operators' calls are not for everybody who reaches the port.
func TestAdminIsNotOnThePort(t *testing.T) {
	n := start(t, node.Config{Name: "n1", InMemory: true, Listen: freeAddress(t), Bootstrap: true})
	conn, err := grpc.NewClient(n.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := adminv1.NewAdminClient(conn).Remove(ctx, &adminv1.RemoveRequest{Name: "n1"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("remove over TCP: got %v, want %v", err, codes.Unimplemented)
	}
	if _, err := adminv1.NewAdminClient(conn).TransferLeadership(ctx, &adminv1.TransferLeadershipRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("transfer over TCP: got %v, want %v", err, codes.Unimplemented)
	}
	if _, err := adminv1.NewAdminClient(conn).Break(ctx, &adminv1.BreakRequest{Name: "x", Token: 1}); status.Code(err) != codes.Unimplemented {
		t.Errorf("break over TCP: got %v, want %v", err, codes.Unimplemented)
	}
}

// What a member passes on is taken from members alone: under TLS a client's
// certificate is not enough.
func TestPassedOnByMembersAlone(t *testing.T) {
	issue := authority(t)
	configs := site(t)
	var nodes []*node.Node
	for i := range configs {
		configs[i].TLS = issue(configs[i].Name, net.IPv4(127, 0, 0, 1))
		nodes = append(nodes, start(t, configs[i]))
	}
	leader, by, _ := rank(nodes, allVote(t, nodes...))
	passedOn := operatorOf(t, configs[by])
	eventually(t, "the leader answers what a member passes on", func() bool {
		_, err := passedOn.remove("n9", false)
		return errors.Is(err, leases.ErrInvalid) && strings.Contains(err.Error(), "[n1 n2 n3]")
	})
	self := member(nodes[leader], configs[by].Name).ServerID
	for _, c := range []struct {
		who     string
		tls     *transport.TLS
		by      string
		refusal string
	}{
		{"a client in a member's name", issue("client"), self, "invalid certificate"},
		{"a member that there is not", configs[by].TLS, "n9.0123456789abcdef", "invalid member"},
	} {
		conn, err := transport.NewClientConn(configs[leader].Listen, c.tls, transport.TCP())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		peer := peerv1.NewPeerClient(conn)
		for call, try := range map[string]func() error{
			"remove": func() error {
				_, err := peer.Remove(ctx, &peerv1.RemoveRequest{By: c.by, Name: configs[by].Name, Force: true})
				return err
			},
			"transfer": func() error {
				_, err := peer.TransferLeadership(ctx, &peerv1.TransferLeadershipRequest{By: c.by})
				return err
			},
			"break": func() error {
				_, err := peer.Break(ctx, &peerv1.BreakRequest{By: c.by, Name: "x", Token: 1})
				return err
			},
		} {
			call += " passed on by " + c.who
			eventually(t, call+" is refused", func() bool {
				err := try()
				if err == nil {
					t.Fatalf("%s: got no error", call)
				}
				if !errors.Is(err, leases.ErrInvalid) {
					return false // nobody leads, just now
				}
				refused(t, call, err, c.refusal)
				return true
			})
		}
	}
}

// authority returns what issues certificates that are good for addresses.
func authority(t *testing.T) func(name string, addresses ...net.IP) *transport.TLS {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certificate := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}
	}
	root, rootKey := certificate("test CA"), key(t)
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	sign := func(c *x509.Certificate, k *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, root, &k.PublicKey, rootKey)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	caFile := write("ca.pem", "CERTIFICATE", sign(root, rootKey))
	return func(name string, addresses ...net.IP) *transport.TLS {
		t.Helper()
		c, k := certificate(name), key(t)
		c.IPAddresses = addresses
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		tls, err := transport.LoadTLS(write(name+".pem", "CERTIFICATE", sign(c, k)), write(name+".key", "EC PRIVATE KEY", der), caFile)
		if err != nil {
			t.Fatal(err)
		}
		return tls
	}
}

func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Seven vote at most: the eighth follows, and says why, until a place is free.
func TestEighthMember(t *testing.T) {
	var addresses []string
	for range node.MaxVoters + 1 {
		addresses = append(addresses, freeAddress(t))
	}
	nodes := map[string]*node.Node{}
	socket := node.Config{Data: filepath.Join(t.TempDir(), "data")} // only one has a folder: for its socket
	for i, a := range addresses {
		c := node.Config{
			Name: fmt.Sprintf("n%d", i+1), InMemory: i > 0, Listen: a, Join: addresses, Bootstrap: true,
			ElectionTimeout: time.Second,
		}
		if i == 0 {
			c.Data = socket.Data
		}
		nodes[c.Name] = start(t, c)
	}
	var leader, eighth string
	eventually(t, "seven vote and the eighth says why it does not", func() bool {
		for name, n := range nodes {
			s := n.Status()
			if !s.Serving || len(s.Members) != len(addresses) {
				continue
			}
			voters := 0
			leader = name
			for _, m := range s.Members {
				if m.Voter {
					voters++
				} else {
					eighth = m.Name
				}
			}
			if voters != node.MaxVoters {
				return false
			}
		}
		return leader != "" && eighth != "" && strings.Contains(member(nodes[eighth], eighth).Note, "there are 7 voters already")
	})
	o := operatorOf(t, socket)
	_, err := o.transfer(eighth)
	refused(t, "transfer to who does not vote", err, eighth, "a voter")

	gone := ""
	for name := range nodes {
		if name != leader && name != eighth && name != "n1" {
			gone = name
		}
	}
	stop(t, nodes[gone])
	o.removeDead(gone)
	eventually(t, "the eighth votes", func() bool {
		m := member(nodes[eighth], eighth)
		return m.Voter && m.Note == ""
	})
}

// member is what a node tells of a member.
func member(n *node.Node, name string) node.Member {
	for _, m := range n.Status().Members {
		if m.Name == name {
			return m
		}
	}
	return node.Member{}
}

// Two processes under one name: the second is not taken in while the first is
// alive, and is told where that is.
func TestJoinUnderALivingName(t *testing.T) {
	configs := site(t)
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, start(t, c))
	}
	leader, follower, _ := rank(nodes, allVote(t, nodes...))
	var newcomers []*node.Node
	for _, i := range []int{leader, follower} {
		second := configs[i]
		second.Data, second.Listen = filepath.Join(t.TempDir(), "data"), freeAddress(t)
		n := start(t, second)
		newcomers = append(newcomers, n)
		eventually(t, "the second "+second.Name+" is refused with the address of the first", func() bool {
			doing := n.Status().Doing
			return strings.Contains(doing, "waiting to be taken in") && strings.Contains(doing, configs[i].Listen)
		})
	}
	if got := names(nodes[leader].Status().Members); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("got members %v, want the three alone", got)
	}
	stop(t, nodes[follower]) // now the name is free
	nodes[follower] = newcomers[1]
	allVote(t, nodes...)
}

func TestTheOnlyVoterKeepsTheLead(t *testing.T) {
	c := node.Config{Name: "n1", Data: filepath.Join(t.TempDir(), "data"), Listen: freeAddress(t), Bootstrap: true}
	n := start(t, c)
	serving(t, []*node.Node{n})
	if _, err := operatorOf(t, c).transfer(""); !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "only voter") {
		t.Errorf("got %v, want that nobody else can lead", err)
	}
	if !n.Status().Serving {
		t.Error("it does not serve any more")
	}
}
