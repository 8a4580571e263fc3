package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/internal/dynamolocal"
)

// withTable lets this test's processes find an empty DynamoDB Local of their own table.
func withTable(t *testing.T) {
	t.Helper()
	t.Setenv("COORDD_ARBITER_ENDPOINT", dynamolocal.Endpoint(t))
	t.Setenv("COORDD_ARBITER_REGION", "local")
	t.Setenv("COORDD_ARBITER_TABLE", strings.NewReplacer("/", "-").Replace(t.Name()))
	t.Setenv("AWS_ACCESS_KEY_ID", "local")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "local")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
}

func TestArbiterTable(t *testing.T) {
	withTable(t)
	got := command(t, "arbiter", "check")
	if got.code != exitUnavailable || !strings.Contains(got.stderr, "this machine cannot use the table as an arbiter: table") {
		t.Errorf("got %+v, want that there is no table", got)
	}
	got = command(t, "arbiter", "create-table")
	if got.code != exitUnavailable || !strings.Contains(got.stderr, "point-in-time recovery") || !strings.Contains(got.stdout, "created") {
		t.Errorf("got %+v, want what was done, and what this emulator cannot", got)
	}
	for range 2 {
		var made createdView
		got = command(t, "arbiter", "create-table", "--emulator", "-o", "json")
		if err := json.Unmarshal([]byte(got.stdout), &made); got.code != 0 || err != nil || len(made.Steps) < 4 {
			t.Errorf("got %+v (%v), want that all was done", got, err)
		}
	}
	var report reportView
	got = command(t, "arbiter", "check", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &report); got.code != 0 || err != nil || report.Result == "failed" || report.Reads == 0 || report.MedianUS == 0 {
		t.Errorf("got %+v (%v), want that the table can be used, and the round trips", got, err)
	}
	got = command(t, "arbiter", "show")
	if got.code != 0 || got.stdout != "there is no cluster coordd: register coordd/root was never written\n" {
		t.Errorf("got %+v, want that there is no cluster", got)
	}
	t.Setenv("COORDD_ARBITER_ENDPOINT", "http://"+nowhere)
	for _, cmd := range []string{"check", "create-table", "show"} {
		if got := command(t, "arbiter", cmd); got.code != exitUnavailable || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: got %+v, want code %d and one line on stderr", cmd, got, exitUnavailable)
		}
	}
}

// A cluster without any disk loses its majority: the member that is left takes over,
// and a job goes on under its token. When the others come back a group forms anew.
func TestServeByArbiter(t *testing.T) {
	withTable(t)
	if got := command(t, "arbiter", "create-table", "--emulator"); got.code != 0 {
		t.Fatalf("got %+v, want a table", got)
	}
	s := newServing(t)
	s.flags = []string{
		"--arbiter", "dynamodb", "--arbiter-name", "billing", "--authority-lease", "2s", "--ttl-ceiling-floor", "1s",
		"--reform-after", "1s", "--shards", "8", "--election-timeout", "300ms",
	}
	for i := range s.members {
		s.start(i)
	}
	s.ready(30 * time.Second)
	ended := filepath.Join(t.TempDir(), "ended")
	job := launch(t, "run", "nightly", "--addr", s.all(), "--ttl", "10s", "--", "sh", "-c",
		`echo "token $COORDD_FENCING_TOKEN"; while ! [ -e "$0" ]; do sleep 0.1; done`, ended)
	job.says("token ", 20*time.Second)

	view := s.ready(20 * time.Second)
	left := slices.Index(s.addrs, view.LeaderAddress)
	for i, m := range s.members {
		if i != left {
			m.signal(syscall.SIGKILL)
			m.wait(5 * time.Second)
		}
	}
	eventually(t, 60*time.Second, "the member that is left grants leases", func() bool {
		view, ok := cluster(t, s.all())
		return ok && view.Authority.Mode == authority.Fallback
	})
	if got := command(t, "status", "--addr", s.all()); !strings.Contains(got.stdout, "yes (by the arbiter)") {
		t.Errorf("got %+v, want that the arbiter grants leases", got)
	}
	var shown registersView
	got := command(t, "arbiter", "show", "--name", "billing", "--leases", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &shown); got.code != 0 || err != nil || shown.Root.Mode != authority.Fallback ||
		len(shown.Shards) != 1 || shown.Shards[0].Held[0].Name != "nightly" || !strings.Contains(job.out.String(), shown.Shards[0].Held[0].Token.String()) {
		t.Errorf("got %+v (%v), want the job's lease in the registers, under the token that it was given", got, err)
	}

	for i := range s.members {
		if i != left {
			s.start(i)
		}
	}
	eventually(t, 60*time.Second, "a group of those that are there leads", func() bool {
		view, ok := cluster(t, s.all())
		return ok && view.Authority.Mode == authority.Raft
	})
	if err := os.WriteFile(ended, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := job.wait(10 * time.Second); got != 0 {
		t.Errorf("the job: got code %d, want 0: it held its lease all the time", got)
	}
}

// A cluster that was founded without an arbiter gets one. Its members are restarted
// one by one before, and a job goes on under its token.
func TestAdopt(t *testing.T) {
	withTable(t)
	s := newServing(t)
	for i := range s.members {
		s.members[i] = launch(t, append(s.line(i), "--arbiter", "none")...)
	}
	s.ready(30 * time.Second)
	ended := filepath.Join(t.TempDir(), "ended")
	job := launch(t, "run", "nightly", "--addr", s.all(), "--ttl", "20s", "--", "sh", "-c",
		`echo "token $COORDD_FENCING_TOKEN"; while ! [ -e "$0" ]; do sleep 0.1; done`, ended)
	job.says("token ", 20*time.Second)
	failed(t, command(t, "arbiter", "adopt", "--data", s.data(0)), exitUsage, "arbiter")

	if got := command(t, "arbiter", "create-table", "--emulator"); got.code != 0 {
		t.Fatalf("got %+v, want a table", got)
	}
	for i := range s.members {
		s.members[i].signal(syscall.SIGTERM)
		s.members[i].wait(10 * time.Second)
		line := slices.DeleteFunc(s.line(i), func(word string) bool { return word == "--bootstrap" })
		s.members[i] = launch(t, append(line, "--arbiter", "dynamodb", "--authority-lease", "2s", "--shards", "8")...)
		s.ready(30 * time.Second)
	}
	if view, _ := cluster(t, s.all()); view.Authority != nil {
		t.Errorf("got %+v, want no authority of an arbiter that is not adopted", view.Authority)
	}
	var adopted adoptedView
	eventually(t, 30*time.Second, "the arbiter is adopted", func() bool {
		got := command(t, "arbiter", "adopt", "--data", s.data(0), "-o", "json")
		return got.code == 0 && json.Unmarshal([]byte(got.stdout), &adopted) == nil
	})
	eventually(t, 20*time.Second, "a leader serves by its window", func() bool {
		view, ok := cluster(t, s.all())
		return ok && view.Authority != nil && view.Authority.Mode == authority.Raft && view.Epoch == adopted.Epoch
	})
	var shown registersView
	got := command(t, "arbiter", "show", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil || shown.Root.Epoch != adopted.Epoch || shown.Root.Params.Shards.Count != 8 {
		t.Errorf("got %+v (%v), want the cluster in epoch %d", got, err, adopted.Epoch)
	}
	if err := os.WriteFile(ended, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := job.wait(10 * time.Second); got != 0 {
		t.Errorf("the job: got code %d, want 0: it held its lease all the time", got)
	}
}
