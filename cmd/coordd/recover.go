package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
)

func newRecover() *cobra.Command {
	var (
		data                string
		check, yes, stopped bool
		epoch               uint32
		out                 output
	)
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Go on with one member when a majority of the logs is lost for good",
		Long: `Makes the member with that data folder the only one of its cluster, with what its
log holds. It is the last resort, for when a majority of the members is lost for
good: as long as they may come back, wait for them. Where several logs are left,
look at each with --check and recover the one that ends with the greatest term,
then the greatest index.

Stop the node first. What the lost members had granted last may be missing in this
log. So the node, started again, serves only when every lease that it does not
know must have ended (just over 5 minutes after its start; at once with
--holders-stopped), and every token that it hands out is greater than all before:
the epoch is raised by 1024. Only what this log does not know of can be greater: if
this cluster has been recovered before, from another log, give --epoch, greater
than any that coordd status has ever shown.

The other members must never start again with their old data: empty their folders,
start them, and they join as new members.

With -o json, which needs --check or --yes, the fields are cluster, member,
last_term, last_index, leases, members, epoch, new_epoch, holders_stopped.`,
		Example: `  coordd recover --data /var/lib/coordd --check
  coordd recover --data /var/lib/coordd
  coordd recover --data /var/lib/coordd --holders-stopped --yes -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" {
				return usagef("--data (or %s) is missing: want the data folder of the member to go on with", envName("data"))
			}
			if out.format.value == "json" && !yes && !check {
				return usagef("-o json needs --check or --yes: nobody can be asked")
			}
			r, err := node.OpenRecovery(data, nil)
			if err != nil {
				return err
			}
			defer r.Close()
			if epoch != 0 {
				if err := r.Begin(epoch); err != nil {
					return err
				}
			}
			view := newRecoveryView(r, stopped)
			if err := out.print(cmd.OutOrStdout(), view); err != nil || check {
				return err
			}
			if !yes && !confirmed(cmd.InOrStdin(), cmd.ErrOrStderr(), "Type the member's name to go on: ", r.Name) {
				return usagef("nothing was changed: the name was not typed")
			}
			if err := r.Apply(stopped); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Done. Start %s, then the others with empty data folders.\n", r.Name)
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "data `folder` of the member to go on with")
	cmd.Flags().Uint32Var(&epoch, "epoch", 0, "the epoch to begin (default: 1024 after the log's)")
	cmd.Flags().BoolVar(&check, "check", false, "only look: change nothing")
	cmd.Flags().BoolVar(&stopped, "holders-stopped", false, "every process that held a lease has stopped: serve without waiting")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	out.register(cmd)
	return cmd
}

// confirmed asks for a word, typed as it is.
func confirmed(in io.Reader, out io.Writer, question, word string) bool {
	fmt.Fprint(out, question)
	line, _ := bufio.NewReader(in).ReadString('\n') // whatever ends it, it is not the word
	return strings.TrimSpace(line) == word
}

type recoveryView struct {
	Cluster        leases.ID `json:"cluster"`
	Member         string    `json:"member"`
	LastTerm       uint64    `json:"last_term"`
	LastIndex      uint64    `json:"last_index"`
	Leases         int       `json:"leases"`
	Members        []string  `json:"members"`
	Epoch          uint32    `json:"epoch"`
	NewEpoch       uint32    `json:"new_epoch"`
	HoldersStopped bool      `json:"holders_stopped"`
}

func newRecoveryView(r *node.Recovery, stopped bool) recoveryView {
	return recoveryView{
		Cluster: r.Cluster, Member: r.Name, LastTerm: r.LastTerm, LastIndex: r.LastIndex, Leases: r.Leases,
		Members: r.Members, Epoch: r.Epoch, NewEpoch: r.NewEpoch, HoldersStopped: stopped,
	}
}

func (v recoveryView) writeText(w io.Writer) {
	wait := "after " + leases.Stretch(leases.MaxTTL).String()
	if v.HoldersStopped {
		wait = "at once (--holders-stopped)"
	}
	writeFields(w,
		"cluster", v.Cluster.String(),
		"member", v.Member,
		"its log ends at", fmt.Sprintf("term %d, index %d", v.LastTerm, v.LastIndex),
		"leases in it", fmt.Sprint(v.Leases),
		"members so far", strings.Join(v.Members, ", "),
		"members then", v.Member+" alone",
		"epoch", fmt.Sprintf("%d, then %d", v.Epoch, v.NewEpoch),
		"serves", wait)
}
