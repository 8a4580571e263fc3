package main

import (
	"strings"
	"testing"
	"time"
)

func TestBusy(t *testing.T) {
	const stat = "cpu  100 10 20 9000 800 3 4 5 77 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	if got, want := busyIn(stat), (100+10+20+3+4+5)*tick; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := busyIn(""); got != 0 {
		t.Errorf("nothing: got %v, want 0", got)
	}
}

func TestTableIsAligned(t *testing.T) {
	var b strings.Builder
	table{{"what", "µs"}, {"one", "1"}, {"a longer one", "1234567"}}.write(&b)
	want := `
| what         |      µs |
|--------------|--------:|
| one          |       1 |
| a longer one | 1234567 |
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got:%s\nwant:%s", got, want)
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0", .0123: "0.0123", .5: "0.50", 9.94: "9.94", 12.34: "12.3", 99.4: "99.4", 99.9: "100", 123456.7: "123457"} {
		if got := number(x); got != want {
			t.Errorf("number(%v): got %q, want %q", x, got, want)
		}
	}
}

// A process's rates are by its own clock.
func TestResult(t *testing.T) {
	driver, one, two := new(process), new(process), new(process)
	samples := map[*process]*Sample{
		driver: {Took: 2 * time.Second, Steps: 40_000, CPU: time.Second, Mallocs: 200_000, P50: 1500 * time.Nanosecond},
		one:    {Took: time.Second, CPU: 500 * time.Millisecond, Mallocs: 20_000},
		two:    {Took: 4 * time.Second, CPU: time.Second, Mallocs: 80_000},
	}
	got := cell{}.result(samples, []*process{one, two}, driver, 3)
	want := Result{P50: 1.5, Rate: 20_000, ServerCPU: .375, ClientCPU: .25, ServerAllocs: 2, ClientAllocs: 5, Others: 3}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	embedded := cell{row: row{embedded: true, kind: "renew"}, leases: 10}
	got = embedded.result(samples, []*process{one, driver}, driver, 0)
	want = Result{P50: 1.5, Rate: 200_000, ServerCPU: .05, ServerAllocs: .6}
	if got != want {
		t.Errorf("embedded: got %+v, want %+v", got, want)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range []string{"-time 1ms", "-time 2h", "-rounds 0", "-conns 0", "-conns 513", "-leases 0", "-only (", "more", "-what"} {
		if s, err := parse(strings.Fields(args), t.Output()); err == nil {
			t.Errorf("%s: got %+v, want an error", args, s)
		}
	}
	s, err := parse([]string{"-quick", "-time", "1m", "-leases", "1000000"}, t.Output())
	if err != nil || s.time > time.Second || s.rounds != 1 || len(s.sizes()) != 1 {
		t.Errorf("quick: got %+v, %v", s, err)
	}
	if err := run(t.Context(), []string{"-only", "nothing"}, t.Output(), t.Output()); err == nil || !strings.Contains(err.Error(), "-list") {
		t.Errorf("no cell: got %v, want an error that names -list", err)
	}
}
