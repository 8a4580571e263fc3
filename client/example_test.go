package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"slices"
	"time"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/tokens"
)

// embedded starts a cluster of one node in this process, in memory. stop ends
// it; whoever uses it closes its clients before.
func embedded() (n *node.Node, stop func()) {
	n, err := node.New(node.Config{
		Name: "n1", InMemory: true, Listen: "127.0.0.1:0", Bootstrap: true, ElectionTimeout: 300 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	return n, func() { closing(n) }
}

// closing ends a client or a node, in bounded time.
func closing(c interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		log.Print(err)
	}
}

func ExampleClient_Acquire() {
	n, stop := embedded()
	defer stop()
	c := client.New(n) // or Dial, to a cluster elsewhere
	defer closing(c)

	ctx := context.Background() // with a deadline it would give up
	lease, err := c.Acquire(ctx, "nightly-report", client.TTL(30*time.Second), client.Label("reporter"))
	if err != nil {
		log.Fatal(err)
	}

	_, err = c.TryAcquire(ctx, "nightly-report")
	var held *leases.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.By.Label)
	}

	// Work as long as lease.Context() goes on, and pass lease.Token() to stores.

	if err := lease.Release(ctx); err != nil {
		log.Print(err)
	}
	state, err := c.Get(ctx, "nightly-report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held now:", state.Held)
	// Output:
	// held by reporter
	// held now: false
}

func ExampleClient_Run() {
	n, stop := embedded()
	defer stop()
	c := client.New(n)
	defer closing(c)

	err := c.Run(context.Background(), "nightly-report", func(ctx context.Context) error {
		lease, _ := client.FromContext(ctx)
		fmt.Println("reporting under token", lease.Token())
		return ctx.Err() // it ends when the lease does
	})
	fmt.Println("error:", err)
	// Output:
	// reporting under token 4294967297
	// error: <nil>
}

func ExampleClient_Elect() {
	n, stop := embedded()
	defer stop()
	c := client.New(n)
	defer closing(c)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e := c.Elect(ctx, "scheduler", client.Label("replica 1"))
	var last tokens.Token
	for term := range e.Terms() { // once for each time that this replica leads
		fmt.Println("leading, under a greater token than before:", term.Token() > last)
		if last != 0 {
			cancel() // enough: leave the election
		}
		last = term.Token()
		// Here it would lead until <-term.Context().Done().
	}
	fmt.Println(e.Err())
	// Output:
	// leading, under a greater token than before: true
	// leading, under a greater token than before: true
	// election "scheduler": context canceled
}

func ExampleLease_Transfer() {
	n, stop := embedded()
	defer stop()
	old, young := client.New(n), client.New(n)
	defer closing(old)
	defer closing(young)

	ctx := context.Background()
	lease, err := old.Acquire(ctx, "primary")
	if err != nil {
		log.Fatal(err)
	}
	queued, heir := make(chan int, 1), make(chan *client.Lease)
	go func() {
		defer close(heir)
		defer close(queued)
		l, err := young.Acquire(ctx, "primary", client.Label("young"), client.OnQueued(func(position int) {
			select {
			case queued <- position:
			default:
			}
		}))
		if err != nil {
			log.Print(err)
			return
		}
		heir <- l
	}()
	fmt.Println("place in the queue:", <-queued)

	waiters, err := old.Queue(ctx, "primary")
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range waiters {
		if w.Owner.Label != "young" {
			continue
		}
		passedOn, err := lease.Transfer(ctx, w.Attempt) // from here on the lease is over
		fmt.Println("passed on:", passedOn, err)
		break
	}
	if l := <-heir; l != nil {
		fmt.Println("the heir has a greater token:", l.Token() > lease.Token())
		if err := l.Release(ctx); err != nil {
			log.Print(err)
		}
	}
	// Output:
	// place in the queue: 1
	// passed on: true <nil>
	// the heir has a greater token: true
}

// mirror is under which tokens leases are held, by their names.
type mirror map[string]tokens.Token

// keep keeps the mirror as the leases are whose names begin with prefix, until
// ctx ends. It calls changed whenever it may have changed.
func (m mirror) keep(ctx context.Context, c *client.Client, prefix string, changed func()) error {
	for {
		if err := m.follow(ctx, c, prefix, changed); !errors.Is(err, leases.ErrMissed) {
			return err
		}
	}
}

// follow is keep until changes are missed.
func (m mirror) follow(ctx context.Context, c *client.Client, prefix string, changed func()) error {
	clear(m)
	var from leases.Position
	for page, err := range c.Pages(ctx, prefix) {
		if err != nil {
			return err
		}
		if from == (leases.Position{}) {
			from = page.At // of the first one: later pages may be newer
		}
		for _, lease := range page.Leases {
			m[lease.Name] = lease.Token
		}
	}
	for batch, err := range c.Watch(ctx, prefix, client.From(from)) {
		if err != nil {
			return err
		}
		for _, change := range batch.Changes {
			switch {
			case change.Free:
				delete(m, change.Name)
			case change.Kind == leases.ChangeGranted:
				m[change.Name] = change.Token
			case change.Kind == leases.ChangeTransferred:
				m[change.Name] = change.Next
			}
		}
		changed()
	}
	return nil
}

// A mirror of the leases: list them, then watch from the list's place on.
func ExampleClient_Watch() {
	n, stop := embedded()
	defer stop()
	c := client.New(n)
	defer closing(c)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	acquire := func(name string) *client.Lease {
		lease, err := c.Acquire(ctx, name)
		if err != nil {
			log.Fatal(err)
		}
		return lease
	}

	first := acquire("job/1")
	names, ended := make(chan []string), make(chan error, 1)
	go func() {
		defer close(names)
		held := mirror{}
		ended <- held.keep(ctx, c, "job/", func() { names <- slices.Sorted(maps.Keys(held)) })
	}()
	fmt.Println(<-names)
	second := acquire("job/2")
	fmt.Println(<-names)
	if err := first.Release(ctx); err != nil {
		log.Print(err)
	}
	fmt.Println(<-names)
	if err := second.Release(ctx); err != nil {
		log.Print(err)
	}
	fmt.Println(<-names)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// [job/1]
	// [job/1 job/2]
	// [job/2]
	// []
	// watch leases "job/": context canceled
}
