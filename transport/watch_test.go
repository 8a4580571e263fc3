package transport_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/faults"
)

// errEnough is how a test ends a watch.
var errEnough = errors.New("enough")

// tell is a backend's Watch that tells batches and then ends with err; nil: it
// stays until its context ends.
func tell(err error, batches ...leases.Batch) func(context.Context, string, leases.Position, func(leases.Batch) error) error {
	return func(ctx context.Context, _ string, _ leases.Position, on func(leases.Batch) error) error {
		for _, b := range batches {
			if err := on(b); err != nil {
				return err
			}
		}
		if err == nil {
			<-ctx.Done()
			err = context.Cause(ctx)
		}
		return err
	}
}

func at(revision uint64) leases.Batch {
	return leases.Batch{At: leases.Position{Epoch: 1, Revision: revision}}
}

// bulky is a batch of 64 KiB.
func bulky(revision uint64) leases.Batch {
	b := at(revision)
	b.Changes = []leases.Change{{Revision: revision, Kind: leases.ChangeGranted, Name: "a", Token: 1, Attributes: make([]byte, 64<<10)}}
	return b
}

func TestWatch(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	from := leases.Position{Epoch: 1, Revision: 5}
	want := []leases.Batch{{At: from}, {At: leases.Position{Epoch: 2, Revision: 9}, Changes: []leases.Change{
		{
			Revision: 6, Kind: leases.ChangeGranted, Name: "jobs/ü", Token: tokens.New(1, 7),
			Owner: leases.Owner{Label: "billing", Site: "aws", Host: "h1", PID: 7}, TTL: 15 * time.Second, Attributes: []byte{0, 255}, AcquiredAt: time.UnixMilli(1_700_000_000_123),
		},
		{Revision: 7, Kind: leases.ChangeTransferred, Name: "jobs/ü", Token: tokens.New(1, 7), Next: tokens.New(1, 8), TTL: time.Second},
		{Revision: 9, Kind: leases.ChangeBroken, Name: "jobs/a", Token: 3, Free: true},
	}}}
	b := &backend{watch: func(ctx context.Context, prefix string, p leases.Position, on func(leases.Batch) error) error {
		if prefix != "jobs/" || p != from {
			t.Errorf("the backend was asked for the changes of %q since %v", prefix, p)
		}
		return tell(nil, want...)(ctx, prefix, p, on)
	}}
	var got []leases.Batch
	err := dial(t, transport.DialConfig{Addrs: []string{serve(t, b).addr}}).Watch(ctx, "jobs/", from, func(b leases.Batch) error {
		if got = append(got, b); len(got) == len(want) {
			return errEnough
		}
		return nil
	})
	if err != errEnough || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v and %v, want %+v and the error of its function", got, err, want)
	}
}

func TestEveryKindOfChangeCrossesTheWire(t *testing.T) {
	kind := leases.ChangeGranted
	for ; !strings.HasPrefix(kind.String(), "change "); kind++ {
		name := "CHANGE_KIND_" + strings.ToUpper(kind.String())
		if got := coorddv1.ChangeKind_value[name]; got != int32(kind) {
			t.Errorf("%v is %d on the wire, want %d", kind, got, kind)
		}
	}
	if int(kind) != len(coorddv1.ChangeKind_name) {
		t.Errorf("the wire knows %d kinds, package leases %d", len(coorddv1.ChangeKind_name)-1, kind-1)
	}
}

func TestEndOfAWatch(t *testing.T) {
	missed := &leases.MissedError{From: leases.Position{Epoch: 1, Revision: 1}, Oldest: leases.Position{Epoch: 1, Revision: 50}, Newest: leases.Position{Epoch: 1, Revision: 90}}
	for _, c := range []struct {
		name string
		end  func(n *node, conn *transport.Conn, cancel func())
		err  error // with which the backend ends it
		want error
		says string
	}{
		{"its context ends", func(_ *node, _ *transport.Conn, cancel func()) { cancel() }, nil, context.Canceled, "given up"},
		{"the connection is closed", func(_ *node, conn *transport.Conn, _ func()) { go conn.Close() }, nil, leases.ErrClosed, "the connection to the cluster was closed"},
		{"the server is closed", func(n *node, _ *transport.Conn, _ func()) { n.stop() }, nil, leases.ErrUnavailable, "the node is closing"},
		{"it falls behind", nil, missed, leases.ErrMissed, "list the leases anew"},
		{"the node is closed", nil, leases.ErrClosed, leases.ErrUnavailable, "the node is closing"},
		{"the node stops", nil, &leases.UnavailableError{Reason: "n1 is stopping"}, leases.ErrUnavailable, "n1 is stopping"},
		{"the node has a fault", nil, errors.New("boom"), leases.ErrUnavailable, "boom"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, begun := &backend{watch: tell(c.err, at(5), at(6))}, make(chan struct{}, 2)
			n := serve(t, b)
			conn := dial(t, transport.DialConfig{Addrs: []string{n.addr}})
			ctx, cancel := context.WithCancel(timeout(t, 20*time.Second))
			defer cancel()
			var told []leases.Batch
			ended := make(chan error, 1)
			go func() {
				ended <- conn.Watch(ctx, "", leases.Position{Epoch: 1, Revision: 1}, func(b leases.Batch) error {
					told = append(told, b)
					begun <- struct{}{}
					return nil
				})
			}()
			within(t, "the first batch", begun)
			within(t, "the second batch", begun)
			if c.end != nil {
				c.end(n, conn, cancel)
			}
			err := within(t, "the end of the watch", ended)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
			if c.want != leases.ErrUnavailable && errors.Is(err, leases.ErrUnavailable) || errors.Is(err, leases.ErrUnknownOutcome) {
				t.Errorf("got %v, which asks to go on elsewhere or is an unknown outcome", err)
			}
			if !reflect.DeepEqual(told, []leases.Batch{at(5), at(6)}) {
				t.Errorf("got %v before that, want all that the node told", told)
			}
			if got := (*leases.MissedError)(nil); c.err == missed && (!errors.As(err, &got) || *got != *missed) {
				t.Errorf("got %#v, want %#v", err, missed)
			}
		})
	}
}

// The changes go on at another node, which remembers them too.
func TestNextWatchPrefersAnotherNode(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	n := newNetwork()
	var asked []string
	names := []string{"n1:1", "n2:1", "n3:1"}
	var mu sync.Mutex
	errs := map[string]error{} // with which a node refuses
	for i, name := range names {
		b := &backend{}
		b.watch = func(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
			mu.Lock()
			asked = append(asked, name)
			err := errs[name]
			mu.Unlock()
			if err != nil {
				return err
			}
			return tell(&leases.UnavailableError{Reason: name + " breaks"}, at(uint64(10*i)))(ctx, prefix, from, on)
		}
		n.point(name, serve(t, b).addr)
	}
	c := dial(t, transport.DialConfig{Addrs: names, Network: n})
	watch := func(want error, nodes ...string) {
		t.Helper()
		asked = nil
		err := c.Watch(ctx, "", leases.Position{Epoch: 1, Revision: 3}, func(leases.Batch) error { return nil })
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if !slices.Equal(asked, nodes) {
			t.Errorf("asked %q, want %q", asked, nodes)
		}
	}
	watch(leases.ErrUnavailable, "n1:1")
	watch(leases.ErrUnavailable, "n2:1")
	watch(leases.ErrUnavailable, "n1:1")
	// One that does not remember enough is not the last word.
	missed := &leases.MissedError{From: leases.Position{Epoch: 1, Revision: 3}, Oldest: leases.Position{Epoch: 1, Revision: 7}, Newest: leases.Position{Epoch: 1, Revision: 9}}
	errs["n2:1"] = missed
	watch(leases.ErrUnavailable, "n2:1", "n3:1")
	errs["n1:1"] = &leases.UnavailableError{Reason: "starting"}
	errs["n3:1"] = missed
	watch(leases.ErrMissed, "n1:1", "n2:1", "n3:1")
	errs["n2:1"], errs["n3:1"] = errs["n1:1"], errs["n1:1"]
	err := c.Watch(ctx, "", leases.Position{}, nil)
	if !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "no node that tells changes found") || !strings.Contains(err.Error(), "n2:1: unavailable: starting") {
		t.Errorf("nobody tells: got %v, want unavailable with what each said", err)
	}
}

func TestWatchFindsAReachableNode(t *testing.T) {
	c := dial(t, transport.DialConfig{Addrs: []string{dead(t), silent(t), serve(t, &backend{}).addr}})
	told := 0
	if err := c.Watch(timeout(t, 20*time.Second), "", leases.Position{}, func(b leases.Batch) error { told++; return errEnough }); err != errEnough || told != 1 {
		t.Errorf("got %v after %d batches, want one of the third node", err, told)
	}
}

// A call that hangs spoils a connection for those to come, not for a watch.
func TestWatchOutlivesACallThatHangs(t *testing.T) {
	more := make(chan leases.Batch)
	b := &backend{
		watch: func(ctx context.Context, _ string, _ leases.Position, on func(leases.Batch) error) error {
			on(at(1))
			select {
			case b := <-more:
				on(b)
			case <-ctx.Done():
			}
			return context.Cause(ctx)
		},
		get: func(ctx context.Context, _ string) (leases.State, error) {
			<-ctx.Done()
			return leases.State{}, leases.ErrUnknownOutcome
		},
	}
	c := dial(t, transport.DialConfig{Addrs: []string{serve(t, b).addr}})
	told, ended := make(chan leases.Batch, 2), make(chan error, 1)
	go func() {
		ended <- c.Watch(timeout(t, 20*time.Second), "", leases.Position{}, func(b leases.Batch) error {
			if told <- b; b.At == at(2).At {
				return errEnough
			}
			return nil
		})
	}()
	within(t, "the first batch", told)
	if _, err := c.Get(timeout(t, 50*time.Millisecond), "a"); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("Get: got %v, want unavailable", err)
	}
	more <- at(2)
	if err := within(t, "the end of the watch", ended); err != errEnough {
		t.Errorf("got %v, want that the watch went on", err)
	}
}

// Who does not take its batches holds nobody up, and is told at last that it has
// missed some.
func TestSlowWatcher(t *testing.T) {
	ctx := timeout(t, 60*time.Second)
	const fills = 200 // batches: far more than lies between the two ends
	missed := &leases.MissedError{Newest: leases.Position{Epoch: 1, Revision: fills}}
	asked := make(chan uint64, 2*fills)
	b := &backend{watch: func(ctx context.Context, prefix string, from leases.Position, on func(leases.Batch) error) error {
		for r := range uint64(fills) {
			if prefix == "slow" {
				asked <- r
			}
			if err := on(bulky(r)); err != nil {
				return err
			}
		}
		return missed
	}}
	conn := dial(t, transport.DialConfig{Addrs: []string{serve(t, b).addr}}) // they share a connection
	reading, entered := make(chan struct{}), make(chan struct{}, fills)
	slow, slowTold := make(chan error, 1), 0
	go func() {
		slow <- conn.Watch(ctx, "slow", leases.Position{}, func(leases.Batch) error {
			slowTold++
			entered <- struct{}{}
			<-reading
			return nil
		})
	}()
	within(t, "the slow one's first batch", entered)
	for range 3 {
		told := 0
		if err := conn.Watch(ctx, "", leases.Position{}, func(leases.Batch) error { told++; return nil }); !errors.Is(err, leases.ErrMissed) || told != fills {
			t.Fatalf("beside it: got %d batches and %v, want all %d", told, err, fills)
		}
		if _, err := conn.Get(ctx, "a"); err == nil || !errors.Is(err, leases.ErrUnavailable) { // the fake has no name
			t.Fatalf("another call beside it: got %v", err)
		}
	}
	if n := len(asked); n == fills {
		t.Error("the backend was asked for everything, although nobody takes it")
	}
	select {
	case err := <-slow:
		t.Fatalf("the slow one has ended: %v", err)
	default:
	}
	close(reading)
	if err := within(t, "the slow one's end", slow); !errors.Is(err, leases.ErrMissed) || slowTold != fills {
		t.Errorf("the slow one: got %v after %d batches, want that it has missed some after all %d", err, slowTold, fills)
	}
}

func TestWatchesAreBounded(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	n := launch(t, &backend{})
	n.LimitUnary(1, 2)
	n.Start()
	conn := dial(t, transport.DialConfig{Addrs: []string{n.addr}})
	watching, stop := context.WithCancel(ctx)
	begun, ended := make(chan struct{}), make(chan error, 2)
	for range 2 {
		go func() {
			ended <- conn.Watch(watching, "", leases.Position{}, func(leases.Batch) error { begun <- struct{}{}; return nil })
		}()
	}
	within(t, "a watch", begun)
	within(t, "a watch", begun)
	err := conn.Watch(ctx, "", leases.Position{}, nil)
	if exhausted := (*leases.ExhaustedError)(nil); !errors.As(err, &exhausted) || exhausted.Bound != 2 || exhausted.What != "watches" {
		t.Errorf("one watch too many: got %v, want an error that names the bound of 2", err)
	}
	stop()
	for range 2 {
		within(t, "the watch's end", ended)
	}
	eventually(t, "there is room again", func() bool {
		return conn.Watch(ctx, "", leases.Position{}, func(leases.Batch) error { return errEnough }) == errEnough
	})
}

func TestCloseOfTheConnEndsASearchForChanges(t *testing.T) {
	c := dial(t, transport.DialConfig{Addrs: []string{silent(t)}})
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(context.Background(), "", leases.Position{}, nil) }()
	c.Close()
	if err := within(t, "the end of the watch", ended); !errors.Is(err, leases.ErrClosed) {
		t.Errorf("got %v, want closed", err)
	}
}

// In virtual time: a watch and an idle connection outlive a long silence; an end
// that is cut off without a word is noticed by both.
func TestSilentWatchLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1)
		more, ended := make(chan leases.Batch), make(chan struct{})
		b := &backend{watch: func(ctx context.Context, _ string, _ leases.Position, on func(leases.Batch) error) error {
			defer close(ended)
			on(at(1))
			for {
				select {
				case b := <-more:
					on(b)
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}}
		defer serveOn(t, f.Host("n1"), b)()
		n := newNetwork()
		n.Network = f.Host("client")
		c, err := transport.Dial(transport.DialConfig{Addrs: []string{"n1:7420"}, Network: n})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		told, watched := make(chan leases.Batch), make(chan error, 1)
		if _, err := c.List(t.Context(), "", "", 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second) // nothing uses the connection, but it is kept so long
		go func() {
			watched <- c.Watch(t.Context(), "", leases.Position{}, func(b leases.Batch) error { told <- b; return nil })
		}()
		<-told
		for i := range 3 {
			time.Sleep(time.Hour)
			more <- at(uint64(i))
			<-told
		}
		if dials := strings.Fields(n.dialed()); len(dials) != 1 {
			t.Errorf("dialed %v, want one connection all the time", dials)
		}
		start := time.Now()
		f.Partition([]string{"client"}, []string{"n1"})
		<-ended
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("the node let go of the watch after %v, want at most 10s", took)
		}
		if err := <-watched; !errors.Is(err, leases.ErrUnavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("the client noticed after %v, want at most 15s", took)
		}
	})
}

// Close ends all that can wait at a server, and leaves no orphan behind that the
// node is to answer for.
func TestServerCloseWithManyWaiting(t *testing.T) {
	const each = 100
	b := &backend{}
	var arrived atomic.Int32
	k := keep(b, func(ctx context.Context) error {
		arrived.Add(1)
		<-ctx.Done()
		return errUnheard
	})
	n := serve(t, b)
	c := client(t, n)
	ctx := timeout(t, 60*time.Second)
	begun, closed := make(chan struct{}, 2*each), make(chan struct{})
	watches, idle, acquires, claims := make(chan error, each), make(chan error, each), make(chan error, each), make(chan error, each)
	conn := dial(t, transport.DialConfig{Addrs: []string{n.addr}})
	for i := range each {
		go func() {
			watches <- conn.Watch(ctx, "", leases.Position{}, func(leases.Batch) error { begun <- struct{}{}; return nil })
		}()
		go func() {
			stream, err := c.Watch(ctx, &coorddv1.WatchRequest{})
			if err == nil {
				_, err = stream.Recv()
				begun <- struct{}{}
				<-closed // it reads no more until then
			}
			for err == nil {
				_, err = stream.Recv()
			}
			idle <- transport.FromGRPC(err)
		}()
		go func() {
			_, err := c.Acquire(ctx, &coorddv1.AcquireRequest{Name: fmt.Sprint(i), TtlMs: 5000, WaitMs: 1<<32 - 1})
			acquires <- err
		}()
	}
	for range each / 10 {
		s := open(t, nil, n.addr)
		for range 10 {
			go func() {
				_, err := s.Acquire(ctx, claim("a"))
				claims <- err
			}()
		}
	}
	for range 2 * each {
		within(t, "the watches", begun)
	}
	eventually(t, "all acquires wait", func() bool { return arrived.Load() == 2*each })
	n.stop()
	close(closed)
	for range each {
		for what, ended := range map[string]<-chan error{"a watch": watches, "a watch that is not read": idle} {
			if err := within(t, what, ended); !errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "the node is closing") {
				t.Fatalf("%s: got %v, want that the node is closing", what, err)
			}
		}
		for what, ended := range map[string]<-chan error{"an acquire": acquires, "one of a conversation": claims} {
			if err := within(t, what, ended); !errors.Is(err, leases.ErrUnknownOutcome) {
				t.Fatalf("%s: got %v, want an unknown outcome", what, err)
			}
		}
	}
	if granted, withdrawn := k.counts(); granted != each || withdrawn != each {
		t.Errorf("%d leases are left and %d attempts withdrawn, want the %d that clients drew and as many that the node did", granted, withdrawn, each)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

// A client that reads nothing of a flood keeps nobody from closing.
func TestServerCloseWithDeafWatchers(t *testing.T) {
	full := make(chan struct{}, 1)
	n := serve(t, &backend{watch: func(ctx context.Context, _ string, _ leases.Position, on func(leases.Batch) error) error {
		for r := uint64(0); ; r++ {
			if err := on(bulky(r)); err != nil {
				return err
			}
			if r == 10 {
				full <- struct{}{}
			}
		}
	}})
	for range 5 {
		stream, err := client(t, n).Watch(timeout(t, 60*time.Second), &coorddv1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the flood", full)
		defer stream.CloseSend()
	}
	n.stop()
}
