package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

const defaultAddr = "127.0.0.1:7420"

// connection has the flags of every command that talks to a cluster.
type connection struct {
	addrs   addresses
	timeout time.Duration // bounds the search for a node that serves
	tls     tlsFiles
}

func (c *connection) register(fs *pflag.FlagSet) {
	c.addrs = addresses{defaultAddr}
	fs.Var(&c.addrs, "addr", "nodes of the cluster; any that answers will do")
	fs.DurationVar(&c.timeout, "timeout", 15*time.Second, "how long to look for a node that serves leases")
	c.tls.register(fs)
}

// dial makes a connection to the cluster, without any I/O yet.
func (c *connection) dial() (*transport.Conn, error) {
	if c.timeout <= 0 {
		return nil, usagef("invalid --timeout %v: want more than 0s", c.timeout)
	}
	tls, err := c.tls.load()
	if err != nil {
		return nil, err
	}
	return transport.Dial(transport.DialConfig{Addrs: c.addrs, TLS: tls})
}

// Bounds of the pause between two questions to the cluster.
const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// status asks the cluster about a lease, or with an empty name about itself,
// until the answer is enough, and at most for the time of --timeout. Where that
// ends first the last answer is returned, or an error if there was none.
func (c *connection) status(ctx context.Context, name string, enough func(*coorddv1.StatusResponse) bool) (*coorddv1.StatusResponse, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var (
		last *coorddv1.StatusResponse
		said error // why there was no answer, by the last search that was not cut short
	)
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		answer, err := conn.Status(ctx, name)
		switch {
		case err == nil && enough(answer):
			return answer, nil
		case err == nil:
			last = answer
		case exitCode(err) != exitUnavailable:
			return nil, err
		case said == nil || ctx.Err() == nil:
			said = err
		}
		if sleep(ctx, pause) {
			continue
		}
		if last != nil {
			return last, nil
		}
		return nil, &exit{code: exitUnavailable, err: fmt.Errorf("%w (looked for %v, --timeout)", said, c.timeout)}
	}
}

// sleep reports whether ctx lasted so long.
func sleep(ctx context.Context, d time.Duration) bool {
	c := clock.System()
	return clock.Wait(ctx, c, c.Now().Add(d)) == nil
}

// tlsFiles has the flags for mutual TLS.
type tlsFiles struct{ cert, key, ca string }

func (f *tlsFiles) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.cert, "cert", "", "own certificate, a PEM `file`; with --key and --ca for TLS on both sides")
	fs.StringVar(&f.key, "key", "", "own certificate's key, a PEM `file`")
	fs.StringVar(&f.ca, "ca", "", "certificate authority that the other side's certificate must come from, a PEM `file`")
}

// load returns nil where no file was given: plaintext.
func (f *tlsFiles) load() (*transport.TLS, error) {
	if *f == (tlsFiles{}) {
		return nil, nil
	}
	if f.cert == "" || f.key == "" || f.ca == "" {
		return nil, usagef("--cert, --key and --ca belong together: give all three, or none for plaintext")
	}
	tls, err := transport.LoadTLS(f.cert, f.key, f.ca)
	if err != nil {
		return nil, &exit{code: exitUsage, err: err}
	}
	return tls, nil
}
