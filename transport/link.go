package transport

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/coordd/coordd/leases"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/mux"
)

// connectTimeout bounds one attempt to connect, backoffLimit the pause between
// two. spareTime is how long a Conn keeps a connection that nobody uses.
const (
	connectTimeout = 5 * time.Second
	backoffLimit   = 3 * time.Second
	spareTime      = time.Minute
)

// NewClientConn returns a gRPC connection to the node at addr over n. It does
// no I/O yet. Its unary calls fail with the errors of package leases:
// ErrUnavailable where the request has certainly not left, else what the node
// said, else ErrUnknownOutcome. The caller closes it.
func NewClientConn(addr string, t *TLS, n Network) (*grpc.ClientConn, error) {
	l, err := newLink(addr, t, n, 0)
	if err != nil {
		return nil, err
	}
	return l.cc, nil
}

// link is a gRPC connection that remembers why it last could not be made:
// gRPC's own message buries that.
type link struct {
	addr   string
	cc     *grpc.ClientConn
	failed atomic.Pointer[error]
	dials  atomic.Uint64
	known  atomic.Uint64 // the dial whose connection leads to the pinned cluster; 0: none

	users int // guarded by the mu of the Conn that it belongs to
}

// newLink returns a link that disconnects when it was not used for the time of
// spare, and connects again for the next use; 0: it never does.
func newLink(addr string, t *TLS, n Network, spare time.Duration) (*link, error) {
	l := &link{addr: addr}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		l.dials.Add(1)
		conn, err := mux.Dial(ctx, n.Dial, addr, t.client(), mux.ProtoGRPC)
		if err != nil {
			l.failed.Store(&err)
			return nil, err
		}
		return &watched{Conn: conn, link: l}, nil
	}
	cc, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(dial),
		// The dialer does the TLS handshake, if there is one.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: backoffLimit},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithIdleTimeout(spare),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse), grpc.MaxCallSendMsgSize(maxRequest)),
		grpc.WithChainUnaryInterceptor(l.unary),
	)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	l.cc = cc
	return l, nil
}

func (l *link) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var to peer.Peer // stays empty if the request never had a connection to leave by
	err := invoke(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.Peer(&to))...)
	switch {
	case err == nil:
		return nil
	case to.Addr == nil:
		return l.unreached(ctx, err)
	}
	return FromGRPC(err)
}

// unreached returns what err says about a request that changed nothing: the
// node's own words, or why there were none as an *UnavailableError.
func (l *link) unreached(ctx context.Context, err error) error {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if _, ok := d.(*coorddv1.Status); ok {
			return FromGRPC(err)
		}
	}
	reason := connecting(st.Message())
	if failed := l.failed.Load(); failed != nil {
		reason = plain(*failed)
	} else if ctx.Err() != nil {
		reason = gaveUp(context.Cause(ctx))
	}
	return &leases.UnavailableError{Reason: text(reason, maxReason)}
}

// connecting is what gRPC's message says of a connection that could not be made,
// without gRPC's own words around it.
func connecting(message string) string {
	message = strings.TrimSuffix(strings.TrimPrefix(message, `connection error: desc = "`), `"`)
	message = strings.TrimPrefix(message, "transport: Error while dialing: ")
	if why, ok := strings.CutPrefix(message, "error reading server preface: "); ok {
		return "what listens there is no coordd node (" + why + ")"
	}
	return message
}

// gaveUp says in words that a context ended for cause.
func gaveUp(cause error) string {
	switch cause {
	case context.DeadlineExceeded:
		return "no answer in time"
	case context.Canceled:
		return "given up before there was an answer"
	}
	return cause.Error()
}

// plain leaves the addresses out of a network's error: the one is said anyway.
func plain(err error) string {
	if op, ok := err.(*net.OpError); ok {
		err = op.Err
	}
	if err == io.EOF {
		return "the server closed the connection"
	}
	return err.Error()
}

// watched tells its link what its first read came to: a server refuses a
// client's certificate, or plaintext, only after the client's handshake.
type watched struct {
	net.Conn
	link *link
	read atomic.Bool
}

func (c *watched) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.read.Load() && (n > 0 || err != nil) {
		c.read.Store(true)
		if err != nil {
			c.link.failed.Store(&err)
		} else {
			c.link.failed.Store(nil)
		}
	}
	return n, err
}

// borrow returns the link to addr for use until giveBack.
func (c *Conn) borrow(addr string) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[addr]
	if l == nil {
		var err error
		if l, err = newLink(addr, c.cfg.TLS, c.cfg.Network, spareTime); err != nil {
			return nil, &leases.UnavailableError{Reason: err.Error()}
		}
		c.links[addr] = l
	}
	l.users++
	return l, nil
}

// giveBack ends a use of l. Without users it is kept for the next if its address
// is one of the configuration's: connecting costs both ends a handshake, and
// when a leader has gone all of its clients search at once, again and again,
// until there is another. A spoiled one gets no new users.
func (c *Conn) giveBack(l *link, spoiled bool) {
	c.mu.Lock()
	l.users--
	unused := l.users == 0
	current := c.links[l.addr] == l
	if current && (spoiled || unused && !slices.Contains(c.cfg.Addrs, l.addr)) {
		delete(c.links, l.addr)
		current = false
	}
	c.mu.Unlock()
	if unused && !current {
		l.cc.Close()
	}
}

// spoiled reports whether whoever comes next had better connect anew, which
// looks the name up again and does not wait for gRPC's backoff. silent says that
// there was no answer over l: the node hangs, or is no longer there.
func (l *link) spoiled(silent bool) bool {
	state := l.cc.GetState()
	return silent || state != connectivity.Ready && state != connectivity.Idle
}
