package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coordd/coordd/transport"
)

// certAuthority issues certificates for 127.0.0.1 into a folder of its own.
type certAuthority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCertAuthority(t *testing.T) *certAuthority {
	t.Helper()
	a := &certAuthority{t: t, dir: t.TempDir()}
	a.cert = certificate("test CA")
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	a.key = a.write(a.cert, "ca")
	return a
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

// files has a certificate, its key and that of its authority, as flags name them.
type files struct{ cert, key, ca string }

// issue writes a certificate that is good for both ends.
func (a *certAuthority) issue(name string) files {
	a.t.Helper()
	cert := certificate(name)
	cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	a.write(cert, name)
	return files{a.path(name + ".pem"), a.path(name + ".key"), a.path("ca.pem")}
}

func (f files) load(t *testing.T) *transport.TLS {
	t.Helper()
	tls, err := transport.LoadTLS(f.cert, f.key, f.ca)
	if err != nil {
		t.Fatal(err)
	}
	return tls
}

func (f files) flags() []string { return []string{"--cert", f.cert, "--key", f.key, "--ca", f.ca} }

// write signs a certificate and writes it and its new key. The authority's own
// it signs with that key.
func (a *certAuthority) write(cert *x509.Certificate, name string) *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	signed, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, b := range []struct {
		file  string
		block pem.Block
	}{
		{name + ".pem", pem.Block{Type: "CERTIFICATE", Bytes: signed}},
		{name + ".key", pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}},
	} {
		if err := os.WriteFile(a.path(b.file), pem.EncodeToMemory(&b.block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return key
}

func (a *certAuthority) path(file string) string { return filepath.Join(a.dir, file) }
