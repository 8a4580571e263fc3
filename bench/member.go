package main

import (
	"context"
	"fmt"
	"os"

	"github.com/coordd/coordd/node"
)

// MemberConfig says how a member of a cluster starts.
type MemberConfig struct {
	Name string
	Data string // the data folder; empty: in memory
	Join string // the address of another member; empty: it founds the cluster
}

// Member is the role of a member of a coordd cluster.
type Member struct {
	Base
	node *node.Node
}

// Start starts the node on a port of the kernel's choice.
func (m *Member) Start(c MemberConfig, addr *string) error {
	config := node.Config{Name: c.Name, Data: c.Data, InMemory: c.Data == "", Listen: "127.0.0.1:0", Bootstrap: c.Join == ""}
	if c.Join != "" {
		config.Join = []string{c.Join}
	}
	n, err := node.New(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), prepareTime)
	defer cancel()
	if err := n.Start(ctx); err != nil {
		return err
	}
	m.node, *addr = n, n.Address()
	return nil
}

// Leads tells whether this member leads and serves, and so many members vote.
func (m *Member) Leads(members int, yes *bool) error {
	status := m.node.Status()
	voters := 0
	for _, other := range status.Members {
		if other.Voter && other.Reachable {
			voters++
		}
	}
	*yes = status.Serving && voters == members
	return m.node.Err()
}

// Load puts a load on the node as an embedded one.
func (m *Member) Load(l Load, _ *None) error {
	t, err := openLeases(l, m.node)
	return m.begin(l.Workers, t, err)
}

func (m *Member) close() {
	m.Base.close()
	if m.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime/2)
	defer cancel()
	if err := m.node.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "a member was not closed cleanly:", err)
	}
}
