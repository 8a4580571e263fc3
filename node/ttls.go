package node

import "time"

// ttls counts claims by their TTLs.
type ttls map[time.Duration]int

func (t ttls) add(ttl time.Duration) { t[ttl]++ }

func (t ttls) remove(ttl time.Duration) {
	if t[ttl]--; t[ttl] == 0 {
		delete(t, ttl)
	}
}

func (t ttls) longest() (ttl time.Duration) {
	for d := range t { //arch:any-order it looks for the greatest
		ttl = max(ttl, d)
	}
	return ttl
}

// longestTTL is the longest TTL that is held, in flight or waited for. Once may refuses
// longer ones, none comes in behind its back.
func (t *tenure) longestTTL() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.ttls.longest(), t.replicator.longest())
}
