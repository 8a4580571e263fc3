package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Leases outlive the leader that granted them: three processes whose leader is
// killed three times and stopped once, under many clients, keep every promise.
// That bad histories are rejected is shown in internal/history.
func TestLeasesSurviveTheirLeader(t *testing.T) {
	const (
		clients = 64
		names   = 16
		load    = 30 * time.Second
		longest = 45 * time.Second // on a machine so busy that it grants little
		stopped = 10 * time.Second
	)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ca := newCertAuthority(t)
	mine := ca.issue("client").load(t)
	s := newSurvivors(t, ca, mine)
	testStrangers(t, ca, mine, s.addrs)

	c := &crowd{
		t: t, history: history.NewRecorder(clock.System()), names: names, ttl: 5 * time.Second,
		seed: seed, stays: pace{every: 3 * time.Second}, deaths: pace{every: 2 * time.Second},
	}
	c.connect(clients, s.addrs, mine)
	k := newKeeper(c, c.name(0))
	began := time.Now()
	at := func(after time.Duration) { sleep(t.Context(), time.Until(began.Add(after))) }
	c.start(clients - 1)
	for _, after := range []time.Duration{3 * time.Second, 7 * time.Second} {
		at(after)
		s.kill()
	}
	at(12 * time.Second)
	i := s.strike(syscall.SIGSTOP)
	at(12*time.Second + stopped)
	s.members[i].signal(syscall.SIGCONT)
	at(24 * time.Second)
	s.kill()
	for at(load); c.grants.Load() < leastGrants && time.Since(began) < longest; {
		sleep(t.Context(), 100*time.Millisecond)
	}
	c.end()

	takeAll(c)
	k.end(s)
	s.unharmed()
	checkSurvival(t, c.history.History(), len(s.terms)-1)
}

// What the history must hold at least to show anything.
const (
	leastChanges    = 4 // of term
	leastGrants     = 1000
	leastExpiries   = 10
	leastUnanswered = 20 // attempts whose first copy got no answer
)

// checkSurvival checks the history, and that it shows something.
func checkSurvival(t *testing.T, h history.History, changes int) {
	t.Helper()
	began := time.Now()
	if err := h.Check(20 * time.Second); err != nil {
		t.Error(err)
	}
	t.Logf("checked in %v: %+v", time.Since(began).Round(time.Millisecond), h.Counts())
	for _, c := range []struct {
		what       string
		got, least int
	}{
		{"changes of term", changes, leastChanges},
		{"grants", h.Counts().Grants, leastGrants},
		{"expiries", expiries(h), leastExpiries},
		{"attempts whose first copy got no answer", unanswered(h), leastUnanswered},
	} {
		t.Logf("%d %s", c.got, c.what)
		if c.got < c.least {
			t.Errorf("the history shows too little: got %d %s, want at least %d", c.got, c.what, c.least)
		}
	}
}

// expiries counts the leases whose name was granted anew although nobody had
// asked for their end.
func expiries(h history.History) (n int) {
	withdrawn, ended, granted := map[leases.ID]bool{}, map[tokens.Token]bool{}, map[string][]tokens.Token{}
	for _, e := range h.Events {
		switch {
		case e.Kind == history.Withdraw:
			withdrawn[e.Attempt] = true
		case e.Kind == history.Release:
			ended[e.Token] = true
		}
	}
	for _, e := range h.Events {
		if e.Kind == history.Acquire && e.Outcome == history.Done {
			granted[e.Name] = append(granted[e.Name], e.Token)
			ended[e.Token] = ended[e.Token] || withdrawn[e.Attempt]
		}
	}
	for _, all := range granted {
		slices.Sort(all)
		all = slices.Compact(all)
		for _, t := range all[:len(all)-1] {
			if !ended[t] {
				n++
			}
		}
	}
	return n
}

// unanswered counts the attempts whose first copy got no answer, without those
// whose client stopped waiting for one.
func unanswered(h history.History) (n int) {
	tried := map[leases.ID]bool{}
	for _, e := range h.Events {
		if e.Kind != history.Acquire || tried[e.Attempt] {
			continue
		}
		tried[e.Attempt] = true
		if e.Outcome == history.Unknown && !errors.Is(e.Err, context.Canceled) {
			n++
		}
	}
	return n
}

// keeper is a client that holds one lease from the start to the end.
type keeper struct {
	*guest
	lease *client.Lease
	held  *history.Holding
	token tokens.Token
}

func newKeeper(c *crowd, name string) *keeper {
	c.t.Helper()
	g := c.enter(0, "keeper")
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	l, held, err := g.hold(ctx, name, true)
	if err != nil {
		c.t.Fatal(err)
	}
	return &keeper{g, l, held, l.Token()}
}

// end gives the lease back, which is the same as it was.
func (k *keeper) end(s *survivors) {
	t := k.crowd.t
	t.Helper()
	if err := k.lease.Err(); err != nil {
		t.Errorf("a lease that was renewed all the time has ended: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	switch state, err := s.conn.Get(ctx, k.lease.Name()); {
	case err != nil:
		t.Errorf("get %q: %v", k.lease.Name(), err)
	case state.Token != k.token || k.lease.Token() != k.token || state.Owner.Label != k.name:
		t.Errorf("got %v and %+v, want token %v throughout", k.lease.Token(), state, k.token)
	}
	k.held.End()
	if err := k.lease.Release(ctx); err != nil {
		t.Error(err)
	}
	k.leave()
}

// takeAll shows that nothing is left of the crowd: all names but the keeper's
// can be had.
func takeAll(c *crowd) {
	c.t.Helper()
	g := c.enter(0, "heir")
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for i := 1; i < c.names; i++ {
		all.Go(func() {
			l, held, err := g.hold(ctx, c.name(i), true)
			if err != nil {
				c.t.Error(err)
				return
			}
			held.End()
			if err := l.Release(ctx); err != nil {
				c.t.Error(err)
			}
		})
	}
	all.Wait()
	g.leave()
}

// survivors is a cluster of three processes that speak TLS, built with -race
// if the test is.
type survivors struct {
	*serving
	tls   []string // flags
	conn  *transport.Conn
	terms map[uint64]bool // those in which some leader was seen to serve
	term  uint64          // the last of them
}

func newSurvivors(t *testing.T, ca *certAuthority, mine *transport.TLS) *survivors {
	t.Helper()
	s := &survivors{serving: newServing(t), tls: ca.issue("node").flags(), terms: map[uint64]bool{}}
	s.dir = memoryDir(t)
	conn, err := transport.Dial(transport.DialConfig{Addrs: s.addrs, TLS: mine})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.conn = conn
	for i := range s.members {
		s.start(i)
	}
	s.whole()
	return s
}

// memoryDir is a folder in memory where there is one: a node takes a write that
// lasts two election timeouts for a disk that has stalled, and ends, and the
// disk of a busy machine is now and then that slow.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "coordd-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *survivors) start(i int) {
	s.t.Helper()
	s.members[i] = begin(s.t, itself(s.t, slices.Concat(s.line(i), s.tls)...))
}

// serves waits until a leader serves, of the last term seen or a later one, that
// has what is wanted, and returns what it tells of the cluster.
func (s *survivors) serves(what string, wanted func(*coorddv1.ClusterStatus) bool) (c *coorddv1.ClusterStatus) {
	s.t.Helper()
	eventually(s.t, 15*time.Second, what, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		r, err := s.conn.Status(ctx, "")
		if c = r.GetCluster(); err != nil || !c.GetServing() || c.GetTerm() < s.term {
			return false
		}
		s.term = c.GetTerm()
		s.terms[s.term] = true
		return wanted(c)
	})
	return c
}

// whole waits until three voters hear each other and one of them serves.
func (s *survivors) whole() *coorddv1.ClusterStatus {
	s.t.Helper()
	return s.serves("one of three voters serves and hears the others", func(c *coorddv1.ClusterStatus) bool {
		there := 0
		for _, m := range c.GetMembers() {
			if m.GetVoter() && m.GetReachable() {
				there++
			}
		}
		return there == len(s.members)
	})
}

// strike sends a signal to the leader's process, waits until another leader
// serves, and returns whom it has struck.
func (s *survivors) strike(sig syscall.Signal) (i int) {
	s.t.Helper()
	before, at := s.whole(), time.Now()
	if i = slices.Index(s.addrs, before.GetLeaderAddress()); i < 0 {
		s.t.Fatalf("got leader %q, want one of %v", before.GetLeaderAddress(), s.addrs)
	}
	s.members[i].signal(sig)
	after := s.serves("another leader serves", func(c *coorddv1.ClusterStatus) bool {
		return c.GetTerm() > before.GetTerm() && c.GetLeader() != before.GetLeader()
	})
	s.t.Logf("%s, leader of term %d: %v; %s serves in term %d, %v later", before.GetLeader(), before.GetTerm(), sig,
		after.GetLeader(), after.GetTerm(), time.Since(at).Round(time.Millisecond))
	return i
}

// kill kills the leader's process and, once another leads, starts it again with
// its data.
func (s *survivors) kill() {
	s.t.Helper()
	i := s.strike(syscall.SIGKILL)
	s.members[i].wait(5 * time.Second)
	s.start(i)
}

// unharmed reports processes that have ended by themselves.
func (s *survivors) unharmed() {
	s.t.Helper()
	for _, m := range s.members {
		select {
		case <-m.ended:
			s.t.Errorf("coordd %v has ended: %v", m.args, m.cmd.ProcessState)
		default:
		}
	}
}

// testStrangers has clients asked for a lease that must not get one, each of
// whom is told why.
func testStrangers(t *testing.T, ca *certAuthority, mine *transport.TLS, addrs []string) {
	t.Helper()
	other := newCertAuthority(t)
	foreign := other.issue("stranger").load(t)
	trusting := other.issue("trusting stranger").load(t)
	trusting.Client.RootCAs = mine.Client.RootCAs
	var all sync.WaitGroup
	for _, c := range []struct {
		who  string
		tls  *transport.TLS
		says string
	}{
		{"a plain client", nil, "the server requires TLS, and this side speaks plaintext"},
		{"a client without certificate", &transport.TLS{Client: &tls.Config{RootCAs: mine.Client.RootCAs}}, "the server requires a client certificate issued by its CA, and this side sent none"},
		{"a client with a certificate of another CA", trusting, "the server does not accept this side's certificate: another CA has issued it"},
		{"a client of another CA", foreign, "was not issued by the CA that this side trusts"},
	} {
		all.Go(func() {
			if err := stranger(t.Context(), addrs, c.tls); err == nil || !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, want that it is unavailable, and %q", c.who, err, c.says)
			}
		})
	}
	all.Wait()
}

// stranger asks for a lease.
func stranger(ctx context.Context, addrs []string, tls *transport.TLS) (err error) {
	c, err := client.Dial(addrs, client.WithTLS(tls))
	if err != nil {
		return fmt.Errorf("dial: %v", err)
	}
	defer func() {
		if closed := c.Close(ctx); err == nil {
			err = closed
		}
	}()
	soon, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = c.TryAcquire(soon, "x")
	return err
}
