package registers

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
)

// maxBody bounds a request: an item has at most 400 KB.
const maxBody = 1 << 20

// api is the prefix of what X-Amz-Target names.
const api = "DynamoDB_20120810."

// ServeHTTP answers one call.
func (t *Table) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := t.call(strings.TrimPrefix(r.Header.Get("X-Amz-Target"), api), http.MaxBytesReader(w, r.Body, maxBody))
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		answer = err
	}
	_ = json.NewEncoder(w).Encode(answer) // whoever has left needs no answer
}

// refusal is the body of an error.
type refusal struct {
	Type    string `json:"__type"`
	Message string `json:"message"`
	Item    Item   `json:",omitempty"` // of ConditionalCheckFailedException
}

func (r *refusal) Error() string { return r.Type + ": " + r.Message }

func refuse(kind, format string, args ...any) *refusal {
	return &refusal{Type: "com.amazonaws.dynamodb.v20120810#" + kind, Message: fmt.Sprintf(format, args...)}
}

// invalid refuses what DynamoDB refuses, or what it knows and a Table does not.
func invalid(format string, args ...any) *refusal {
	return refuse("ValidationException", format, args...)
}

// call carries out one operation.
func (t *Table) call(operation string, body io.Reader) (any, *refusal) {
	var in input
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, invalid("%s: %v", operation, err)
	}
	if in.TableName != t.name {
		return nil, refuse("ResourceNotFoundException", "Requested resource not found: Table: %s not found", in.TableName)
	}
	switch operation {
	case "GetItem":
		return t.getItem(in)
	case "PutItem":
		return t.putItem(in)
	case "DescribeTable":
		return t.describe(), nil
	case "DescribeTimeToLive":
		return object{"TimeToLiveDescription": object{"TimeToLiveStatus": "DISABLED"}}, nil
	}
	return nil, refuse("UnknownOperationException", "%q", operation)
}

// input is the parameters of all operations.
type input struct {
	TableName                           string
	Key, Item                           Item
	ConsistentRead                      bool
	ConditionExpression                 string
	ExpressionAttributeNames            map[string]string
	ExpressionAttributeValues           map[string]Value
	ReturnValuesOnConditionCheckFailure string
}

type object map[string]any

// getItem refuses reads that may be old: a register must never be read like that.
func (t *Table) getItem(in input) (any, *refusal) {
	if !in.ConsistentRead {
		return nil, invalid("GetItem without ConsistentRead may return an old item")
	}
	if len(in.Key) != 1 || in.Key.key() == "" {
		return nil, invalid("the key is %v, want %s, a string", in.Key, Key)
	}
	item := t.Get(in.Key.key())
	if item == nil {
		return object{}, nil
	}
	return object{"Item": item}, nil
}

// putItem refuses writes without a condition: they could undo another's.
func (t *Table) putItem(in input) (any, *refusal) {
	if in.Item.key() == "" {
		return nil, invalid("the item has no %s, a string", Key)
	}
	holds, err := in.condition()
	if err != nil {
		return nil, err
	}
	old, done := t.putIf(in.Item, holds)
	if done {
		return object{}, nil
	}
	failed := refuse("ConditionalCheckFailedException", "The conditional request failed")
	if in.ReturnValuesOnConditionCheckFailure == "ALL_OLD" {
		failed.Item = old
	}
	return nil, failed
}

// condition is what the item that is there has to satisfy: that there is none, or that
// an attribute of it has a value.
func (in *input) condition() (holds func(Item) bool, err *refusal) {
	expression := in.ConditionExpression
	for placeholder, name := range in.ExpressionAttributeNames {
		switch expression {
		case "attribute_not_exists(" + placeholder + ")":
			if name != Key {
				return nil, invalid("attribute_not_exists(%s): want the key", name)
			}
			return func(old Item) bool { return old == nil }, nil
		default:
			left, right, _ := strings.Cut(expression, " = ")
			if value, ok := in.ExpressionAttributeValues[right]; ok && left == placeholder {
				return func(old Item) bool { return old != nil && maps.Equal(old[name], value) }, nil
			}
		}
	}
	return nil, invalid("the condition is %q, want attribute_not_exists(#key) or #name = :value", expression)
}

// describe tells of a table as coordd arbiter create-table makes it.
func (t *Table) describe() any {
	return object{"Table": object{
		"TableName":                 t.name,
		"TableArn":                  "arn:aws:dynamodb:local:000000000000:table/" + t.name,
		"TableStatus":               "ACTIVE",
		"AttributeDefinitions":      []object{{"AttributeName": Key, "AttributeType": "S"}},
		"KeySchema":                 []object{{"AttributeName": Key, "KeyType": "HASH"}},
		"BillingModeSummary":        object{"BillingMode": "PAY_PER_REQUEST"},
		"DeletionProtectionEnabled": true,
	}}
}
