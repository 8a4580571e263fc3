package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/tokens"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway/gatewaytest"
)

// journaling is the manual's worker whose steps write into a journal when they
// begin and end, by the clock that it counts its deadlines with. It keeps a
// second in hand: a machine may be so busy that a step takes longer than it says.
const journaling = `
import sys, time
sys.path.insert(0, "../../docs/examples")
import worker
journal = sys.argv.pop(1)

def work(lease, steps, seconds):
    with open(journal, "a", buffering=1) as out:
        for _ in range(steps):
            if lease.left() < seconds + 1:
                raise worker.Lost(lease.over or "too little of it is left for another step")
            for what in "begins", "ends":
                print(lease.token, what, int(worker.now() * 1e9), file=out)
                time.sleep(seconds if what == "begins" else 0)

worker.work = work
sys.exit(worker.main())
`

// worker is a run of it.
type worker struct {
	*exec.Cmd
	t     *testing.T
	said  *lines
	ended chan struct{} // closed when it has ended
}

// works starts a worker for a lease of 4 s, unless the flags say otherwise.
func works(t *testing.T, journal, urls, name string, flags ...string) *worker {
	t.Helper()
	gatewaytest.Need(t, "python3")
	args := []string{"-c", journaling, journal, name, "--ttl", "4", "--wait", "60", "--seconds", "0.1"}
	w := &worker{Cmd: exec.CommandContext(t.Context(), "python3", append(args, flags...)...), t: t, said: new(lines), ended: make(chan struct{})}
	w.Env = append(os.Environ(), "COORDD_URL="+urls, "PYTHONDONTWRITEBYTECODE=1")
	w.Stdout, w.Stderr = w.said, w.said
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.Cmd.Wait() // its exit code is in ProcessState
		close(w.ended)
	}()
	t.Cleanup(func() {
		_ = w.Process.Kill() // it has ended already, mostly
		<-w.ended
	})
	return w
}

// ends waits for the worker's end and checks its exit code.
func (w *worker) ends(code int) {
	w.t.Helper()
	select {
	case <-w.ended:
	case <-time.After(60 * time.Second):
		w.t.Fatal("a worker has not ended within a minute")
	}
	if got := w.ProcessState.ExitCode(); got != code {
		w.t.Errorf("a worker ended with %d, want %d; it said %q", got, code, w.said.String())
	}
}

// runsOut waits until the worker works no more, by its own clock.
func (w *worker) runsOut() {
	w.t.Helper()
	eventually(w.t, 60*time.Second, "a worker runs out of time", func() bool {
		said := w.said.String()
		return strings.Contains(said, "it was not renewed in time") || strings.Contains(said, "too little of it is left")
	})
}

func (w *worker) signal(sig syscall.Signal) {
	w.t.Helper()
	if err := w.Process.Signal(sig); err != nil {
		w.t.Fatal(err)
	}
}

// span is the time in which one token was worked under.
type span struct {
	token       tokens.Token
	steps       int
	first, last int64 // nanoseconds of the workers' clock
}

// spans reads a journal, in the order in which the tokens were first used.
func spans(t *testing.T, journal string) (all []span) {
	t.Helper()
	text, err := os.ReadFile(journal)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	at := map[tokens.Token]*span{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 || !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		token, err := tokens.Parse(words[0])
		now, err2 := strconv.ParseInt(words[2], 10, 64)
		if err != nil || err2 != nil {
			t.Fatalf("line %q in the journal: %v, %v", line, err, err2)
		}
		s := at[token]
		if s == nil {
			s = &span{token: token, first: now}
			at[token] = s
		}
		if words[1] == "begins" {
			s.steps++
		}
		s.first, s.last = min(s.first, now), max(s.last, now)
	}
	for _, s := range at {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	return all
}

// exclusive returns which two of the spans overlap, or come in the wrong order.
func exclusive(all []span) error {
	for i, s := range all[:max(len(all)-1, 0)] {
		next := all[i+1]
		if s.last > next.first || s.token >= next.token {
			return fmt.Errorf("%v steps under token %v from %d to %d, and %v under %v from %d on", s.steps, s.token, s.first, s.last, next.steps, next.token, next.first)
		}
	}
	return nil
}

// Journals that must not be are told from those that may.
func TestExclusive(t *testing.T) {
	for _, c := range []struct {
		what, journal string
		steps         []int // per token
		ok            bool
	}{
		{"nothing", "", nil, true},
		{"one step", "7 begins 10\n7 ends 20\n", []int{1}, true},
		{"one after the other", "7 begins 10\n7 ends 20\n7 begins 21\n7 ends 30\n9 begins 30\n9 ends 40\n", []int{2, 1}, true},
		{"one killed", "7 begins 10\n8 begins 30\n8 ends 40\n", []int{1, 1}, true},
		{"half a line", "7 begins 10\n7 ends 20\n8 be", []int{1}, true},
		{"an overlap", "7 begins 10\n8 begins 19\n7 ends 20\n8 ends 30\n", []int{1, 1}, false},
		{"a smaller token later", "8 begins 10\n8 ends 20\n7 begins 21\n7 ends 30\n", []int{1, 1}, false},
		{"one within the other", "7 begins 10\n8 begins 12\n8 ends 14\n7 ends 20\n", []int{1, 1}, false},
		{"back again", "7 begins 10\n7 ends 11\n8 begins 12\n8 ends 14\n7 begins 15\n", []int{2, 1}, false},
	} {
		journal := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(journal, []byte(c.journal), 0o600); err != nil {
			t.Fatal(err)
		}
		all := spans(t, journal)
		var steps []int
		for _, s := range all {
			steps = append(steps, s.steps)
		}
		if err := exclusive(all); (err == nil) != c.ok || !slices.Equal(steps, c.steps) {
			t.Errorf("%s: got %v and %v steps, want it right: %v, and %v", c.what, err, steps, c.ok, c.steps)
		}
	}
}

// The manual's worker on a real cluster.
func TestHTTPWorker(t *testing.T) {
	t.Parallel() // it waits, mostly
	dev, urls := onDev(t)
	t.Run("with a cluster", func(t *testing.T) {
		for name, f := range map[string]func(*testing.T, []string){"works": testWorkerWorks, "cut off": testWorkerCutOff, "stopped": testWorkerStopped} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t, urls)
			})
		}
	})
	t.Run("without one", func(t *testing.T) { testWorkerAlone(t, dev, urls) })
}

// working waits until somebody works under a token greater than after.
func working(t *testing.T, journal string, after tokens.Token) (token tokens.Token) {
	t.Helper()
	eventually(t, 60*time.Second, fmt.Sprintf("somebody works after %v", after), func() bool {
		if all := spans(t, journal); len(all) > 0 {
			token = all[len(all)-1].token
		}
		return token > after
	})
	return token
}

// It holds on for longer than its TTL, and leaves the name free.
func testWorkerWorks(t *testing.T, urls []string) {
	journal := filepath.Join(t.TempDir(), "journal")
	works(t, journal, strings.Join(urls, ","), "works", "--ttl", "3", "--steps", "40").ends(0)
	all := spans(t, journal)
	if len(all) != 1 || all[0].steps != 40 || time.Duration(all[0].last-all[0].first) < 3*time.Second {
		t.Errorf("got %+v, want 40 steps under one token, for longer than 3s", all)
	}
	if l := leaseAt(t, urls[0], "works"); l.Held || l.Last.GetWhy() != coorddv1.Why_WHY_RELEASED {
		t.Errorf("got %v, want it released", l)
	}
}

// One that hears nobody any more stops before another is granted its lease.
func testWorkerCutOff(t *testing.T, urls []string) {
	url := urls[0]
	journal := filepath.Join(t.TempDir(), "journal")
	way, cut := severable(t, strings.TrimPrefix(url, "http://"))
	first := works(t, journal, way, "cut", "--steps", "100000")
	token := working(t, journal, 0)
	second := works(t, journal, url, "cut", "--steps", "3")
	eventually(t, 20*time.Second, "another waits", func() bool { return len(queueAt(t, url, "cut")) == 1 })
	cut()
	first.runsOut()
	second.ends(0)
	working(t, journal, token)
	if err := exclusive(spans(t, journal)); err != nil {
		t.Error(err)
	}
	if l := leaseAt(t, url, "cut"); l.Held || l.Last.GetToken() <= uint64(token) {
		t.Errorf("got %v, want the second's lease released", l)
	}
}

// severable is a way to a node that can be cut: then whatever is sent over it is
// lost, without a word.
func severable(t *testing.T, to string) (url string, cut func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	severed := make(chan struct{})
	var (
		mu    sync.Mutex // guards conns
		conns []net.Conn
		all   sync.WaitGroup
	)
	pass := func(from, to net.Conn) {
		buf := make([]byte, 4096)
		for {
			n, err := from.Read(buf)
			select {
			case <-severed:
				return
			default:
			}
			if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
				to.Close()
				return
			}
		}
	}
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			node, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, client, node)
			mu.Unlock()
			all.Go(func() { pass(client, node) })
			all.Go(func() { pass(node, client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return "http://" + l.Addr().String(), func() { close(severed) }
}

// One that stands still meanwhile begins nothing afterwards.
func testWorkerStopped(t *testing.T, urls []string) {
	url := urls[0]
	journal, other := filepath.Join(t.TempDir(), "journal"), filepath.Join(t.TempDir(), "other")
	first := works(t, journal, url, "stopped", "--steps", "100000")
	token := working(t, journal, 0)
	second := works(t, other, url, "stopped", "--steps", "3")
	eventually(t, 20*time.Second, "another waits", func() bool { return len(queueAt(t, url, "stopped")) == 1 })
	first.signal(syscall.SIGSTOP)
	working(t, other, token)
	before := spans(t, journal)
	first.signal(syscall.SIGCONT)
	first.runsOut()
	first.ends(76)
	second.ends(0)
	if after := spans(t, journal); len(after) != 1 || after[0].steps != before[0].steps {
		t.Errorf("got %+v after %+v, want no other step", after, before)
	}
}

// While the cluster stands still, and when it is gone, the clock alone decides.
func testWorkerAlone(t *testing.T, dev *member, urls []string) {
	journal, all := filepath.Join(t.TempDir(), "journal"), strings.Join(urls, ",")
	first := works(t, journal, all, "alone", "--steps", "100000")
	token := working(t, journal, 0)
	second := works(t, journal, all, "alone", "--steps", "100000")
	eventually(t, 20*time.Second, "another waits", func() bool { return len(queueAt(t, urls[0], "alone")) == 1 })
	dev.signal(syscall.SIGSTOP)
	first.runsOut()
	dev.signal(syscall.SIGCONT)
	first.ends(76)
	working(t, journal, token)
	dev.signal(syscall.SIGKILL)
	second.runsOut()
	second.ends(76)
	if err := exclusive(spans(t, journal)); err != nil {
		t.Error(err)
	}
	works(t, journal, all, "alone", "--wait", "1").ends(69)
}

// Workers that want one name all the time, while the member that leads is
// killed, and one of them too: never do two work at once.
func TestHTTPWorkersSurviveTheLeader(t *testing.T) {
	t.Parallel() // it waits, mostly
	s := newServing(t)
	s.dir = memoryDir(t)
	var urls []string
	for i := range s.members {
		s.start(i)
		urls = append(urls, s.url(i))
	}
	s.ready(30 * time.Second)
	journal := filepath.Join(t.TempDir(), "journal")
	stop := make(chan struct{})
	var (
		crew  sync.WaitGroup
		mu    sync.Mutex // guards codes
		codes = map[int]int{}
	)
	for i := range 3 {
		crew.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w := works(t, journal, strings.Join(append(urls[i:len(urls):len(urls)], urls[:i]...), ","), "crew", "--ttl", "5", "--steps", "5")
				<-w.ended
				mu.Lock()
				codes[w.ProcessState.ExitCode()]++
				mu.Unlock()
			}
		})
	}
	token := working(t, journal, 0)
	for range 2 {
		leader := s.leads()
		s.members[leader].signal(syscall.SIGKILL)
		s.members[leader].wait(20 * time.Second)
		s.leads(leader)
		token = working(t, journal, working(t, journal, token)+1)
		s.start(leader)
		s.ready(30 * time.Second)
	}
	// A worker that is killed is followed when its lease has expired.
	killed := works(t, journal, urls[0], "crew", "--ttl", "5", "--steps", "100000")
	eventually(t, 60*time.Second, "it works", func() bool { all := spans(t, journal); return all[len(all)-1].steps > 10 })
	token = working(t, journal, 0)
	killed.signal(syscall.SIGKILL)
	working(t, journal, token)
	close(stop)
	crew.Wait()
	all := spans(t, journal)
	if err := exclusive(all); err != nil {
		t.Error(err)
	}
	t.Logf("%d tokens, exit codes %v", len(all), codes)
	if len(all) < 8 || codes[0] < 5 {
		t.Errorf("got %d tokens and the exit codes %v, want at least 8 and five of 0", len(all), codes)
	}
	for code := range codes {
		if code != 0 && code != 76 {
			t.Errorf("a worker ended with %d, want 0, or 76 where its lease was lost", code)
		}
	}
}
