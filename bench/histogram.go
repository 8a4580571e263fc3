package main

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Each power of two of nanoseconds has 1<<subBits buckets, so that a value is
// known to within 0.4 %; what is longer than maxTook counts as that.
const (
	subBits = 7
	maxTook = time.Hour
)

// histogram counts durations. Its zero value is ready, and safe for concurrent use.
type histogram struct {
	buckets [(42 - subBits + 1) << subBits]atomic.Uint64
}

func (h *histogram) add(d time.Duration) { h.buckets[bucket(d)].Add(1) }

// bucket is the index of d's bucket: exact below 1<<subBits, and from there on
// the power of two and the subBits bits after the first.
func bucket(d time.Duration) int {
	v := uint64(min(max(d, 0), maxTook))
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - subBits
	return shift<<subBits + int(v>>shift)
}

// middle is the duration that the bucket i stands for.
func middle(i int) time.Duration {
	if i < 1<<subBits {
		return time.Duration(i)
	}
	shift := i>>subBits - 1
	low := uint64(i&(1<<subBits-1)|1<<subBits) << shift
	return time.Duration(low + 1<<shift/2)
}

// count is how many durations were added.
func (h *histogram) count() (n uint64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// quantile is the least duration that a fraction q of all do not exceed; 0 if
// there are none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(math.Ceil(q * float64(h.count())))
	var seen uint64
	for i := range h.buckets {
		if seen += h.buckets[i].Load(); seen >= rank && seen > 0 {
			return middle(i)
		}
	}
	return 0
}
