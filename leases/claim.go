package leases

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coordd/coordd/tokens"
)

// Bounds of what a client may ask for. A value outside of them is refused with
// an *InvalidError, never silently changed.
const (
	MinTTL        = time.Second // over the API
	DefaultTTL    = 15 * time.Second
	MinCommandTTL = 3 * time.Second // of coordd run
	MaxTTL        = 5 * time.Minute
	MaxName       = 512 // bytes
	MaxAttributes = 512 // bytes
	MaxLabel      = 128 // bytes of each of an owner's label, site and host
)

// Rho is the greatest fraction by which two machines' clocks may differ in
// rate. Whoever waits, waits (1+Rho) times as long; whoever relies on a
// validity, takes it for (1-Rho) times as long.
const Rho = 0.01

// Stretch is d·(1+Rho), rounded up: how long one waits for another's d. It is
// at most Forever.
func Stretch(d time.Duration) time.Duration {
	if s := math.Ceil(float64(d) * (1 + Rho)); s < math.MaxInt64 {
		return time.Duration(s)
	}
	return Forever
}

// Shrink is d·(1−Rho), rounded down: how long one may rely on a promised d.
func Shrink(d time.Duration) time.Duration { return time.Duration(float64(d) * (1 - Rho)) }

// FirstDeadline bounds the first deadline of a grant that waited: a waiter that
// died or sleeps blocks the name no longer than that.
const FirstDeadline = 5 * time.Second

// Forever is a wait without limit.
const Forever = time.Duration(math.MaxInt64)

// Owner tells people who holds a lease. It decides nothing.
type Owner struct {
	Label string `json:"label,omitempty"`
	Site  string `json:"site,omitempty"`
	Host  string `json:"host,omitempty"`
	PID   uint32 `json:"pid,omitempty"`
}

// String is a short form for messages, such as "billing on host7 (pid 12, aws)".
func (o Owner) String() string {
	s := o.Label
	if s == "" {
		s = "somebody"
	}
	if o.Host != "" {
		s += " on " + o.Host
	}
	var more []string
	if o.PID != 0 {
		more = append(more, fmt.Sprintf("pid %d", o.PID))
	}
	if o.Site != "" {
		more = append(more, o.Site)
	}
	if len(more) > 0 {
		s += " (" + strings.Join(more, ", ") + ")"
	}
	return s
}

// Claim asks for a lease.
type Claim struct {
	Name       string
	Attempt    ID // drawn at random for this one Acquire and its repeats
	TTL        time.Duration
	Wait       time.Duration // how long to queue for the name; 0: not at all; Forever
	Owner      Owner
	Attributes []byte // kept with the lease, for people and tools
}

// Validate returns nil or an *InvalidError that names field, value and bounds.
func (c Claim) Validate() error {
	if err := ValidateName(c.Name); err != nil {
		return err
	}
	switch {
	case c.Attempt.IsZero():
		return &InvalidError{Field: "attempt", Value: "none", Bounds: "16 random bytes"}
	case c.TTL < MinTTL || c.TTL > MaxTTL || c.TTL%time.Millisecond != 0:
		return &InvalidError{Field: "ttl", Value: c.TTL.String(), Bounds: fmt.Sprintf("from %v to %v, in whole milliseconds", MinTTL, MaxTTL)}
	case c.Wait < 0:
		return &InvalidError{Field: "wait", Value: c.Wait.String(), Bounds: "0 or more"}
	case len(c.Attributes) > MaxAttributes:
		return &InvalidError{Field: "attributes", Value: fmt.Sprintf("%d bytes", len(c.Attributes)), Bounds: fmt.Sprintf("at most %d bytes", MaxAttributes)}
	}
	for _, f := range []struct{ field, value string }{{"owner label", c.Owner.Label}, {"owner site", c.Owner.Site}, {"owner host", c.Owner.Host}} {
		if len(f.value) > MaxLabel || !printable(f.value) {
			return &InvalidError{Field: f.field, Value: clip(f.value, 40), Bounds: fmt.Sprintf("at most %d bytes of printable UTF-8", MaxLabel)}
		}
	}
	return nil
}

// ValidateName returns nil or an *InvalidError.
func ValidateName(name string) error {
	if name == "" || len(name) > MaxName || !printable(name) || name[0] == '@' {
		return &InvalidError{Field: "name", Value: clip(name, 40), Bounds: fmt.Sprintf("1 to %d bytes of printable UTF-8 without a leading @", MaxName)}
	}
	return nil
}

// ValidatePart checks what is compared with names without being one, such as
// the beginning of names. It may be empty. It returns nil or an *InvalidError.
func ValidatePart(field, s string) error {
	if s == "" || ValidateName(s) == nil {
		return nil
	}
	return &InvalidError{Field: field, Value: clip(s, 40), Bounds: fmt.Sprintf("at most %d bytes of printable UTF-8 without a leading @", MaxName)}
}

func printable(s string) bool {
	ascii := true
	for _, c := range []byte(s) {
		ascii = ascii && ' ' <= c && c <= '~'
	}
	if ascii { // which is nearly always so
		return true
	}
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Grant answers a Claim. It counts from the first sending of its attempt.
type Grant struct {
	Token      tokens.Token
	AcquiredAt time.Time // by the granting node's clock, for people only
	// Waited says that the lease must be confirmed by a renewal before it is
	// believed in: its first deadline may be shorter than its TTL.
	Waited bool
}

// Held names a lease by the token under which it was granted.
type Held struct {
	Name  string       `json:"name"`
	Token tokens.Token `json:"token"`
}

// Validate returns nil or an *InvalidError.
func (h Held) Validate() error {
	if err := ValidateName(h.Name); err != nil {
		return err
	}
	if h.Token == 0 || h.Token > tokens.Max {
		return &InvalidError{Field: "token", Value: fmt.Sprint(uint64(h.Token)), Bounds: fmt.Sprintf("1 to %d", uint64(tokens.Max))}
	}
	return nil
}

// Claimed is a lease as its holder presents it to reclaim it: what was granted,
// in full, since whoever takes over may know nothing of it.
type Claimed struct {
	Held
	TTL        time.Duration
	Owner      Owner
	Attributes []byte
	AcquiredAt time.Time
}

// Validate returns nil or an *InvalidError.
func (c Claimed) Validate() error {
	if err := c.Held.Validate(); err != nil {
		return err
	}
	return Claim{Name: c.Name, Attempt: ID{1}, TTL: c.TTL, Owner: c.Owner, Attributes: c.Attributes}.Validate()
}
