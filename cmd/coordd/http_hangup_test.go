package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// waitForever is a wait without limit.
const waitForever = uint32(1<<32 - 1)

// longest is a TTL that no test outlasts: what is free sooner was not left to expire.
const longest = 300_000

// Callers are killed, in every phase of an acquire, at the leader and elsewhere.
func TestHTTPHangUps(t *testing.T) {
	s := calm(t)
	h := &hangUps{t: t, addrs: s.addrs, urls: led(t, s.addrs), random: rand.New(rand.NewPCG(seeded(t), 1))}
	conn, err := transport.Dial(transport.DialConfig{Addrs: s.addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h.backend = conn
	t.Run("in line", h.inLine)
	t.Run("many in line", h.manyInLine)
	t.Run("while it is granted", h.whileGranted)
	t.Run("while it is granted in its turn", h.whileGrantedInTurn)
	t.Run("after the answer", h.afterTheAnswer)

	list := new(coorddv1.ListResponse)
	get(t, h.urls[0]+"/v1/leases").into(list)
	if len(list.Leases) > 0 {
		t.Errorf("got %v, want nothing left", list.Leases)
	}
	counted := metrics(t, s.addrs)
	if grants, ended := counted["coordd_grants_total"], counted.total("coordd_leases_ended_total"); grants != ended || grants == 0 {
		t.Errorf("got %v grants and %v ends, want the same", grants, ended)
	}
	if counted["coordd_waiters"] != 0 || counted["coordd_watchers"] != 0 {
		t.Errorf("got %v waiters and %v watches, want none", counted["coordd_waiters"], counted["coordd_watchers"])
	}
}

func seeded(t *testing.T) uint64 {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return seed
}

// hangUps is a cluster and callers that are killed.
type hangUps struct {
	t           *testing.T
	addrs, urls []string // of the members; the leader's URL is the first
	random      *rand.Rand
	backend     leases.Backend
	names       int
}

func (h *hangUps) name() string {
	h.names++
	return fmt.Sprint("hangup/", h.names)
}

// hold takes a lease, which the function that is returned gives back.
func (h *hangUps) hold(t *testing.T, name string) (release func()) {
	t.Helper()
	s, err := h.backend.Open(t.Context(), leases.NewID(), func(leases.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Acquire(t.Context(), leases.Claim{Name: name, Attempt: leases.NewID(), TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := s.Release(t.Context(), leases.Held{Name: name, Token: g.Token}); err != nil {
			t.Errorf("release: %v", err)
		}
		s.Close()
	}
}

// claims are a name's with an attempt of the node's, and of the client's.
func claims(name string, wait uint32) map[string]fields {
	return map[string]fields{
		"drawn by the node":   {"name": name, "ttl_ms": longest, "wait_ms": wait},
		"drawn by the client": {"name": name, "ttl_ms": longest, "wait_ms": wait, "session": leases.NewID().String(), "attempt": leases.NewID().String()},
	}
}

// kill ends curl, by its process id, and waits for its end.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil && cmd.ProcessState == nil {
		t.Logf("kill %d: %v", cmd.Process.Pid, err) // it had just ended
	}
	_ = cmd.Wait() // it was killed
}

// Who waits in line leaves it, and the name goes to nobody.
func (h *hangUps) inLine(t *testing.T) {
	for i, url := range h.urls[:2] {
		for who, claim := range claims(h.name(), waitForever) {
			name := claim["name"].(string)
			release := h.hold(t, name)
			cmd := curling(t, posting(url+"/v1/acquire", claim)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "it waits", func() bool { return len(queueAt(t, h.urls[0], name)) == 1 })
			kill(t, cmd)
			eventually(t, 20*time.Second, "it waits no more", func() bool { return len(queueAt(t, h.urls[0], name)) == 0 })
			release()
			if l := leaseAt(t, h.urls[0], name); l.Held || l.Last.GetNextToken() != 0 || l.Last.Why != coorddv1.Why_WHY_RELEASED {
				t.Errorf("%s, at member %d: got %v, want that nobody has got it", who, i, l)
			}
		}
	}
}

// Of many who wait the one that is left gets it.
func (h *hangUps) manyInLine(t *testing.T) {
	const many = 24
	name := h.name()
	release := h.hold(t, name)
	all, left := make([]*exec.Cmd, many), new(bytes.Buffer)
	for i := range all {
		all[i] = curling(t, posting(h.urls[i%len(h.urls)]+"/v1/acquire", fields{"name": name, "ttl_ms": longest, "wait_ms": waitForever})...)
		if i == many/2 {
			all[i].Stdout = left
		}
		if err := all[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 30*time.Second, "all wait", func() bool { return len(queueAt(t, h.urls[0], name)) == many })
	for i, cmd := range all {
		if i != many/2 {
			kill(t, cmd)
		}
	}
	eventually(t, 20*time.Second, "one waits", func() bool { return len(queueAt(t, h.urls[0], name)) == 1 })
	release()
	if err := all[many/2].Wait(); err != nil {
		t.Fatalf("curl: %v, want that it was answered", err)
	}
	g := new(coorddv1.AcquireResponse)
	answer{t, 200, left.String()}.into(g)
	post(t, h.urls[0]+"/v1/release", proof(g)).ok()
}

// killed is how an acquire ended whose caller was killed at some moment.
type killed struct {
	name     string
	attempt  fields                    // that the client has drawn; nil: the node has
	answered *coorddv1.AcquireResponse // on its way when the caller was killed; nil: no lease
}

// through has curl make a call by way of this process, kills curl, and returns
// what the node has answered all the same. meanwhile comes before the kill.
func (h *hangUps) through(t *testing.T, url string, claim fields, meanwhile func()) (answered *coorddv1.AcquireResponse) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	said := make(chan []byte, 1)
	go func() { said <- relay(l, strings.TrimPrefix(url, "http://")) }()
	cmd := curling(t, posting("http://"+l.Addr().String()+"/v1/acquire", claim)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	meanwhile()
	kill(t, cmd)
	// Where curl was killed before it has connected this is the first connection,
	// over which nothing is asked, else nobody takes it.
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
	}
	var heard []byte
	select {
	case heard = <-said:
	case <-time.After(20 * time.Second):
		t.Fatal("the node has not ended a call whose caller has hung up")
	}
	if len(heard) == 0 {
		return nil
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(heard)), nil)
	if err != nil {
		t.Fatalf("the node has answered %q: %v", heard, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	switch a := (answer{t, resp.StatusCode, string(body)}); a.status {
	case 200:
	case 503:
		a.says(503, "UNAVAILABLE")
		return nil
	default:
		a.says(504, "UNKNOWN_OUTCOME")
		return nil
	}
	answered = new(coorddv1.AcquireResponse)
	if err := protojson.Unmarshal(body, answered); err != nil {
		t.Fatal(err)
	}
	return answered
}

// relay passes one connection on to a node and returns what the node has said.
// When the client hangs up it does so too, in that direction alone, so that it
// hears what was on its way.
func relay(l net.Listener, to string) (heard []byte) {
	client, err := l.Accept()
	if err != nil {
		return nil
	}
	defer client.Close()
	node, err := net.Dial("tcp", to)
	if err != nil {
		return nil
	}
	defer node.Close()
	go func() {
		_, _ = io.Copy(node, client) // until the client hangs up
		_ = node.(*net.TCPConn).CloseWrite()
	}()
	var all bytes.Buffer
	for buf := make([]byte, 4096); ; {
		n, err := node.Read(buf)
		all.Write(buf[:n])
		_, _ = client.Write(buf[:n]) // it may be gone
		if err != nil {
			return all.Bytes()
		}
	}
}

// fates counts what became of the leases that killed callers had asked for.
type fates struct {
	ungranted, undone, kept, answered int
}

// settle checks what is left after a caller was killed, and cleans up.
func (h *hangUps) settle(t *testing.T, k killed, f *fates) {
	t.Helper()
	url := h.urls[0]
	switch {
	case k.answered != nil: // the node cannot know that nobody has heard it
		f.answered++
		if l := leaseAt(t, url, k.name); !l.Held || l.Token != k.answered.Token {
			t.Errorf("got %v, want it held as it was answered, under %d", l, k.answered.Token)
		}
		post(t, url+"/v1/release", proof(k.answered)).ok()
	case k.attempt == nil:
		var l *coorddv1.LeaseStatus
		eventually(t, 20*time.Second, "what nobody knows of is free", func() bool { l = leaseAt(t, url, k.name); return !l.Held })
		if l.Last.GetWhy() == coorddv1.Why_WHY_WITHDRAWN {
			f.undone++
		} else {
			f.ungranted++
		}
	default: // S54: its client may still repeat it
		before, g := leaseAt(t, url, k.name), new(coorddv1.AcquireResponse)
		post(t, url+"/v1/acquire", k.attempt).into(g)
		switch {
		case before.Held && before.Token != g.Token:
			t.Errorf("got token %d for a repeat, want that of the attempt's lease, %d", g.Token, before.Token)
		case before.Held:
			f.kept++
		default:
			f.ungranted++
		}
		undone := fields{"name": k.name, "session": k.attempt["session"], "attempt": k.attempt["attempt"]}
		post(t, url+"/v1/withdraw", undone).ok()
	}
	if l := leaseAt(t, url, k.name); l.Held {
		t.Errorf("got %v, want it free", l)
	}
}

// enough reports whether the callers were killed in all phases that count.
func (f fates) enough() bool { return f.undone >= 2 && f.kept >= 2 && f.ungranted >= 2 }

// mostKills bounds how many callers are killed to see all phases.
const mostKills = 600

// rounds kills callers until all phases were seen: each by try, which lets some
// time pass before it kills. That is about aim, drawn anew for each.
func (h *hangUps) rounds(t *testing.T, aim time.Duration, try func(i int, claim fields, pass func()) (answered *coorddv1.AcquireResponse)) {
	var f fates
	for i := 0; i < mostKills && !f.enough() && !t.Failed(); i++ {
		for _, claim := range claims(h.name(), 0) {
			k, before := killed{name: claim["name"].(string)}, f
			if claim["attempt"] != nil {
				k.attempt = claim
			}
			k.answered = try(i, claim, func() { sleep(t.Context(), time.Duration((0.5+h.random.Float64())*float64(aim))) })
			h.settle(t, k, &f)
			switch { // most of what there is to see lies between these two
			case f.answered > before.answered:
				aim -= aim / 8
			case f.ungranted > before.ungranted:
				aim += aim/8 + 1
			}
		}
	}
	t.Logf("%+v, last after about %v", f, aim)
	if !t.Failed() && !f.enough() {
		t.Errorf("got %+v, want two of each: a lease withdrawn, one kept for its client, and none granted", f)
	}
}

// A caller is killed at some moment of an acquire that does not wait.
func (h *hangUps) whileGranted(t *testing.T) {
	h.rounds(t, 10*time.Millisecond, func(i int, claim fields, pass func()) *coorddv1.AcquireResponse {
		return h.through(t, h.urls[i%len(h.urls)], claim, pass)
	})
}

// A caller who waits is killed at about the moment in which its turn comes.
func (h *hangUps) whileGrantedInTurn(t *testing.T) {
	h.rounds(t, time.Millisecond, func(i int, claim fields, pass func()) *coorddv1.AcquireResponse {
		name, released := claim["name"].(string), make(chan struct{})
		release := h.hold(t, name)
		claim["wait_ms"] = waitForever
		answered := h.through(t, h.urls[i%len(h.urls)], claim, func() {
			eventually(t, 20*time.Second, "it waits", func() bool { return len(queueAt(t, h.urls[0], name)) == 1 })
			go func() { defer close(released); release() }()
			pass()
		})
		<-released
		return answered
	})
}

// Who has its answer has the lease, however its connection ends.
func (h *hangUps) afterTheAnswer(t *testing.T) {
	for i, url := range h.urls {
		for who, claim := range claims(h.name(), 0) {
			name := claim["name"].(string)
			line := append(posting(url+"/v1/acquire", claim), "--next", "-sS", "--noproxy", "*", "-N", url+"/v1/watch")
			cmd, said := curling(t, line...), new(lines)
			cmd.Stdout = said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "it has the lease, and watches over the same connection", func() bool { return strings.Contains(said.String(), `{"result":`) })
			kill(t, cmd)
			text, _, _ := strings.Cut(said.String(), "\n")
			g := new(coorddv1.AcquireResponse)
			answer{t, 200, text}.into(g)
			eventually(t, 20*time.Second, "nobody watches", func() bool { return metrics(t, h.addrs)["coordd_watchers"] == 0 })
			if l := leaseAt(t, h.urls[0], name); !l.Held || l.Token != g.Token {
				t.Errorf("%s, at member %d: got %v, want it held under %d", who, i, l, g.Token)
			}
			post(t, h.urls[0]+"/v1/renew", proof(g)).ok()
			post(t, h.urls[0]+"/v1/release", proof(g)).ok()
		}
	}
}
