package transport_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// client is a plain gRPC client of n.
func client(t testing.TB, n *node) coorddv1.CoorddClient {
	t.Helper()
	return coorddv1.NewCoorddClient(clientConn(t, n.addr, nil))
}

func TestUnaryCalls(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	session, attempt, heir := leases.NewID(), leases.NewID(), leases.NewID()
	held := leases.Held{Name: "jobs/ü", Token: tokens.New(1, 7)}
	b := &backend{}
	b.acquire = func(_ context.Context, c leases.Claim) (leases.Grant, error) {
		want := leases.Claim{
			Name: held.Name, Attempt: attempt, TTL: 15 * time.Second, Wait: leases.Forever,
			Owner: leases.Owner{Label: "billing", Site: "aws", Host: "h1", PID: 7}, Attributes: []byte{0, 255},
		}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("the backend got the claim %+v, want %+v", c, want)
		}
		b.last().on(leases.Queued{Name: c.Name, Attempt: c.Attempt, Position: 3}) // for nobody
		return leases.Grant{Token: held.Token, AcquiredAt: time.UnixMilli(1_700_000_000_123), Waited: true}, nil
	}
	b.withdraw = func(_ context.Context, name string, a leases.ID) error {
		if name != held.Name || a != attempt {
			t.Errorf("the backend was asked to withdraw %q, %v", name, a)
		}
		return nil
	}
	given := func(what string) func(context.Context, leases.Held) error {
		return func(_ context.Context, h leases.Held) error {
			if h != held {
				t.Errorf("the backend was asked to %s %v", what, h)
			}
			return nil
		}
	}
	b.release = given("release")
	b.renew = func(ctx context.Context, h []leases.Held) ([]error, error) {
		return []error{given("renew")(ctx, h[0])}, nil
	}
	believed := leases.Claimed{
		Held: held, TTL: 15 * time.Second, Owner: leases.Owner{Label: "billing", Site: "aws", Host: "h1", PID: 7}, Attributes: []byte{0, 255},
		AcquiredAt: time.UnixMilli(1_700_000_000_123),
	}
	b.reclaim = func(_ context.Context, epoch uint32, c []leases.Claimed) ([]error, error) {
		if epoch != 2 || !reflect.DeepEqual(c, []leases.Claimed{believed}) {
			t.Errorf("the backend was asked to reclaim %+v in epoch %d, want %+v in 2", c, epoch, believed)
		}
		return []error{nil}, nil
	}
	b.transfer = func(ctx context.Context, h leases.Held, to leases.ID) (bool, error) {
		return to == heir, given("transfer")(ctx, h)
	}
	c := client(t, serve(t, b))

	got, err := c.Acquire(ctx, &coorddv1.AcquireRequest{
		Name: held.Name, Session: session.String(), Attempt: strings.ToUpper(attempt.String()), TtlMs: 15_000, WaitMs: 1<<32 - 1,
		Owner: &coorddv1.Owner{Label: "billing", Site: "aws", Host: "h1", Pid: 7}, Attributes: []byte{0, 255},
	})
	want := &coorddv1.AcquireResponse{
		Name: held.Name, Session: session.String(), Attempt: attempt.String(), Token: uint64(held.Token), TtlMs: 15_000,
		AcquiredAtUnixMs: 1_700_000_000_123, Waited: true,
	}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("Acquire: got %v, %v, want %v", got, err, want)
	}
	if _, err := c.Withdraw(ctx, &coorddv1.WithdrawRequest{Name: held.Name, Session: session.String(), Attempt: attempt.String()}); err != nil {
		t.Errorf("Withdraw: %v", err)
	}
	if _, err := c.Renew(ctx, &coorddv1.RenewRequest{Name: held.Name, Session: session.String(), Token: uint64(held.Token)}); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if _, err := c.Reclaim(ctx, &coorddv1.ReclaimRequest{
		Name: held.Name, Session: session.String(), Token: uint64(held.Token), Epoch: 2, TtlMs: 15_000,
		Owner: &coorddv1.Owner{Label: "billing", Site: "aws", Host: "h1", Pid: 7}, Attributes: []byte{0, 255}, AcquiredAtUnixMs: 1_700_000_000_123,
	}); err != nil {
		t.Errorf("Reclaim: %v", err)
	}
	if _, err := c.Release(ctx, &coorddv1.ReleaseRequest{Name: held.Name, Session: session.String(), Token: uint64(held.Token)}); err != nil {
		t.Errorf("Release: %v", err)
	}
	for to, want := range map[leases.ID]bool{heir: true, attempt: false} {
		r, err := c.Transfer(ctx, &coorddv1.TransferRequest{Name: held.Name, Session: session.String(), Token: uint64(held.Token), To: to.String()})
		if err != nil || r.Transferred != want {
			t.Errorf("Transfer: got %v, %v, want %v", r, err, want)
		}
	}
	for _, s := range b.opened() {
		if s.id != session {
			t.Errorf("the backend was asked in the name of %v, want %v", s.id, session)
		}
		within(t, "the end of the backend's session", s.closed)
	}
}

func TestErrorsOfUnaryCalls(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &backend{}
	c := client(t, serve(t, b))
	id := leases.NewID().String()
	calls := map[string]func() error{
		"Acquire": func() error { _, err := c.Acquire(ctx, &coorddv1.AcquireRequest{Name: "a", TtlMs: 5000}); return err },
		"Withdraw": func() error {
			_, err := c.Withdraw(ctx, &coorddv1.WithdrawRequest{Name: "a", Session: id, Attempt: id})
			return err
		},
		"Renew": func() error {
			_, err := c.Renew(ctx, &coorddv1.RenewRequest{Name: "a", Session: id, Token: 1})
			return err
		},
		"Reclaim": func() error {
			_, err := c.Reclaim(ctx, &coorddv1.ReclaimRequest{Name: "a", Session: id, Token: 1, Epoch: 2, TtlMs: 5000})
			return err
		},
		"Release": func() error {
			_, err := c.Release(ctx, &coorddv1.ReleaseRequest{Name: "a", Session: id, Token: 1})
			return err
		},
		"Transfer": func() error {
			_, err := c.Transfer(ctx, &coorddv1.TransferRequest{Name: "a", Session: id, Token: 1, To: id})
			return err
		},
		"Get":   func() error { _, err := c.Get(ctx, &coorddv1.GetRequest{Name: "a"}); return err },
		"List":  func() error { _, err := c.List(ctx, &coorddv1.ListRequest{}); return err },
		"Queue": func() error { _, err := c.Queue(ctx, &coorddv1.QueueRequest{Name: "a"}); return err },
	}
	fail := func(err error) {
		b.acquire = func(context.Context, leases.Claim) (leases.Grant, error) { return leases.Grant{}, err }
		b.withdraw = func(context.Context, string, leases.ID) error { return err }
		b.renew = func(context.Context, []leases.Held) ([]error, error) { return nil, err }
		b.reclaim = func(context.Context, uint32, []leases.Claimed) ([]error, error) { return nil, err }
		b.release = func(context.Context, leases.Held) error { return err }
		b.transfer = func(context.Context, leases.Held, leases.ID) (bool, error) { return true, err }
		b.get = func(context.Context, string) (leases.State, error) { return leases.State{}, err }
		b.list = func(context.Context, string, string, int) (leases.Page, error) { return leases.Page{}, err }
		b.queue = func(context.Context, string) ([]leases.Waiter, error) { return nil, err }
	}
	reads := []string{"Get", "List", "Queue"}
	for _, want := range []error{
		&leases.NotLeaderError{Node: "n1", Leader: "127.0.0.1:1"}, &leases.NotHeldError{Name: "a", Token: 1, Why: leases.WhyBroken},
		&leases.HeldError{Name: "a", By: leases.Owner{Label: "b"}}, leases.ErrNoQuorum, &leases.UnavailableError{Reason: "starting"},
		&leases.GraceError{Epoch: 2, FreshIn: time.Minute},
	} {
		fail(want)
		for name, call := range calls {
			if err := call(); !reflect.DeepEqual(err, want) {
				t.Errorf("%s: got %#v, want %#v", name, err, want)
			}
		}
	}
	fail(leases.ErrClosed) // of the node, not of the client
	for name, call := range calls {
		if want := slices.Contains(reads, name); errors.Is(call(), leases.ErrUnavailable) != want || errors.Is(call(), leases.ErrUnknownOutcome) == want {
			t.Errorf("%s of a node that is closed: got %v, want it unavailable: %v, else an unknown outcome", name, call(), want)
		}
	}
	result := func(each ...error) {
		b.renew = func(context.Context, []leases.Held) ([]error, error) { return each, nil }
		b.reclaim = func(context.Context, uint32, []leases.Claimed) ([]error, error) { return each, nil }
	}
	for _, name := range []string{"Renew", "Reclaim"} {
		want := &leases.NotHeldError{Name: "a", Token: 1}
		result(want)
		if err := calls[name](); !reflect.DeepEqual(err, error(want)) {
			t.Errorf("%s of one that is not held: got %v, want %v", name, err, want)
		}
		result()
		if err := calls[name](); !errors.Is(err, leases.ErrUnknownOutcome) {
			t.Errorf("%s without a result: got %v, want an unknown outcome", name, err)
		}
	}
	b.open = func(context.Context) error { return leases.ErrClosed }
	for name, call := range calls {
		if err := call(); !slices.Contains(reads, name) && (!errors.Is(err, leases.ErrUnavailable) || !strings.Contains(err.Error(), "closing")) {
			t.Errorf("%s, nothing opened: got %v, want unavailable", name, err)
		}
	}
	if code := grpcstatus.Code(transport.ToGRPC(&leases.MissedError{})); code != codes.OutOfRange {
		t.Errorf("missed: got %v, want OutOfRange", code)
	}
}

func TestIDsThatTheNodeDraws(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &backend{}
	c := client(t, serve(t, b))
	acquire := func(session, attempt string) *coorddv1.AcquireResponse {
		t.Helper()
		r, err := c.Acquire(ctx, &coorddv1.AcquireRequest{Name: "a", Session: session, Attempt: attempt, TtlMs: 5000})
		if err != nil {
			t.Fatal(err)
		}
		for field, id := range map[string]string{"session": r.Session, "attempt": r.Attempt} {
			if v, err := leases.ParseID(id); err != nil || v.IsZero() {
				t.Errorf("got the %s %q, want an id", field, id)
			}
		}
		if got := b.last().id.String(); got != r.Session {
			t.Errorf("the backend was asked in the name of %s, the answer says %s", got, r.Session)
		}
		return r
	}
	mine := leases.NewID().String()
	first, second := acquire("", ""), acquire("", "")
	if first.Session == second.Session || first.Attempt == second.Attempt || first.Session == first.Attempt {
		t.Errorf("got %v and %v, want ids of their own", first, second)
	}
	if r := acquire(mine, ""); r.Session != mine || r.Attempt == mine {
		t.Errorf("with a session: got %v", r)
	}
	if r := acquire(mine, mine); r.Session != mine || r.Attempt != mine {
		t.Errorf("with both: got %v", r)
	}
}

// bad is a request that is refused for one of its fields.
type bad struct {
	method, field string
	request       proto.Message
	bounds        string
}

func badRequests() []bad {
	id := leases.NewID().String()
	long, longer := strings.Repeat("n", leases.MaxName), strings.Repeat("n", leases.MaxName+1)
	var all []bad
	add := func(method, field, bounds string, requests ...proto.Message) {
		for _, r := range requests {
			all = append(all, bad{method, field, r, bounds})
		}
	}
	acquire := func(change func(*coorddv1.AcquireRequest)) proto.Message {
		r := &coorddv1.AcquireRequest{Name: "a", Session: id, Attempt: id, TtlMs: 5000, WaitMs: 1}
		change(r)
		return r
	}
	reclaim := func(change func(*coorddv1.ReclaimRequest)) proto.Message {
		r := &coorddv1.ReclaimRequest{Name: "a", Session: id, Token: 1, Epoch: 2, TtlMs: 5000}
		change(r)
		return r
	}
	for _, name := range []string{"", longer, "@a", "a\nb"} {
		add("Reclaim", "name", "1 to 512 bytes", reclaim(func(r *coorddv1.ReclaimRequest) { r.Name = name }))
		add("Acquire", "name", "1 to 512 bytes", acquire(func(r *coorddv1.AcquireRequest) { r.Name = name }))
		add("Withdraw", "name", "1 to 512 bytes", &coorddv1.WithdrawRequest{Name: name, Session: id, Attempt: id})
		add("Renew", "name", "1 to 512 bytes", &coorddv1.RenewRequest{Name: name, Session: id, Token: 1})
		add("Release", "name", "1 to 512 bytes", &coorddv1.ReleaseRequest{Name: name, Session: id, Token: 1})
		add("Transfer", "name", "1 to 512 bytes", &coorddv1.TransferRequest{Name: name, Session: id, Token: 1, To: id})
		add("Get", "name", "1 to 512 bytes", &coorddv1.GetRequest{Name: name})
		add("Queue", "name", "1 to 512 bytes", &coorddv1.QueueRequest{Name: name})
	}
	for _, x := range []string{"", "abc", id + "0", strings.Repeat("x", 32), strings.Repeat("0", 32)} {
		// With an attempt of the client's own, the session is too.
		add("Acquire", "session", "32 hexadecimal digits", acquire(func(r *coorddv1.AcquireRequest) { r.Session = x }))
		if x != "" { // then the node draws it
			add("Acquire", "attempt", "32 hexadecimal digits", acquire(func(r *coorddv1.AcquireRequest) { r.Attempt = x }))
		}
		add("Withdraw", "session", "32 hexadecimal digits", &coorddv1.WithdrawRequest{Name: "a", Session: x, Attempt: id})
		add("Withdraw", "attempt", "32 hexadecimal digits", &coorddv1.WithdrawRequest{Name: "a", Session: id, Attempt: x})
		add("Reclaim", "session", "32 hexadecimal digits", reclaim(func(r *coorddv1.ReclaimRequest) { r.Session = x }))
		add("Renew", "session", "32 hexadecimal digits", &coorddv1.RenewRequest{Name: "a", Session: x, Token: 1})
		add("Release", "session", "32 hexadecimal digits", &coorddv1.ReleaseRequest{Name: "a", Session: x, Token: 1})
		add("Transfer", "session", "32 hexadecimal digits", &coorddv1.TransferRequest{Name: "a", Session: x, Token: 1, To: id})
		add("Transfer", "to", "32 hexadecimal digits", &coorddv1.TransferRequest{Name: "a", Session: id, Token: 1, To: x})
	}
	for _, token := range []uint64{0, uint64(tokens.Max) + 1, 1<<64 - 1} {
		add("Reclaim", "token", "1 to 9007199254740991", reclaim(func(r *coorddv1.ReclaimRequest) { r.Token = token }))
		add("Renew", "token", "1 to 9007199254740991", &coorddv1.RenewRequest{Name: "a", Session: id, Token: token})
		add("Release", "token", "1 to 9007199254740991", &coorddv1.ReleaseRequest{Name: "a", Session: id, Token: token})
		add("Transfer", "token", "1 to 9007199254740991", &coorddv1.TransferRequest{Name: "a", Session: id, Token: token, To: id})
	}
	for _, ttl := range []uint32{1, 999, 300_001, 1<<32 - 1} {
		add("Acquire", "ttl_ms", "from 1000 to 300000, or 0 for 15000", acquire(func(r *coorddv1.AcquireRequest) { r.TtlMs = ttl }))
	}
	for _, ttl := range []uint32{0, 999, 300_001, 1<<32 - 1} {
		add("Reclaim", "ttl_ms", "from 1000 to 300000, as the answer to the acquire said", reclaim(func(r *coorddv1.ReclaimRequest) { r.TtlMs = ttl }))
	}
	for _, epoch := range []uint32{0, tokens.MaxEpoch + 1, 1<<32 - 1} {
		add("Reclaim", "epoch", "from 1 to 2097151", reclaim(func(r *coorddv1.ReclaimRequest) { r.Epoch = epoch }))
	}
	for _, at := range []int64{-1, -1 << 63, 253402300799999 + 1, 1<<63 - 1} {
		add("Reclaim", "acquired_at_unix_ms", "at most 253402300799999", reclaim(func(r *coorddv1.ReclaimRequest) { r.AcquiredAtUnixMs = at }))
	}
	for _, label := range []string{strings.Repeat("l", 129), "a\x00b"} {
		add("Reclaim", "owner.label", "at most 128 bytes", reclaim(func(r *coorddv1.ReclaimRequest) { r.Owner = &coorddv1.Owner{Label: label} }))
		add("Acquire", "owner.label", "at most 128 bytes", acquire(func(r *coorddv1.AcquireRequest) { r.Owner = &coorddv1.Owner{Label: label} }))
		add("Acquire", "owner.site", "at most 128 bytes", acquire(func(r *coorddv1.AcquireRequest) { r.Owner = &coorddv1.Owner{Site: label} }))
		add("Acquire", "owner.host", "at most 128 bytes", acquire(func(r *coorddv1.AcquireRequest) { r.Owner = &coorddv1.Owner{Host: label} }))
	}
	add("Acquire", "attributes", "at most 512 bytes", acquire(func(r *coorddv1.AcquireRequest) { r.Attributes = make([]byte, 513) }))
	add("Reclaim", "attributes", "at most 512 bytes", reclaim(func(r *coorddv1.ReclaimRequest) { r.Attributes = make([]byte, 513) }))
	add("List", "prefix", "at most 512 bytes", &coorddv1.ListRequest{Prefix: longer, After: long})
	add("List", "after", "at most 512 bytes", &coorddv1.ListRequest{Prefix: long, After: longer})
	add("List", "limit", "from 1 to 1000", &coorddv1.ListRequest{Limit: 1001}, &coorddv1.ListRequest{Limit: 1<<32 - 1})
	add("Watch", "prefix", "at most 512 bytes", &coorddv1.WatchRequest{Prefix: longer})
	add("Watch", "epoch", "from 1 to 2097151", &coorddv1.WatchRequest{Epoch: tokens.MaxEpoch + 1}, &coorddv1.WatchRequest{Revision: 5})
	return all
}

// anyValue has the fields that take every value.
var anyValue = map[string]bool{
	"AcquireRequest.wait_ms": true, "AcquireRequest.owner": true, "ReclaimRequest.owner": true, "Owner.pid": true, "WatchRequest.revision": true,
}

func TestBadRequests(t *testing.T) {
	b := &backend{
		open: func(context.Context) error { t.Error("a bad request came through"); return nil },
		get: func(context.Context, string) (leases.State, error) {
			t.Error("a bad Get came through")
			return leases.State{}, nil
		},
		list: func(context.Context, string, string, int) (leases.Page, error) {
			t.Error("a bad List came through")
			return leases.Page{}, nil
		},
		queue: func(context.Context, string) ([]leases.Waiter, error) {
			t.Error("a bad Queue came through")
			return nil, nil
		},
		watch: func(context.Context, string, leases.Position, func(leases.Batch) error) error {
			t.Error("a bad Watch came through")
			return nil
		},
	}
	n := serve(t, b)
	cc := clientConn(t, n.addr, nil)
	ctx := timeout(t, 30*time.Second)
	covered := maps.Clone(anyValue)
	for i, c := range badRequests() {
		covered[fieldOf(c.request, c.field)] = true
		_, err := ask(ctx, cc, c.method, c.request)
		var invalid *leases.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.field || !strings.Contains(invalid.Bounds, c.bounds) || len(invalid.Value) > 100 {
			t.Errorf("case %d, %s of %v: got %v, want it to say that %s is invalid, and the bounds %q", i, c.method, c.request, err, c.field, c.bounds)
		}
	}
	for _, m := range unaryMethods() {
		if name := string(m.Name()); name == "Status" || name == "Session" {
			continue
		}
		checkCovered(t, m.Input(), covered)
	}
	if _, err := coorddv1.NewCoorddClient(cc).Status(ctx, &coorddv1.StatusRequest{}); err != nil {
		t.Errorf("the node afterwards: %v", err)
	}
}

func unaryMethods() (methods []protoreflect.MethodDescriptor) {
	all := coorddv1.File_coordd_v1_coordd_proto.Services().ByName("Coordd").Methods()
	for i := range all.Len() {
		methods = append(methods, all.Get(i))
	}
	return methods
}

// fieldOf is a field's name with its message's; path may lead into a part.
func fieldOf(m proto.Message, path string) string {
	d := m.ProtoReflect().Descriptor()
	name, rest, nested := strings.Cut(path, ".")
	if nested {
		d = d.Fields().ByName(protoreflect.Name(name)).Message()
		name = rest
	}
	return string(d.Name()) + "." + name
}

func checkCovered(t *testing.T, d protoreflect.MessageDescriptor, covered map[string]bool) {
	t.Helper()
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if name := string(d.Name()) + "." + string(f.Name()); !covered[name] {
			t.Errorf("no bad value of %s is tried: add one to badRequests", name)
		}
		if f.Message() != nil {
			checkCovered(t, f.Message(), covered)
		}
	}
}

// ask makes any call by its name and returns its answer, of a Watch the first.
func ask(ctx context.Context, cc *grpc.ClientConn, method string, req proto.Message) (proto.Message, error) {
	if method == "Watch" {
		stream, err := coorddv1.NewCoorddClient(cc).Watch(ctx, req.(*coorddv1.WatchRequest))
		if err != nil {
			return nil, err
		}
		r, err := stream.Recv()
		return r, transport.FromGRPC(err)
	}
	resp := map[string]proto.Message{
		"Acquire": &coorddv1.AcquireResponse{}, "Withdraw": &coorddv1.WithdrawResponse{}, "Renew": &coorddv1.RenewResponse{},
		"Reclaim": &coorddv1.ReclaimResponse{},
		"Release": &coorddv1.ReleaseResponse{}, "Transfer": &coorddv1.TransferResponse{}, "Get": &coorddv1.GetResponse{},
		"List": &coorddv1.ListResponse{}, "Queue": &coorddv1.QueueResponse{}, "Status": &coorddv1.StatusResponse{},
	}[method]
	if resp == nil {
		return nil, fmt.Errorf("no such method: %s", method)
	}
	return resp, cc.Invoke(ctx, "/"+coorddv1.Coordd_ServiceDesc.ServiceName+"/"+method, req, resp)
}

func TestListLimits(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	var got int
	b := &backend{list: func(_ context.Context, _, _ string, limit int) (leases.Page, error) {
		got = limit
		return leases.Page{}, nil
	}}
	c := client(t, serve(t, b))
	for limit, want := range map[uint32]int{0: 100, 1: 1, 1000: 1000} {
		if _, err := c.List(ctx, &coorddv1.ListRequest{Limit: limit}); err != nil || got != want {
			t.Errorf("a limit of %d: the backend was asked for %d, want %d; %v", limit, got, want, err)
		}
	}
}

func TestPanicsOfUnaryCalls(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	b := &backend{
		get:   func(context.Context, string) (leases.State, error) { panic("ouch") },
		renew: func(context.Context, []leases.Held) ([]error, error) { panic("ouch") },
		watch: func(context.Context, string, leases.Position, func(leases.Batch) error) error { panic("ouch") },
	}
	n := serve(t, b)
	cc := clientConn(t, n.addr, nil)
	for method, r := range map[string]proto.Message{
		"Get": &coorddv1.GetRequest{Name: "a"}, "Watch": &coorddv1.WatchRequest{},
		"Renew": &coorddv1.RenewRequest{Name: "a", Session: leases.NewID().String(), Token: 1},
	} {
		var internal *transport.InternalError
		if _, err := ask(ctx, cc, method, r); !errors.As(err, &internal) || !strings.Contains(err.Error(), "ouch") {
			t.Errorf("%s: got %v, want an internal error that says ouch", method, err)
		}
	}
	within(t, "the end of the backend's session", b.last().closed)
	n.stop()
	if !strings.Contains(n.log.String(), "ouch") {
		t.Errorf("the log says nothing of the panics: %s", n.log)
	}
}
