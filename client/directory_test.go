package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordd/coordd/leases"
)

func TestGet(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		l := acquire(t, a, "x", Label("night"), Attributes([]byte("blue")))
		s, err := a.Get(t.Context(), "x")
		if err != nil || !s.Held || s.Token != l.Token() || s.Owner.Label != "night" || string(s.Attributes) != "blue" {
			t.Errorf("Get: got %+v, %v", s, err)
		}
		release(t, l)
		if s, err := a.Get(t.Context(), "x"); err != nil || s.Held {
			t.Errorf("Get of a free name: got %+v, %v", s, err)
		}
	})
}

func TestQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.client(), c.client(WithOwner(leases.Owner{Label: "heir"}))
		defer closing(t, b)
		defer closing(t, a)
		w := queueUp(t, a, b)
		queue, err := a.Queue(t.Context(), "x")
		if err != nil || len(queue) != 2 || queue[0].Owner.Label != "heir" || queue[0].Position != 1 {
			t.Errorf("Queue: got %+v, %v", queue, err)
		}
		release(t, w.lease)
		for i := range w.leases {
			release(t, <-w.leases[i])
		}
	})
}

func TestList(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		var all []*Lease
		for _, name := range []string{"a", "job/5", "job/1", "job/3", "job/2", "job/4", "z"} {
			all = append(all, acquire(t, a, name))
		}
		c.pageSize = 2
		c.set(func(k call) fault {
			if k.n%2 == 1 { // each page only at the second try
				return fault{err: leases.ErrNoQuorum}
			}
			return fault{}
		})
		n := 0
		for s, err := range a.List(t.Context(), "job/") {
			if n++; err != nil || s.Name != fmt.Sprintf("job/%d", n) {
				t.Errorf("lease %d: got %v, %v", n, s.Name, err)
			}
		}
		if n != 5 {
			t.Errorf("%d leases were listed, want 5", n)
		}
		sizes := []int{}
		for page, err := range a.Pages(t.Context(), "") {
			if err != nil || page.At != (leases.Position{Epoch: 1, Revision: 7}) {
				t.Errorf("page: got %v, %v, want one of position 1/7", page.At, err)
			}
			sizes = append(sizes, len(page.Leases))
		}
		if fmt.Sprint(sizes) != "[2 2 2 1]" {
			t.Errorf("pages: got %v leases, want [2 2 2 1]", sizes)
		}
		before := len(c.made("list"))
		for range a.List(t.Context(), "") {
			break
		}
		for range a.Pages(t.Context(), "") {
			break
		}
		if n := len(c.made("list")) - before; n > 4 {
			t.Errorf("%d requests, want a page each for a loop that is left", n)
		}
		c.set(nil)
		for _, l := range all {
			release(t, l)
		}
	})
}

// questions are all that is asked without a conversation, but for a watch.
var questions = map[string]func(context.Context, *Client) error{
	"get":   func(ctx context.Context, a *Client) error { _, err := a.Get(ctx, "x"); return err },
	"queue": func(ctx context.Context, a *Client) error { _, err := a.Queue(ctx, "x"); return err },
	"list": func(ctx context.Context, a *Client) (last error) {
		for _, err := range a.List(ctx, "x") {
			last = err
		}
		return last
	},
}

func TestQuestionsAreRepeated(t *testing.T) {
	for op, ask := range questions {
		for name, f := range map[string]fault{
			"unavailable": {err: leases.ErrUnavailable},
			"not leader":  {err: &leases.NotLeaderError{Node: "n"}},
			"no quorum":   {err: leases.ErrNoQuorum},
			"unknown":     {err: leases.ErrUnknownOutcome},
			"other":       {err: errors.New("a program's fault")},
			"hung":        {lost: true},
		} {
			t.Run(op+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, c *cluster) {
					a := c.client()
					defer closing(t, a)
					c.set(first(3, op, f))
					if err := ask(t.Context(), a); err != nil {
						t.Errorf("got %v, want nil", err)
					}
					if n := len(c.made(op)); n != 4 {
						t.Errorf("%d requests, want 4", n)
					}
				})
			})
		}
	}
}

func TestQuestionsEnd(t *testing.T) {
	for op, ask := range questions {
		for name, test := range map[string]struct {
			f    fault
			took time.Duration
			want []error
		}{
			"no quorum": {fault{err: leases.ErrNoQuorum}, time.Minute, []error{leases.ErrNoQuorum, context.DeadlineExceeded}},
			"hung":      {fault{lost: true}, time.Minute, []error{leases.ErrUnknownOutcome, context.DeadlineExceeded}},
			"invalid":   {fault{err: &leases.InvalidError{Field: "prefix"}}, 0, []error{leases.ErrInvalid}},
			"exhausted": {fault{err: &leases.ExhaustedError{What: "calls"}}, 0, []error{leases.ErrExhausted}},
			"closed":    {fault{err: leases.ErrClosed}, 0, []error{leases.ErrClosed}},
		} {
			t.Run(op+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, c *cluster) {
					a := c.client()
					defer closing(t, a)
					c.set(on(op, test.f))
					began := time.Now()
					mustBe(t, op, ask(within(t, time.Minute), a), test.want...)
					if d := time.Since(began); d != test.took {
						t.Errorf("it took %v, want %v", d, test.took)
					}
					if n := len(c.made(op)); n > 150 {
						t.Errorf("%d requests in a minute: want them to back off", n)
					}
				})
			})
		}
	}
}

// A way that takes long is given the time.
func TestQuestionsOverASlowWay(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.client()
		defer closing(t, a)
		c.set(on("get", fault{slow: 5 * time.Second}))
		if _, err := a.Get(within(t, time.Minute), "x"); err != nil {
			t.Errorf("Get: got %v, want nil", err)
		}
	})
}

func TestQuestionsUnheard(t *testing.T) {
	for op, ask := range questions {
		t.Run(op, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.client()
				c.set(everything(fault{lost: true}))
				mustBe(t, op, ask(within(t, time.Second), a), leases.ErrUnavailable, context.DeadlineExceeded)
				done := make(chan error)
				go func() { done <- ask(context.Background(), a) }()
				time.Sleep(time.Second)
				closing(t, a)
				mustBe(t, op+" while the client is closed", <-done, leases.ErrClosed)
				mustBe(t, op+" after that", ask(context.Background(), a), leases.ErrClosed)
			})
		})
	}
}

func TestQuestionsAboutNoName(t *testing.T) {
	c := newCluster()
	a := c.client()
	defer closing(t, a)
	_, err := a.Get(t.Context(), "@x")
	mustBe(t, "Get", err, leases.ErrInvalid)
	_, err = a.Queue(t.Context(), "")
	mustBe(t, "Queue", err, leases.ErrInvalid)
	if n := len(c.calls); n != 0 {
		t.Errorf("%d requests, want none", n)
	}
}
