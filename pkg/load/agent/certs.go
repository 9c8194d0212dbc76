package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The names of the files that WriteCertificates writes.
const (
	CAFile            = "ca.pem"
	AgentFile         = "agent.pem"
	AgentKeyFile      = "agent-key.pem"
	ControllerFile    = "controller.pem"
	ControllerKeyFile = "controller-key.pem"
)

// certificatesFor is how long the certificates of WriteCertificates are valid.
const certificatesFor = 90 * 24 * time.Hour

// WriteCertificates makes a certificate authority and two certificates that the authority
// signs. All certificates are valid for 90 days. The first certificate is for agents. It is
// valid on the hosts, which are names or addresses. The second certificate is for the
// controller. WriteCertificates does not store the private key of the authority, so the
// authority can sign no further certificate. WriteCertificates returns an error if one of the
// files exists.
func WriteCertificates(dir string, hosts []string, now time.Time) error {
	if len(hosts) == 0 {
		return notify.Invalid("bad_agents", "hosts", "must have at least one name or address by which controllers reach the agents")
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "notifyctl load authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificatesFor), KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	raw, err := x509.CreateCertificate(rand.Reader, authority, authority, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	if err := writePEM(dir, CAFile, "CERTIFICATE", raw, 0o644); err != nil {
		return err
	}
	for i, one := range []struct {
		name, file, keyFile string
		use                 x509.ExtKeyUsage
	}{
		{"notifyctl load agent", AgentFile, AgentKeyFile, x509.ExtKeyUsageServerAuth},
		{"notifyctl load controller", ControllerFile, ControllerKeyFile, x509.ExtKeyUsageClientAuth},
	} {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), Subject: pkix.Name{CommonName: one.name}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{one.use},
		}
		for _, h := range hosts {
			if ip := net.ParseIP(h); ip != nil {
				c.IPAddresses = append(c.IPAddresses, ip)
			} else {
				c.DNSNames = append(c.DNSNames, h)
			}
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		raw, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, caKey)
		if err != nil {
			return notify.Invalid("bad_agents", "hosts", err.Error())
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := writePEM(dir, one.file, "CERTIFICATE", raw, 0o644); err != nil {
			return err
		}
		if err := writePEM(dir, one.keyFile, "PRIVATE KEY", der, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func writePEM(dir, name, kind string, raw []byte, mode os.FileMode) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err := pem.Encode(f, &pem.Block{Type: kind, Bytes: raw}); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// ServerTLS returns the TLS configuration of an agent. Its parameters are names of files. If clientCA
// is not empty, the agent accepts only controllers with a certificate that the authority in this file
// signed.
func ServerTLS(cert, key, clientCA string) (*tls.Config, error) {
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c}}
	if clientCA != "" {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		cfg.ClientCAs, err = pool(clientCA)
	}
	return cfg, err
}

// ClientTLS returns the TLS configuration of a controller. Its parameters are names of files. The
// controller accepts agents with a certificate that the authority in the file ca signed. If cert is
// not empty, the controller sends the certificate in the file cert to the agents.
func ClientTLS(ca, cert, key string) (*tls.Config, error) {
	roots, err := pool(ca)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	if cert != "" {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		cfg.Certificates = []tls.Certificate{c}
	}
	return cfg, nil
}

func pool(file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s contains no certificate in PEM format", file)
	}
	return p, nil
}
