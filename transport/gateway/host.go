package gateway

import (
	"net"
	"net/netip"
	"strings"
)

func onLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// namesLoopback reports whether a Host header names this machine's loopback. A
// page of any web site can make a browser send requests here under the site's
// own name (DNS rebinding) and read the answers; with this check it cannot.
func namesLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.IsLoopback()
}
