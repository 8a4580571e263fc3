package drill

import (
	"testing"

	"github.com/coordd/coordd/tokens"
)

func TestRegister(t *testing.T) {
	r := newRegister(&hand{})
	for i, w := range []struct {
		name  string
		token tokens.Token
		want  bool
	}{
		{"a", 5, true}, {"a", 5, true}, {"a", 4, false}, {"b", 1, true}, {"a", 9, true}, {"a", 5, false},
	} {
		if got := r.write("w1", w.name, w.token); got != w.want {
			t.Errorf("write %d to %s under %v: got %v, want %v", i, w.name, w.token, got, w.want)
		}
	}
	if r.last("a") != 9 || r.last("b") != 1 || r.last("c") != 0 {
		t.Errorf("got %v, %v and %v", r.last("a"), r.last("b"), r.last("c"))
	}
	all := r.all()
	if len(all) != 6 || all[2].accepted || all[2].greatest != 5 || !all[4].accepted || all[5].greatest != 9 {
		t.Errorf("got %+v", all)
	}
}
