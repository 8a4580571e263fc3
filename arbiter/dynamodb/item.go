package dynamodb

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordd/coordd/arbiter"
)

// The attributes of an item. Together with the longest key and data they stay below
// DynamoDB's 400 KB.
const (
	keyAttribute     = "LockKey"   // string; the table's hash key
	versionAttribute = "Version"   // number
	nonceAttribute   = "Nonce"     // string, hexadecimal
	valueAttribute   = "Value"     // string
	byAttribute      = "UpdatedBy" // string, for people only
	atAttribute      = "UpdatedAt" // string, for people only
)

// maxBy is how many bytes are kept of who has written.
const maxBy = 256

type item = map[string]types.AttributeValue

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(v arbiter.Version) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatUint(uint64(v), 10)}
}

func keyOf(key string) item { return item{keyAttribute: text(key)} }

// encode makes the item of a write.
func encode(key string, v arbiter.Version, w arbiter.Write) item {
	return item{
		keyAttribute:     text(key),
		versionAttribute: number(v),
		nonceAttribute:   text(w.Nonce.String()),
		valueAttribute:   text(string(w.Data)),
		byAttribute:      text(strings.ToValidUTF8(w.By[:min(len(w.By), maxBy)], "")),
		atAttribute:      text(time.Now().UTC().Format(time.RFC3339)), // nothing decides by it
	}
}

// decode returns the register that an item holds; no item: version 0. Its error says
// what was found instead.
func decode(i item) (arbiter.Register, error) {
	if len(i) == 0 {
		return arbiter.Register{}, nil
	}
	var r arbiter.Register
	n, _ := i[versionAttribute].(*types.AttributeValueMemberN)
	if n == nil {
		return r, garbage(i, versionAttribute, "a number from 1")
	}
	v, err := strconv.ParseUint(n.Value, 10, 64)
	if err != nil || v == 0 {
		return r, garbage(i, versionAttribute, "a number from 1")
	}
	nonce, _ := i[nonceAttribute].(*types.AttributeValueMemberS)
	if nonce == nil || len(nonce.Value) != hex.EncodedLen(len(r.Nonce)) {
		return r, garbage(i, nonceAttribute, "a string of 32 hexadecimal digits")
	}
	if _, err := hex.Decode(r.Nonce[:], []byte(nonce.Value)); err != nil {
		return r, garbage(i, nonceAttribute, "a string of 32 hexadecimal digits")
	}
	value, _ := i[valueAttribute].(*types.AttributeValueMemberS)
	if value == nil {
		return r, garbage(i, valueAttribute, "a string")
	}
	r.Version, r.Data = arbiter.Version(v), []byte(value.Value)
	return r, nil
}

// garbage says what an attribute is instead of what it has to be.
func garbage(i item, attribute, want string) error {
	return fmt.Errorf("its item is %w: attribute %s is %s, want %s; something else has written it", arbiter.ErrNotRegister, attribute, describe(i[attribute]), want)
}

func describe(a types.AttributeValue) string {
	switch a := a.(type) {
	case nil:
		return "missing"
	case *types.AttributeValueMemberS:
		return fmt.Sprintf("the string %.40q", a.Value)
	case *types.AttributeValueMemberN:
		return fmt.Sprintf("the number %.40s", a.Value)
	default:
		return "of type " + strings.TrimPrefix(fmt.Sprintf("%T", a), "*types.AttributeValueMember")
	}
}
