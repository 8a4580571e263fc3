package nodetest

import (
	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/authority"
)

// Arbiter is what all nodes' ways lead to. It is safe for concurrent use.
func (c *Cluster) Arbiter() *arbiter.Memory { return c.arbiter }

// Way is node i's way to the arbiter.
func (c *Cluster) Way(i int) *faulty.Store { return c.members[i].way }

// CutArbiter keeps nodes from the arbiter, until MendArbiter.
func (c *Cluster) CutArbiter(nodes ...int) {
	c.Note("cut the arbiter off from %v", nodes)
	for _, i := range nodes {
		c.members[i].way.SetPlan(func(faulty.Call) faulty.Fault { return faulty.Fault{Kind: faulty.Unreachable} })
	}
}

// MendArbiter lets all nodes reach the arbiter.
func (c *Cluster) MendArbiter() {
	c.Note("mend the ways to the arbiter")
	for _, m := range c.members {
		m.way.SetPlan(nil)
	}
}

// Root is the root register.
func (c *Cluster) Root() authority.Root {
	c.t.Helper()
	reg, err := c.arbiter.Load(c.t.Context(), authority.RootKey("coordd"))
	if err != nil || reg.Version == 0 {
		return authority.Root{}
	}
	root, err := authority.DecodeRoot(reg.Data)
	if err != nil {
		c.t.Fatal(err)
	}
	return root
}

// Mode waits until the root register shows a mode, and returns it then.
func (c *Cluster) Mode(mode authority.Mode) (root authority.Root) {
	c.t.Helper()
	c.eventually("the mode is "+string(mode), func() bool {
		root = c.Root()
		return root.Mode == mode
	})
	c.Note("the mode is %s, epoch %d", root.Mode, root.Epoch)
	c.History.Epoch(root.Epoch)
	return root
}
