package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

func newStatus() *cobra.Command {
	var (
		conn connection
		out  output
	)
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show the cluster, or who holds a lease",
		Long: `Without NAME: who leads, and every member of the cluster, as it is now. The exit
code is 0 when leases are granted, else 69 with the reason.

Where the cluster has an arbiter it shows too who has authority: in mode raft the
leader, as long as its window is open, by the arbiter's answers or by those of all
members that may take over; in mode fallback every member, by the arbiter's registers;
in mode importing, which is short, nobody. In the grace after a takeover holders renew
and reclaim their leases, but nothing is granted anew: the exit code is 69 then, and
the reason says when fresh grants begin.

With NAME, as coordd lease get NAME: who holds that lease, since when, at most how
long still, how many wait for it, and how the lease before it ended. The exit code
is 0 when that is certain, else, after --timeout, 69. "since" is the granting node's
time of day.

With -o json the fields are, for the cluster: serving, cluster, leader,
leader_address, term, epoch, revision, leases, waiters, election_timeout_ms,
members [{name, server_id, address, site, voter, leader, reachable,
round_trip_us, note}], answered_by, release, state, and with an arbiter authority
{mode, epoch, raft_epoch, group, owner, owner_term, sequence, takers, ttl_ceiling_ms,
grace_done, grace_left_ms, held, lease_ms, rho, window_left_ms, window_by, arbiter
{store, reachable, round_trip_us, errors, error}, shards {count, bytes, fullest,
fullest_bytes}, history [{epoch, mode, node, why, at}]}; for a lease: name, held,
token, owner {label, site, host, pid}, acquired_at, ttl_ms, at_most_ms, broken,
waiters, attributes (base64), last {token, why, next_token}. Tokens are decimal strings.
What is not known or does not apply is left out; later releases may add fields.`,
		Example: `  coordd status
  coordd status nightly
  coordd status --addr 10.0.0.1:7420,10.0.0.2:7420 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return printLease(cmd, &conn, out, args[0])
			}
			answer, err := conn.status(cmd.Context(), func(*coorddv1.StatusResponse) bool { return true })
			if err != nil {
				return err
			}
			return printCluster(cmd.OutOrStdout(), out, answer)
		},
		ValidArgsFunction: completeLease,
	}
	conn.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

func printCluster(w io.Writer, out output, answer *coorddv1.StatusResponse) error {
	view := viewCluster(answer.GetCluster())
	if err := out.print(w, view); err != nil {
		return err
	}
	if !view.Serving {
		return &exit{code: exitUnavailable, err: errors.New("no leases are granted: " + view.why())}
	}
	return nil
}

// clusterView is what status prints about a cluster.
type clusterView struct {
	Serving           bool         `json:"serving"`
	Cluster           string       `json:"cluster,omitempty"`
	Leader            string       `json:"leader,omitempty"`
	LeaderAddress     string       `json:"leader_address,omitempty"`
	Term              uint64       `json:"term"`
	Epoch             uint32       `json:"epoch"`
	Revision          uint64       `json:"revision"`
	Leases            uint64       `json:"leases"`
	Waiters           *uint64      `json:"waiters,omitempty"` // known to the leader alone
	ElectionTimeoutMS uint32       `json:"election_timeout_ms"`
	Members           []memberView `json:"members"`
	AnsweredBy        string       `json:"answered_by"`
	Release           string       `json:"release"`
	State             string       `json:"state,omitempty"`

	Authority *authorityView `json:"authority,omitempty"` // nil: there is no arbiter
}

type memberView struct {
	Name        string `json:"name"`
	ServerID    string `json:"server_id"`
	Address     string `json:"address"`
	Site        string `json:"site,omitempty"`
	Voter       bool   `json:"voter"`
	Leader      bool   `json:"leader"`
	Reachable   bool   `json:"reachable"`
	RoundTripUS uint32 `json:"round_trip_us,omitempty"`
	Note        string `json:"note,omitempty"`
}

func viewCluster(c *coorddv1.ClusterStatus) clusterView {
	view := clusterView{
		Serving:           c.GetServing(),
		Cluster:           c.GetCluster(),
		Leader:            c.GetLeader(),
		LeaderAddress:     c.GetLeaderAddress(),
		Term:              c.GetTerm(),
		Epoch:             c.GetEpoch(),
		Revision:          c.GetRevision(),
		Leases:            c.GetLeases(),
		ElectionTimeoutMS: c.GetElectionTimeoutMs(),
		Members:           []memberView{},
		AnsweredBy:        c.GetNode(),
		Release:           c.GetVersion(),
		State:             c.GetState(),
		Authority:         viewAuthority(c.GetAuthority()),
	}
	view.Serving = view.Serving && !view.Authority.grace() // renewals alone are served in one
	if view.Serving {
		view.Waiters = new(c.GetWaiters())
	}
	for _, m := range c.GetMembers() {
		view.Members = append(view.Members, memberView{
			Name:        m.GetName(),
			ServerID:    m.GetServerId(),
			Address:     m.GetAddress(),
			Site:        m.GetSite(),
			Voter:       m.GetVoter(),
			Leader:      m.GetLeader(),
			Reachable:   m.GetReachable(),
			RoundTripUS: m.GetRoundTripUs(),
			Note:        m.GetNote(),
		})
	}
	slices.SortStableFunc(view.Members, func(a, b memberView) int { return strings.Compare(a.Name, b.Name) })
	return view
}

// why says for what reason no leases are granted, as far as it is known.
func (v clusterView) why() string {
	var why string
	arbiter := v.Authority.why(v.leads())
	switch {
	case v.AnsweredBy == "":
		return "no node answered"
	case arbiter != "":
		why = arbiter
	case v.Leader == "":
		why = "no leader is known" + v.quorum()
	case v.leads():
		why = "the leader does not serve yet"
	default:
		why = v.Leader + " at " + v.LeaderAddress + " leads, but it does not answer"
	}
	return fmt.Sprintf("%s; node %s: %s", why, v.AnsweredBy, orNone(v.State))
}

// leads reports whether the answering node is the leader.
func (v clusterView) leads() bool { return v.Leader != "" && v.Leader == v.AnsweredBy }

// quorum says how many voters are reachable where they are too few.
func (v clusterView) quorum() string {
	voters, reachable := 0, 0
	for _, m := range v.Members {
		if m.Voter {
			voters++
			if m.Reachable {
				reachable++
			}
		}
	}
	if reachable > voters/2 || voters == 0 {
		return ""
	}
	return fmt.Sprintf(", and %d of %d voters can be reached where %d are needed", reachable, voters, voters/2+1)
}

func (v clusterView) writeText(w io.Writer) {
	held := fmt.Sprintf("%d held", v.Leases)
	if v.Waiters != nil {
		held += fmt.Sprintf(", %d waiting", *v.Waiters)
	}
	leader := v.Leader
	if leader != "" {
		leader += fmt.Sprintf(" at %s, term %d, epoch %d", v.LeaderAddress, v.Term, v.Epoch)
	}
	answered := v.AnsweredBy + ", release " + v.Release
	if v.State != "" {
		answered += ", " + v.State
	}
	grants := yesNo(v.Serving)
	if v.Serving {
		grants += v.Authority.granting()
	}
	pairs := []string{"grants leases", grants, "leader", orNone(leader), "leases", held}
	pairs = append(pairs, v.Authority.fields(v.leads())...)
	writeFields(w, append(pairs,
		"cluster", orNone(v.Cluster),
		"election timeout", milliseconds(v.ElectionTimeoutMS).String(),
		"answered by", answered)...)
	if len(v.Members) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "MEMBER\tADDRESS\tSITE\tROLE\tREACHABLE\tROUND TRIP\tNOTE")
	for _, m := range v.Members {
		fmt.Fprintln(t, strings.TrimRight(strings.Join(
			[]string{m.Name, m.Address, dash(m.Site), m.role(), yesNo(m.Reachable), m.roundTrip(), m.Note}, "\t"), "\t"))
	}
}

func (m memberView) role() string {
	switch {
	case m.Leader:
		return "leader"
	case m.Voter:
		return "voter"
	default:
		return "non-voter"
	}
}

func (m memberView) roundTrip() string {
	if m.RoundTripUS == 0 || !m.Reachable { // it is the last one measured
		return "-"
	}
	return fmt.Sprintf("%.1fms", float64(m.RoundTripUS)/1000)
}

func milliseconds(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
