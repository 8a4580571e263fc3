package drill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/drill/loopback"
	"github.com/coordd/coordd/internal/history"
)

// stage is one run of a drill: the cluster, those who use it, and the record of both.
// Its methods are for the scenario's goroutine, except where they say otherwise.
type stage struct {
	cfg      Config
	clock    clock.Clock // the true one, in which all is recorded
	net      *loopback.Network
	history  *history.Recorder
	register *register
	journal  *journal
	sampler  *sampler

	members []*member
	actors  []*actor
	cast    []string // their names, also once they are gone
	workers []*actor // those of actors that work
	probe   *probe
	keeper  *keeper
	keeps   time.Duration // the keeper's TTL

	measured clock.Instant // since when the time without grants counts
	over     clock.Instant // until when; 0: the drill goes on
	lost     error         // why the keeper had lost its lease by then; nil: it had not
	running  sync.WaitGroup
	stop     context.CancelFunc // ends what runs
	graves   sync.WaitGroup     // the closing of nodes that were killed
}

func newStage(cfg Config, keeps time.Duration, progress func(Event)) *stage {
	s := &stage{
		cfg: cfg, clock: cfg.Clock, net: loopback.New(), history: history.NewRecorder(cfg.Clock),
		register: newRegister(cfg.Clock), journal: newJournal(cfg.Clock, progress), keeps: keeps,
	}
	for i := range nodeCount {
		s.members = append(s.members, &member{
			stage: s, name: fmt.Sprintf("n%d", i+1), site: sites[i*len(sites)/nodeCount],
			clock: newMachineClock(cfg.Clock), rand: cfg.chance(uint64(100 + i)),
		})
	}
	s.sampler = newSampler(s, s.members)
	return s
}

// readyWithin bounds the start of the cluster and of those who use it.
const readyWithin = 30 * time.Second

// begin starts everything, and waits until leases are granted.
func (s *stage) begin(ctx context.Context) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	s.journal.note(NoteEvent, "%d nodes start: n1 and n2 at site %s, n3 and n4 at site %s", nodeCount, sites[0], sites[1])
	for _, m := range s.members {
		if err := m.start(ctx); err != nil {
			return err
		}
	}
	running, stop := context.WithCancel(ctx)
	s.stop = stop
	s.running.Go(func() { s.sampler.run(running) })
	if err := s.until(ctx, readyWithin, "all nodes vote, and one of them leads", view.whole); err != nil {
		return err
	}
	return s.engage(ctx, running)
}

// reach makes sure that there is a way to the arbiter.
func (s *stage) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	_, err := s.cfg.Store.Load(ctx, authority.RootKey(s.cfg.Cluster))
	return err
}

// engage lets the keeper, the workers and the probe begin.
func (s *stage) engage(ctx, running context.Context) error {
	kept, err := s.actor("keeper")
	if err != nil {
		return err
	}
	asks, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	h, err := kept.acquire(asks, "kept", client.TTL(s.keeps))
	if err != nil {
		return err
	}
	s.keeper = &keeper{kept, h}
	s.running.Go(func() { s.keeper.watch(running) })
	for i := range Workers {
		w, err := s.actor(fmt.Sprintf("w%d", i+1))
		if err != nil {
			return err
		}
		s.workers = append(s.workers, w)
		chance := s.cfg.chance(uint64(i + 1))
		s.running.Go(func() { w.work(running, chance) })
	}
	asker, err := s.actor(prober)
	if err != nil {
		return err
	}
	s.probe = &probe{actor: asker}
	s.running.Go(func() { s.probe.run(running) })
	if err := s.granted(ctx, readyWithin); err != nil {
		return err
	}
	s.measured = s.clock.Now()
	return nil
}

// addresses are where all nodes listen.
func (s *stage) addresses() (all []string) {
	for _, m := range s.members {
		m.mu.Lock()
		all = append(all, m.addr)
		m.mu.Unlock()
	}
	return all
}

// stuckError says what the cluster did not do.
type stuckError struct {
	what   string
	within time.Duration
	view   view
}

func (e *stuckError) Error() string {
	return fmt.Sprintf("not within %v: %s (%v)", e.within, e.what, e.view)
}

// until waits until a view of the nodes satisfies a condition. Its error is a
// *stuckError, or the cause of ctx's end.
func (s *stage) until(ctx context.Context, within time.Duration, what string, is func(view) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer clock.AfterFunc(s.clock, s.clock.Now().Add(within), func() { cancel(errLate) }).Stop()
	for {
		v, more := s.sampler.latest()
		if v != nil && is(v) {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			if cause := context.Cause(ctx); cause != errLate {
				return cause
			}
			return &stuckError{what, within, v}
		}
	}
}

var errLate = errors.New("it takes too long")

// granted waits for a fresh grant that is asked for from now on.
func (s *stage) granted(ctx context.Context, within time.Duration) error {
	since := s.clock.Now()
	return s.until(ctx, within, "something is granted anew", func(view) bool {
		return since.Before(clock.Instant(s.probe.granted.Load()))
	})
}

// rest lets time pass. It is safe for concurrent use.
func (s *stage) rest(ctx context.Context, d time.Duration) {
	_ = clock.Wait(ctx, s.clock, s.clock.Now().Add(d)) // whoever calls it looks at ctx
}

// play carries out the scenario, and then lets everybody go home. It returns what kept
// it from its end.
func (s *stage) play(ctx context.Context, sc scenario) error {
	s.journal.phase(noInterruption, "all is well")
	s.rest(ctx, calm)
	err := sc.play(ctx, s)
	if err == nil {
		s.rest(ctx, calm)
		err = s.granted(ctx, recoverWithin)
	}
	s.over, s.lost = s.journal.end(), s.keeper.lease.Err()
	s.home()
	return err
}

// calm is for how long nothing is done to the cluster before the first fault, and after
// the last.
const calm = 1500 * time.Millisecond

// home mends everything, and ends the actors, so that they can give back what they hold.
func (s *stage) home() {
	s.net.Heal()
	for _, m := range s.members {
		m.arbiter(nil)
		m.clock.setRate(1)
	}
	for _, a := range s.actors {
		a.clock.goOn()
	}
	if s.stop != nil {
		s.stop()
	}
	s.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var leaving sync.WaitGroup
	for _, a := range s.actors {
		leaving.Go(func() { _ = a.close(ctx) }) // what is left of a lease lapses
	}
	leaving.Wait()
	s.actors = nil
}

// close ends everything that is left, also after a begin that has failed. The nodes keep
// nothing, so they are killed.
func (s *stage) close() {
	s.home()
	for _, m := range s.members {
		m.kill()
	}
	s.graves.Wait()
	s.net.Close()
}
