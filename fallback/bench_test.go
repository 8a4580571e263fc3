package fallback

import (
	"fmt"
	"testing"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// One write of a shard with 100 leases, all of which are renewed by it: what it costs
// beside the arbiter's time.
func BenchmarkSwap(b *testing.B) {
	w := newWorld(b, rules.Set{})
	m := w.serve(fresh(2, 1))
	for i := range 100 {
		op := acquire(alice, leases.NewID())
		op.Name, op.Owner = fmt.Sprintf("billing/invoices/%03d", i), leases.Owner{Label: "billing", Host: "host7", PID: 4711, Site: "eu"}
		m.send(op)
	}
	m.settle()
	held := m.Leases()
	b.ReportAllocs()
	for b.Loop() {
		for _, l := range held {
			m.Ask(leases.Op{Kind: leases.KindRenew, Name: l.Name, Session: l.Session, Token: l.Token}, func(r leases.Result, err error) {
				if err != nil || r.Outcome != leases.Renewed {
					b.Fatal(r.Outcome, err)
				}
			})
		}
		m.settle()
	}
	b.ReportMetric(float64(len(w.reg.Data)), "bytes")
}

// One reading of such a shard, which somebody else has written.
func BenchmarkLoad(b *testing.B) {
	w := newWorld(b, rules.Set{})
	writer, m := w.serve(fresh(2, 1)), w.serve(fresh(2, 1))
	for i := range 100 {
		op := acquire(alice, leases.NewID())
		op.Name = fmt.Sprintf("billing/invoices/%03d", i)
		writer.send(op)
	}
	writer.settle()
	b.ReportAllocs()
	for b.Loop() {
		w.reg.Version++
		m.Read(func(err error) {
			if err != nil {
				b.Fatal(err)
			}
		})
		m.settle()
	}
}
