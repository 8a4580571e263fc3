package main

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// startHTTP starts member i, one of those that let one wait for a name.
func (s *serving) startHTTP(i int) {
	s.t.Helper()
	s.members[i] = launch(s.t, append(s.line(i), "--max-waiters-per-name", "1", "--election-timeout", "1s")...)
}

// settles waits until three members vote and each of them is ready.
func (s *serving) settles() {
	s.t.Helper()
	s.ready(30 * time.Second)
	eventually(s.t, 30*time.Second, "every member is ready", func() bool {
		for i := range s.members {
			if curl(s.t, s.url(i)+"/readyz").status != 200 {
				return false
			}
		}
		return true
	})
}

func (s *serving) url(i int) string { return httpURL(s.addrs[i]) }

// leads waits until a member leads that is not among but, and returns which.
func (s *serving) leads(but ...int) (leader int) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, "a member leads", func() bool {
		for i := range s.members {
			if slices.Contains(but, i) {
				continue
			}
			if a := curl(s.t, s.url(i)+"/v1/status"); a.status == 200 {
				r := new(coorddv1.StatusResponse)
				if a.into(r); r.Cluster.Serving {
					leader = i
					return true
				}
			}
		}
		return false
	})
	return leader
}

// signals sends a signal to every member but one.
func (s *serving) signals(sig syscall.Signal, but int) {
	s.t.Helper()
	for i, m := range s.members {
		if i != but {
			m.signal(sig)
		}
	}
}

// What members answer while there is no cluster, no leader, and no majority.
func TestHTTPWithoutMajority(t *testing.T) {
	t.Parallel() // it waits, mostly
	s := newServing(t)
	s.dir = memoryDir(t)
	s.startHTTP(0)
	s.members[0].says("waiting to found a cluster", 20*time.Second)
	testWithoutCluster(t, s.url(0))
	s.startHTTP(1)
	s.startHTTP(2)
	s.settles()
	t.Run("exhausted", func(t *testing.T) { testHTTPExhausted(t, s) })
	t.Run("election", func(t *testing.T) { testHTTPElection(t, s) })
	t.Run("leader stopped", func(t *testing.T) { testHTTPLeaderStopped(t, s) })
	t.Run("no majority", func(t *testing.T) { testHTTPNoMajority(t, s) })
	t.Run("closing", func(t *testing.T) { testHTTPClosing(t, s) })
}

// pagesWork are those that hold whether or not there is a leader.
func pagesWork(t *testing.T, url string) {
	t.Helper()
	for _, path := range []string{"/healthz", "/metrics", "/v1/status", "/v1/openapi.json"} {
		if a := curl(t, url+path); a.status != 200 {
			t.Errorf("%s: got %d %s, want 200 at all times", path, a.status, a.body)
		}
	}
}

// everywhere asks for everything, which all has to be refused with one of the codes.
func everywhere(t *testing.T, url string, codes ...string) {
	t.Helper()
	id := leases.NewID().String()
	held := fields{"name": "a", "session": id, "token": 1}
	transfer := fields{"name": "a", "session": id, "token": 1, "to": id}
	for _, a := range []answer{
		curl(t, url+"/readyz"),
		post(t, url+"/v1/acquire", fields{"name": "a", "ttl_ms": 5000}),
		post(t, url+"/v1/acquire", fields{"name": "a", "ttl_ms": 5000, "wait_ms": 60_000}),
		post(t, url+"/v1/renew", held),
		post(t, url+"/v1/release", held),
		post(t, url+"/v1/transfer", transfer),
		post(t, url+"/v1/withdraw", fields{"name": "a", "session": id, "attempt": id}),
		get(t, url+"/v1/lease", "name=a"),
		get(t, url+"/v1/leases"),
		get(t, url+"/v1/queue", "name=a"),
		get(t, url+"/v1/status", "name=a"),
		get(t, url+"/v1/watch"),
	} {
		if f := a.fault(); a.status != 503 || !slices.Contains(codes, f.Code) {
			t.Errorf("got %d %s, want 503 and one of %v", a.status, a.body, codes)
		}
	}
}

func testWithoutCluster(t *testing.T, url string) {
	pagesWork(t, url)
	everywhere(t, url, "UNAVAILABLE")
	curl(t, url+"/readyz").says(503, "UNAVAILABLE", "waiting to found a cluster")
	post(t, url+"/v1/acquire", fields{"name": ""}).says(400, "INVALID") // it is wrong anyhow
}

func testHTTPExhausted(t *testing.T, s *serving) {
	g := acquired(t, s.url(0), fields{"name": "exhausted"})
	waiting := make(chan answer, 1)
	go func() {
		waiting <- post(t, s.url(1)+"/v1/acquire", fields{"name": "exhausted", "ttl_ms": 60_000, "wait_ms": 60_000})
	}()
	eventually(t, 20*time.Second, "one waits", func() bool { return len(queueAt(t, s.url(0), "exhausted")) == 1 })
	for i := range s.members {
		post(t, s.url(i)+"/v1/acquire", fields{"name": "exhausted", "ttl_ms": 5000, "wait_ms": 1000}).
			says(429, "EXHAUSTED", "waiters for one name", `"bound":"1"`, `"flag":"--max-waiters-per-name"`)
	}
	post(t, s.url(2)+"/v1/release", proof(g)).ok()
	heir := new(coorddv1.AcquireResponse)
	(<-waiting).into(heir)
	post(t, s.url(0)+"/v1/release", proof(heir)).ok()
}

// While the members elect another leader they live, and say if they are not ready.
func testHTTPElection(t *testing.T, s *serving) {
	leader := s.leads()
	g := acquired(t, s.url(leader), fields{"name": "election"})
	s.members[leader].signal(syscall.SIGKILL)
	s.members[leader].wait(20 * time.Second)
	said := map[string]int{}
	for i := range s.members {
		if i == leader {
			continue
		}
		eventually(t, 30*time.Second, "it serves the lease that the leader before has granted", func() bool {
			if a := curl(t, s.url(i)+"/healthz"); a.status != 200 {
				t.Errorf("/healthz: got %d %s, want 200", a.status, a.body)
			}
			ready := curl(t, s.url(i)+"/readyz")
			code := "ready"
			if ready.status != 200 {
				code = ready.fault().Code
			}
			said[code]++
			if ready.status != 200 && (ready.status != 503 || !slices.Contains([]string{"NO_QUORUM", "UNAVAILABLE", "NOT_LEADER"}, code)) {
				t.Errorf("/readyz: got %d %s, want 200, or 503 and why", ready.status, ready.body)
			}
			renewed := post(t, s.url(i)+"/v1/renew", proof(g))
			if renewed.status != 200 && renewed.status != 503 && renewed.status != 504 {
				t.Errorf("renew: got %d %s, want 200, or that it is not known", renewed.status, renewed.body)
			}
			return ready.status == 200 && renewed.status == 200
		})
	}
	t.Logf("/readyz during the election: %v", said)
	s.startHTTP(leader)
	s.settles()
	post(t, s.url(leader)+"/v1/release", proof(g)).ok()
}

// A leader stops while somebody waits for it at another member: what becomes of
// the call is not known, and a repeat has the lease.
func testHTTPLeaderStopped(t *testing.T, s *serving) {
	leader := s.leads()
	follower := (leader + 1) % 3
	g := acquired(t, s.url(leader), fields{"name": "stopped"})
	claim := fields{"name": "stopped", "session": leases.NewID().String(), "attempt": leases.NewID().String(), "ttl_ms": 60_000, "wait_ms": 120_000}
	waiting := make(chan answer, 1)
	go func() { waiting <- post(t, s.url(follower)+"/v1/acquire", claim) }()
	eventually(t, 20*time.Second, "it waits", func() bool { return len(queueAt(t, s.url(leader), "stopped")) == 1 })
	s.members[leader].signal(syscall.SIGSTOP)
	(<-waiting).says(504, "UNKNOWN_OUTCOME")
	s.leads(leader)
	eventually(t, 20*time.Second, "the lease is released at the next leader", func() bool {
		a := post(t, s.url(follower)+"/v1/release", proof(g))
		return a.status == 200 || a.status == 404
	})
	heir := new(coorddv1.AcquireResponse)
	post(t, s.url(follower)+"/v1/acquire", claim).into(heir)
	if heir.Token <= g.Token || heir.Attempt != claim["attempt"] {
		t.Errorf("got %v, want a later token than %d under the same attempt", heir, g.Token)
	}
	s.members[leader].signal(syscall.SIGCONT)
	s.settles()
	post(t, s.url(follower)+"/v1/release", proof(heir)).ok()
}

// Without a majority what became of the first proposal is not known, those that
// waited for it have certainly changed nothing, and all that is asked for
// afterwards is refused. With one again nothing stays of what the node had drawn
// the attempt of.
func testHTTPNoMajority(t *testing.T, s *serving) {
	leader := s.leads()
	url := s.url(leader)
	g := acquired(t, url, fields{"name": "majority"})
	drawn := fields{"name": "majority/drawn", "ttl_ms": 5000} // for so long it stays where the node has given up to withdraw it
	mine := fields{"name": "majority/mine", "session": leases.NewID().String(), "attempt": leases.NewID().String(), "ttl_ms": 300_000}
	s.signals(syscall.SIGSTOP, leader)
	answers := make([]answer, 3)
	var all sync.WaitGroup
	all.Go(func() { answers[0] = post(t, url+"/v1/acquire", drawn) })
	all.Go(func() { answers[1] = post(t, url+"/v1/acquire", mine) })
	all.Go(func() { answers[2] = post(t, url+"/v1/release", proof(g)) })
	all.Wait()
	var unknown, unchanged []int
	for i, a := range answers {
		if a.status == 504 {
			a.says(504, "UNKNOWN_OUTCOME")
			unknown = append(unknown, i)
			continue
		}
		a.says(503, "UNAVAILABLE")
		unchanged = append(unchanged, i)
	}
	if len(unknown) == 0 {
		t.Error("got no unknown outcome, want at least that of the first proposal")
	}
	eventually(t, 20*time.Second, "it hears no leader", func() bool {
		a := curl(t, url+"/readyz")
		return a.status == 503 && a.fault().Code == "NO_QUORUM"
	})
	pagesWork(t, url)
	eventually(t, 20*time.Second, "it tells no changes", func() bool {
		a := curl(t, "-N", url+"/v1/watch", "--max-time", "1")
		return a.status == 503 && a.fault().Code == "NO_QUORUM"
	})
	everywhere(t, url, "NO_QUORUM")

	s.signals(syscall.SIGCONT, leader)
	s.settles()
	eventually(t, 20*time.Second, "what the node has drawn is gone", func() bool { return !leaseAt(t, url, "majority/drawn").Held })
	if slices.Contains(unchanged, 1) && leaseAt(t, url, "majority/mine").Held {
		t.Error("a lease was granted to whom it was said that nothing was changed")
	}
	heir := new(coorddv1.AcquireResponse)
	post(t, url+"/v1/acquire", mine).into(heir)
	post(t, url+"/v1/release", proof(heir)).ok()
	if a := post(t, url+"/v1/release", proof(g)); a.status != 200 && !slices.Contains(unchanged, 2) {
		a.says(404, "NOT_HELD", "it was released")
	} else {
		a.ok()
	}
}

// A member that is told to end tells those who wait at it to look for another.
func testHTTPClosing(t *testing.T, s *serving) {
	leader := s.leads()
	ending := (leader + 1) % 3
	g := acquired(t, s.url(leader), fields{"name": "closing"})
	waiting := make(chan answer, 1)
	go func() {
		waiting <- post(t, s.url(ending)+"/v1/acquire", fields{"name": "closing", "ttl_ms": 60_000, "wait_ms": 60_000})
	}()
	eventually(t, 20*time.Second, "one waits", func() bool { return len(queueAt(t, s.url(leader), "closing")) == 1 })
	watch := curling(t, "-N", s.url(ending)+"/v1/watch")
	watched := new(lines)
	watch.Stdout, watch.Stderr = watched, new(bytes.Buffer)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the watch has begun", func() bool { return watched.String() != "" })

	s.members[ending].signal(syscall.SIGTERM)
	if err := watch.Wait(); err != nil {
		t.Errorf("curl: %v, want that the watch ends in order", err)
	}
	if got := watched.String(); !strings.Contains(got, `{"error":{"code":"UNAVAILABLE"`) {
		t.Errorf("got %s, want a last line that says that the member is closing", got)
	}
	if a := <-waiting; a.status != 503 && a.status != 504 {
		t.Errorf("got %d %s, want 503 or 504", a.status, a.body)
	}
	if code := s.members[ending].wait(20 * time.Second); code != 0 {
		t.Errorf("got code %d, want 0", code)
	}
	if said := s.members[ending].out.String(); strings.Contains(said, "could not be withdrawn") {
		t.Errorf("got %s, want that it has withdrawn what it had drawn the attempt of", said)
	}
	eventually(t, 20*time.Second, "nobody waits", func() bool { return len(queueAt(t, s.url(leader), "closing")) == 0 })
	post(t, s.url(leader)+"/v1/release", proof(g)).ok()
	if l := leaseAt(t, s.url(leader), "closing"); l.Held {
		t.Errorf("got %v, want that nobody has got it", l)
	}
}
