package fallback

import (
	"errors"
	"fmt"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// Next returns what to do now, or nil, and when to call again at the latest.
func (s *Shard) Next(now clock.Instant) (Action, clock.Instant) {
	if s.flight != nil || s.closed() != nil {
		return nil, never
	}
	s.gathering = s.gathering && len(s.queue) > 0
	if !s.started { // not all shards of all nodes at once
		s.started, s.looked = true, now.Add(-random(s.nonce(), pollHeld))
	}
	if now.Before(s.rest) {
		return nil, s.rest
	}
	if !s.usable {
		if len(s.queue) > 0 || len(s.reads) > 0 || s.lost || !now.Before(s.poll()) {
			return s.load(), never
		}
		return nil, s.poll()
	}
	if len(s.queue) > 0 {
		if at := s.gather(now); now.Before(at) && len(s.queue) < maxBatch {
			return nil, at
		}
		if a := s.batch(now); a != nil {
			return a, never
		}
	}
	if len(s.queue) > 0 || len(s.reads) > 0 || !now.Before(s.poll()) {
		return s.load(), never
	}
	if !now.Before(s.due) {
		// A read is cheaper than a write that fails because somebody has renewed.
		if s.began.Before(s.due) {
			return s.load(), never
		}
		if a := s.batch(now); a != nil {
			return a, never
		}
		s.due = now.Add(pollHeld) // nothing came of it
	}
	return nil, min(s.poll(), s.due)
}

// gather returns until when the first of the queue waits for others.
func (s *Shard) gather(now clock.Instant) clock.Instant {
	if !s.gathering {
		s.gathering, s.gathered = true, now.Add(gather)
	}
	return s.gathered
}

// poll is when the register is to be read though nobody asks.
func (s *Shard) poll() clock.Instant {
	switch {
	case s.interest:
		return s.looked.Add(pollWaited)
	case len(s.view.Leases) > 0 || !s.usable:
		return s.looked.Add(pollHeld)
	}
	return never
}

func (s *Shard) load() Action {
	s.begin(flight{})
	return Load{}
}

func (s *Shard) begin(f flight) {
	s.begun++
	f.number, f.epoch = s.begun, s.regime.Epoch
	s.flight = &f
}

// end returns the action that is over. What has come meanwhile has waited long enough.
func (s *Shard) end(now clock.Instant) *flight {
	f := s.flight
	s.flight = nil
	s.gathering, s.gathered = len(s.queue) > 0, now
	return f
}

// Loaded takes the answer to a Load. began is a reading of the clock between the Next
// that returned it and its sending, now one after its answer.
func (s *Shard) Loaded(began, now clock.Instant, reg arbiter.Register, err error) []Event {
	f := s.end(now)
	if err == nil && reg.Version < s.newest {
		err = setBack(s.index, s.newest, reg)
	}
	if err != nil {
		s.failed(now, f, err)
		return nil
	}
	s.failures = 0
	return s.learn(began, now, f.number, reg)
}

// Swapped takes the answer to a Swap; began and now are as with Loaded.
func (s *Shard) Swapped(began, now clock.Instant, err error) []Event {
	f := s.end(now)
	var conflict *arbiter.ConflictError
	var unknown *arbiter.UnknownError
	if errors.As(err, &unknown) && unknown.Found.Version == f.from+1 {
		// Who wrote that version is the only one who has written from ours.
		if err = nil; unknown.Found.Nonce != f.nonce {
			err = &arbiter.ConflictError{Key: unknown.Key, From: f.from, Found: unknown.Found}
		}
	}
	switch {
	case err == nil:
		return s.written(began, now, f)
	case errors.As(err, &conflict) && conflict.Found.Version >= s.newest:
		s.retry(now, f)
		return s.learn(began, now, f.number, conflict.Found)
	case errors.Is(err, arbiter.ErrConflict), errors.Is(err, arbiter.ErrUnreachable),
		errors.Is(err, arbiter.ErrTooLarge), errors.Is(err, arbiter.ErrInvalid):
		s.failed(now, f, err)
	default:
		s.outcomeUnknown(now, f, err)
	}
	return nil
}

// written takes note that a write has succeeded.
func (s *Shard) written(began, now clock.Instant, f *flight) (events []Event) {
	s.conflicts, s.failures = 0, 0
	s.newest = f.from + 1
	if f.epoch == s.regime.Epoch { // else all has been forgotten
		s.version, s.found, s.bad = s.newest, f.table.Shard(), nil
		s.confirmed, s.began, s.looked = f.number, began, now
		events = s.show(now, s.found, f.table)
	}
	for _, a := range f.asks {
		a.answer()
	}
	s.settleReads(f.number, nil)
	return events
}

// learn takes what the register was seen to hold by action number.
func (s *Shard) learn(began, now clock.Instant, number uint64, reg arbiter.Register) (events []Event) {
	s.newest = reg.Version
	if s.closed() != nil {
		return nil
	}
	s.confirmed, s.began, s.looked = number, began, now
	if !s.usable || reg.Version != s.version {
		s.usable, s.lost, s.version = true, false, reg.Version
		s.found, s.bad = leases.DecodeShard(reg.Data)
		switch {
		case s.bad != nil:
			s.bad = unavailable(s.index, unreadable(reg.Version, s.bad))
			s.due = never
		case s.found.Epoch > s.regime.Epoch && s.rules.On(rules.OpEpoch):
			s.passed = s.found.Epoch
			s.refuseAll(s.superseded())
			return nil
		default:
			events = s.show(now, leases.MoveShardUnder(s.rules, s.found, s.regime.Epoch, s.regime.RaftEpoch), nil)
		}
	}
	s.settleReads(number, s.bad)
	return events
}

// retry puts a batch that certainly was not written back before what waits.
func (s *Shard) retry(now clock.Instant, f *flight) {
	if s.conflicts++; s.conflicts > 1 {
		s.rest = now.Add(random(s.nonce(), conflictBackoff(s.conflicts-1)))
	}
	s.requeue(f, f.asks)
}

func (s *Shard) requeue(f *flight, asks []*ask) {
	if f.epoch == s.regime.Epoch {
		s.queue = append(asks, s.queue...)
		return
	}
	for _, a := range asks {
		a.refuse(s.over(f.epoch))
	}
}

// outcomeUnknown answers the ops that may have been carried out, or may yet be. The
// others have changed nothing either way: they are tried anew.
func (s *Shard) outcomeUnknown(now clock.Instant, f *flight, err error) {
	s.usable, s.lost = false, f.epoch == s.regime.Epoch
	var again, changed []*ask
	for _, a := range f.asks {
		if a.changes {
			changed = append(changed, a)
		} else {
			again = append(again, a)
		}
	}
	s.fail(now)
	s.requeue(f, again)
	for _, a := range changed {
		a.refuse(fmt.Errorf("%w: shard %d: %w", leases.ErrUnknownOutcome, s.index, err))
	}
}

// failed answers what an action was to serve that has certainly changed nothing.
func (s *Shard) failed(now clock.Instant, f *flight, err error) {
	err = unavailable(s.index, err)
	s.fail(now)
	for _, a := range f.asks {
		a.refuse(err)
	}
	for _, a := range s.take(f.number) {
		a.refuse(err)
	}
	s.settleReads(f.number, err)
}

func (s *Shard) fail(now clock.Instant) {
	s.failures++
	d := failureBackoff(s.failures)
	s.rest = now.Add(d/2 + random(s.nonce(), d/2))
}

// take takes those out of the queue that action number has served.
func (s *Shard) take(number uint64) (served []*ask) {
	var left []*ask
	for _, a := range s.queue {
		if a.after < number {
			served = append(served, a)
		} else {
			left = append(left, a)
		}
	}
	s.queue = left
	return served
}

// settleReads answers the reads that action number has served.
func (s *Shard) settleReads(number uint64, err error) {
	var served, left []read
	for _, r := range s.reads {
		if r.after < number {
			served = append(served, r)
		} else {
			left = append(left, r)
		}
	}
	s.reads = left
	for _, r := range served {
		r.done(err)
	}
}
