package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// Bad input of every kind, to every call, over all that a member listens on: each
// is refused by a clear error, and the member serves on.
func TestBadInput(t *testing.T) {
	s := calm(t)
	urls := led(t, s.addrs)
	b, other := newBadInput(t, s, urls[0]), newBadInput(t, s, urls[1])
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"values", b.values},
		{"values at a follower", other.values},
		{"wire", b.wire},
		{"conversations", b.conversations},
		{"broken conversations", b.brokenConversations},
		{"JSON", b.json},
		{"requests", b.requests},
		{"connections", b.connections},
	} {
		t.Run(part.name, part.run)
		for i, url := range urls {
			g := acquired(t, url, fields{"name": fmt.Sprint("after ", part.name, i)})
			post(t, url+"/v1/release", proof(g)).ok()
		}
		for _, m := range s.members {
			select {
			case <-m.ended:
				t.Fatalf("after %s: coordd %v has ended", part.name, m.args)
			default:
			}
			if said := m.out.String(); strings.Contains(said, "panic") {
				t.Fatalf("after %s: coordd %v says %s", part.name, m.args, said)
			}
		}
	}
	r := new(coorddv1.ListResponse)
	if told(t, r, urls[0]+"/v1/leases"); len(r.Leases) > 0 {
		t.Errorf("got %v, want that nothing was granted", r.Leases)
	}
}

// badInput is a member that is sent what is wrong.
type badInput struct {
	conn   *grpc.ClientConn
	addr   string // where it listens for clients
	url    string
	client *http.Client
}

// newBadInput is the member that answers HTTP at url.
func newBadInput(t *testing.T, s *serving, url string) *badInput {
	t.Helper()
	b := &badInput{
		addr: s.addrs[slices.IndexFunc(s.addrs, func(addr string) bool { return httpURL(addr) == url })],
		url:  url, client: &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second},
	}
	var err error
	if b.conn, err = transport.NewClientConn(b.addr, nil, transport.TCP()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.conn.Close()
		b.client.CloseIdleConnections()
	})
	return b
}

// ref is what a call is named by: its path over HTTP, and its name.
type ref struct {
	name, method, path string
	request            proto.Message // one in which nothing is wrong
}

var someID = strings.Repeat("0f", 16)

// calls are all of coordd.v1 but Session.
var calls = []ref{
	{"Acquire", "POST", "/v1/acquire", &coorddv1.AcquireRequest{Name: "a", Session: someID, Attempt: someID, TtlMs: 5000, Owner: &coorddv1.Owner{Label: "l"}}},
	{"Withdraw", "POST", "/v1/withdraw", &coorddv1.WithdrawRequest{Name: "a", Session: someID, Attempt: someID}},
	{"Renew", "POST", "/v1/renew", &coorddv1.RenewRequest{Name: "a", Session: someID, Token: 1}},
	{"Reclaim", "POST", "/v1/reclaim", &coorddv1.ReclaimRequest{Name: "a", Session: someID, Token: 1, Epoch: 1, TtlMs: 5000, Owner: &coorddv1.Owner{Label: "l"}, AcquiredAtUnixMs: 1}},
	{"Release", "POST", "/v1/release", &coorddv1.ReleaseRequest{Name: "a", Session: someID, Token: 1}},
	{"Transfer", "POST", "/v1/transfer", &coorddv1.TransferRequest{Name: "a", Session: someID, Token: 1, To: someID}},
	{"Get", "GET", "/v1/lease", &coorddv1.GetRequest{Name: "a"}},
	{"List", "GET", "/v1/leases", &coorddv1.ListRequest{Prefix: "a", After: "a", Limit: 1}},
	{"Queue", "GET", "/v1/queue", &coorddv1.QueueRequest{Name: "a"}},
	{"Watch", "GET", "/v1/watch", &coorddv1.WatchRequest{Prefix: "a", Epoch: 1, Revision: 1}},
	{"Status", "GET", "/v1/status", &coorddv1.StatusRequest{Name: "a"}},
}

// wrong has the values that are out of bounds, by the name of their field, and
// what the error says is wanted.
type wrong struct {
	bounds string
	values []any
}

var (
	wrongParts = wrong{"printable UTF-8", []any{strings.Repeat("n", 513), "@a", "a\x00", "a\nb", "a\x1b[0m", "a\u202eb", "a\ufeff", "\u0085"}}
	wrongIDs   = wrong{"32 hexadecimal digits", []any{"abc", strings.Repeat("0", 31), strings.Repeat("f", 33), strings.Repeat("x", 32), strings.Repeat("0", 32), strings.Repeat("f", 60_000)}}
	wrongWords = wrong{"at most 128 bytes", []any{strings.Repeat("l", 129), "a\x00", "a\tb"}}
	wrongValue = map[string]wrong{
		"name":        {"1 to 512 bytes of printable UTF-8", append([]any{""}, wrongParts.values...)},
		"prefix":      wrongParts,
		"after":       wrongParts,
		"session":     {wrongIDs.bounds, append([]any{""}, wrongIDs.values...)},
		"attempt":     wrongIDs,
		"to":          {wrongIDs.bounds, append([]any{""}, wrongIDs.values...)},
		"token":       {"1 to 9007199254740991", []any{uint64(0), uint64(tokens.Max) + 1, uint64(1<<64 - 1)}},
		"ttl_ms":      {"1000 to 300000", []any{uint32(1), uint32(999), uint32(300_001), uint32(1<<32 - 1)}},
		"owner.label": wrongWords, "owner.site": wrongWords, "owner.host": wrongWords,
		"attributes":          {"at most 512 bytes", []any{bytes.Repeat([]byte{0}, 513)}},
		"acquired_at_unix_ms": {"milliseconds since 1970", []any{int64(-1), int64(253402300800000)}},
		"limit":               {"1 to 1000", []any{uint32(1001), uint32(1<<32 - 1)}},
		"epoch":               {"1 to 2097151", []any{uint32(0), tokens.MaxEpoch + 1, uint32(1<<32 - 1)}},
	}
	// anyValue are the fields that have no wrong ones.
	anyValue = []string{"wait_ms", "owner.pid", "revision"}
)

// each calls f for every field of a message, and of those in it.
func each(m protoreflect.Message, prefix string, f func(name string, m protoreflect.Message, fd protoreflect.FieldDescriptor)) {
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		fd := all.Get(i)
		if fd.Kind() == protoreflect.MessageKind {
			each(m.Mutable(fd).Message(), prefix+string(fd.Name())+".", f)
			continue
		}
		f(prefix+string(fd.Name()), m, fd)
	}
}

// with is a copy of a message in which one field is another.
func with(m proto.Message, field string, value any) proto.Message {
	m = proto.Clone(m)
	each(m.ProtoReflect(), "", func(name string, m protoreflect.Message, fd protoreflect.FieldDescriptor) {
		if name == field {
			m.Set(fd, protoreflect.ValueOf(value))
		}
	})
	return m
}

// values sends every value that is out of bounds to every call, as gRPC and as JSON.
func (b *badInput) values(t *testing.T) {
	sent := 0
	for _, c := range calls {
		each(proto.Clone(c.request).ProtoReflect(), "", func(field string, _ protoreflect.Message, _ protoreflect.FieldDescriptor) {
			w, known := wrongValue[field]
			if known == slices.Contains(anyValue, field) {
				t.Errorf("%s: nothing is known of the field %s: say which of its values are wrong", c.name, field)
			}
			for _, value := range w.values {
				if c.name == "Status" && value == "" {
					continue // it asks for the cluster
				}
				sent++
				r := with(c.request, field, value)
				what := fmt.Sprintf("%s with %s %.60q", c.name, field, fmt.Sprint(value))
				invalid, ok := errors.AsType[*leases.InvalidError](b.call(t, c.name, r))
				if !ok || invalid.Field != field || !strings.Contains(invalid.Bounds, w.bounds) || len(invalid.Error()) > 1000 {
					t.Errorf("%s over gRPC: got %v, want that %s must be %s", what, invalid, field, w.bounds)
				}
				b.refused(t, what, b.ask(t, c, r), 400, field, w.bounds)
			}
		})
	}
	if sent < 150 {
		t.Errorf("%d wrong values were sent, want all that there are", sent)
	}
}

// call makes a call over gRPC, and returns its error.
func (b *badInput) call(t *testing.T, name string, r proto.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	method := "/coordd.v1.Coordd/" + name
	if name != "Watch" {
		return b.conn.Invoke(ctx, method, r, new(dynamicpb.Message), grpc.ForceCodec(unread{}))
	}
	stream, err := b.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return transport.FromGRPC(err)
	}
	if err := errors.Join(stream.SendMsg(r), stream.CloseSend()); err != nil {
		return transport.FromGRPC(err)
	}
	return transport.FromGRPC(stream.RecvMsg(new(coorddv1.WatchResponse)))
}

// unread sends messages, or bytes as they are, and does not look at what comes back.
type unread struct{}

var _ encoding.Codec = unread{}

func (unread) Name() string { return "proto" }

func (unread) Marshal(v any) ([]byte, error) {
	if raw, ok := v.([]byte); ok {
		return raw, nil
	}
	return proto.Marshal(v.(proto.Message))
}

func (unread) Unmarshal([]byte, any) error { return nil }

// ask makes a call over HTTP.
func (b *badInput) ask(t *testing.T, c ref, m proto.Message) answer {
	t.Helper()
	content, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: c.method == "GET"}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if c.method == "POST" {
		return b.request(t, c.method, c.path, string(content))
	}
	var args map[string]any
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	if err := d.Decode(&args); err != nil {
		t.Fatal(err)
	}
	query := url.Values{}
	for name, value := range args {
		query.Set(name, fmt.Sprint(value))
	}
	return b.request(t, c.method, c.path+"?"+query.Encode(), "")
}

// request sends an HTTP request; a body is said to be JSON. Each change is made to it before.
func (b *badInput) request(t *testing.T, method, path, body string, changes ...func(*http.Request)) answer {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, b.url+path, content)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, change := range changes {
		change(r)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		t.Fatalf("%s %.100s: %v", method, path, err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{t, resp.StatusCode, string(all)}
}

// refused checks an error that names the field and its bounds.
func (b *badInput) refused(t *testing.T, what string, a answer, status int, field, bounds string) {
	t.Helper()
	f := a.fault()
	if a.status != status || f.Code != "INVALID" || f.Details["field"] != field || !strings.Contains(fmt.Sprint(f.Details["bounds"]), bounds) ||
		!strings.Contains(f.Message, field) || !strings.Contains(f.Message, bounds) || len(a.body) > 4000 {
		t.Errorf("%s over HTTP: got %d %.300s, want %d INVALID: %s must be %s", what, a.status, a.body, status, field, bounds)
	}
}

// wire sends what is no message, or too long for one.
func (b *badInput) wire(t *testing.T) {
	for _, c := range calls {
		// The fields of a string that is not UTF-8.
		each(proto.Clone(c.request).ProtoReflect(), "", func(field string, m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			if fd.Kind() != protoreflect.StringKind {
				return
			}
			raw := protowire.AppendString(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), "a\xff")
			if owner, _, within := strings.Cut(field, "."); within {
				number := c.request.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(owner)).Number()
				raw = protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), raw)
			}
			if err := b.raw(t, c.name, raw); err == nil || !strings.Contains(err.Error(), "UTF-8") {
				t.Errorf("%s with a %s that is not UTF-8: got %v, want it refused, and why", c.name, field, err)
			}
		})
		good, err := proto.Marshal(c.request)
		if err != nil {
			t.Fatal(err)
		}
		for what, raw := range map[string][]byte{
			"garbage":            []byte("\xff\xfe\xfd nonsense"),
			"a message cut off":  good[:len(good)-1],
			"a length too large": {0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f, 'a'},
			"a group":            {0x0b},
			"field 0":            {0x00, 0x00},
		} {
			if err := b.raw(t, c.name, raw); err == nil || !strings.Contains(err.Error(), "unmarshal") && !strings.Contains(err.Error(), "invalid") {
				t.Errorf("%s with %s: got %v, want it refused, and why", c.name, what, err)
			}
		}
		if err := b.raw(t, c.name, make([]byte, 10<<20)); status.Code(err) != codes.ResourceExhausted && !errors.Is(err, leases.ErrExhausted) {
			t.Errorf("%s with 10 MB: got %v, want that it is too long", c.name, err)
		}
	}
	later := protowire.AppendVarint(protowire.AppendTag([]byte("\x0a\x01a"), 999, protowire.VarintType), 7)
	if err := b.raw(t, "Get", later); err != nil {
		t.Errorf("a field of a later release: got %v, want it ignored", err)
	}
	if err := b.raw(t, "Nonsense", nil); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("an unknown call: got %v, want that the node does not know it", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", 1<<20))
	if err := b.conn.Invoke(ctx, "/coordd.v1.Coordd/Get", &coorddv1.GetRequest{Name: "a"}, &coorddv1.GetResponse{}); err == nil {
		t.Error("headers of a megabyte: got no error")
	}
}

// raw sends bytes as a call's message, and returns the error as gRPC has it.
func (b *badInput) raw(t *testing.T, name string, raw []byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := b.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/coordd.v1.Coordd/"+name, grpc.ForceCodec(unread{}), grpc.MaxCallSendMsgSize(64<<20))
	if err != nil {
		return transport.FromGRPC(err)
	}
	_ = stream.SendMsg(raw) // what became of it is for RecvMsg to say
	_ = stream.CloseSend()
	return transport.FromGRPC(stream.RecvMsg(nil))
}

// converse opens a conversation.
func (b *badInput) converse(t *testing.T, first *coorddv1.SessionRequest) (grpc.BidiStreamingClient[coorddv1.SessionRequest, coorddv1.SessionResponse], *coorddv1.SessionResponse) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := coorddv1.NewCoorddClient(b.conn).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if first == nil {
		return stream, nil
	}
	_ = stream.Send(first) // what became of it is for Recv to say
	answer, err := stream.Recv()
	if err != nil {
		t.Fatalf("%v: got %v, want an answer first", first, err)
	}
	return stream, answer
}

func opening() *coorddv1.SessionRequest {
	id := leases.NewID()
	return &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:]}}
}

// conversations makes calls in which something is wrong, each of which is
// answered, and the conversation goes on.
func (b *badInput) conversations(t *testing.T) {
	stream, first := b.converse(t, opening())
	if first.GetOpened() == nil {
		t.Fatalf("got %v, want it opened", first)
	}
	id, long := leases.NewID(), strings.Repeat("n", 513)
	held := &coorddv1.Held{Name: "a", Token: 1}
	acquire := func(change func(*coorddv1.Acquire)) *coorddv1.Call {
		a := &coorddv1.Acquire{Name: "a", Attempt: id[:], TtlMs: 5000}
		change(a)
		return &coorddv1.Call{Call: &coorddv1.Call_Acquire{Acquire: a}}
	}
	withdraw := func(name string, attempt []byte) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Withdraw{Withdraw: &coorddv1.Withdraw{Name: name, Attempt: attempt}}}
	}
	renew := func(held ...*coorddv1.Held) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Renew{Renew: &coorddv1.Renew{Held: held}}}
	}
	reclaim := func(epoch uint32, claimed ...*coorddv1.Claimed) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Reclaim{Reclaim: &coorddv1.Reclaim{Epoch: epoch, Claimed: claimed}}}
	}
	claimed := func(change func(*coorddv1.Claimed)) *coorddv1.Claimed {
		c := &coorddv1.Claimed{Held: &coorddv1.Held{Name: "a", Token: 1}, TtlMs: 5000}
		change(c)
		return c
	}
	release := func(held *coorddv1.Held) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Release{Release: &coorddv1.Release{Held: held}}}
	}
	transfer := func(held *coorddv1.Held, to []byte) *coorddv1.Call {
		return &coorddv1.Call{Call: &coorddv1.Call_Transfer{Transfer: &coorddv1.Transfer{Held: held, To: to}}}
	}
	type bad struct {
		field, bounds string
		call          *coorddv1.Call
	}
	all := []bad{
		{"call", "Acquire, Withdraw, Renew, Reclaim, Release or Transfer", &coorddv1.Call{}},
		{"name", "1 to 512 bytes", acquire(func(a *coorddv1.Acquire) { a.Name = "" })},
		{"name", "1 to 512 bytes", acquire(func(a *coorddv1.Acquire) { a.Name = long })},
		{"name", "1 to 512 bytes", acquire(func(a *coorddv1.Acquire) { a.Name = "a\x00" })},
		{"name", "1 to 512 bytes", acquire(func(a *coorddv1.Acquire) { a.Name = "@a" })},
		{"ttl", "1s to 5m0s", acquire(func(a *coorddv1.Acquire) { a.TtlMs = 0 })},
		{"ttl", "1s to 5m0s", acquire(func(a *coorddv1.Acquire) { a.TtlMs = 999 })},
		{"ttl", "1s to 5m0s", acquire(func(a *coorddv1.Acquire) { a.TtlMs = 1<<32 - 1 })},
		{"attributes", "at most 512 bytes", acquire(func(a *coorddv1.Acquire) { a.Attributes = make([]byte, 513) })},
		{"owner label", "at most 128 bytes", acquire(func(a *coorddv1.Acquire) { a.Owner = &coorddv1.Owner{Label: long} })},
		{"owner site", "at most 128 bytes", acquire(func(a *coorddv1.Acquire) { a.Owner = &coorddv1.Owner{Site: "\x07"} })},
		{"owner host", "at most 128 bytes", acquire(func(a *coorddv1.Acquire) { a.Owner = &coorddv1.Owner{Host: long} })},
		{"held", "1 to 1024 leases", renew()},
		{"held", "1 to 1024 leases", renew(slices.Repeat([]*coorddv1.Held{held}, 1025)...)},
		{"name", "1 to 512 bytes", renew(held, &coorddv1.Held{Token: 1})},
		{"token", "1 to 9007199254740991", renew(held, &coorddv1.Held{Name: "a"})},
		{"epoch", "1 to 2097151", reclaim(0, claimed(func(*coorddv1.Claimed) {}))},
		{"epoch", "1 to 2097151", reclaim(1<<32-1, claimed(func(*coorddv1.Claimed) {}))},
		{"claimed", "1 to 256 leases", reclaim(1)},
		{"claimed", "1 to 256 leases", reclaim(1, slices.Repeat([]*coorddv1.Claimed{claimed(func(*coorddv1.Claimed) {})}, 257)...)},
		{"name", "1 to 512 bytes", reclaim(1, claimed(func(c *coorddv1.Claimed) { c.Held = nil }))},
		{"token", "1 to 9007199254740991", reclaim(1, claimed(func(c *coorddv1.Claimed) { c.Held.Token = 1 << 53 }))},
		{"ttl", "1s to 5m0s", reclaim(1, claimed(func(c *coorddv1.Claimed) { c.TtlMs = 0 }))},
		{"attributes", "at most 512 bytes", reclaim(1, claimed(func(c *coorddv1.Claimed) { c.Attributes = make([]byte, 513) }))},
		{"owner label", "at most 128 bytes", reclaim(1, claimed(func(c *coorddv1.Claimed) { c.Owner = &coorddv1.Owner{Label: long} }))},
		{"acquired at", "milliseconds since 1970", reclaim(1, claimed(func(c *coorddv1.Claimed) { c.AcquiredAtUnixMs = -1 }))},
		{"name", "1 to 512 bytes", release(nil)},
		{"token", "1 to 9007199254740991", release(&coorddv1.Held{Name: "a"})},
		{"token", "1 to 9007199254740991", release(&coorddv1.Held{Name: "a", Token: 1<<64 - 1})},
		{"name", "1 to 512 bytes", transfer(nil, id[:])},
		{"token", "1 to 9007199254740991", transfer(&coorddv1.Held{Name: "a", Token: 1 << 53}, id[:])},
		{"name", "1 to 512 bytes", withdraw("", id[:])},
		{"name", "1 to 512 bytes", withdraw(long, id[:])},
	}
	for _, bytes := range [][]byte{nil, id[:15], append(id[:], 0), make([]byte, 16), make([]byte, 100_000)} {
		all = append(all,
			bad{"attempt", "16", acquire(func(a *coorddv1.Acquire) { a.Attempt = bytes })},
			bad{"attempt", "16", withdraw("a", bytes)},
			bad{"to", "", transfer(held, bytes)})
	}
	for i, c := range all {
		c.call.Id = uint64(i + 1)
		if err := stream.Send(&coorddv1.SessionRequest{Calls: []*coorddv1.Call{c.call}}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil || len(answer.Replies) != 1 {
			t.Fatalf("%.100v: got %v and %v, want a reply", c.call, answer, err)
		}
		reply := answer.Replies[0]
		invalid, ok := errors.AsType[*leases.InvalidError](transport.FromStatus(reply.Status))
		if !ok || reply.Id != c.call.Id || invalid.Field != c.field || invalid.Bounds == "" || !strings.Contains(invalid.Bounds, c.bounds) || len(reply.Status.Reason) > 1000 {
			t.Errorf("%.100v: got %v, want that %s must be %s", c.call, reply, c.field, c.bounds)
		}
	}
	if err := stream.Send(&coorddv1.SessionRequest{Calls: []*coorddv1.Call{{Id: 1000, Call: withdraw("a", id[:]).Call}}}); err != nil {
		t.Fatal(err)
	}
	if answer, err := stream.Recv(); err != nil || answer.GetReplies()[0].GetStatus().GetCode() != coorddv1.Code_CODE_UNSPECIFIED {
		t.Errorf("a call in which nothing is wrong: got %v and %v, want it done", answer, err)
	}
}

// brokenConversations breaks the rules of a conversation, which ends it.
func (b *badInput) brokenConversations(t *testing.T) {
	id, other := leases.NewID(), leases.NewID()
	for _, c := range []struct {
		what, field string
		first       *coorddv1.SessionRequest
	}{
		{"nothing", "first message", &coorddv1.SessionRequest{}},
		{"calls before it is open", "first message", &coorddv1.SessionRequest{Calls: []*coorddv1.Call{{Id: 1}}}},
		{"calls beside the opening", "first message", &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:]}, Calls: []*coorddv1.Call{{Id: 1}}}},
		{"no session", "session", &coorddv1.SessionRequest{Open: &coorddv1.Open{}}},
		{"a short session", "session", &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:15]}}},
		{"a long session", "session", &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: make([]byte, 100_000)}}},
		{"zeros", "session", &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: make([]byte, 16)}}},
		{"a short cluster", "cluster", &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:], Cluster: id[:1]}}},
	} {
		stream, first := b.converse(t, c.first)
		invalid, ok := errors.AsType[*leases.InvalidError](transport.FromStatus(first.GetStatus()))
		if !ok || invalid.Field != c.field || invalid.Bounds == "" {
			t.Errorf("%s: got %v, want that the %s is wrong", c.what, first, c.field)
		}
		if _, err := stream.Recv(); !errors.Is(transport.FromGRPC(err), leases.ErrInvalid) {
			t.Errorf("%s: got %v, want the end, and why", c.what, err)
		}
	}
	_, first := b.converse(t, &coorddv1.SessionRequest{Open: &coorddv1.Open{Session: id[:], Cluster: other[:]}})
	if err := transport.FromStatus(first.GetStatus()); !errors.Is(err, leases.ErrWrongCluster) || !strings.Contains(err.Error(), other.String()) {
		t.Errorf("another cluster: got %v, want that it is the wrong one", first)
	}

	for what, c := range map[string]struct {
		field    string
		messages []*coorddv1.SessionRequest
	}{
		"a second opening": {"message", []*coorddv1.SessionRequest{opening()}},
		"too many calls":   {"message", []*coorddv1.SessionRequest{{Calls: slices.Repeat([]*coorddv1.Call{{Id: 1}}, 513)}}},
		"a call 0":         {"call id", []*coorddv1.SessionRequest{{Calls: []*coorddv1.Call{{}}}}},
		"a call twice":     {"call id", []*coorddv1.SessionRequest{{Calls: []*coorddv1.Call{{Id: 7}, {Id: 7}}}}},
		"a call before":    {"call id", []*coorddv1.SessionRequest{{Calls: []*coorddv1.Call{{Id: 7}}}, {Calls: []*coorddv1.Call{{Id: 6}}}}},
	} {
		stream, _ := b.converse(t, opening())
		for _, m := range c.messages {
			_ = stream.Send(m) // what became of it is for Recv to say
		}
		var err error
		for err == nil {
			_, err = stream.Recv()
		}
		if invalid, ok := errors.AsType[*leases.InvalidError](transport.FromGRPC(err)); !ok || invalid.Field != c.field || invalid.Bounds == "" {
			t.Errorf("%s: got %v, want the end, since the %s is wrong", what, err, c.field)
		}
	}
	for what, raw := range map[string][]byte{"garbage": []byte("\xff\xfe nonsense"), "10 MB": make([]byte, 10<<20)} {
		if err := b.raw(t, "Session", raw); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: got %v, want the end, and why", what, err)
		}
	}
	for range 50 { // and those that say nothing at all
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := coorddv1.NewCoorddClient(b.conn).Session(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

// json sends bodies that are not the call's.
func (b *badInput) json(t *testing.T) {
	for _, c := range calls {
		if c.method == "GET" {
			b.queries(t, c)
			continue
		}
		bodies := map[string]string{ // with what the error has to say
			`null`: "unexpected token", `[]`: "unexpected token", `"a"`: "unexpected token", `7`: "unexpected token", `name=a`: "invalid value",
			`{`: "unexpected EOF", `{}{}`: "unexpected token", `{"name":"a"`: "unexpected EOF", `{"name":"a",}`: "unexpected token", "\xff": "invalid",
			`{"nonsense":1}`: `unknown field "nonsense"`, `{"NAME":"a"}`: `unknown field "NAME"`, `{"name":"a","name":"a"}`: `duplicate field "name"`,
			`{"name":"\ud800"}`: "unexpected EOF", "{\"name\":\"\xff\"}": "UTF-8", "{\"name\":\"a\nb\"}": "invalid character",
			strings.Repeat(`{"owner":`, 6000) + `1` + strings.Repeat(`}`, 6000): `field "owner"`,
			strings.Repeat(`[`, 60_000):                                         "unexpected token",
		}
		each(proto.Clone(c.request).ProtoReflect(), "", func(field string, _ protoreflect.Message, fd protoreflect.FieldDescriptor) {
			types := []string{`{}`, `[]`, `[1]`, `true`, `{"a":1}`}
			switch fd.Kind() {
			case protoreflect.StringKind, protoreflect.BytesKind:
				types = append(types, `1`, `1.5`)
			case protoreflect.Int64Kind:
				types = append(types, `"x"`, `""`, `1.5`, `1e999`, `"0x1"`, `9223372036854775808`)
			default:
				types = append(types, `"x"`, `""`, `-1`, `1.5`, `1e999`, `"0x1"`, `" 1"`, `18446744073709551616`, `"99999999999999999999999999"`)
			}
			for _, value := range types {
				body := fmt.Sprintf(`{%q:%s}`, field, value)
				if object, inner, within := strings.Cut(field, "."); within {
					body = fmt.Sprintf(`{%q:{%q:%s}}`, object, inner, value)
				}
				bodies[body] = fd.JSONName()
			}
		})
		for _, body := range slices.Sorted(maps.Keys(bodies)) {
			a := b.request(t, c.method, c.path, body)
			f := a.fault()
			if a.status != 400 || f.Code != "INVALID" || f.Details["field"] != "body" || !strings.HasPrefix(f.Message, "invalid body: ") || !strings.Contains(f.Message, bodies[body]) {
				t.Errorf("%s %.100q: got %d %s, want 400 INVALID that says %q", c.path, body, a.status, a.body, bodies[body])
			}
		}
		b.refused(t, c.path+" with an empty body", b.request(t, "POST", c.path, ""), 415, "content-type", "application/json")
		long := `{"name":"` + strings.Repeat("n", 10<<20) + `"}`
		b.refused(t, c.path+" with 10 MB", b.request(t, "POST", c.path, long), 413, "body", "at most 65536 bytes")
		inChunks := func(r *http.Request) { r.ContentLength = -1 }
		b.refused(t, c.path+" with 10 MB in chunks", b.request(t, "POST", c.path, long, inChunks), 413, "body", "at most 65536 bytes")
		for _, kind := range []string{"", "text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", "application/json, x", "\t;;;", strings.Repeat("x", 8000)} {
			as := func(r *http.Request) { r.Header.Set("Content-Type", kind) }
			b.refused(t, fmt.Sprintf("%s as %.40q", c.path, kind), b.request(t, "POST", c.path, `{"name":"a"}`, as), 415, "content-type", "application/json")
		}
		b.refused(t, c.path+" with a query", b.request(t, "POST", c.path+"?name=a", `{}`), 400, "query parameter", "none here")
	}
}

// queries sends queries that are not the call's.
func (b *badInput) queries(t *testing.T, c ref) {
	for query, field := range map[string]string{
		"nonsense=1": "query parameter", "NAME=a": "query parameter", "a;b": "query", "%zz": "query", "&&&x": "query parameter",
		strings.Repeat("x&", 5000): "query parameter", strings.Repeat("=&", 5000): "query parameter",
	} {
		b.refused(t, c.path+"?"+query, b.request(t, "GET", c.path+"?"+query, ""), 400, field, "")
	}
	each(proto.Clone(c.request).ProtoReflect(), "", func(field string, _ protoreflect.Message, fd protoreflect.FieldDescriptor) {
		b.refused(t, field+" twice", b.request(t, "GET", c.path+"?"+field+"=a&"+field+"=a", ""), 400, field, "one value")
		if fd.Kind() == protoreflect.StringKind {
			b.refused(t, field+" not UTF-8", b.request(t, "GET", c.path+"?"+field+"=%ff", ""), 400, field, "UTF-8")
			return
		}
		for _, value := range []string{"", "x", "-1", "1.5", "0x1", "1e3", "%201", "18446744073709551616"} {
			a := b.request(t, "GET", c.path+"?"+field+"="+value, "")
			if f := a.fault(); a.status != 400 || f.Code != "INVALID" || f.Details["field"] != "query" || !strings.Contains(f.Message, field) {
				t.Errorf("%s with %s=%s: got %d %s, want 400 INVALID that names it", c.path, field, value, a.status, a.body)
			}
		}
	})
	b.refused(t, c.path+" with a body", b.request(t, "GET", c.path, `{"name":"a"}`), 400, "body", "none with GET")
}

// requests sends what is no request for any call.
func (b *badInput) requests(t *testing.T) {
	pages := []ref{{method: "GET", path: "/healthz"}, {method: "GET", path: "/readyz"}, {method: "GET", path: "/metrics"}, {method: "GET", path: "/v1/openapi.json"}}
	for _, c := range slices.Concat(calls, pages) {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"} {
			if method != c.method {
				b.refused(t, method+" "+c.path, b.request(t, method, c.path, ""), 405, "method", c.method)
			}
		}
		for _, path := range []string{c.path + "/", "/" + c.path, c.path + "x", strings.ToUpper(c.path), c.path + "%2f", c.path + "/..", "/v2" + c.path, c.path + strings.Repeat("/x", 4000)} {
			b.refused(t, fmt.Sprintf("%.40s", path), b.request(t, c.method, path, ""), 404, "path", "/v1/openapi.json")
		}
		for _, host := range []string{"example.com", "localhost.example.com", "10.0.0.1:7421", "0"} {
			as := func(r *http.Request) { r.Host = host }
			b.refused(t, c.path+" at "+host, b.request(t, c.method, c.path, "", as), 403, "host", "loopback")
		}
	}
}

// connections opens connections over which no request comes that can be read.
func (b *badInput) connections(t *testing.T) {
	port := strings.TrimPrefix(b.url, "http://")
	for what, c := range map[string]struct {
		sent   string
		status int // 0: hung up on
	}{
		"a long header":        {"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", 431},
		"many headers":         {"GET / HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: y\r\n", 100_000) + "\r\n", 431},
		"a long line":          {"GET /v1/lease?name=" + strings.Repeat("n", 1<<20) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 431},
		"nonsense":             {"nonsense\r\n\r\n", 400},
		"bytes":                {"\x00\x01\x02\x03\r\n\r\n", 400},
		"TLS":                  {"\x16\x03\x01\x00\x05hello\r\n\r\n", 400},
		"no Host":              {"GET /healthz HTTP/1.1\r\n\r\n", 400},
		"a control character":  {"GET /v1/lease?name=\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
		"a length below 0":     {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400},
		"two lengths":          {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400},
		"a length and chunks":  {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n", 400},
		"chunks without sense": {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n", 400},
		"gRPC without HTTP/2":  {"POST /coordd.v1.Coordd/Get HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/grpc\r\n\r\n", 404},
		"HTTP/2":               {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403},
		"HTTP/1.0":             {"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n", 200},
	} {
		if got := say(t, port, c.sent); got != c.status {
			t.Errorf("%s: got %d, want %d", what, got, c.status)
		}
	}
	// What is sent to the port of clients and members that is for neither.
	for _, sent := range []string{"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n", "nonsense\r\n\r\n", strings.Repeat("\x00", 1<<16), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense", "\x16\x03\x01\x00\x05hello"} {
		if got := say(t, b.addr, sent); got == 200 {
			t.Errorf("%.20q to the clients' port: got %d", sent, got)
		}
	}
	for _, addr := range []string{port, b.addr} {
		for range 300 { // that say nothing, or not all
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, "POST /v1/acq")
		}
	}
	if a := b.request(t, "GET", "/v1/leases", ""); a.status != 200 {
		t.Errorf("beside connections that say nothing: got %d %s, want 200", a.status, a.body)
	}
}

// say sends bytes and returns the status that comes back; 0: none does.
func say(t *testing.T, addr, sent string) (status int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { // it may be hung up on while it is sending
		_, _ = io.WriteString(c, sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
