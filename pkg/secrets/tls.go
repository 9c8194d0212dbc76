package secrets

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TLS configures connections to a server. The server's certificate is always verified; no
// setting turns that off. The minimum is TLS 1.2.
type TLS struct {
	Enabled    bool   `koanf:"enabled" doc:"true: connect with TLS and verify the server's certificate"`
	CAFile     string `koanf:"ca_file" doc:"PEM of the CA that signed the server's certificate; empty: the system's CAs"`
	CertFile   string `koanf:"cert_file" doc:"PEM of the certificate that notifyd shows to a server that asks for one"`
	KeyFile    string `koanf:"key_file" doc:"PEM of the private key of cert_file"`
	ServerName string `koanf:"server_name" doc:"name that the server's certificate must have; empty: the host to which notifyd connects"`
}

// Config reads the files and returns the configuration of connections, or nil if TLS is off. An
// error contains the name of the setting, which begins with key. Each connection reads the client
// certificate again, so a renewed certificate needs no restart.
func (t TLS) Config(key string) (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, badTLS(key+".ca_file", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, badTLS(key+".ca_file", fmt.Errorf("no certificate in %s", t.CAFile))
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, badTLS(key, errors.New("set both cert_file and key_file, or neither"))
	}
	if t.CertFile == "" {
		return out, nil
	}
	read := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		err := CheckFile(t.KeyFile)
		if e, exposed := errors.AsType[*notify.Error](err); exposed {
			e.Field = key + ".key_file"
			return nil, e
		}
		if err != nil {
			return nil, badTLS(key+".key_file", err)
		}
		c, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, badTLS(key+".cert_file", err)
		}
		return &c, nil
	}
	_, err := read(nil)
	out.GetClientCertificate = read
	return out, err
}

func badTLS(field string, err error) error {
	return &notify.Error{Kind: notify.KindInvalid, Code: "bad_config", Field: field, Msg: "cannot be used", Err: err}
}
