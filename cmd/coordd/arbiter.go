package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/arbiter/dynamodb"
)

func newArbiter() *cobra.Command {
	return group(&cobra.Command{
		Use:   "arbiter COMMAND",
		Short: "Make, check and look at the arbiter's registers",
		Long: `The arbiter decides who has authority over the leases of a cluster: its registers,
in one DynamoDB table, say which Raft group may act, and take the leases over when
that group has lost its majority. Several clusters may share a table, each under a name
of its own (coordd serve --arbiter-name).

The flags --table, --region, --endpoint, --profile and --name are those of coordd serve
that begin with --arbiter-, and come from the same environment variables:
COORDD_ARBITER_TABLE and so on. Credentials are found as AWS's own tools find them; an
emulator takes any, such as AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local.`,
		Example: `  coordd arbiter create-table --table coordd --region eu-central-1
  coordd arbiter check --table coordd --region eu-central-1
  coordd arbiter show`,
		DisableFlagsInUseLine: true,
	}, newArbiterAdopt(), newArbiterCheck(), newArbiterCreateTable(), newArbiterShow())
}

func newArbiterCreateTable() *cobra.Command {
	var (
		store    storeFlags
		emulator bool
		out      output
	)
	cmd := &cobra.Command{
		Use:   "create-table",
		Short: "Make the table that the arbiter's registers are in",
		Long: `Makes the table, paid by the request, with point-in-time recovery and protection from
deletion, and waits until it is ready: up to three minutes. Where it is there already
its key is looked at, and the other two are switched on if they are off. So it may be
called again. The exit code is

   0  the table is as it should be
  69  DynamoDB was not reached, or refuses; what was done until then is printed

It needs the permissions dynamodb:CreateTable, DescribeTable, UpdateTable,
DescribeContinuousBackups and UpdateContinuousBackups on the table. Members need no
more than GetItem and PutItem.

With -o json the fields are table, steps [{what, result, detail}].`,
		Example: `  coordd arbiter create-table --table coordd --region eu-central-1
  coordd arbiter create-table --endpoint http://127.0.0.1:8000 --region local --emulator`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table, err := store.dynamoDB(cmd.Context(), nil)
			if err != nil {
				return err
			}
			defer table.Close()
			done, failed := table.CreateTable(cmd.Context(), emulator)
			if failed == nil || len(done) > 0 {
				if err := out.print(cmd.OutOrStdout(), createdView{store.table, viewFindings(done)}); err != nil {
					return err
				}
			}
			if failed != nil {
				return &exit{exitUnavailable, failed}
			}
			return nil
		},
	}
	store.registerBare(cmd.Flags())
	cmd.Flags().BoolVar(&emulator, "emulator", false, "the store is an emulator of DynamoDB: pass over what it does not know")
	out.register(cmd)
	return cmd
}

// createdView is what arbiter create-table prints.
type createdView struct {
	Table string        `json:"table"`
	Steps []findingView `json:"steps"`
}

func (v createdView) writeText(w io.Writer) {
	fmt.Fprintf(w, "table %s\n\n", v.Table)
	writeFindings(w, "STEP", v.Steps)
}

// findingView is what one call, or one property of the table, has shown.
type findingView struct {
	What   string         `json:"what"`
	Result dynamodb.Grade `json:"result"`
	Detail string         `json:"detail"`
}

func viewFindings(all []dynamodb.Finding) []findingView {
	views := []findingView{}
	for _, f := range all {
		views = append(views, findingView{f.What, f.Grade, f.Detail})
	}
	return views
}

func writeFindings(w io.Writer, what string, all []findingView) {
	writeTable(w, what+"\tRESULT\tFOUND", len(all), func(i int) []string {
		return []string{all[i].What, string(all[i].Result), all[i].Detail}
	})
}

func newArbiterCheck() *cobra.Command {
	var (
		store storeFlags
		out   output
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether this machine can use the table as an arbiter",
		Long: `Looks whether the table is fit to be an arbiter, and makes each kind of call that a member
makes, ` + "from this machine and with these credentials, on the register " + dynamodb.ScratchKey + `:
reads, whose round trips are measured, a write under a condition, and a second one that
has to be refused. No cluster's register is touched. Call it on every machine that is to
run a member. The exit code is

   0  it can; a warning tells what should be mended
  69  it cannot, or DynamoDB was not reached

Members need the permissions dynamodb:GetItem and dynamodb:PutItem. Where others are
missing, what they let one look at is not looked at, and a warning says so.

With -o json the fields are table, result (ok, warning or failed), checks [{what, result,
detail}], reads, min_us, median_us, max_us (the round trips of so many reads).`,
		Example: `  coordd arbiter check --table coordd --region eu-central-1
  coordd arbiter check -o json | jq -r .result`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table, err := store.dynamoDB(cmd.Context(), nil)
			if err != nil {
				return err
			}
			defer table.Close()
			return printReport(cmd.OutOrStdout(), out, table.Check(cmd.Context(), "coordd arbiter check"))
		},
	}
	store.registerBare(cmd.Flags())
	out.register(cmd)
	return cmd
}

// printReport prints what was found, and returns an error if the table cannot be used.
func printReport(w io.Writer, out output, r dynamodb.Report) error {
	view := reportView{
		Table: r.Table, Result: r.Grade(), Checks: viewFindings(r.Findings), Reads: r.Reads,
		MinUS: r.Min.Microseconds(), MedianUS: r.Median.Microseconds(), MaxUS: r.Max.Microseconds(),
	}
	if err := out.print(w, view); err != nil {
		return err
	}
	if view.Result != dynamodb.Bad {
		return nil
	}
	var failed []string
	for _, c := range view.Checks {
		if c.Result == dynamodb.Bad {
			failed = append(failed, c.What)
		}
	}
	return &exit{exitUnavailable, errors.New("this machine cannot use the table as an arbiter: " + strings.Join(failed, ", "))}
}

// reportView is what arbiter check prints.
type reportView struct {
	Table    string         `json:"table"`
	Result   dynamodb.Grade `json:"result"`
	Checks   []findingView  `json:"checks"`
	Reads    int            `json:"reads"`
	MinUS    int64          `json:"min_us"`
	MedianUS int64          `json:"median_us"`
	MaxUS    int64          `json:"max_us"`
}

func (v reportView) writeText(w io.Writer) {
	fmt.Fprintf(w, "table %s: %s\n\n", v.Table, v.Result)
	writeFindings(w, "CHECK", v.Checks)
}
