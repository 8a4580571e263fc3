package k8slock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/client/k8slock"
	"github.com/coordd/coordd/node"
	"github.com/coordd/coordd/tokens"
)

// controller does what the controller is there for, until ctx ends.
func controller(ctx context.Context, token tokens.Token) {
	// It passes the token to the stores that it writes to.
	fmt.Println("leading under token", token)
	<-ctx.Done()
}

func Example() {
	c, stop := embedded() // or client.Dial, to a cluster elsewhere
	defer stop()

	// Instead of resourcelock.New, this line changes:
	lock, err := k8slock.New(c, "my-controller", k8slock.Identity("pod-1"))
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ctx = klog.NewContext(ctx, logr.Discard()) // to keep the example quiet

	// With these two, the leader's context ends with the lease at the latest.
	ctx, done := lock.Bind(ctx)
	defer done()

	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				go cancel() // enough for an example
				controller(ctx, lock.Token())
			},
			OnStoppedLeading: func() { fmt.Println("stopped leading") },
		},
	})
	// Unordered output:
	// leading under token 4294967297
	// stopped leading
}

// embedded returns a client of a cluster of one node in this process.
func embedded() (c *client.Client, stop func()) {
	n, err := node.New(node.Config{Name: "n1", InMemory: true, Listen: "127.0.0.1:0", Bootstrap: true, ElectionTimeout: 300 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	c = client.New(n)
	return c, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			log.Print(err)
		}
		if err := n.Close(ctx); err != nil {
			log.Print(err)
		}
	}
}
