// Package k8slock elects the leader of a Kubernetes controller by a coordd
// lease, so that its candidates may be spread over several Kubernetes clusters.
// A Lock stands in for the Lease object in client-go's leaderelection. One line
// changes, in which c is a client.Client, closed after the election:
//
//	lock, err := k8slock.New(c, "my-controller", k8slock.Identity(id)) // was resourcelock.New(...)
//	...
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock:            lock,
//		LeaseDuration:   15 * time.Second,
//		RenewDeadline:   10 * time.Second,
//		RetryPeriod:     2 * time.Second,
//		ReleaseOnCancel: true,
//		Callbacks:       callbacks,
//	})
//
// With controller-runtime the lock is the manager's
// LeaderElectionResourceLockInterface.
//
// # What keeps two from leading
//
// The lease does, not the times in the record: a lock leads only while it holds
// a coordd lease by its own clock, and nobody else is granted that lease before
// then. leaderelection does not ask all the time, but it tells the leader to stop
// RenewDeadline plus RetryPeriod after its last renewal at the latest. So a
// renewal succeeds only if the lease outlasts that; for this, keep the two
// together within 90 % of LeaseDuration, as the usual 10, 2 and 15 s are.
//
// leaderelection counts by timers that stand still while the machine is
// suspended, and does not know that an operator breaks a lease. Bind lets the
// lease itself end the election, at its deadline by a clock that counts suspend,
// or when it is broken; then other times than those above are safe too:
//
//	ctx, cancel := lock.Bind(ctx)
//	defer cancel()
//	leaderelection.RunOrDie(ctx, config)
//
// Neither helps a process that is stopped between a look at its context and a
// write. For that there is the fencing token, which leaderelection lacks: pass
// lock.Token(), read once where OnStartedLeading begins, to the stores that are
// written to, and let them refuse an older one.
//
// A lease that was lost is never taken anew within the same Run: until
// leaderelection has stopped leading every renewal fails. So each term has a
// lease and a token of its own.
//
// # How soon another one leads
//
// A lease that is given back is free at once, and is taken by the first candidate
// that looks: they do so every RetryPeriod or, with client-go's jitter, up to 2.2
// times that. They do not queue. If its holder dies, its lease lapses at the
// latest 1.01 times LeaseDuration after its last renewal; if the leader of the
// coordd cluster dies too, after the next one has begun to serve.
//
// # How it differs from a Lease object
//
// LeaseDuration is the lease's TTL, from leases.MinTTL to leases.MaxTTL.
// leaderelection hands it over in whole seconds, so do not use fractions.
//
// ReleaseOnCancel gives the lease back if Run's context is cancelled; as with any
// lock, the leader's work must have ended before. It does not if the lease could
// not be renewed in time: client-go would do it before it tells the leader to
// stop. Then, and without ReleaseOnCancel, the lease is free when its deadline
// has passed or, if that is sooner, when the client is closed after the Run, or
// its candidate stands again. A lease that an operator has broken lapses, unless
// its candidate stands again before.
//
// A candidate that is restarted under its old identity waits for its old lease
// to lapse, like anybody else. LeaderTransitions are kept with the lease; while
// it is free only candidates remember them. Coordinated elections are not
// supported.
//
// The command coordd lease get shows who leads, as the owner's label.
package k8slock
