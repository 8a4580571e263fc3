package client

import "github.com/coordd/coordd/leases"

// inbox is what an attempt has been told of and has not read yet.
type inbox struct {
	answers []answer // to copies of its claim
	place   int      // in the queue, the newest one; 0: nothing new
	silent  bool     // nothing was heard for as long as it wanted to wait
}

// answer is what became of one copy.
type answer struct {
	copy  int
	grant leases.Grant
	err   error
}

// post lets put fill the inbox, and wakes the attempt.
func (l *Lease) post(put func(*inbox)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	put(&l.inbox)
	signal(l.wake)
}

// read empties the inbox.
func (l *Lease) read() (in inbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in, l.inbox = l.inbox, in
	return in
}

// signal puts a value into c, unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
