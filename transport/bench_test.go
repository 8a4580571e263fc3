package transport_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// BenchmarkAcquire measures the wire alone: the backend answers at once.
func BenchmarkAcquire(b *testing.B) {
	ca := newAuthority(b)
	for _, secured := range []bool{false, true} {
		for _, callers := range []int{1, 512} {
			b.Run(fmt.Sprintf("tls=%v/callers=%d", secured, callers), func(b *testing.B) {
				var server, client *transport.TLS
				if secured {
					server, client = ca.load("n1"), ca.load("client")
				}
				n := serve(b, &backend{}, withTLS(server))
				s, err := dial(b, transport.DialConfig{Addrs: []string{n.addr}, TLS: client}).Open(b.Context(), leases.NewID(), nil)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				var running sync.WaitGroup
				for i := range callers {
					running.Go(func() {
						c := claim("a")
						for range (b.N + i) / callers {
							if _, err := s.Acquire(context.Background(), c); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				running.Wait()
			})
		}
	}
}
