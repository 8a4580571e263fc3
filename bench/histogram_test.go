package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(r.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	if got := h.count(); got != uint64(len(all)) {
		t.Errorf("count: got %d, want %d", got, len(all))
	}
	for _, q := range []float64{.001, .5, .9, .99, .999, 1} {
		got, want := h.quantile(q), all[int(q*float64(len(all)))-1]
		if off := (got - want).Abs(); off > want/200+1 {
			t.Errorf("quantile %v: got %v, want %v within 0.5 %%", q, got, want)
		}
	}
}

func TestBuckets(t *testing.T) {
	last := -1
	for d := time.Duration(0); d < maxTook; d += 1 + d/300 {
		i := bucket(d)
		if i != last && i != last+1 {
			t.Fatalf("bucket(%d): got %d after %d", d, i, last)
		}
		if bucket(middle(i)) != i {
			t.Fatalf("bucket %d: its middle %d is in bucket %d", i, middle(i), bucket(middle(i)))
		}
		if off := (middle(i) - d).Abs(); off > d/256+1 {
			t.Fatalf("bucket(%d): its middle is %d, off by more than 0.4 %%", d, middle(i))
		}
		last = i
	}
	var h histogram
	for _, d := range []time.Duration{-time.Second, maxTook, 24 * time.Hour} {
		h.add(d) // must not be out of range
	}
	if got := h.quantile(1); bucket(got) != bucket(maxTook) {
		t.Errorf("the longest: got %v, want about %v", got, maxTook)
	}
}

func TestEmptyHistogram(t *testing.T) {
	if got := new(histogram).quantile(.5); got != 0 {
		t.Errorf("got %v, want 0", got)
	}
}
