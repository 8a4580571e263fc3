package main

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serving is a cluster of three processes on loopback.
type serving struct {
	t       *testing.T
	addrs   []string
	dir     string
	members []*member
	flags   []string // that all have in common; nil: those that found a cluster with its data in dir
}

func newServing(t *testing.T) *serving {
	t.Helper()
	s := &serving{t: t, dir: t.TempDir(), members: make([]*member, 3)}
	port := freePorts(t, len(s.members))
	for i := range s.members {
		s.addrs = append(s.addrs, loopbackAddr(port+i*devPortStep))
	}
	return s
}

// start starts member i, with the flags that all have in common.
func (s *serving) start(i int) {
	s.t.Helper()
	s.members[i] = launch(s.t, s.line(i)...)
}

// line is member i's command line.
func (s *serving) line(i int) []string {
	name := fmt.Sprintf("n%d", i+1)
	if s.flags != nil {
		return append([]string{"serve", "--name", name, "--listen", s.addrs[i]}, s.flags...)
	}
	return []string{
		"serve", "--name", name, "--data", filepath.Join(s.dir, name), "--listen", s.addrs[i],
		"--join", s.all(), "--bootstrap", "--election-timeout", "300ms",
	}
}

func (s *serving) all() string { return strings.Join(s.addrs, ",") }

// ready waits until leases are granted by a cluster of three voters.
func (s *serving) ready(atMost time.Duration) (view clusterView) {
	s.t.Helper()
	eventually(s.t, atMost, "three voters, one of them serves", func() (ok bool) {
		view, ok = cluster(s.t, s.all())
		return ok && view.voters() == len(s.members)
	})
	return view
}

func TestServe(t *testing.T) {
	s := newServing(t)
	s.start(0)
	s.members[0].says("waiting to found a cluster", 10*time.Second)
	if got := command(t, "status", "--addr", s.all(), "--timeout", "1s"); got.code != exitUnavailable || got.stderr == "" {
		t.Errorf("got %+v before there is a cluster, want code %d and a reason", got, exitUnavailable)
	}
	s.start(1)
	s.start(2)
	before := s.ready(20 * time.Second)

	leader := slices.Index(s.addrs, before.LeaderAddress)
	if leader < 0 {
		t.Fatalf("got leader %q, want one of %v", before.LeaderAddress, s.addrs)
	}
	s.members[leader].signal(syscall.SIGTERM)
	var after clusterView
	eventually(t, 5*time.Second, "another leader", func() (ok bool) {
		after, ok = cluster(t, s.all())
		return ok && after.Leader != before.Leader
	})
	if got := s.members[leader].wait(10 * time.Second); got != 0 {
		t.Errorf("got code %d, want 0", got)
	}
	if got, want := after.voters(), len(s.members); got != want || after.Cluster != before.Cluster {
		t.Errorf("got %d voters of cluster %s, want the one that ended to stay one of %d of %s", got, after.Cluster, want, before.Cluster)
	}

	s.start(leader)
	eventually(t, 10*time.Second, "the member is back under its server id", func() bool {
		view, ok := cluster(t, s.all())
		return ok && slices.Equal(serverIDs(view), serverIDs(before)) &&
			!slices.ContainsFunc(view.Members, func(m memberView) bool { return !m.Reachable })
	})
}

// With nobody left to hand leadership to, a leader still ends in time; and at
// once at the second signal.
func TestServeEndsAlone(t *testing.T) {
	for _, c := range []struct {
		name  string
		twice bool
	}{{"in time", false}, {"at the second signal", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := newServing(t)
			for i := range s.members {
				s.start(i)
			}
			leader := slices.Index(s.addrs, s.ready(20*time.Second).LeaderAddress)
			for i, m := range s.members {
				if i != leader {
					m.signal(syscall.SIGSTOP)
				}
			}
			m := s.members[leader]
			m.signal(syscall.SIGTERM)
			if !c.twice {
				m.wait(10 * time.Second)
				return
			}
			m.says("a second signal ends this process at once", time.Second)
			m.signal(syscall.SIGTERM)
			m.wait(time.Second)
			if status := m.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
				t.Errorf("got %v, want it ended by the signal", m.cmd.ProcessState)
			}
		})
	}
}

func serverIDs(view clusterView) []string {
	var ids []string
	for _, m := range view.Members {
		ids = append(ids, m.ServerID)
	}
	slices.Sort(ids)
	return ids
}

func TestServeNeedsAClusterToBelongTo(t *testing.T) {
	got := command(t, "serve", "--name", "n1", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	if got.code != exitUsage || !strings.Contains(got.stderr, "--join") || !strings.Contains(got.stderr, "bootstrap") {
		t.Errorf("got %+v, want a usage error that names --join and --bootstrap", got)
	}
	port := freePorts(t, 1)
	alone := launch(t, "serve", "--name", "n1", "--data", t.TempDir(), "--listen", loopbackAddr(port), "--join", nowhere)
	alone.says("waiting for a cluster: no answer from "+nowhere+" (unavailable: ", 10*time.Second)
}

func TestServeAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	got := command(t, "serve", "--name", "n1", "--data", t.TempDir(), "--listen", addr, "--bootstrap")
	if got.code != exitInternal || !strings.Contains(got.stderr, addr+" is in use") {
		t.Errorf("got %+v, want code %d and an error that names %s", got, exitInternal, addr)
	}
}

func TestServePlaintextBeyondLoopback(t *testing.T) {
	port := freePorts(t, 1)
	args := []string{
		"serve", "--name", "n1", "--data", t.TempDir(), "--bootstrap", "--log-format", "json",
		"--listen", fmt.Sprintf("0.0.0.0:%d", port), "--advertise", loopbackAddr(port),
	}
	if got := command(t, args...); got.code != exitUsage || !strings.Contains(got.stderr, "--insecure") {
		t.Errorf("got %+v, want a refusal that names --insecure", got)
	}
	insecure := launch(t, append(args, "--insecure")...)
	insecure.says(`"level":"WARN","msg":"INSECURE: no TLS, by --insecure`, 10*time.Second)
	eventually(t, 10*time.Second, "a cluster of one serves", func() bool {
		_, ok := cluster(t, loopbackAddr(port))
		return ok
	})
	insecure.signal(syscall.SIGTERM)
	if got := insecure.wait(10 * time.Second); got != 0 {
		t.Errorf("got code %d, want 0", got)
	}
}

func TestStatusWithoutCluster(t *testing.T) {
	addr := loopbackAddr(freePorts(t, 1))
	began := time.Now()
	got := command(t, "status", "--addr", addr, "--timeout", "500ms")
	if got.code != exitUnavailable || !strings.Contains(got.stderr, addr) || strings.Contains(got.stderr, "context deadline") || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("got %+v, want code %d and one line that names %s", got, exitUnavailable, addr)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v, want about the --timeout", took)
	}
}
