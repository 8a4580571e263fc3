package fallback

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/history"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// simulation runs several nodes' machines over the registers of two shards, with
// clients, and authority that goes to and fro between the registers and a Raft group.
// The group is one table whose ops take no time: what is simulated is what the registers
// take over from it, and hand back. Requests, answers and writes are lost, copied and
// late; nodes crash, and know of the authority what they were last told.
//
// Clocks: the nodes' run as fast as can be and the clients' as slow, so that a node's
// TTL(1+ρ) and a client's TTL(1−ρ) are both one TTL of true time.
type simulation struct {
	draw    func(n int) int // 0 to n-1
	set     rules.Set
	shards  leases.Shards
	now     clock.Instant // true time
	rec     *history.Recorder
	nonces  uint64
	against []string // what contradicts the promises, beside what rec shows

	registers [2]simRegister
	root      Regime
	mode      string // raft, fallback, importing or handing (over)
	began     clock.Instant
	nodes     []*simNode
	raft      *leases.Table
	deadlines map[string]clock.Instant // of the group's leases
	moving    []*simRewrite            // of the import or hand-over under way
	sleeping  []*simRewrite            // of earlier ones, which go on some time
	exported  []*leases.Lease
	landing   []simSwap // writes that are late

	names    []string
	clients  []*simClient
	requests []*simRequest
	granted  map[tokens.Token]string
	over     map[tokens.Token]bool   // their holders have sent their end
	newest   map[string]tokens.Token // that was held, by name
	gone     map[leases.ID]bool      // attempts that were withdrawn
	counts   map[string]int
}

type simRegister struct {
	reg    arbiter.Register
	shard  leases.Shard
	stamps map[string]clock.Instant // when a lease was last granted, renewed or reclaimed
}

type simSwap struct {
	shard int
	swap  Swap
}

// driven is a machine with at most one action under way.
type driven interface {
	next(now clock.Instant) Action
	loaded(began, now clock.Instant, reg arbiter.Register, err error)
	swapped(began, now clock.Instant, err error)
}

type simAction struct {
	act     Action
	began   clock.Instant
	arrived bool
	reg     arbiter.Register
	err     error
}

type simNode struct {
	serves bool
	shards [2]*simShard
}

type simShard struct {
	*Shard
	simAction
}

type simRewrite struct {
	*Rewrite
	simAction
	shard int
}

func (s *simShard) next(now clock.Instant) Action {
	a, _ := s.Next(now)
	return a
}

func (s *simShard) loaded(began, now clock.Instant, reg arbiter.Register, err error) {
	s.Loaded(began, now, reg, err)
}

func (s *simShard) swapped(began, now clock.Instant, err error) { s.Swapped(began, now, err) }

func (r *simRewrite) next(now clock.Instant) Action {
	a, _ := r.Next(now)
	return a
}

func (r *simRewrite) loaded(_, now clock.Instant, reg arbiter.Register, err error) {
	r.Loaded(now, reg, err)
}

func (r *simRewrite) swapped(_, now clock.Instant, err error) { r.Swapped(now, err) }

type simClient struct {
	name    string
	session leases.ID
	holds   map[string]*simHold // by lease name
}

// simHold is what a client knows of one name: an attempt, or a lease.
type simHold struct {
	attempt  leases.ID
	first    clock.Instant // sending of the attempt
	token    tokens.Token  // 0: not granted so far
	deadline clock.Instant
	holding  *history.Holding
	epoch    uint32 // to reclaim it in; 0: nobody has asked for that
}

// simRequest is one copy of a request.
type simRequest struct {
	c      *simClient
	op     leases.Op
	hold   *simHold
	sent   clock.Instant
	node   *simNode // nil: the Raft group
	end    func(history.Outcome, tokens.Token, error)
	heard  *bool // one copy was answered
	copied bool

	asked    bool
	answered bool
	result   leases.Result
	err      error
}

const simTTL = 10 * time.Second

func (s *simulation) Now() clock.Instant { return s.now }

// fast is what the nodes' clocks show.
func (s *simulation) fast() clock.Instant {
	return clock.Instant(float64(s.now)*(1+leases.Rho)) + clock.Instant(time.Microsecond)
}

func newSimulation(draw func(int) int, set rules.Set) *simulation {
	s := &simulation{
		draw: draw, set: set, shards: leases.Shards{Count: 2, Bytes: leases.DefaultShardBytes}, now: clock.Instant(time.Hour),
		mode: "raft", root: Regime{Epoch: 1, RaftEpoch: 1}, deadlines: map[string]clock.Instant{},
		granted: map[tokens.Token]string{}, over: map[tokens.Token]bool{}, gone: map[leases.ID]bool{}, newest: map[string]tokens.Token{}, counts: map[string]int{},
	}
	s.rec = history.NewRecorder(s)
	for i := 0; len(s.names) < 3; i++ { // two names in shard 0, one in shard 1
		name := fmt.Sprint("name", i)
		if k := s.shards.Of(name); k == 0 && len(s.names) < 2 || k == 1 && len(s.names) == 2 {
			s.names = append(s.names, name)
		}
	}
	for i := range 3 {
		s.nodes = append(s.nodes, s.newNode())
		s.clients = append(s.clients, &simClient{name: fmt.Sprint("c", i), session: leases.ID{0xc, byte(i + 1)}, holds: map[string]*simHold{}})
	}
	for k := range s.registers {
		s.registers[k].stamps = map[string]clock.Instant{}
	}
	s.raft = leases.NewTable()
	s.raft.Apply(leases.Op{Kind: leases.KindBirth, Epoch: 1, Cluster: leases.ID{1}, Founders: 1, Shards: s.shards})
	return s
}

func (s *simulation) newNode() *simNode {
	n := &simNode{}
	for k := range n.shards {
		n.shards[k] = &simShard{Shard: NewShard(uint32(k), s.shards, s.set, s.nonce)}
	}
	return n
}

func (s *simulation) nonce() (n arbiter.Nonce) {
	s.nonces++
	h := s.nonces * 0x9e3779b97f4a7c15
	for i := range 8 {
		n[i] = byte(h >> (8 * i))
	}
	return n
}

func (s *simulation) id() (id leases.ID) { return leases.ID(s.nonce()) }

func (s *simulation) chance(of int) bool { return s.draw(of) == 0 }

func pick[T any](s *simulation, from []T) T { return from[s.draw(len(from))] }

func (s *simulation) wrong(format string, args ...any) {
	s.against = append(s.against, fmt.Sprintf("%v: ", time.Duration(s.now)-time.Hour)+fmt.Sprintf(format, args...))
}

// run takes so many steps.
func (s *simulation) run(steps int) {
	for range steps {
		s.step()
		if len(s.against) > 0 {
			return
		}
	}
}

func (s *simulation) step() {
	switch n := s.draw(100); {
	case n < 10:
		s.now = s.now.Add(time.Duration(1+s.draw(20)) * 50 * time.Millisecond)
	case n < 14:
		s.now = s.now.Add(time.Duration(1+s.draw(5)) * time.Millisecond)
	case n < 26:
		s.clientStep()
	case n < 56:
		s.requestStep()
	case n < 86:
		node := pick(s, s.nodes)
		k := s.draw(2)
		for range 1 + s.draw(4) {
			s.drive(k, node.shards[k], &node.shards[k].simAction)
		}
	case n < 89:
		s.land()
	case n < 96:
		s.learn(pick(s, s.nodes))
	case n < 97:
		if s.chance(3) {
			s.crash()
		}
	default:
		s.authority()
	}
}

// crash has a node lose its memory; what it has sent may arrive yet.
func (s *simulation) crash() {
	i := s.draw(len(s.nodes))
	for k, sh := range s.nodes[i].shards {
		if swap, ok := sh.act.(Swap); ok && !sh.arrived {
			s.landing = append(s.landing, simSwap{k, swap})
		}
	}
	s.nodes[i] = s.newNode()
}

// drive begins an action of a machine, or has one arrive, or answered, or lost.
func (s *simulation) drive(k int, m driven, a *simAction) {
	now := s.fast()
	switch {
	case a.act == nil:
		*a = simAction{act: m.next(now), began: now}
		return
	case !a.arrived:
		a.arrived = true
		load := a.act == Action(Load{})
		switch n := s.draw(20); {
		case n == 0:
			a.err = arbiter.ErrUnreachable
		case n == 1 && !load:
			s.landing = append(s.landing, simSwap{k, a.act.(Swap)})
			a.err = &arbiter.UnknownError{Key: "k", Err: errors.New("late")}
		case load:
			a.reg = s.registers[k].reg
		default:
			a.err = s.swap(k, a.act.(Swap))
			if n == 2 && a.err == nil {
				a.err = &arbiter.UnknownError{Key: "k", Err: errors.New("the answer was lost")}
			}
		}
		return
	}
	done := *a
	*a = simAction{}
	if done.act == Action(Load{}) {
		m.loaded(done.began, now, done.reg, done.err)
	} else {
		m.swapped(done.began, now, done.err)
	}
}

// land has a late write take effect, or get lost for good.
func (s *simulation) land() {
	if len(s.landing) == 0 {
		return
	}
	i := s.draw(len(s.landing))
	late := s.landing[i]
	s.landing = slices.Delete(s.landing, i, i+1)
	if s.swap(late.shard, late.swap) == nil {
		s.counts["late writes"]++
	}
}

// swap is the arbiter's, and looks at each write.
func (s *simulation) swap(k int, w Swap) error {
	r := &s.registers[k]
	if r.reg.Version != w.From {
		s.counts["conflicts"]++
		return &arbiter.ConflictError{Key: "k", From: w.From, Found: r.reg}
	}
	next, err := leases.DecodeShard(w.Write.Data)
	if err != nil {
		s.wrong("a register that cannot be read: %v", err)
		return nil
	}
	s.look(k, r.shard, next)
	r.reg, r.shard = arbiter.Register{Version: w.From + 1, Nonce: w.Write.Nonce, Data: w.Write.Data}, next
	return nil
}

// look finds leases that have ended too early, and tokens that go back.
func (s *simulation) look(k int, was, now leases.Shard) {
	r := &s.registers[k]
	held := map[string]*leases.Lease{}
	for _, l := range now.Leases {
		held[l.Name] = l
	}
	if was.Epoch == now.Epoch { // else what is stale goes
		for _, l := range was.Leases {
			h := held[l.Name]
			ended := h == nil || h.Token != l.Token && h.Token.Epoch() == now.Epoch
			if ended && !s.over[l.Token] && !s.gone[l.Attempt] && s.now < r.stamps[l.Name].Add(l.TTL) {
				s.wrong("%s (%v) ended %v after it was renewed, TTL %v", l.Name, l.Token, s.now.Sub(r.stamps[l.Name]), l.TTL)
			}
		}
	}
	for _, l := range now.Leases {
		if l.Stamp == uint64(r.reg.Version)+1 {
			r.stamps[l.Name] = s.now
		}
		s.newer(l)
	}
}

// newer notes that a lease is held somewhere; none comes back after a greater token (I5).
func (s *simulation) newer(l *leases.Lease) {
	if l.Token < s.newest[l.Name] {
		s.wrong("%s: token %v is back after %v", l.Name, l.Token, s.newest[l.Name])
	}
	s.newest[l.Name] = max(s.newest[l.Name], l.Token)
}

// learn has a node read the root register.
func (s *simulation) learn(n *simNode) {
	r := Regime{}
	if s.mode == "fallback" || s.mode == "handing" {
		r = s.root
		r.FreshAt = s.fast().Add(simTTL)
	}
	n.serves = r.Epoch != 0
	for _, sh := range n.shards {
		sh.Serve(r)
	}
}

// authority takes a step of the authority protocol.
func (s *simulation) authority() {
	if len(s.sleeping) > 0 && s.chance(3) {
		if r := pick(s, s.sleeping); !r.Done() {
			s.drive(r.shard, r, &r.simAction)
		}
		return
	}
	switch s.mode {
	case "raft":
		if s.chance(15) {
			s.takeOver(false)
			if s.chance(2) { // a planned one
				s.mode = "handing"
				held := slices.Collect(s.raft.All())
				for k := range s.registers {
					of := slices.DeleteFunc(slices.Clone(held), func(l *leases.Lease) bool { return s.shards.Of(l.Name) != uint32(k) })
					s.moving = append(s.moving, &simRewrite{shard: k, Rewrite: NewInstall(uint32(k), s.shards, s.set, s.nonce, s.root.Epoch, s.root.RaftEpoch, of)})
				}
				s.counts["hand-overs"]++
			}
		}
	case "fallback":
		switch {
		case !s.root.Fresh && s.now >= s.began.Add(simTTL):
			s.root.Fresh = true
		case s.root.Fresh && s.chance(20): // F1
			s.mode, s.exported = "importing", nil
			s.root.Epoch++
			for k := range s.registers {
				s.moving = append(s.moving, &simRewrite{shard: k, Rewrite: NewSeal(uint32(k), s.shards, s.set, s.nonce, s.root.Epoch, s.root.RaftEpoch)})
			}
		}
	case "handing":
		switch {
		case s.move():
			s.mode, s.root.Fresh = "fallback", true
		case s.now >= s.began.Add(simTTL): // the ordinary grace; the hand-over may go on
			s.mode = "fallback"
			s.root.Fresh = true
			s.sleep()
		}
	case "importing":
		switch {
		case s.move():
			s.imported()
		case s.chance(20):
			s.takeOver(true)
		}
	}
}

func (s *simulation) takeOver(kept bool) {
	s.counts["takeovers"]++
	s.mode, s.began = "fallback", s.now
	s.root = Regime{Epoch: s.root.Epoch + 1, RaftEpoch: s.root.RaftEpoch, Fresh: kept, Ceiling: simTTL}
	s.sleep()
}

// sleep has a node fall asleep over what it is doing.
func (s *simulation) sleep() { s.sleeping, s.moving = append(s.sleeping, s.moving...), nil }

// move drives the rewrites of the shards, and reports whether they are done.
func (s *simulation) move() bool {
	left := 0
	for range 2 {
		for _, m := range s.moving {
			if !m.Done() {
				s.drive(m.shard, m, &m.simAction)
			}
		}
	}
	for _, m := range s.moving {
		if !m.Done() {
			left++
		}
	}
	if left > 0 {
		return false
	}
	for _, m := range s.moving {
		found, err := m.Result()
		if err != nil {
			s.wrong("rewrite: %v", err)
		}
		s.exported = append(s.exported, found...)
	}
	s.moving = nil
	return true
}

// imported is the import and F3.
func (s *simulation) imported() {
	s.counts["failbacks"]++
	parts := []leases.Op{
		{Kind: leases.KindImportPart, Epoch: s.root.Epoch, Leases: s.exported},
		{Kind: leases.KindImport, Epoch: s.root.Epoch, Count: uint32(len(s.exported))},
	}
	if len(s.exported) == 0 {
		parts = parts[1:]
	}
	for _, op := range parts {
		if r := s.raft.Apply(op); r.Outcome != leases.Staged && r.Outcome != leases.Imported {
			s.wrong("import: %v", r.Outcome)
		}
	}
	s.mode, s.root.RaftEpoch = "raft", s.root.Epoch
	clear(s.deadlines)
	for l := range s.raft.All() {
		s.newer(l)
		s.deadlines[l.Name] = s.now.Add(l.TTL)
	}
}
