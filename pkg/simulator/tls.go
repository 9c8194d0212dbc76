package simulator

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// authority is the CA of the simulator, with the only certificate that it has issued.
type authority struct {
	pem  []byte
	pool *x509.CertPool
	leaf tls.Certificate
}

// The dates of the certificates are fixed. Signing without a source of randomness is deterministic
// (RFC 6979). So the same seed always gives the same certificates.
var (
	notBefore = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	notAfter  = time.Date(2074, 1, 1, 0, 0, 0, 0, time.UTC)
)

func newAuthority(s seed, hosts []string) (*authority, error) {
	caKey, err := s.ecKey("ca")
	if err != nil {
		return nil, err
	}
	leafKey, err := s.ecKey("leaf")
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "notifyd simulator CA"},
		NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	caDER, err := x509.CreateCertificate(nil, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	if ca, err = x509.ParseCertificate(caDER); err != nil {
		return nil, err
	}
	leafDER, err := leafFor(ca, caKey, leafKey, hosts)
	if err != nil {
		return nil, err
	}
	a := &authority{
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
		pool: x509.NewCertPool(),
		leaf: tls.Certificate{Certificate: [][]byte{leafDER, caDER}, PrivateKey: leafKey},
	}
	a.pool.AddCert(ca)
	return a, nil
}

func leafFor(ca *x509.Certificate, caKey, key *ecdsa.PrivateKey, hosts []string) ([]byte, error) {
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "notifyd simulator"},
		NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else if h != "" && h != "localhost" {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	return x509.CreateCertificate(nil, leaf, ca, &key.PublicKey, caKey)
}

func (a *authority) serverConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{a.leaf}}
}
