package node

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node/internal/hook"
	"github.com/coordd/coordd/tokens"
	"github.com/coordd/coordd/transport"
)

// Defaults and bounds of a Config.
const (
	DefaultElectionTimeout = time.Second
	MinElectionTimeout     = 100 * time.Millisecond
	MaxElectionTimeout     = 10 * time.Second

	// DefaultReformAfter is long enough for a Raft group to come back by itself.
	DefaultReformAfter = 30 * time.Second

	DefaultMaxClaims         = 16384
	DefaultMaxWaiters        = 100000
	DefaultMaxWaitersPerName = 1000

	// MaxVoters is how many members vote at most; the others follow.
	MaxVoters = 7
	// MaxMembers is how many members there are at most, those that vote included.
	MaxMembers = 64
	// MaxJoin is how many addresses of other members a node is given at most.
	MaxJoin = 64
)

// Config is what a node needs to know. Name and Listen are required, and Data
// unless InMemory is set.
type Config struct {
	// Name tells the node from the other members: 1 to 63 letters, digits, - and
	// _. No two processes may run under one name at the same time.
	Name string
	// Site is where the node runs, for people ("aws", "azure-west").
	Site string
	// Data is the folder of the log, created with mode 0700 if it is missing.
	Data string
	// InMemory keeps the log in memory: for development and tests, since a node
	// that forgets its vote must never come back as the same member.
	InMemory bool
	// Listen is the TCP address for clients and members; Advertise (default:
	// where it listens) is the one that the others are told.
	Listen, Advertise string
	// HTTP is the TCP address for the same calls as JSON over HTTP, for metrics
	// and health; empty: none. It asks nobody for a certificate, so beyond
	// loopback it is refused unless Insecure is set.
	HTTP string
	// Join has the addresses of other members; the node's own may be among them.
	// They are used to found a cluster, to join one, and to find the members
	// again after all addresses have changed.
	Join []string
	// Bootstrap lets the node found a cluster, if its data folder is empty, every
	// member of Join answers that it belongs to none, and none of those that may
	// found too has a smaller name.
	Bootstrap bool
	// FirstEpoch is the epoch of a cluster founded by this node (default 1). Where
	// an earlier cluster handed out tokens to the same resources, it must exceed
	// that cluster's last epoch.
	FirstEpoch uint32
	// ElectionTimeout is how long a node waits for a leader (default 1 s).
	ElectionTimeout time.Duration

	// TLS is used towards clients and members alike; nil speaks plaintext, which
	// is refused beyond loopback unless Insecure is set.
	TLS      *transport.TLS
	Insecure bool

	// MaxClaims bounds the claims in flight, MaxWaiters and MaxWaitersPerName
	// those that queue for a name. 0: the default.
	MaxClaims, MaxWaiters, MaxWaitersPerName int

	// Arbiter, where it is not nil, decides who brings the cluster forth, and takes over
	// when quorum is lost (docs/protocol.md). It is the same for all nodes. Bootstrap,
	// FirstEpoch and Join are not needed with it: the nodes find each other by it, and
	// the log may be in memory.
	Arbiter arbiter.Store
	// ArbiterName tells the clusters that share an arbiter apart: 1 to 63 letters,
	// digits, - and _ (default "coordd").
	ArbiterName string
	// Authority is what a cluster that this node brings forth is to be like; one that
	// is there keeps what it was born with.
	Authority Authority
	// ReformAfter is how long the Raft group has no leader, while the arbiter has taken
	// over, before the nodes that see each other form another (default 30 s).
	ReformAfter time.Duration
	// AdminSocket is the path of the Unix socket for operators (default: AdminSocket in
	// Data; none where there is no Data).
	AdminSocket string

	// Reflection lets gRPC clients ask which calls there are.
	Reflection bool
	// Metrics gets the node's collectors as one, from New to Close; nil: nobody
	// asks for them. One that is a prometheus.Gatherer too, such as a Registry, is
	// served at /metrics of HTTP.
	Metrics prometheus.Registerer

	Network transport.Network // nil: TCP
	Clock   clock.Clock       // nil: the system's
	Log     *slog.Logger      // nil: silent

	// Testing is for this module's own tests.
	Testing hook.Testing
}

// Authority is what is fixed at the birth of a cluster with an arbiter.
type Authority struct {
	// Lease is L, the authority lease: how long a leader that reaches nobody may go on,
	// and the greater part of what a takeover takes. 1 s to 1 min (default 10 s).
	Lease time.Duration
	// Shards is how the leases are shared out among the arbiter's registers
	// (default leases.DefaultShards of leases.DefaultShardBytes each).
	Shards leases.Shards
	// CeilingFloor is the least that the ceiling of TTLs falls to: after a takeover
	// nothing is granted anew for as long as the ceiling (default 30 s).
	CeilingFloor time.Duration
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

// Validate fills in the defaults and returns every problem found, joined; each
// is an *leases.InvalidError.
func (c *Config) Validate() error {
	c.setDefaults()
	var problems []error
	refuse := func(field, value, bounds string) {
		problems = append(problems, &leases.InvalidError{Field: field, Value: value, Bounds: bounds})
	}
	if !validName.MatchString(c.Name) {
		refuse("name", c.Name, "1 to 63 letters, digits, - and _")
	}
	if len(c.Site) > 63 {
		refuse("site", c.Site[:63], "at most 63 bytes")
	}
	if (c.Data == "") != c.InMemory && c.Testing.Storage == nil {
		refuse("data", c.Data, "a folder, or storage in memory")
	}
	c.validateAuthority(refuse)
	if c.FirstEpoch > tokens.MaxEpoch/2 {
		refuse("first epoch", fmt.Sprint(c.FirstEpoch), fmt.Sprintf("1 to %d", tokens.MaxEpoch/2))
	}
	if c.ElectionTimeout < MinElectionTimeout || c.ElectionTimeout > MaxElectionTimeout {
		refuse("election timeout", c.ElectionTimeout.String(), fmt.Sprintf("%v to %v", MinElectionTimeout, MaxElectionTimeout))
	}
	if len(c.Join) > MaxJoin {
		refuse("join", fmt.Sprintf("%d addresses", len(c.Join)), fmt.Sprintf("at most %d addresses", MaxJoin))
	}
	for _, a := range append([]string{c.Listen}, c.Join...) {
		if _, _, err := net.SplitHostPort(a); err != nil {
			refuse("address", a, "host:port")
		}
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && c.Advertise == "" && unspecified(host) {
		refuse("advertised address", "none", "the host:port under which the others reach this node, since it listens on every address")
	}
	for _, b := range []struct {
		field string
		value int
	}{{"max claims", c.MaxClaims}, {"max waiters", c.MaxWaiters}, {"max waiters per name", c.MaxWaitersPerName}} {
		if b.value < 1 || b.value > 10_000_000 {
			refuse(b.field, fmt.Sprint(b.value), "1 to 10000000")
		}
	}
	if c.TLS == nil && !c.Insecure && c.Network == nil && !loopback(c.Listen) {
		refuse("listen address", c.Listen, "a loopback address, or TLS, or Insecure said aloud: without TLS anybody who reaches the port can take every lease")
	}
	if c.HTTP != "" {
		if _, _, err := net.SplitHostPort(c.HTTP); err != nil {
			refuse("http", c.HTTP, "host:port")
		} else if !c.Insecure && !loopback(c.HTTP) {
			refuse("http", c.HTTP, "a loopback address, or Insecure said aloud: anybody who reaches this port can take every lease")
		}
	}
	return errors.Join(problems...)
}

// validateAuthority looks at what belongs to the arbiter.
func (c *Config) validateAuthority(refuse func(field, value, bounds string)) {
	a := c.Authority
	if !validName.MatchString(c.ArbiterName) {
		refuse("arbiter name", c.ArbiterName, "1 to 63 letters, digits, - and _")
	}
	if a.Lease < authority.MinLease || a.Lease > authority.MaxLease || a.Lease%time.Millisecond != 0 {
		refuse("authority lease", a.Lease.String(), fmt.Sprintf("%v to %v, in whole milliseconds", authority.MinLease, authority.MaxLease))
	}
	if a.Shards.Count < 1 || a.Shards.Count > leases.MaxShards {
		refuse("shards", fmt.Sprint(a.Shards.Count), fmt.Sprintf("1 to %d", leases.MaxShards))
	}
	if a.Shards.Bytes < leases.MinShardBytes || a.Shards.Bytes > leases.MaxShardBytes {
		refuse("shard bytes", fmt.Sprint(a.Shards.Bytes), fmt.Sprintf("%d to %d", leases.MinShardBytes, leases.MaxShardBytes))
	}
	if a.CeilingFloor < leases.MinTTL || a.CeilingFloor > leases.MaxTTL || a.CeilingFloor%time.Millisecond != 0 {
		refuse("ttl ceiling floor", a.CeilingFloor.String(), fmt.Sprintf("%v to %v, in whole milliseconds", leases.MinTTL, leases.MaxTTL))
	}
	if c.ReformAfter < time.Second || c.ReformAfter > time.Hour {
		refuse("reform after", c.ReformAfter.String(), "1s to 1h")
	}
}

func (c *Config) setDefaults() {
	if c.ArbiterName == "" {
		c.ArbiterName = "coordd"
	}
	if c.Authority.Lease == 0 {
		c.Authority.Lease = authority.DefaultLease
	}
	if c.Authority.Shards.Count == 0 {
		c.Authority.Shards.Count = leases.DefaultShards
	}
	if c.Authority.Shards.Bytes == 0 {
		c.Authority.Shards.Bytes = leases.DefaultShardBytes
	}
	if c.Authority.CeilingFloor == 0 {
		c.Authority.CeilingFloor = authority.DefaultCeiling
	}
	if c.ReformAfter == 0 {
		c.ReformAfter = DefaultReformAfter
	}
	if c.AdminSocket == "" && c.Data != "" {
		c.AdminSocket = filepath.Join(c.Data, AdminSocket)
	}
	if c.FirstEpoch == 0 {
		c.FirstEpoch = 1
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = DefaultElectionTimeout
	}
	if c.MaxClaims == 0 {
		c.MaxClaims = DefaultMaxClaims
	}
	if c.MaxWaiters == 0 {
		c.MaxWaiters = DefaultMaxWaiters
	}
	if c.MaxWaitersPerName == 0 {
		c.MaxWaitersPerName = DefaultMaxWaitersPerName
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// loopback reports whether addr can be reached from this machine alone.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// unspecified reports whether a host to listen on means every address.
func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// random draws a number that tells one question from another.
func random() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}
