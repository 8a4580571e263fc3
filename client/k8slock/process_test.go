package k8slock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// asProcess lets the test's own binary be a node or a candidate, to be killed.
const asProcess = "TEST_RUNS_AS"

// roles never return.
var roles = map[string]func(args []string){"node": beNode, "candidate": beCandidate}

// short are the times of an election between processes.
func short() leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		LeaseDuration: 6 * time.Second, RenewDeadline: 4500 * time.Millisecond, RetryPeriod: 500 * time.Millisecond, ReleaseOnCancel: true,
	}
}

// beNode is a member of a cluster: its name, its address, and all members'.
func beNode(args []string) {
	n, err := node.New(node.Config{
		Name: args[0], Listen: args[1], Join: strings.Split(args[2], ","),
		InMemory: true, Bootstrap: true, ElectionTimeout: 500 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	outlived()
}

// beCandidate stands for election at the cluster of all members given, and says
// when it leads.
func beCandidate(args []string) {
	c, err := client.Dial(strings.Split(args[0], ","))
	if err != nil {
		log.Fatal(err)
	}
	lock, err := New(c, "x")
	if err != nil {
		log.Fatal(err)
	}
	config := short()
	config.Lock = lock
	config.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { fmt.Println("leading under", lock.Token()) },
		OnStoppedLeading: func() { log.Fatal("stopped leading") },
	}
	go leaderelection.RunOrDie(klog.NewContext(context.Background(), logr.Discard()), config)
	outlived()
}

// outlived ends the process when the test has ended.
func outlived() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// process is one of the test's, ended with it.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has

	mu  sync.Mutex // guards out
	out bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) wrote() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// launch starts a process.
func launch(t *testing.T, role string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asProcess+"="+role)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if _, err := p.cmd.StdinPipe(); err != nil { // closed when this process ends
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // killed, mostly
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if out := p.wrote(); t.Failed() || strings.Contains(out, "DATA RACE") {
			t.Errorf("%s %v wrote:\n%s", role, args, out)
		}
	})
	return p
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// ports counts the ports that were given out, from a random one on.
var ports atomic.Uint32

func init() { ports.Store(rand.Uint32()) }

// freeAddress returns a loopback address that nobody listens on, with a port
// below those that the system gives to connections by itself.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+ports.Add(1)%20000)
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no free port found")
	return ""
}

// nodes is a cluster of three processes.
type nodes struct {
	t         *testing.T
	addrs     []string
	processes []*process
	conn      *transport.Conn
}

func newNodes(t *testing.T) *nodes {
	n := &nodes{t: t}
	for range 3 {
		n.addrs = append(n.addrs, freeAddress(t))
	}
	for i, a := range n.addrs {
		n.processes = append(n.processes, launch(t, "node", fmt.Sprintf("n%d", i+1), a, n.all()))
	}
	conn, err := transport.Dial(transport.DialConfig{Addrs: n.addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.conn = conn
	n.serves("with three voters", func(c *coorddv1.ClusterStatus) bool {
		return len(c.GetMembers()) == 3 && !slices.ContainsFunc(c.GetMembers(), func(m *coorddv1.Member) bool { return !m.GetVoter() || !m.GetReachable() })
	})
	return n
}

func (n *nodes) all() string { return strings.Join(n.addrs, ",") }

// serves waits until a leader serves as wanted.
func (n *nodes) serves(how string, wanted func(*coorddv1.ClusterStatus) bool) (c *coorddv1.ClusterStatus) {
	n.t.Helper()
	eventually(n.t, "the cluster serves, "+how, func() bool {
		ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Second)
		defer cancel()
		r, err := n.conn.Status(ctx, "")
		c = r.GetCluster()
		return err == nil && c.GetServing() && wanted(c)
	})
	return c
}

// killLeader kills the node that serves, and waits until another does.
func (n *nodes) killLeader() {
	n.t.Helper()
	before := n.serves("before its leader dies", func(*coorddv1.ClusterStatus) bool { return true })
	n.processes[slices.Index(n.addrs, before.GetLeaderAddress())].kill()
	n.serves("after its leader died", func(c *coorddv1.ClusterStatus) bool {
		return c.GetTerm() > before.GetTerm() && c.GetLeader() != before.GetLeader()
	})
}

// wire is TCP that can be cut.
type wire struct {
	transport.Network

	mu    sync.Mutex // guards what follows
	isCut bool
	conns []net.Conn
}

var errCut = errors.New("the wire is cut")

func (w *wire) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := w.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		_ = c.Close()
		return nil, errCut
	}
	w.conns = append(w.conns, c)
	return c, nil
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut = cut; !cut {
		return
	}
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// crowd is three candidates in this process.
type crowd struct {
	t *testing.T
	*arena
	wires   map[string]*wire
	runners map[string]*runner
}

// stand lets three candidates stand for election until the test ends.
func stand(t *testing.T, addrs []string) *crowd {
	c := &crowd{t: t, arena: newArena(), wires: map[string]*wire{}, runners: map[string]*runner{}}
	c.byClock = true
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var clients []*client.Client
	for i, name := range []string{"a", "b", "c"} {
		w := &wire{Network: transport.TCP()}
		k, err := client.Dial(addrs, client.WithNetwork(w))
		if err != nil {
			t.Fatal(err)
		}
		lock, err := New(k, "x", Identity(name))
		if err != nil {
			t.Fatal(err)
		}
		r := &runner{lock: lock, arena: c.arena, bind: i == 0, resign: func() {}, LeaderElectionConfig: short()}
		clients = append(clients, k)
		c.wires[name], c.runners[name] = w, r
		running.Go(func() { r.run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, k := range clients {
			if err := k.Close(ctx); err != nil {
				t.Errorf("close a client: %v", err)
			}
		}
		c.check(t)
	})
	return c
}

// next waits until somebody leads under a newer token than before.
func (c *crowd) next(before tokens.Token, after string) (l *leadership) {
	c.t.Helper()
	began := time.Now()
	eventually(c.t, "a candidate leads after "+after, func() bool {
		l = c.leader()
		return l != nil && l.token > before
	})
	c.t.Logf("%s led under %v, %v after %s", l.by, l.token, time.Since(began).Round(time.Millisecond), after)
	return l
}

// Real processes: a leader that is killed, a cluster whose leader is, a leader
// that hears nobody any more, and one that resigns. The next leads within
// LeaseDuration and some RetryPeriods; how long that took is logged, and bounded
// by what the busiest of machines may add.
func TestElectionThroughKills(t *testing.T) {
	n := newNodes(t)
	first := launch(t, "candidate", n.all())
	eventually(t, "a process leads", func() bool { return strings.Contains(first.wrote(), "leading under") })
	var token tokens.Token
	if _, err := fmt.Sscanf(first.wrote(), "leading under %d", &token); err != nil {
		t.Fatal(err)
	}
	c := stand(t, n.addrs)
	first.kill()
	l := c.next(token, "the first leader was killed")

	n.killLeader()
	c.wires[l.by].set(true)
	cut := l
	l = c.next(l.token, "the cluster's leader was killed, and the candidates' cut off")
	c.wires[cut.by].set(false)

	c.runners[l.by].giveUp()
	c.next(l.token, "the leader resigned")
}
