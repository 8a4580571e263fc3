package gatewaytest

import "testing"

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		want    []string
		printed string
		ok      bool
	}{
		{nil, "anything", true},
		{[]string{`{}`}, `{}`, true},
		{[]string{`{}`}, ``, false},
		{[]string{`{}`}, `{"a":1}`, false},
		{[]string{`{"a":1}`}, `{}`, false},
		{[]string{`{"a":1}`}, `{"a":2}`, true},
		{[]string{`{"a":1}`}, `{"a":"2"}`, false},
		{[]string{`{"a":1}`}, `{"b":1}`, false},
		{[]string{`{"code":"HELD"}`}, `{"code":"NOT_HELD"}`, false},
		{[]string{`{"a":{"held":true}}`}, `{"a":{"held":false}}`, false},
		{[]string{`{"a":null}`}, `{"a":{"b":1}}`, true},
		{[]string{`{"a":{"b":1}}`}, `{"a":null}`, true},
		{[]string{`{"a":null}`}, `{"a":1}`, false},
		{[]string{`{"a":[]}`}, `{"a":[1]}`, false},
		{[]string{`{"a":[1]}`}, `{"a":[]}`, false},
		{[]string{`{"a":[1]}`}, `{"a":[2,3]}`, true},
		{[]string{`{"a":[1]}`}, `{"a":[2,"3"]}`, false},
		{[]string{`{"a":[]}`, `{"a":[1]}`}, "{\"a\":[]}\n{\"a\":[2]}\n{\"a\":[3]}", true},
		{[]string{`{"a":[]}`, `{"a":[1]}`}, `{"a":[]}`, false},
		{[]string{`{}`, `404`}, "{}\n404", true},
		{[]string{`{}`, `404`}, "{}\n200", false},
		{[]string{`{}`}, `not JSON`, false},
	} {
		if err := compare(tt.want, tt.printed); (err == nil) != tt.ok {
			t.Errorf("%q and %q: got %v, want ok: %v", tt.want, tt.printed, err, tt.ok)
		}
	}
}
