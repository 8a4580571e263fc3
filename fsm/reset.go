package fsm

import "github.com/coordd/coordd/leases"

// Reset forgets everything, for another Raft group whose log begins anew. Raft must
// have ended.
func (f *FSM) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table = leases.NewTableUnder(f.rules)
	f.feed.restart(leases.Position{})
}
