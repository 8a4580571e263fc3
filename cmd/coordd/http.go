package main

import (
	"net"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/coordd/coordd/node"
)

// httpFlag is where a member answers HTTP: an address, off, or by default the
// port after its own on loopback.
type httpFlag string

const httpOff = "off"

func (h *httpFlag) String() string { return string(*h) }
func (h *httpFlag) Type() string   { return "host:port|off" }

func (h *httpFlag) Set(s string) error {
	if s != httpOff {
		if _, _, err := splitAddress(s); err != nil {
			return err
		}
	}
	*h = httpFlag(s)
	return nil
}

// address is what the flag comes to for a member that listens on listen.
func (h httpFlag) address(listen string) string {
	switch h {
	case httpOff:
		return ""
	case "":
		return besides(listen)
	}
	return string(h)
}

// besides is the port after one on loopback; empty: there is none.
func besides(listen string) string {
	host, port, err := splitAddress(listen)
	if err != nil || port == 0 || port == 1<<16-1 {
		return ""
	}
	if !onLoopback(host) {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.FormatUint(port+1, 10))
}

// onLoopback reports whether what listens on host can be reached from this
// machine alone.
func onLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip.IsLoopback()
}

// withMetrics lets a node that answers HTTP show its metrics and the process's.
func withMetrics(config *node.Config) {
	if config.HTTP == "" {
		return
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	config.Metrics = r
}
