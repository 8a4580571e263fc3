package leases

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordd/coordd/tokens"
)

func claim(change func(*Claim)) Claim {
	c := Claim{Name: "job", Attempt: try1, TTL: 15 * time.Second, Owner: Owner{Label: "billing", Host: "host7", PID: 12}}
	change(&c)
	return c
}

// Each bound is tried just below, at and just beyond it.
func TestClaimValidate(t *testing.T) {
	const (
		wantTTL   = ": want from 1s to 5m0s, in whole milliseconds"
		wantName  = ": want 1 to 512 bytes of printable UTF-8 without a leading @"
		wantLabel = ": want at most 128 bytes of printable UTF-8"
	)
	for _, c := range []struct {
		name   string
		change func(*Claim)
		want   string // empty: valid
	}{
		{"plain", func(*Claim) {}, ""},
		{"no attempt", func(c *Claim) { c.Attempt = ID{} }, `invalid attempt "none": want 16 random bytes`},

		{"shortest ttl - 1", func(c *Claim) { c.TTL = MinTTL - time.Millisecond }, `invalid ttl "999ms"` + wantTTL},
		{"shortest ttl", func(c *Claim) { c.TTL = MinTTL }, ""},
		{"shortest ttl + 1", func(c *Claim) { c.TTL = MinTTL + time.Millisecond }, ""},
		{"longest ttl - 1", func(c *Claim) { c.TTL = MaxTTL - time.Millisecond }, ""},
		{"longest ttl", func(c *Claim) { c.TTL = MaxTTL }, ""},
		{"longest ttl + 1", func(c *Claim) { c.TTL = MaxTTL + time.Millisecond }, `invalid ttl "5m0.001s"` + wantTTL},
		{"no ttl", func(c *Claim) { c.TTL = 0 }, `invalid ttl "0s"` + wantTTL},
		{"negative ttl", func(c *Claim) { c.TTL = -time.Second }, `invalid ttl "-1s"` + wantTTL},
		{"part of a millisecond", func(c *Claim) { c.TTL = 2*time.Second + time.Microsecond }, `invalid ttl "2.000001s"` + wantTTL},

		{"no wait", func(c *Claim) { c.Wait = 0 }, ""},
		{"negative wait", func(c *Claim) { c.Wait = -1 }, `invalid wait "-1ns": want 0 or more`},
		{"wait for ever", func(c *Claim) { c.Wait = Forever }, ""},

		{"most attributes - 1", func(c *Claim) { c.Attributes = make([]byte, MaxAttributes-1) }, ""},
		{"most attributes", func(c *Claim) { c.Attributes = make([]byte, MaxAttributes) }, ""},
		{"most attributes + 1", func(c *Claim) { c.Attributes = make([]byte, MaxAttributes+1) }, `invalid attributes "513 bytes": want at most 512 bytes`},

		{"longest label - 1", func(c *Claim) { c.Owner.Label = strings.Repeat("l", MaxLabel-1) }, ""},
		{"longest label", func(c *Claim) { c.Owner.Label = strings.Repeat("l", MaxLabel) }, ""},
		{"longest label + 1", func(c *Claim) { c.Owner.Label = strings.Repeat("l", MaxLabel+1) }, `invalid owner label "` + strings.Repeat("l", 40) + `… (129 bytes)"` + wantLabel},
		{"longest site", func(c *Claim) { c.Owner.Site = strings.Repeat("é", MaxLabel/2) }, ""},
		{"longest site + 1", func(c *Claim) { c.Owner.Site = strings.Repeat("é", MaxLabel/2) + "s" }, `invalid owner site "` + strings.Repeat("é", 20) + `… (129 bytes)"` + wantLabel},
		{"longest host", func(c *Claim) { c.Owner.Host = strings.Repeat("h", MaxLabel) }, ""},
		{"longest host + 1", func(c *Claim) { c.Owner.Host = strings.Repeat("h", MaxLabel+1) }, `invalid owner host "` + strings.Repeat("h", 40) + `… (129 bytes)"` + wantLabel},
		{"unprintable label", func(c *Claim) { c.Owner.Label = "a\nb" }, `invalid owner label "a\nb"` + wantLabel},
		{"no owner", func(c *Claim) { c.Owner = Owner{} }, ""},

		{"no name", func(c *Claim) { c.Name = "" }, `invalid name ""` + wantName},
		{"shortest name", func(c *Claim) { c.Name = "n" }, ""},
		{"longest name - 1", func(c *Claim) { c.Name = strings.Repeat("n", MaxName-1) }, ""},
		{"longest name", func(c *Claim) { c.Name = strings.Repeat("n", MaxName) }, ""},
		{"longest name + 1", func(c *Claim) { c.Name = strings.Repeat("n", MaxName+1) }, `invalid name "` + strings.Repeat("n", 40) + `… (513 bytes)"` + wantName},
		{"reserved name", func(c *Claim) { c.Name = "@jobs" }, `invalid name "@jobs"` + wantName},
		{"@ within", func(c *Claim) { c.Name = "me@home" }, ""},
		{"spaces within", func(c *Claim) { c.Name = "nightly job" }, ""},
		{"other writing", func(c *Claim) { c.Name = "夜間バッチ/1" }, ""},
		{"control character", func(c *Claim) { c.Name = "a\x00b" }, `invalid name "a\x00b"` + wantName},
		{"escape sequence", func(c *Claim) { c.Name = "\x1b[2J" }, `invalid name "\x1b[2J"` + wantName},
		{"invisible character", func(c *Claim) { c.Name = "a\u200bb" }, `invalid name "a\u200bb"` + wantName},
		{"right to left override", func(c *Claim) { c.Name = "\u202eboj" }, `invalid name "\u202eboj"` + wantName},
		{"bad UTF-8", func(c *Claim) { c.Name = "a\xff" }, `invalid name "a\xff"` + wantName},
		{"a replacement character is one", func(c *Claim) { c.Name = "a\ufffd" }, ""},
	} {
		err := claim(c.change).Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: got %v, want no error", c.name, err)
		case c.want != "" && (err == nil || err.Error() != c.want || !errors.Is(err, ErrInvalid)):
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// What a client may ask for, a log entry can carry.
func TestValidClaimIsValidOp(t *testing.T) {
	op := Op{
		Kind: KindAcquire, Epoch: 1, Name: strings.Repeat("n", MaxName), Session: alice, Attempt: try1, TTL: MaxTTL, Attributes: make([]byte, MaxAttributes),
		Owner: Owner{strings.Repeat("l", MaxLabel), strings.Repeat("s", MaxLabel), strings.Repeat("h", MaxLabel), math.MaxUint32},
	}
	c := Claim{Name: op.Name, Attempt: op.Attempt, TTL: op.TTL, Owner: op.Owner, Attributes: op.Attributes}
	if err := c.Validate(); err != nil {
		t.Errorf("claim: got %v", err)
	}
	if err := op.Validate(); err != nil {
		t.Errorf("op: got %v", err)
	}
	if _, _, err := DecodeOp(AppendOp(nil, op)); err != nil {
		t.Errorf("decode: got %v", err)
	}
}

func TestOwnerString(t *testing.T) {
	for _, c := range []struct {
		owner Owner
		want  string
	}{
		{Owner{}, "somebody"},
		{Owner{Label: "billing"}, "billing"},
		{Owner{Host: "host7"}, "somebody on host7"},
		{Owner{Label: "billing", Host: "host7"}, "billing on host7"},
		{Owner{Label: "billing", PID: 12}, "billing (pid 12)"},
		{Owner{Label: "billing", Site: "aws"}, "billing (aws)"},
		{Owner{Label: "billing", Site: "aws", Host: "host7", PID: 12}, "billing on host7 (pid 12, aws)"},
	} {
		if got := c.owner.String(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.owner, got, c.want)
		}
	}
}

func TestStretchAndShrink(t *testing.T) {
	for _, c := range []struct{ d, stretched, shrunk time.Duration }{
		{0, 0, 0},
		{1, 2, 0},
		{time.Second, 1010 * time.Millisecond, 990 * time.Millisecond},
		{5 * time.Minute, 303 * time.Second, 297 * time.Second},
	} {
		if got := Stretch(c.d); got != c.stretched {
			t.Errorf("Stretch(%v): got %v, want %v", c.d, got, c.stretched)
		}
		if got := Shrink(c.d); got != c.shrunk {
			t.Errorf("Shrink(%v): got %v, want %v", c.d, got, c.shrunk)
		}
	}
	if got := Stretch(Forever); got != Forever {
		t.Errorf("Stretch(Forever): got %v", got)
	}
}

// Rounding never makes a wait too short or a validity too long, reckoned in
// whole numbers, and it is off by no more than 2 ns for any TTL.
func TestStretchAndShrinkAreSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(2*MaxTTL)).Draw(t, "d"))
		hundredth := big.NewRat(int64(d), 100)
		exact := new(big.Rat).SetInt64(int64(d))
		for _, c := range []struct {
			name  string
			over  *big.Rat // by how much it is on the safe side
			bound int64
		}{
			{"Stretch", new(big.Rat).Sub(big.NewRat(int64(Stretch(d)), 1), new(big.Rat).Add(exact, hundredth)), 2},
			{"Shrink", new(big.Rat).Sub(new(big.Rat).Sub(exact, hundredth), big.NewRat(int64(Shrink(d)), 1)), 2},
		} {
			if c.over.Sign() < 0 || c.over.Cmp(big.NewRat(c.bound, 1)) > 0 {
				t.Errorf("%s(%d): off by %v ns, want 0 to %d", c.name, d, c.over.FloatString(3), c.bound)
			}
		}
	})
}

func TestHeldValidate(t *testing.T) {
	for _, c := range []struct {
		held  Held
		field string // of the refusal; empty: none
	}{
		{Held{"job", 1}, ""},
		{Held{"job", tokens.Max}, ""},
		{Held{"job", 0}, "token"},
		{Held{"job", tokens.Max + 1}, "token"},
		{Held{"", 1}, "name"},
	} {
		err := c.held.Validate()
		var invalid *InvalidError
		if errors.As(err, &invalid) != (c.field != "") || invalid != nil && invalid.Field != c.field {
			t.Errorf("%v: got %v, want a refusal of %q", c.held, err, c.field)
		}
	}
}

// What a holder can have been granted, it can reclaim; anything else is refused.
func TestClaimedValidate(t *testing.T) {
	good := Claimed{Held: Held{Name: "job", Token: token(1)}, TTL: MaxTTL, Owner: Owner{Label: "billing"}, Attributes: make([]byte, MaxAttributes), AcquiredAt: noon}
	for _, c := range []struct {
		name   string
		change func(*Claimed)
		field  string // empty: valid
	}{
		{"all of it", func(*Claimed) {}, ""},
		{"name and ttl alone", func(c *Claimed) { *c = Claimed{Held: c.Held, TTL: MinTTL} }, ""},
		{"reserved name", func(c *Claimed) { c.Name = "@job" }, "name"},
		{"no token", func(c *Claimed) { c.Token = 0 }, "token"},
		{"token too great", func(c *Claimed) { c.Token = tokens.Max + 1 }, "token"},
		{"no ttl", func(c *Claimed) { c.TTL = 0 }, "ttl"},
		{"ttl too long", func(c *Claimed) { c.TTL = MaxTTL + time.Millisecond }, "ttl"},
		{"part of a millisecond", func(c *Claimed) { c.TTL = MinTTL + 1 }, "ttl"},
		{"unprintable host", func(c *Claimed) { c.Owner.Host = "\x00" }, "owner host"},
		{"too many attributes", func(c *Claimed) { c.Attributes = make([]byte, MaxAttributes+1) }, "attributes"},
	} {
		claimed := good
		c.change(&claimed)
		err := claimed.Validate()
		var invalid *InvalidError
		if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &invalid) || invalid.Field != c.field) {
			t.Errorf("%s: got %v, want an error about %q", c.name, err, c.field)
		}
	}
}
