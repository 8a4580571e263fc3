package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway/gatewaytest"
)

// answer is what curl has got.
type answer struct {
	t      *testing.T
	status int // 0: none
	body   string
}

// curling is curl with flags that a test needs.
func curling(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	gatewaytest.Need(t, "curl")
	return exec.CommandContext(t.Context(), "curl", append([]string{"-sS", "--noproxy", "*"}, args...)...)
}

// curl makes a request.
func curl(t *testing.T, args ...string) answer {
	t.Helper()
	cmd := curling(t, append(args, "--max-time", "60", "-w", "\n%{http_code}")...)
	out, err := cmd.Output()
	if _, isExit := errors.AsType[*exec.ExitError](err); err != nil && !isExit {
		t.Fatal(err)
	}
	code := strings.LastIndexByte(string(out), '\n') + 1
	status, err := strconv.Atoi(string(out[code:]))
	if err != nil {
		t.Fatalf("curl %q printed %q", args, out)
	}
	return answer{t, status, strings.TrimSpace(string(out[:code]))}
}

// fields is the body of a call.
type fields map[string]any

func (f fields) String() string {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // it has texts and numbers alone
	}
	return string(b)
}

// posting is the command line of a call with a body.
func posting(url string, body fields) []string {
	return []string{url, "-H", "Content-Type: application/json", "-d", body.String()}
}

func post(t *testing.T, url string, body fields) answer {
	t.Helper()
	return curl(t, posting(url, body)...)
}

// get is the answer to a question; args are name=value pairs.
func get(t *testing.T, url string, args ...string) answer {
	t.Helper()
	line := []string{"-G", url}
	for _, arg := range args {
		line = append(line, "--data-urlencode", arg)
	}
	return curl(t, line...)
}

// into reads an answer that has to be good.
func (a answer) into(m proto.Message) {
	a.t.Helper()
	if err := protojson.Unmarshal([]byte(a.body), m); a.status != 200 || err != nil {
		a.t.Fatalf("got %d %s (%v), want 200 and a %s", a.status, a.body, err, m.ProtoReflect().Descriptor().Name())
	}
}

// ok is an answer that has to be good and says no more.
func (a answer) ok() {
	a.t.Helper()
	if a.status != 200 || a.body != "{}" {
		a.t.Fatalf("got %d %s, want 200 {}", a.status, a.body)
	}
}

// fault is the error of an answer.
type fault struct {
	Code, Message string
	Details       map[string]any
}

func (a answer) fault() fault {
	a.t.Helper()
	var body struct{ Error fault }
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || body.Error.Code == "" || body.Error.Message == "" || body.Error.Details == nil {
		a.t.Fatalf("got %d %q (%v), want an error of the form that all have", a.status, a.body, err)
	}
	return body.Error
}

// says checks that the answer is an error, which says all of that.
func (a answer) says(status int, code string, words ...string) fault {
	a.t.Helper()
	f := a.fault()
	if a.status != status || f.Code != code {
		a.t.Errorf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
	for _, word := range words {
		if !strings.Contains(a.body, word) {
			a.t.Errorf("got %s, want it to say %s", a.body, word)
		}
	}
	return f
}

// acquired is a lease that was granted at url.
func acquired(t *testing.T, url string, body fields) *coorddv1.AcquireResponse {
	t.Helper()
	if body["ttl_ms"] == nil {
		body["ttl_ms"] = 60_000
	}
	g := new(coorddv1.AcquireResponse)
	post(t, url+"/v1/acquire", body).into(g)
	return g
}

// proof is what a holder proves a lease with.
func proof(g *coorddv1.AcquireResponse) fields {
	return fields{"name": g.Name, "session": g.Session, "token": g.Token}
}

// told reads the answer to a question, asked again while there is no leader.
func told(t *testing.T, into proto.Message, url string, args ...string) {
	t.Helper()
	var a answer
	eventually(t, 30*time.Second, url+" answers", func() bool {
		a = get(t, url, args...)
		return a.status != 503
	})
	a.into(into)
}

func leaseAt(t *testing.T, url, name string) *coorddv1.LeaseStatus {
	t.Helper()
	r := new(coorddv1.GetResponse)
	told(t, r, url+"/v1/lease", "name="+name)
	return r.Lease
}

func queueAt(t *testing.T, url, name string) []*coorddv1.Waiter {
	t.Helper()
	r := new(coorddv1.QueueResponse)
	told(t, r, url+"/v1/queue", "name="+name)
	return r.Waiters
}

// httpURL is where the member that listens on addr answers HTTP.
func httpURL(addr string) string { return "http://" + besides(addr) }

// onDev is a cluster of coordd dev, with the URLs of its members.
func onDev(t *testing.T) (dev *member, urls []string) {
	t.Helper()
	first := freePorts(t, devNodes)
	for i := range devNodes {
		urls = append(urls, httpURL(loopbackAddr(first+i*devPortStep)))
	}
	dev = launch(t, "dev", "--listen", loopbackAddr(first))
	dev.says("curl ", 30*time.Second)
	return dev, urls
}

// led is the members' URLs, the leader's first.
func led(t *testing.T, addrs []string) (urls []string) {
	t.Helper()
	r := new(coorddv1.StatusResponse)
	eventually(t, 30*time.Second, "a member leads", func() bool {
		for _, addr := range addrs {
			if a := curl(t, httpURL(addr)+"/v1/status"); a.status == 200 {
				if a.into(r); r.Cluster.Serving {
					return true
				}
			}
		}
		return false
	})
	for _, addr := range addrs {
		if addr == r.Cluster.LeaderAddress {
			urls = slices.Insert(urls, 0, httpURL(addr))
			continue
		}
		urls = append(urls, httpURL(addr))
	}
	return urls
}

// calm is a cluster of three members that keep their leader on a busy machine too.
func calm(t *testing.T, flags ...string) *serving {
	t.Helper()
	s := newServing(t)
	s.dir = memoryDir(t)
	for i := range s.members {
		s.members[i] = launch(t, slices.Concat(s.line(i), []string{"--election-timeout", "2s"}, flags)...)
	}
	s.ready(60 * time.Second)
	return s
}

// What the manual shows is what a new user sees.
func TestHTTPManual(t *testing.T) {
	dev, urls := onDev(t)
	gatewaytest.Manual(t, "../../docs/http.md", urls[0])
	t.Run("as greeted", func(t *testing.T) { testGreetedCurl(t, dev) })
}

func TestHTTP(t *testing.T) {
	s := calm(t)
	urls := led(t, s.addrs)
	t.Run("errors", func(t *testing.T) { testHTTPErrors(t, urls) })
	t.Run("any member", func(t *testing.T) { testHTTPAnyMember(t, urls) })
	t.Run("missed", func(t *testing.T) { testHTTPMissed(t, s.addrs) })
	t.Run("metrics", func(t *testing.T) { testHTTPMetrics(t, s.addrs) })
}

// The last line of what coordd dev says works as it stands there.
func testGreetedCurl(t *testing.T, dev *member) {
	line := regexp.MustCompile(`(?m)^  (curl .*)$`).FindStringSubmatch(dev.out.String())
	if line == nil {
		t.Fatalf("got %s, want a line with curl", dev.out.String())
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", line[1]).Output()
	if err != nil || !strings.HasPrefix(string(out), `{"lease":{"name":"nightly","held":false,`) {
		t.Errorf("%s: got %s (%v), want that nobody holds it", line[1], out, err)
	}
}

// The errors that a healthy cluster answers with, the same at each member.
func testHTTPErrors(t *testing.T, urls []string) {
	for i, url := range urls {
		name := fmt.Sprint("errors/", i)
		acquire := url + "/v1/acquire"
		session, attempt := leases.NewID().String(), leases.NewID().String()
		claim := fields{"name": name, "session": session, "attempt": attempt, "ttl_ms": 60_000, "owner": fields{"label": "errors", "host": "host7", "pid": 7}}
		g := acquired(t, url, claim)

		for _, wait := range []int{0, 50} {
			f := post(t, acquire, fields{"name": name, "ttl_ms": 5000, "wait_ms": wait}).says(409, "HELD", `is held by errors on host7 (pid 7)`, "for at most ")
			if ms, ok := f.Details["at_most_ms"].(float64); !ok || ms <= 0 || ms > 60_600 || f.Details["name"] != name || f.Details["waiters"] != 0.0 || f.Details["since_unix_ms"] == "0" {
				t.Errorf("got %v, want who holds it and for how long", f.Details)
			}
		}
		other := proof(g)
		other["token"] = g.Token - 1
		for _, call := range []string{"/v1/renew", "/v1/release"} {
			post(t, url+call, other).says(404, "NOT_HELD", fmt.Sprintf("is not held under token %d", g.Token-1), `"next_token":`)
		}
		strange := proof(g)
		strange["session"] = leases.NewID().String()
		post(t, url+"/v1/renew", strange).says(404, "NOT_HELD", fmt.Sprintf(`"token":"%d"`, g.Token))

		claim["ttl_ms"] = 30_000 // another wish under the same attempt
		post(t, acquire, claim).says(400, "INVALID", "ttl", "the attempt")

		post(t, url+"/v1/release", proof(g)).ok()
		post(t, url+"/v1/release", proof(g)).says(404, "NOT_HELD", "it was released", `"why":"WHY_RELEASED"`)
		post(t, url+"/v1/renew", proof(g)).says(404, "NOT_HELD", "it was released")
		transfer := proof(g)
		transfer["to"] = attempt
		post(t, url+"/v1/transfer", transfer).says(404, "NOT_HELD", "it was released")

		post(t, url+"/v1/withdraw", fields{"name": name, "session": session, "attempt": attempt}).ok()
		claim["ttl_ms"] = 60_000
		post(t, acquire, claim).says(404, "NOT_HELD", "it was withdrawn", `"why":"WHY_WITHDRAWN"`)

		expiring := acquired(t, url, fields{"name": name, "ttl_ms": 1000})
		eventually(t, 20*time.Second, "it has expired", func() bool { return !leaseAt(t, url, name).Held })
		post(t, url+"/v1/renew", proof(expiring)).says(404, "NOT_HELD", "it has expired", `"why":"WHY_EXPIRED"`)

		get(t, url+"/v1/watch", "epoch=7", "revision=1").says(410, "MISSED", `"from":{"epoch":7,"revision":"1"}`, `"newest":`, "list the leases anew")
	}
}

// Members that do not lead pass everything on.
func testHTTPAnyMember(t *testing.T, urls []string) {
	const name = "any: member/é 1"
	leader, one, other := urls[0], urls[1], urls[2]
	g := acquired(t, one, fields{"name": name, "owner": fields{"label": "any"}, "attributes": "djE="})
	for _, url := range urls {
		l := leaseAt(t, url, name)
		status, list := new(coorddv1.StatusResponse), new(coorddv1.ListResponse)
		get(t, url+"/v1/status", "name="+name).into(status)
		get(t, url+"/v1/leases", "prefix=any", "limit=5").into(list)
		for what, l := range map[string]*coorddv1.LeaseStatus{"lease": l, "status": status.Lease, "leases": list.Leases[0]} {
			if !l.Held || l.Token != g.Token || l.Owner.GetLabel() != "any" || string(l.Attributes) != "v1" {
				t.Errorf("%s at %s: got %v, want token %d", what, url, l, g.Token)
			}
		}
		post(t, url+"/v1/renew", proof(g)).ok()
	}
	attempt := leases.NewID().String()
	waiting := make(chan answer, 1)
	go func() {
		waiting <- post(t, other+"/v1/acquire", fields{"name": name, "session": attempt, "attempt": attempt, "ttl_ms": 60_000, "wait_ms": waitForever})
	}()
	for _, url := range urls {
		eventually(t, 20*time.Second, "it waits", func() bool {
			queue := queueAt(t, url, name)
			return len(queue) == 1 && queue[0].Attempt == attempt && queue[0].Position == 1
		})
	}
	transfer, r := proof(g), new(coorddv1.TransferResponse)
	transfer["to"] = attempt
	if post(t, one+"/v1/transfer", transfer).into(r); !r.Transferred {
		t.Error("it was released, want it passed on")
	}
	heir := new(coorddv1.AcquireResponse)
	if (<-waiting).into(heir); !heir.Waited || heir.Token <= g.Token {
		t.Errorf("got %v, want a later token than %d", heir, g.Token)
	}
	post(t, leader+"/v1/release", proof(heir)).ok()
}

// churn has many leases acquired and released, which is two changes each.
func churn(t *testing.T, addrs []string, leasesInAll int, name func(int) string) {
	t.Helper()
	conn, err := transport.Dial(transport.DialConfig{Addrs: addrs})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := conn.Open(t.Context(), leases.NewID(), func(leases.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const atOnce = 256
	var all sync.WaitGroup
	for worker := range atOnce {
		all.Go(func() {
			for i := worker; i < leasesInAll; i += atOnce {
				g, err := s.Acquire(t.Context(), leases.Claim{Name: name(i), Attempt: leases.NewID(), TTL: time.Minute})
				if err == nil {
					err = s.Release(t.Context(), leases.Held{Name: name(i), Token: g.Token})
				}
				if err != nil {
					t.Errorf("lease %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A watcher that comes too late, or reads too slowly, is told so by each member.
func testHTTPMissed(t *testing.T, addrs []string) {
	const remembered = 10_000
	from := new(coorddv1.ListResponse)
	url := httpURL(addrs[0])
	get(t, url+"/v1/leases").into(from)
	place := []string{fmt.Sprint("epoch=", from.Epoch), fmt.Sprint("revision=", from.Revision)}
	churn(t, addrs, remembered/2+1, func(i int) string { return fmt.Sprint("missed/", i) })
	for _, addr := range addrs {
		eventually(t, 20*time.Second, addr+" has applied all", func() bool {
			r := new(coorddv1.StatusResponse)
			curl(t, httpURL(addr)+"/v1/status").into(r)
			return r.Cluster.Revision >= from.Revision+remembered+2
		})
		f := get(t, httpURL(addr)+"/v1/watch", place...).says(410, "MISSED", "cannot be told")
		if got := fmt.Sprint(f.Details["from"]); got != fmt.Sprintf("map[epoch:%d revision:%d]", from.Epoch, from.Revision) {
			t.Errorf("got the details %v, want where the watch was to begin", f.Details)
		}
	}
	testHTTPSlowWatcher(t, addrs)
	get(t, url+"/v1/leases").into(from) // as the manual says
	out, err := curling(t, "-N", "--max-time", "1", "-G", url+"/v1/watch", "-d", fmt.Sprint("epoch=", from.Epoch), "-d", fmt.Sprint("revision=", from.Revision)).Output()
	if err == nil || !strings.HasPrefix(string(out), fmt.Sprintf(`{"result":{"epoch":%d,"revision":"%d","changes":[]}}`, from.Epoch, from.Revision)) {
		t.Errorf("got %s (%v), want a watch from there until it is ended", out, err)
	}
}

// One that takes nothing for a while slows nobody down, and is told what it has
// missed when it reads on.
func testHTTPSlowWatcher(t *testing.T, addrs []string) {
	watch, told := curling(t, "-N", httpURL(addrs[1])+"/v1/watch"), new(lines)
	watch.Stdout = told
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the watch has begun", func() bool { return told.String() != "" })
	if err := watch.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	churn(t, addrs, 12_000, func(i int) string { return strings.Repeat("n", 500) + fmt.Sprint(i) })
	if err := watch.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("curl: %v, want that the watch ends in order", err)
	}
	all := strings.TrimSpace(told.String())
	last := all[strings.LastIndexByte(all, '\n')+1:]
	if !strings.HasPrefix(last, `{"error":{"code":"MISSED","message":"the changes since `) || !strings.HasPrefix(all, `{"result":`) {
		t.Errorf("got %d bytes that end in %.300s, want what there was room for, and that the rest was missed", len(all), last)
	}
}

// sums are the counters and gauges of all members, summed up.
type sums map[string]float64

// labels are what the metrics are divided by: nothing that grows with the leases.
var labels = regexp.MustCompile(`^[a-z_]+(\{(why|outcome|reason|le|version|quantile)="[^"{},]*"\})?$`)

// metrics reads the metrics of all members.
func metrics(t *testing.T, addrs []string) sums {
	t.Helper()
	s := sums{}
	for _, addr := range addrs {
		a := curl(t, httpURL(addr)+"/metrics")
		if a.status != 200 {
			t.Fatalf("/metrics: got %d %s", a.status, a.body)
		}
		for line := range strings.Lines(a.body) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
				continue
			}
			name, text, _ := strings.Cut(line, " ")
			value, err := strconv.ParseFloat(text, 64)
			if err != nil || !labels.MatchString(name) {
				t.Errorf("/metrics has %q (%v), want a name, one label that does not grow, and a number", line, err)
			}
			s[name] += value
		}
	}
	return s
}

// since is what was counted since before; what has not changed is left out.
func (s sums) since(before sums, prefixes ...string) map[string]float64 {
	grown := map[string]float64{}
	for name, value := range s {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) && value != before[name] {
			grown[name] = value - before[name]
		}
	}
	return grown
}

// total is the sum over the labels of a counter.
func (s sums) total(name string) (sum float64) {
	for counter, value := range s {
		if strings.HasPrefix(counter, name+"{") {
			sum += value
		}
	}
	return sum
}

// The counters say what was done, under load too, and nothing of whose leases.
func testHTTPMetrics(t *testing.T, addrs []string) {
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		churn(t, addrs, 5000, func(i int) string { return fmt.Sprint("load/", i) })
	}()
	last := sums{}
	for looking := true; looking; {
		select {
		case <-loaded:
			looking = false
		default:
		}
		now := metrics(t, addrs)
		if now["coordd_grants_total"] < last["coordd_grants_total"] || now["coordd_leases"] < 0 || now["coordd_waiters"] != 0 {
			t.Errorf("got %v grants after %v, %v leases and %v waiters", now["coordd_grants_total"], last["coordd_grants_total"], now["coordd_leases"], now["coordd_waiters"])
		}
		last = now
	}

	urls := led(t, addrs)
	settled := func() (s sums) { // when every member has applied all
		eventually(t, 20*time.Second, "no member has a lease", func() bool {
			s = metrics(t, addrs)
			return s["coordd_leases"] == 0 && s["coordd_waiters"] == 0
		})
		return s
	}
	before := settled()
	done := countedWork(t, urls)
	after := settled()
	if before["coordd_term"] != after["coordd_term"] {
		t.Skip("the leader has changed meanwhile: what was under way then may be counted twice or not at all")
	}
	got := after.since(before, "coordd_grants_total", "coordd_leases_ended_total", "coordd_claims_refused_total", "coordd_renewals_total", "coordd_watchers", "coordd_breaks_total")
	if !maps.Equal(got, done) {
		t.Errorf("got %v\nwant %v", got, done)
	}
	if grants, ended := after["coordd_grants_total"], after.total("coordd_leases_ended_total"); grants != ended || grants < 5000 {
		t.Errorf("got %v grants and %v ends, want the same, since all are released", grants, ended)
	}
	if after["coordd_leader"] != 1 || after["coordd_voters"] != devNodes*devNodes || after["coordd_rounds_total{outcome=\"confirmed\"}"] == 0 ||
		after["coordd_commit_seconds_count"] == 0 || after["go_goroutines"] == 0 {
		t.Errorf("got %v, want one leader of three voters, and all there is to measure", after)
	}
}

// countedWork does a little of everything, and returns what has to be counted.
func countedWork(t *testing.T, urls []string) map[string]float64 {
	url := func(i int) string { return urls[i%len(urls)] }
	for i := range 9 { // released
		g := acquired(t, url(i), fields{"name": fmt.Sprint("counted/", i)})
		post(t, url(i+1)+"/v1/renew", proof(g)).ok()
		post(t, url(i+2)+"/v1/release", proof(g)).ok()
		post(t, url(i)+"/v1/renew", proof(g)).says(404, "NOT_HELD")
	}
	g := acquired(t, url(0), fields{"name": "counted"})
	for i := range 6 { // refused
		post(t, url(i)+"/v1/acquire", fields{"name": "counted", "ttl_ms": 5000, "wait_ms": i % 2}).says(409, "HELD")
	}
	post(t, url(1)+"/v1/acquire", fields{"name": "counted", "ttl_ms": 1}).says(400, "INVALID") // which no leader is asked
	undone := fields{"name": "counted", "session": g.Session, "attempt": g.Attempt}
	post(t, url(1)+"/v1/withdraw", undone).ok()
	post(t, url(1)+"/v1/acquire", fields{"name": "counted", "session": g.Session, "attempt": g.Attempt, "ttl_ms": 60_000}).says(404, "NOT_HELD")
	acquired(t, url(2), fields{"name": "counted", "ttl_ms": 1000}) // expires
	get(t, url(1)+"/v1/watch", "epoch=9", "revision=1").says(410, "MISSED")
	return map[string]float64{
		"coordd_grants_total":                             9 + 1 + 1,
		`coordd_leases_ended_total{why="released"}`:       9,
		`coordd_leases_ended_total{why="withdrawn"}`:      1,
		`coordd_leases_ended_total{why="expired"}`:        1,
		`coordd_renewals_total{outcome="renewed"}`:        9,
		`coordd_renewals_total{outcome="refused"}`:        9,
		`coordd_claims_refused_total{reason="held"}`:      6,
		`coordd_claims_refused_total{reason="withdrawn"}`: 1,
		"coordd_watchers_dropped_total":                   1,
	}
}

// What serve says of an address for HTTP.
func TestServeHTTPFlag(t *testing.T) {
	port := freePorts(t, 1)
	line := func(http string, more ...string) []string {
		return append([]string{"serve", "--name", "n1", "--data", t.TempDir(), "--listen", loopbackAddr(port), "--bootstrap", "--http", http}, more...)
	}
	got := command(t, line("0.0.0.0:80")...)
	if got.code != exitUsage || !strings.Contains(got.stderr, "--http 0.0.0.0:80 can be reached from other machines") || !strings.Contains(got.stderr, "--insecure") {
		t.Errorf("got %+v, want a refusal that names --insecure", got)
	}
	for _, bad := range []string{"", "nonsense", "80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		if got := command(t, line(bad)...); got.code != exitUsage || !strings.Contains(got.stderr, fmt.Sprintf("invalid --http %q", bad)) {
			t.Errorf("--http %q: got %+v, want a refusal that names it", bad, got)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got = command(t, line(l.Addr().String())...)
	if want := l.Addr().String() + " is in use by another process: end that one, or choose another address by --listen or --http"; got.code != exitInternal || !strings.Contains(got.stderr, want) {
		t.Errorf("got %+v, want %q", got, want)
	}

	off := launch(t, line("off")...)
	off.says(" http=off ", 20*time.Second)
	off.says("serving", 20*time.Second)
	if a := curl(t, httpURL(loopbackAddr(port))+"/healthz"); a.status != 0 {
		t.Errorf("--http off: got %d %s, want nothing there", a.status, a.body)
	}
	off.signal(15)
	off.wait(20 * time.Second)

	open := launch(t, line(fmt.Sprintf("0.0.0.0:%d", port+1), "--insecure")...)
	open.says("INSECURE: HTTP beyond loopback", 20*time.Second)
	eventually(t, 20*time.Second, "it is ready, under any name", func() bool {
		return curl(t, httpURL(loopbackAddr(port))+"/readyz", "-H", "Host: coordd.example.com").status == 200
	})
}
