package drill

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
)

// sampleEvery is how often every node is looked at.
const sampleEvery = 20 * time.Millisecond

// sampler looks at every node again and again: it tells what changes, keeps what there
// is to draw, and compares what the nodes claim with promise I1.
type sampler struct {
	stage   *stage
	members []*member

	mu     sync.Mutex // guards what follows
	newest view
	looked chan struct{} // closed, and replaced, after each round of looks
	count  int
	late   time.Duration // the longest by which a look came later than it was to
	checks authorityCheck

	lanes     []lane // of the members
	authority lane
	leader    string
}

// lane collects what changes over time.
type lane []change

type change struct {
	at   clock.Instant
	kind SpanKind
	text string
}

// add notes a change, if it is one.
func (l *lane) add(at clock.Instant, kind SpanKind, text string) bool {
	if n := len(*l); n > 0 && (*l)[n-1].kind == kind && (*l)[n-1].text == text {
		return false
	}
	*l = append(*l, change{at, kind, text})
	return true
}

func newSampler(s *stage, members []*member) *sampler {
	return &sampler{stage: s, members: members, looked: make(chan struct{}), lanes: make([]lane, len(members))}
}

// run looks until ctx ends.
func (p *sampler) run(ctx context.Context) {
	c := p.stage.clock
	for next := c.Now(); clock.Wait(ctx, c, next) == nil; next = max(next.Add(sampleEvery), c.Now()) {
		p.delayed(c.Now().Sub(next))
		p.take(p.view())
	}
}

// delayed notes by how much this machine was late.
func (p *sampler) delayed(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = max(p.late, d)
}

// view looks at each node once.
func (p *sampler) view() (v view) {
	c := p.stage.clock
	for _, m := range p.members {
		before := c.Now()
		n := m.now()
		if n == nil {
			v = append(v, look{node: m.name, before: before, after: before})
			continue
		}
		status := n.Status()
		v = append(v, newLook(m.name, before, c.Now(), status))
	}
	return v
}

// take notes what was seen.
func (p *sampler) take(v view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range v {
		if l.up {
			p.count++
		}
		p.checks.take(l)
		p.lanes[i].add(l.before, l.kind(), l.text())
	}
	p.tell(v)
	p.newest = v
	close(p.looked)
	p.looked = make(chan struct{})
}

// text is what a span of the node's lane says.
func (l look) text() string {
	switch kind := l.kind(); kind {
	case SpanWindow, SpanLeads:
		return fmt.Sprintf("term %d", l.Term)
	case SpanRegisters, SpanGrace:
		return fmt.Sprintf("epoch %d", l.root.Epoch)
	default:
		return ""
	}
}

// tell notes changes of authority and of the leader. It is called with mu held.
func (p *sampler) tell(v view) {
	j := p.stage.journal
	if root := v.newest(); root.Epoch > 0 {
		kind, words := told(root)
		if p.authority.add(v[0].before, kind, fmt.Sprintf("epoch %d", root.Epoch)) {
			j.note(AuthorityEvent, "%s", words)
		}
	}
	if leader := v.leader(); leader != p.leader && leader != "" {
		p.leader = leader
		for _, l := range v {
			if l.node == leader {
				j.note(AuthorityEvent, "%s leads and has a window, in term %d", leader, l.Term)
			}
		}
	}
}

// told says what a root register means.
func told(root authority.Root) (SpanKind, string) {
	switch {
	case root.Mode == authority.Raft:
		return SpanRaft, fmt.Sprintf("mode raft, epoch %d: the leader of the Raft group grants", root.Epoch)
	case root.Mode == authority.Importing:
		return SpanImporting, fmt.Sprintf("mode importing, epoch %d: %s takes the leases over from the registers", root.Epoch, root.Owner.Node)
	case !root.GraceDone:
		return SpanGrace, fmt.Sprintf("mode fallback, epoch %d, by %s: holders renew and reclaim, nothing is granted anew yet", root.Epoch, root.Owner.Node)
	default:
		return SpanFallback, fmt.Sprintf("mode fallback, epoch %d: the nodes grant by the arbiter's registers", root.Epoch)
	}
}

// latest returns the newest view and what is closed when there is another.
func (p *sampler) latest() (view, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest, p.looked
}

// authorityCheck compares looks with promise I1: never may a Raft leader with an open
// window and a fallback epoch both grant or renew.
type authorityCheck struct {
	served   map[uint32]look // by fallback epoch: the first look that showed a node serve it
	evidence []string
	broken   map[string]bool // pairs that were told already
}

// take takes a look. An open window of an older epoch, seen after a fallback epoch was
// seen to be served, breaks the promise: that epoch cannot have ended but for a later one.
func (c *authorityCheck) take(l look) {
	if c.served == nil {
		c.served, c.broken = map[uint32]look{}, map[string]bool{}
	}
	if l.byRegisters {
		if _, ok := c.served[l.root.Epoch]; !ok {
			c.served[l.root.Epoch] = l
		}
	}
	if !l.window {
		return
	}
	for epoch, first := range c.served {
		pair := fmt.Sprint(l.node, epoch)
		if epoch <= l.root.Epoch || l.before.Before(first.after) || c.broken[pair] {
			continue
		}
		c.broken[pair] = true
		c.evidence = append(c.evidence, fmt.Sprintf(
			"%s had an open window in epoch %d, term %d, %v after %s was seen to serve fallback epoch %d",
			l.node, l.root.Epoch, l.Term, l.before.Sub(first.after).Round(time.Millisecond), first.node, epoch))
	}
}
