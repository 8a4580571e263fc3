package transport

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
	"time"
)

// TLS is how a node or a client proves who it is, and whom it trusts. It is
// mutual: both ends show a certificate. A nil *TLS is plaintext.
type TLS struct {
	Server *tls.Config // of a listening node; nil for a mere client
	// Client is for dialing. Its ServerName should be empty: the server's
	// certificate is then checked against the host that was dialed.
	Client *tls.Config
}

// server and client are nil for plaintext only: where a half is missing the
// handshakes fail, and nobody who asked for TLS goes without it.
func (t *TLS) server() *tls.Config {
	if t == nil {
		return nil
	}
	return cmp.Or(t.Server, new(tls.Config))
}

func (t *TLS) client() *tls.Config {
	if t == nil {
		return nil
	}
	return cmp.Or(t.Client, new(tls.Config))
}

// LoadTLS reads a certificate with its key, and the certificates of the CA
// that issues those of all nodes and clients, from PEM files. Certificate and
// key are read again when their files change, so a rotation needs no restart;
// while the new ones are unusable the old ones stay, until they expire. The
// CA's file is read once. Each error names the file.
func LoadTLS(certFile, keyFile, caFile string) (*TLS, error) {
	for _, f := range []struct{ what, path string }{{"certificate", certFile}, {"key", keyFile}, {"CA", caFile}} {
		if f.path == "" {
			return nil, fmt.Errorf("no %s file: TLS needs a certificate, its key and the CA's certificate", f.what)
		}
	}
	pool, err := readCA(caFile)
	if err != nil {
		return nil, err
	}
	pair := &keyPair{certFile: certFile, keyFile: keyFile}
	if _, err := pair.current(); err != nil {
		return nil, err
	}
	return &TLS{
		Server: &tls.Config{
			MinVersion:     tls.VersionTLS13,
			ClientAuth:     tls.RequireAndVerifyClientCert,
			ClientCAs:      pool,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.current() },
		},
		Client: &tls.Config{
			MinVersion: tls.VersionTLS13,
			RootCAs:    pool,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return pair.current()
			},
		},
	}, nil
}

func readCA(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	pool, found := x509.NewCertPool(), false
	var expired error
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("CA file %s: %w", file, err)
		}
		if err := inForce(cert); err != nil {
			expired = err
			continue
		}
		pool.AddCert(cert)
		found = true
	}
	switch {
	case found:
		return pool, nil
	case expired != nil:
		return nil, fmt.Errorf("CA file %s: %w", file, expired)
	}
	return nil, fmt.Errorf("CA file %s: it has no certificate in PEM form", file)
}

// inForce judges by the time of day, as certificates do.
func inForce(cert *x509.Certificate) error {
	switch now := time.Now(); {
	case now.After(cert.NotAfter):
		return fmt.Errorf("the certificate of %q expired on %s", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("the certificate of %q is not valid before %s", cert.Subject, cert.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// keyPair is a certificate and its key in two files.
type keyPair struct {
	certFile, keyFile string

	mu     sync.Mutex // guards what follows
	loaded *tls.Certificate
	read   [2]os.FileInfo // of the files when they were last read, whatever came of it; nil: there was none
	failed error          // of that reading
}

// current returns the files' certificate, or the last good one.
func (k *keyPair) current() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := [2]os.FileInfo{stat(k.certFile), stat(k.keyFile)}
	if !unchanged(k.read[0], now[0]) || !unchanged(k.read[1], now[1]) || k.loaded == nil {
		k.read = now
		var cert *tls.Certificate
		if cert, k.failed = readKeyPair(k.certFile, k.keyFile); k.failed == nil {
			k.loaded = cert
		}
	}
	if k.loaded == nil {
		return nil, k.failed
	}
	if err := inForce(k.loaded.Leaf); err != nil {
		if k.failed != nil {
			return nil, fmt.Errorf("certificate file %s: %w, and reading it anew failed: %w", k.certFile, err, k.failed)
		}
		return nil, fmt.Errorf("certificate file %s: %w", k.certFile, err)
	}
	return k.loaded, nil
}

// stat returns nil where there is no file.
func stat(file string) os.FileInfo {
	info, err := os.Stat(file)
	if err != nil {
		return nil
	}
	return info
}

// unchanged reports whether a name still stands for the same file. One that was
// put in its place may be as long and, as clocks of file systems go, as old.
func unchanged(before, now os.FileInfo) bool {
	if before == nil || now == nil {
		return before == nil && now == nil
	}
	return os.SameFile(before, now) && before.ModTime().Equal(now.ModTime()) && before.Size() == now.Size()
}

func readKeyPair(certFile, keyFile string) (*tls.Certificate, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate file %s with key file %s: %w", certFile, keyFile, err)
	}
	return &cert, nil
}
