package node

import (
	"errors"
	"io"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
)

// metrics counts what a node does. None has a label that grows with the leases.
// Those of leases are counted by the leader alone, so that sums over all
// members are true.
type metrics struct {
	clock clock.Clock

	grants    prometheus.Counter
	endings   [leases.WhyTransferred + 1]prometheus.Counter // by why
	refusals  *prometheus.CounterVec                        // of claims, by reason
	renewals  *prometheus.CounterVec                        // by outcome
	reclaims  *prometheus.CounterVec                        // by outcome
	stale     prometheus.Counter
	breaks    prometheus.Counter
	rounds    *prometheus.CounterVec // by outcome
	round     prometheus.Histogram
	batch     prometheus.Histogram
	commit    prometheus.Histogram
	apply     prometheus.Histogram
	lag       prometheus.Histogram
	snapshots prometheus.Counter
	snapshot  prometheus.Histogram
	watchers  prometheus.Gauge
	dropped   prometheus.Counter

	arbiterErrors *prometheus.CounterVec // by call
	arbiterCall   prometheus.Histogram
	changes       *prometheus.CounterVec // by why

	all    []prometheus.Collector
	gauges []gauge
	status func() Status
}

// Buckets of seconds: a hop on loopback to a disk that stalls.
var (
	seconds = prometheus.ExponentialBuckets(50e-6, 2.5, 13)
	sizes   = prometheus.ExponentialBuckets(1, 4, 7)
)

// newMetrics makes them; status tells what the gauges show.
func newMetrics(c clock.Clock, status func() Status) *metrics {
	m := &metrics{clock: c}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "coordd", Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	counters := func(name, label, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "coordd", Name: name, Help: help}, []string{label})
		m.all = append(m.all, c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "coordd", Name: name, Help: help, Buckets: buckets})
		m.all = append(m.all, h)
		return h
	}
	m.grants = counter("grants_total", "Leases granted, by the leader.")
	ended := counters("leases_ended_total", "why", "Leases that have ended, by the leader, and why.")
	for why := leases.WhyReleased; why <= leases.WhyTransferred; why++ {
		m.endings[why] = ended.WithLabelValues(why.String())
	}
	m.refusals = counters("claims_refused_total", "reason", "Acquires that were not granted, or whose outcome the leader did not learn, and why.")
	m.renewals = counters("renewals_total", "outcome", "Renewals of a lease, by the leader: renewed, refused, grace where it is to be reclaimed, or unknown where nothing was certain.")
	m.reclaims = counters("reclaims_total", "outcome", "Leases presented by their holders after a takeover: reclaimed, refused, grace where they are to be presented anew, or unknown.")
	m.stale = counter("stale_ops_total", "Ops refused since another epoch had begun.")
	m.breaks = counter("breaks_total", "Leases that an operator has broken, by the leader.")
	m.rounds = counters("rounds_total", "outcome", "Rounds in which the leader asked the voters to confirm its term: confirmed or failed.")
	m.round = histogram("round_seconds", "How long a round of the voters took.", seconds)
	m.batch = histogram("batch_ops", "Ops in one entry of the log, as it was applied.", sizes)
	m.commit = histogram("commit_seconds", "From the proposal of an entry to its having been applied on the leader.", seconds)
	m.apply = histogram("apply_seconds", "How long an entry took to be applied to the lease table.", seconds)
	m.lag = histogram("expiry_lag_seconds", "From the deadline of a lease to its having expired.", seconds)
	m.snapshots = counter("snapshots_total", "Snapshots of the lease table written.")
	m.snapshot = histogram("snapshot_seconds", "How long a snapshot took to be written.", prometheus.ExponentialBuckets(1e-3, 4, 9))
	m.arbiterErrors = counters("arbiter_errors_total", "call", "Calls of the arbiter that were not answered, by call: load or swap of the root register.")
	m.arbiterCall = histogram("arbiter_seconds", "How long the arbiter took to answer about the root register.", seconds)
	m.changes = counters("authority_changes_total", "why", "Changes of authority that this node has seen in the root register, by why: birth, takeover, forced, handover, failback, imported, bump, adopted.")
	m.watchers = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "coordd", Name: "watchers", Help: "Watches that this node serves."})
	m.dropped = counter("watchers_dropped_total", "Watches that ended since they fell too far behind, or asked for changes that were forgotten.")
	m.all = append(m.all, m.watchers)
	m.status = status
	for name, g := range map[string]gauge{
		"leases":         {help: "Leases held, as this node's table has them.", of: func(s Status) float64 { return float64(s.Leases) }},
		"waiters":        {help: "Acquires that wait in line, known to the leader alone.", of: func(s Status) float64 { return float64(s.Waiters) }},
		"leader":         {help: "1 on the node that leads and serves.", of: func(s Status) float64 { return one(s.Serving) }},
		"term":           {help: "Raft's term.", of: func(s Status) float64 { return float64(s.Term) }},
		"epoch":          {help: "Epoch of the fencing tokens.", of: func(s Status) float64 { return float64(s.Epoch) }},
		"revision":       {help: "Ops applied since the cluster's birth.", of: func(s Status) float64 { return float64(s.Revision) }},
		"voters":         {help: "Voting members that this node knows of.", of: func(s Status) float64 { return float64(s.voters()) }},
		"authority_mode": {help: "Who has authority, as this node knows: 0 not known or no arbiter, 1 raft, 2 fallback, 3 importing.", of: func(s Status) float64 { return s.Authority.mode() }},
		"window_left_seconds": {help: "How long this node, as the leader, may still grant and renew.", of: func(s Status) float64 {
			return s.Authority.seconds(func(a *AuthorityStatus) time.Duration { return a.WindowLeft })
		}},
		"grace_left_seconds": {help: "How long nothing is granted anew after a takeover.", of: func(s Status) float64 {
			return s.Authority.seconds(func(a *AuthorityStatus) time.Duration { return a.GraceLeft })
		}},
		"ttl_ceiling_seconds": {help: "The longest TTL that is granted: how long a grace is.", of: func(s Status) float64 {
			return s.Authority.seconds(func(a *AuthorityStatus) time.Duration { return a.Root.Ceiling() })
		}},
		"arbiter_reachable":   {help: "1 while the arbiter answers this node.", of: func(s Status) float64 { return one(s.Authority != nil && s.Authority.Arbiter.Reachable) }},
		"fullest_shard_ratio": {help: "How full the fullest shard of the arbiter's registers is, or would be: at 1 its names are not granted any more.", of: func(s Status) float64 { return s.Authority.fullest() }},
	} {
		g.desc = prometheus.NewDesc("coordd_"+name, g.help, nil, nil)
		m.gauges = append(m.gauges, g)
	}
	return m
}

// gauge is a number out of the node's status.
type gauge struct {
	help string
	of   func(Status) float64
	desc *prometheus.Desc
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func (s Status) voters() (n int) {
	for _, m := range s.Members {
		if m.Voter {
			n++
		}
	}
	return n
}

// Describe and Collect let all of them be registered, and taken back, as one.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(to)
	}
	for _, g := range m.gauges {
		to <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(to)
	}
	s := m.status()
	for _, g := range m.gauges {
		to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.of(s))
	}
}

// since is the time since then in seconds.
func (m *metrics) since(then clock.Instant) float64 { return m.clock.Now().Sub(then).Seconds() }

// claim counts what an acquire was answered.
func (m *metrics) claim(err error) {
	if err != nil {
		m.refusals.WithLabelValues(reason(err)).Inc()
	}
}

// reason is the label of an error.
func reason(err error) string {
	for _, row := range []struct {
		sentinel error
		reason   string
	}{
		{leases.ErrUnknownOutcome, "unknown_outcome"},
		{leases.ErrHeld, "held"},
		{leases.ErrNotHeld, "withdrawn"},
		{leases.ErrInvalid, "invalid"},
		{leases.ErrExhausted, "exhausted"},
		{leases.ErrNoQuorum, "no_quorum"},
		{leases.ErrClosed, "closed"},
		{leases.ErrGrace, "grace"},
	} {
		if errors.Is(err, row.sentinel) {
			return row.reason
		}
	}
	return "unavailable"
}

// arbiter notes a call of the arbiter that was sent at sent.
func (m *metrics) arbiter(call string, sent clock.Instant, err error) {
	m.arbiterCall.Observe(m.since(sent))
	if err != nil && !errors.Is(err, arbiter.ErrConflict) {
		m.arbiterErrors.WithLabelValues(call).Inc()
	}
}

// missed counts a watch that ended since its changes were forgotten.
func (m *metrics) missed(err error) {
	if errors.Is(err, leases.ErrMissed) {
		m.dropped.Inc()
	}
}

// renewed counts the answers to a renewal of n leases.
func (m *metrics) renewed(n int, answers []error, err error) {
	kept(m.renewals, "renewed", n, answers, err)
}

// reclaimed counts the answers to a reclaim of n leases.
func (m *metrics) reclaimed(n int, answers []error, err error) {
	kept(m.reclaims, "reclaimed", n, answers, err)
}

// kept counts how n leases were answered whose holder wants to keep them.
func kept(by *prometheus.CounterVec, yes string, n int, answers []error, err error) {
	if err != nil {
		by.WithLabelValues("unknown").Add(float64(n))
		return
	}
	for _, answer := range answers {
		switch {
		case answer == nil:
			continue
		case errors.Is(answer, leases.ErrNotHeld):
			by.WithLabelValues("refused").Inc()
		case errors.Is(answer, leases.ErrGrace):
			by.WithLabelValues("grace").Inc()
		default:
			by.WithLabelValues("unknown").Inc()
		}
		n--
	}
	by.WithLabelValues(yes).Add(float64(n))
}

// measuredFSM measures the state machine for Raft.
type measuredFSM struct {
	*fsm.FSM
	m *metrics
}

// Apply implements raft.FSM.
func (f measuredFSM) Apply(l *raft.Log) any {
	began := f.m.clock.Now()
	applied := f.FSM.Apply(l)
	f.m.apply.Observe(f.m.since(began))
	if a, ok := applied.(fsm.Applied); ok {
		f.m.batch.Observe(float64(len(a.Results)))
	}
	return applied
}

// Snapshot implements raft.FSM.
func (f measuredFSM) Snapshot() (raft.FSMSnapshot, error) {
	s, err := f.FSM.Snapshot()
	if err != nil {
		return nil, err
	}
	return measuredSnapshot{s, f.m}, nil
}

// Restore implements raft.FSM.
func (f measuredFSM) Restore(r io.ReadCloser) error { return f.FSM.Restore(r) }

type measuredSnapshot struct {
	raft.FSMSnapshot
	m *metrics
}

// Persist implements raft.FSMSnapshot.
func (s measuredSnapshot) Persist(sink raft.SnapshotSink) error {
	began := s.m.clock.Now()
	err := s.FSMSnapshot.Persist(sink)
	if err == nil {
		s.m.snapshots.Inc()
		s.m.snapshot.Observe(s.m.since(began))
	}
	return err
}

// measuredLog measures the log that a leader proposes to.
type measuredLog struct {
	fsm.Log
	m *metrics
}

// Apply implements fsm.Log.
func (l measuredLog) Apply(entry []byte, timeout time.Duration) raft.ApplyFuture {
	return measuredEntry{l.Log.Apply(entry, timeout), l.m, l.m.clock.Now()}
}

type measuredEntry struct {
	raft.ApplyFuture
	m     *metrics
	began clock.Instant
}

// Error implements raft.Future.
func (e measuredEntry) Error() error {
	err := e.ApplyFuture.Error()
	if err == nil {
		e.m.commit.Observe(e.m.since(e.began))
	}
	return err
}
