// Package identity keeps who a node is, in its data folder, and keeps two
// processes out of the same folder.
package identity

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/coordd/coordd/leases"
)

// Identity is who a node is. The incarnation belongs to the log: with the log
// goes the memory of votes, and a node that went on under its old incarnation
// would vote twice in one term.
type Identity struct {
	Name        string     `json:"name"`
	Incarnation string     `json:"incarnation"`           // 16 hexadecimal digits
	Cluster     leases.ID  `json:"cluster,omitzero"`      // zero: belongs to none yet
	Group       leases.ID  `json:"group,omitzero"`        // the Raft group within the cluster
	Arbitrated  bool       `json:"arbitrated,omitempty"`  // the arbiter knows the cluster
	Discard     bool       `json:"discard,omitempty"`     // its log is another incarnation's, and to be discarded first
	Founding    bool       `json:"founding,omitempty"`    // it has begun to found the cluster
	Founders    uint32     `json:"founders,omitempty"`    // how many nodes the cluster is founded with
	FirstEpoch  uint32     `json:"first_epoch,omitempty"` // of the cluster that it founds
	Recovered   *Recovered `json:"recovered,omitempty"`   // its log is what was left of the cluster's; nil once that is dealt with
	Starts      uint64     `json:"starts"`                // how often this incarnation has been started
	Members     []Member   `json:"members,omitempty"`     // those that it last knew of
}

// Recovered says what a node does before it serves from a recovered log.
type Recovered struct {
	Epoch          uint32 `json:"epoch"`                     // the one to begin: greater than any that was lost
	HoldersStopped bool   `json:"holders_stopped,omitempty"` // no lease need be waited for
}

// Member is another node, as this one last knew it.
type Member struct {
	ServerID string `json:"server_id"`
	Address  string `json:"address"`
	Starts   uint64 `json:"starts"` // the greater one's address is newer
}

// New returns the identity of a node that has just been born: its incarnation
// is drawn at random and it belongs to no cluster.
func New(name string) Identity {
	var b [8]byte
	rand.Read(b[:])
	return Identity{Name: name, Incarnation: hex.EncodeToString(b[:])}
}

// ServerID is the node's id within the Raft group: name.incarnation.
func (id Identity) ServerID() string { return id.Name + "." + id.Incarnation }

// NameOf is the node's name within a server id.
func NameOf(serverID string) string {
	if i := strings.LastIndexByte(serverID, '.'); i >= 0 {
		return serverID[:i]
	}
	return serverID
}

// SortMembers sorts by server id, so that a file changes only with its content.
func SortMembers(members []Member) {
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.ServerID, b.ServerID) })
}

// CheckName returns a *NameError unless the identity is the one of the node
// called name.
func (id Identity) CheckName(name string) error {
	if id.Name != name {
		return &NameError{Want: name, Found: id.Name}
	}
	return nil
}

func (id Identity) clone() Identity {
	id.Members = slices.Clone(id.Members)
	if id.Recovered != nil {
		r := *id.Recovered
		id.Recovered = &r
	}
	return id
}
