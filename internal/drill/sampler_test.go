package drill

import (
	"strings"
	"testing"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/node"
)

// looked is a look at a node at a second, which takes a tenth of it.
func looked(name string, at float64, mode authority.Mode, epoch uint32, window time.Duration, serving bool) look {
	t := seconds(at, at+0.1)
	return newLook(name, t[0], t[1], node.Status{
		Node: name, Serving: serving, Term: 3, Leader: "n1",
		Authority: &node.AuthorityStatus{Root: authority.Root{Mode: mode, Epoch: epoch, GraceDone: true}, Sequence: uint64(epoch), WindowLeft: window},
	})
}

func TestAuthorityCheck(t *testing.T) {
	const open = time.Second
	for _, tt := range []struct {
		what  string
		looks []look
		bad   int
	}{
		{"a window, then the registers", []look{
			looked("n1", 1, authority.Raft, 1, open, true),
			looked("n2", 2, authority.Fallback, 2, 0, true),
			looked("n1", 3, authority.Raft, 1, 0, false),
		}, 0},
		{"a window of an older epoch after the registers", []look{
			looked("n2", 2, authority.Fallback, 2, 0, true),
			looked("n1", 3, authority.Raft, 1, open, true),
			looked("n1", 4, authority.Raft, 1, open, true), // the same again
		}, 1},
		{"a window of the next epoch", []look{
			looked("n2", 2, authority.Fallback, 2, 0, true),
			looked("n1", 3, authority.Raft, 3, open, true),
			looked("n2", 4, authority.Fallback, 2, 0, true), // has not heard of it yet
		}, 0},
		{"a node that knows of the registers, and does not serve", []look{
			looked("n2", 2, authority.Fallback, 2, 0, false),
			looked("n1", 3, authority.Raft, 1, open, true),
		}, 0},
		{"looks at the same time", []look{
			looked("n2", 2, authority.Fallback, 2, 0, true),
			looked("n1", 2.05, authority.Raft, 1, open, true),
		}, 0},
	} {
		var c authorityCheck
		for _, l := range tt.looks {
			c.take(l)
		}
		if len(c.evidence) != tt.bad {
			t.Errorf("%s: got %q, want %d", tt.what, c.evidence, tt.bad)
		}
	}
}

func TestView(t *testing.T) {
	down := look{node: "n4"}
	fallback := view{looked("n1", 1, authority.Raft, 1, time.Second, true), looked("n2", 1, authority.Fallback, 2, 0, true), down}
	if !fallback.in(authority.Fallback) || fallback.in(authority.Raft) || fallback.newest().Epoch != 2 {
		t.Errorf("got %v, want the newest root register's mode", fallback)
	}
	raft := view{looked("n1", 1, authority.Raft, 3, time.Second, true), looked("n2", 1, authority.Fallback, 2, 0, true), down}
	if !raft.in(authority.Raft) || raft.leader() != "n1" || raft.whole() {
		t.Errorf("got %v, want that n1 leads, and that a node is missing", raft)
	}
	if !strings.Contains(raft.String(), "n4: down") {
		t.Errorf("got %q, want what each node does", raft)
	}
}

func TestLane(t *testing.T) {
	s := &stage{journal: newJournal(&hand{}, nil), over: clock.Instant(10 * time.Second)}
	var l lane
	for _, c := range []struct {
		at   float64
		kind SpanKind
	}{{1, SpanFollows}, {2, SpanFollows}, {3, SpanWindow}, {12, SpanDown}} {
		l.add(seconds(c.at)[0], c.kind, "")
	}
	got := s.spans(l)
	want := []Span{{FromMS: 1000, ToMS: 3000, Kind: SpanFollows}, {FromMS: 3000, ToMS: 10_000, Kind: SpanWindow}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
