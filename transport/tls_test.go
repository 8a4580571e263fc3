package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/mux"
)

// load loads a certificate that a issues.
func (a *authority) load(name string, changes ...func(*x509.Certificate)) *transport.TLS {
	a.t.Helper()
	certFile, keyFile := a.issue(name, changes...)
	t, err := transport.LoadTLS(certFile, keyFile, a.caFile)
	if err != nil {
		a.t.Fatal(err)
	}
	return t
}

func withTLS(t *transport.TLS) func(*transport.ServerConfig) {
	return func(cfg *transport.ServerConfig) { cfg.TLS = t }
}

func TestMutualTLS(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	ca := newAuthority(t)
	caller := make(chan string, 1)
	n := serve(t, &backend{}, withTLS(ca.load("n1")), func(cfg *transport.ServerConfig) {
		cfg.Status = func(ctx context.Context, _ *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
			p, _ := peer.FromContext(ctx)
			caller <- p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName
			return &coorddv1.StatusResponse{Cluster: &coorddv1.ClusterStatus{Serving: true}}, nil
		}
	})
	mine := ca.load("client")
	c := dial(t, transport.DialConfig{Addrs: []string{n.addr}, TLS: mine})
	s, err := c.Open(ctx, leases.NewID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(ctx, claim("a")); err != nil {
		t.Errorf("Acquire: %v", err)
	}
	if _, err := c.Status(ctx, ""); err != nil {
		t.Fatalf("Status: %v", err)
	}
	if got := <-caller; got != "client" {
		t.Errorf("the handler sees the caller %q, want client", got)
	}
	conn, err := mux.DialRaft(ctx, transport.TCP().Dial, n.addr, mine.Client, mux.Hello{To: "n1", From: "n2"})
	if err != nil {
		t.Fatalf("DialRaft: %v", err)
	}
	defer conn.Close()
	accepted, err := n.Raft().Accept()
	if err != nil {
		t.Fatal(err)
	}
	go accepted.Write([]byte("hello"))
	b := make([]byte, 5)
	if _, err := conn.Read(b); err != nil || string(b) != "hello" {
		t.Errorf("over the Raft connection: got %q, %v", b, err)
	}
}

func TestTLSMismatches(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	secure, plain := serve(t, &backend{}, withTLS(ca.load("n1"))).addr, serve(t, &backend{}).addr
	elsewhere := serve(t, &backend{}, withTLS(ca.load("n2", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"n2.example"} }))).addr
	mine := ca.load("client")
	half := func(certs ...tls.Certificate) *transport.TLS {
		return &transport.TLS{Client: &tls.Config{RootCAs: mine.Client.RootCAs, Certificates: certs}}
	}
	foreign := other.load("stranger")
	foreign.Client.RootCAs = mine.Client.RootCAs // it trusts the server, not the other way round
	old := ca.load("old", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	expired, err := tls.LoadX509KeyPair(ca.issue("expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }))
	if err != nil {
		t.Fatal(err)
	}
	old.Client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &expired, nil }

	for _, c := range []struct {
		name string
		tls  *transport.TLS
		addr string
		says string
	}{
		{"a plaintext client", nil, secure, "the server requires TLS, and this side speaks plaintext"},
		{"a plaintext server", mine, plain, "the server speaks plaintext, and this side wants TLS"},
		{"no certificate", half(), secure, "requires a client certificate issued by its CA, and this side sent none"},
		{"no client half", &transport.TLS{}, secure, "was not issued by the CA that this side trusts"},
		{"a certificate of another CA", foreign, secure, "does not accept this side's certificate: another CA has issued it"},
		{"a certificate that has expired", old, secure, "does not accept this side's certificate: it has expired"},
		{"a server of another CA", other.load("lost"), secure, "was not issued by the CA that this side trusts"},
		{"a server of another name", mine, elsewhere, "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "rpc error") {
					t.Errorf("%s: got %v, want one line that says %q", what, err, c.says)
				}
			}
			ctx := timeout(t, 10*time.Second)
			conn := dial(t, transport.DialConfig{Addrs: []string{c.addr}, TLS: c.tls})
			_, err := conn.Open(ctx, leases.NewID(), nil)
			check("Open", err)
			if !errors.Is(err, leases.ErrUnavailable) {
				t.Errorf("Open: got %v, want unavailable", err)
			}
			_, err = conn.Status(ctx, "")
			check("Status", err)
			_, err = coorddv1.NewCoorddClient(clientConn(t, c.addr, c.tls)).Status(ctx, &coorddv1.StatusRequest{})
			check("a unary call", err)
			var client *tls.Config
			if c.tls != nil {
				if client = c.tls.Client; client == nil {
					client = &tls.Config{}
				}
			}
			raft, err := mux.DialRaft(ctx, transport.TCP().Dial, c.addr, client, mux.Hello{})
			check("DialRaft", err)
			if err == nil {
				raft.Close()
			}
		})
	}
	for _, addr := range []string{secure, plain} {
		var t1 *transport.TLS
		if addr == secure {
			t1 = mine
		}
		if _, err := dial(t, transport.DialConfig{Addrs: []string{addr}, TLS: t1}).Open(timeout(t, 10*time.Second), leases.NewID(), nil); err != nil {
			t.Errorf("the server afterwards: %v", err)
		}
	}
}

func TestServerNameIsTheDialedHost(t *testing.T) {
	ca := newAuthority(t)
	n := newNetwork()
	n.point("n2.example:7420", serve(t, &backend{}, withTLS(ca.load("n2", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"n2.example"} }))).addr)
	c := dial(t, transport.DialConfig{Addrs: []string{"n2.example:7420"}, TLS: ca.load("client"), Network: n})
	if _, err := c.Open(timeout(t, 10*time.Second), leases.NewID(), nil); err != nil {
		t.Errorf("by its DNS name: %v", err)
	}
}

func TestAServerHalfThatIsMissingIsNotPlaintext(t *testing.T) {
	n := serve(t, &backend{}, withTLS(&transport.TLS{}))
	if _, err := dial(t, transport.DialConfig{Addrs: []string{n.addr}}).Open(timeout(t, 10*time.Second), leases.NewID(), nil); err == nil {
		t.Error("a server without its half of TLS speaks plaintext")
	}
}

func TestLoadTLSNamesWhatIsWrong(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue("n1")
	_, otherKey := ca.issue("n2")
	expired, expiredKey := ca.issue("n3", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	early, earlyKey := ca.issue("n4", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	garbage := ca.write("garbage.pem", "CERTIFICATE", []byte("?"))
	oldCA := newAuthority(t)
	oldCA.cert.NotAfter = time.Now().Add(-time.Minute)
	oldCA.cert.Subject = pkix.Name{CommonName: "old CA"}
	oldFile := oldCA.write("old.pem", "CERTIFICATE", oldCA.sign(oldCA.cert, oldCA.key))
	for _, c := range []struct {
		name          string
		cert, key, ca string
		says          []string
	}{
		{"no certificate given", "", key, ca.caFile, []string{"no certificate file"}},
		{"no key given", cert, "", ca.caFile, []string{"no key file"}},
		{"no CA given", cert, key, "", []string{"no CA file"}},
		{"no certificate there", "/nowhere/c", key, ca.caFile, []string{"certificate", "/nowhere/c", "no such file"}},
		{"no key there", cert, "/nowhere/k", ca.caFile, []string{"key", "/nowhere/k", "no such file"}},
		{"no CA there", cert, key, "/nowhere/ca", []string{"CA", "/nowhere/ca", "no such file"}},
		{"a key for a certificate", key, key, ca.caFile, []string{key}},
		{"a key that does not fit", cert, otherKey, ca.caFile, []string{cert, otherKey, "does not match"}},
		{"a certificate that has expired", expired, expiredKey, ca.caFile, []string{expired, "expired on", "n3"}},
		{"a certificate of tomorrow", early, earlyKey, ca.caFile, []string{early, "not valid before"}},
		{"a key for a CA", cert, key, key, []string{key, "no certificate in PEM form"}},
		{"garbage for a CA", cert, key, garbage, []string{garbage}},
		{"a CA that has expired", cert, key, oldFile, []string{oldFile, "expired on", "old CA"}},
	} {
		_, err := transport.LoadTLS(c.cert, c.key, c.ca)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: got %q, want it to say %q", c.name, err, s)
			}
		}
	}
}

func TestCertificatesAreReadAnew(t *testing.T) {
	ca := newAuthority(t)
	certFile, keyFile := ca.issue("n1")
	loaded, err := transport.LoadTLS(certFile, keyFile, ca.caFile)
	if err != nil {
		t.Fatal(err)
	}
	subject := func() string {
		t.Helper()
		server, err := loaded.Server.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := loaded.Client.GetClientCertificate(nil)
		if err != nil || client != server {
			t.Errorf("the client half has another certificate: %v", err)
		}
		return server.Leaf.Subject.CommonName
	}
	replace := func(file string, with []byte) {
		t.Helper()
		// Renamed, as rotation does, so that no other reader sees half a file.
		if err := os.WriteFile(file+".new", with, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string) []byte {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if got := subject(); got != "n1" {
		t.Errorf("got %q, want n1", got)
	}
	newCert, newKey := ca.issue("a longer name")
	replace(certFile, read(newCert))
	if got := subject(); got != "n1" {
		t.Errorf("with a certificate that does not fit the key: got %q, want the old one", got)
	}
	replace(keyFile, read(newKey))
	if got := subject(); got != "a longer name" {
		t.Errorf("with both files new: got %q, want the new one", got)
	}
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	if got := subject(); got != "a longer name" {
		t.Errorf("with no file: got %q, want the last good one", got)
	}
}

// A client's certificate opens conversations, but speaks no Raft.
func TestClientSpeaksNoRaft(t *testing.T) {
	ctx := timeout(t, 20*time.Second)
	ca := newAuthority(t)
	n := serve(t, &backend{}, withTLS(ca.load("n1")))
	for name, usages := range map[string][]x509.ExtKeyUsage{"client": {x509.ExtKeyUsageClientAuth}, "of no usage": nil} {
		theirs := ca.load("client", func(c *x509.Certificate) { c.ExtKeyUsage = usages })
		c := dial(t, transport.DialConfig{Addrs: []string{n.addr}, TLS: theirs})
		if _, err := c.Open(ctx, leases.NewID(), nil); err != nil {
			t.Errorf("%s: Open: %v", name, err)
		}
		_, err := mux.DialRaft(ctx, transport.TCP().Dial, n.addr, theirs.Client, mux.Hello{To: "n1", From: "n2"})
		var refused *mux.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "serverAuth") {
			t.Errorf("%s: DialRaft: got %v, want a refusal that names what the certificate lacks", name, err)
		}
	}
}
